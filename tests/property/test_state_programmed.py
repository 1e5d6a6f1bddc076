"""``Programmed``, one generation with exceptions, against one generation for each switch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.program import Program
from heddle_controller.state.records import Committed, PlanFacts, Programmed
from tests.support.depth import examples
from tests.support.store_samples import clos, plan_of, program_of

FABRIC = clos()
SWITCHES = ("l0", "l1", "s0", "s1")
WITH_ENTRIES = ("l0",)

tables = st.builds(
    Programmed,
    st.integers(0, 4),
    st.dictionaries(st.sampled_from(SWITCHES), st.integers(0, 4)),
    st.floats(0, 9),
)


@pytest.mark.deep
@settings(max_examples=examples(50))
@given(st.lists(tables, max_size=5))
def test_of_each_switch_the_newest_generation_counts(told: list[Programmed]) -> None:
    """Joined in any order, facts give the newest generation of each switch."""
    held = Programmed()
    for one in told:
        held = held.joined(one)
    for switch in SWITCHES:
        assert held.of(switch) == max((one.of(switch) for one in told), default=0)
    assert held.newest == max((one.newest for one in told), default=0)
    assert all(at != held.generation for at in held.others.values())


@pytest.mark.deep
@settings(max_examples=examples(50))
@given(tables, st.integers(1, 4))
def test_what_is_told_of_a_plan_follows_from_each_switch(held: Programmed, generation: int) -> None:
    """Who lacks a plan, up to which plan all have come, and who has come no further."""
    plan = plan_of(FABRIC)
    entries = program_of(plan, 1, generation).entries
    done = Committed(plan, Program(1, generation, 1, entries), PlanFacts(), held)
    lacking = tuple(s for s in WITH_ENTRIES if held.of(s) < generation)
    assert done.switches() == WITH_ENTRIES
    assert done.switch_count == len(WITH_ENTRIES)
    assert done.lacking() == lacking
    assert done.programmed_time() == (0.0 if lacking else held.time)
    least = min(held.of(switch) for switch in SWITCHES)
    if least >= generation:
        assert done.settled() == (generation, ())
    else:
        behind = {switch for switch in SWITCHES if held.of(switch) == least}
        at, names = done.settled()
        assert (at, set(names), len(names)) == (least, behind, len(behind))


@settings(max_examples=examples(20))
@given(tables)
def test_switches_that_come_hold_nothing(held: Programmed) -> None:
    """A new switch holds nothing, and nothing is kept of a switch that is gone."""
    after = held.on_others(["s9"], ["l0"])
    assert after.of("s9") == 0
    assert "l0" not in after.others
    assert [after.of(s) for s in SWITCHES[1:]] == [held.of(s) for s in SWITCHES[1:]]
