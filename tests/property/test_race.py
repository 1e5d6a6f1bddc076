"""Failures, mends, plans, pushes and acks in any order: no flow stays on a path known dead."""

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
    """After every event of eight races packets go over no link that a switch knows is down.

    Once all know, all arrive; and every race settles, with every switch holding the newest plan.
    """
    told = raced(seed, 8)
    assert not told.troubles, told
    assert told.races == 8


@settings(max_examples=examples(1, 100))
@given(SEEDS)
@example(4)
@example(630991827)  # a way ordered by what was lost then, taken apart when that was mended
def test_no_wild_race_leaves_a_flow_on_a_dead_path(seed: int) -> None:
    """Nor do races with more failures at once, more fabrics, and switches that forget."""
    told = raced(seed, 5, WILD)
    assert not told.troubles, told


def test_a_controller_that_dies_as_it_is_given_the_lead() -> None:
    """The next one leads all the same. Seed 279: the store says yes to one that is gone by then."""
    told = raced(279)
    assert not told.troubles, told


def test_a_leader_that_follows_one_whose_plan_followed_another_half_done() -> None:
    """What the oldest of three plans left goes in its turn. Seed 456: swept in any order before."""
    told = raced(456)
    assert not told.troubles, told


def test_plans_that_overtake_the_pushes_of_the_last() -> None:
    """Pushes are handed over one by one, and what is left of them is dropped for a newer plan."""
    told = raced(7, 5, WILD)
    assert not told.troubles, told


def test_the_same_seed_is_the_same_race() -> None:
    """Whatever is found can be had again."""
    assert raced(3, 2) == raced(3, 2)


def test_races_find_an_agent_that_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that programs a plan as if no link were down is found out by most seeds.

    It needs a plan older than the second failure to arrive after the notice of it.
    """

    def forgetful(table: Table) -> Batch:
        return replace(pending(table), diverted={})

    monkeypatch.setattr("heddle_agent.table.forwarding.pending", forgetful)
    troubles = chain.from_iterable(raced(seed, 12).troubles for seed in (0, 5, 8, 9))
    assert any("knowing it is down" in trouble for trouble in troubles)
