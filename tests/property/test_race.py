"""Failures, repairs, plans, pushes and acks in any order leave no flow on a known dead path."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heddle_agent.fib import Batch
from heddle_agent.table.program import pending
from heddle_agent.table.state import Table
from tests.race.race import raced
from tests.race.wild import WILD
from tests.support.depth import examples

SEEDS = st.integers(0, 2**32)


@settings(max_examples=examples(1, 100))
@given(SEEDS)
@example(44)  # down and up again inside a zone, at risk by the old way beyond the new
@example(0)  # two zones: a packet meets entries at more than one switch
@example(40)  # a backup that the underlay did not follow, as its links were others
@example(367)  # entries that only a leader gone by then knew of, in the order of a third plan
@example(399)  # a backup by a spine from which packets came back
def test_no_race_leaves_a_flow_on_a_dead_path(seed: int) -> None:
    """In eight races, no packet ever goes over a link that its switch knows is down.

    Once all switches know the losses, all packets arrive. Every race settles with each switch
    holding the newest plan.
    """
    told = raced(seed, 8)
    assert not told.troubles, told
    assert told.races == 8


@settings(max_examples=examples(1, 100))
@given(SEEDS)
@example(4)
@example(630991827)  # a way ordered by what was lost then, taken apart when that was mended
def test_no_wild_race_leaves_a_flow_on_a_dead_path(seed: int) -> None:
    """The same holds with more failures at once, more fabrics, and switches that forget."""
    told = raced(seed, 5, WILD)
    assert not told.troubles, told


def test_a_controller_that_dies_as_it_is_given_the_lead() -> None:
    """If a controller dies just as it gets the lead, the next one leads.

    With seed 279, the store grants the lead to a controller that is already gone.
    """
    told = raced(279)
    assert not told.troubles, told


def test_a_leader_that_follows_one_whose_plan_followed_another_half_done() -> None:
    """Entries left by the oldest of three plans are removed in the right order."""
    told = raced(456)
    assert not told.troubles, told


def test_plans_that_overtake_the_pushes_of_the_last() -> None:
    """Pushes are handed over one by one, and those still waiting are dropped for a newer plan."""
    told = raced(7, 5, WILD)
    assert not told.troubles, told


def test_the_same_seed_is_the_same_race() -> None:
    """The same seed gives the same races, so every failure can be reproduced."""
    assert raced(3, 2) == raced(3, 2)


def test_races_find_an_agent_that_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Races find an agent that programs a plan as if no link were down.

    For that, a plan older than the second failure must arrive after the notice of it.
    """

    def forgetful(table: Table) -> Batch:
        return replace(pending(table), diverted={})

    monkeypatch.setattr("heddle_agent.table.forwarding.pending", forgetful)
    troubles = chain.from_iterable(raced(seed, 12).troubles for seed in (0, 5, 8, 9))
    assert any("knowing it is down" in trouble for trouble in troubles)
