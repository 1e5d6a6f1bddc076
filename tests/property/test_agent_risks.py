"""Risks that are decoded on first use mean the same as risks decoded at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from heddle_agent.fib import Link
from heddle_agent.session.decode import decode_push
from heddle_agent.table import Forwarding, Operations, Push, table_digest
from tests.support.agent_controllers import wire_push
from tests.support.agent_worlds import SPINES, fib, forwarding, take, uplink

FAR = [f"leaf{number}" for number in (7, 8)]
PUSHES = st.lists(
    st.tuples(
        st.lists(
            st.tuples(
                st.just("nic0"),
                st.sampled_from(["far0", "far1", "far2"]),
                st.sampled_from([0, 100]),
                st.integers(0, 3),
                st.none() | st.integers(0, 3),
            ),
            unique_by=lambda row: row[:3],
            max_size=6,
        ),
        st.booleans(),
        st.sampled_from([(spine.node, leaf) for spine in SPINES for leaf in FAR]),
        st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, *FAR]), st.booleans())),
    ),
    max_size=12,
)


Row: TypeAlias = tuple[str, str, int, int, int | None]
Told: TypeAlias = tuple[list[Row], bool, tuple[str, str], list[tuple[int, str | None, bool]]]


def link(spine: int, leaf: str | None) -> Link:
    """An uplink of this switch, or a link between a spine and another leaf."""
    return uplink(spine) if leaf is None else Link.between(f"spine{spine}", leaf)


def read(push: Push) -> Push:
    """The same push with its columns decoded at once."""
    told = push.operations
    operations = Operations(told.matches, told.groups, list(told.keys), told.addresses, told.hops)
    return replace(push, operations=operations)


def leaving(switch: Forwarding) -> dict[object, object]:
    """For each match: primary, backup, risks and the choice that is in use."""
    table = switch.table
    return {
        match: (group.primary, group.backup, group.risks, table.diverted.get(group))
        for match, group in table.programmed.items()
    }


@given(PUSHES)
def test_it_makes_no_difference_when_risks_are_read(pushes: list[Told]) -> None:
    """After any pushes and lost links, entries and choices are the same either way."""
    late, early = forwarding(fib()), forwarding(fib())
    for generation, (rows, full, risk, changes) in enumerate(pushes, 1):
        wire = wire_push(
            *rows,
            generation=generation,
            full=full,
            sweep=full,
            risk=risk,
        )
        take(late, decode_push(wire))
        take(early, read(decode_push(wire)))
        assert late.held == early.held
        for spine, leaf, up in changes:
            late.links_changed({link(spine, leaf): up})
            early.links_changed({link(spine, leaf): up})
        assert late.table.stale == early.table.stale
        if generation % 3 == 0:
            assert leaving(late) == leaving(early)
            assert table_digest(late.table.programmed) == table_digest(early.table.programmed)
    assert leaving(late) == leaving(early)
