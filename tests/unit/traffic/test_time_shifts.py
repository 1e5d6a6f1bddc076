"""Turns in time: bursts computed by hand, and properties of random cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.arrays import Floats
from heddle_controller.model.errors import InputError
from heddle_controller.traffic.turns import TURN_SLACK, Cycle, turns_of
from tests.support.depth import examples

FINE = 200


def _cycle(job: str, seconds: float, sends: float, links: Floats | None = None) -> Cycle:
    """A cycle that computes and then fills links for a share ``sends`` of its iteration."""
    burst = (np.arange(FINE) >= FINE * (1 - sends)).astype(np.float64)
    return Cycle(job, seconds, np.outer(np.ones(1) if links is None else links, burst))


def test_two_halves_take_turns() -> None:
    """Two jobs take turns at a pace little above their iteration."""
    turns = turns_of([_cycle("a", 2.0, 0.45), _cycle("b", 2.0, 0.45)])
    one, other = turns["a"], turns["b"]
    assert one.pace_seconds == other.pace_seconds == pytest.approx(2 * (1 + TURN_SLACK))
    apart = (one.shift_seconds - other.shift_seconds) % one.pace_seconds
    assert 0.9 * (1 + TURN_SLACK) <= apart <= one.pace_seconds - 0.9 * (1 + TURN_SLACK) + 1e-9
    assert one.saved == pytest.approx(other.saved, abs=0.01)
    assert one.saved > 0.1


def test_one_iteration_of_one_beside_two_of_another() -> None:
    """A job of twice the iteration gets twice the pace, so that shifts stay valid."""
    turns = turns_of([_cycle("a", 1.0, 0.5), _cycle("b", 2.0, 0.2)])
    assert turns["b"].pace_seconds == pytest.approx(2 * turns["a"].pace_seconds)


@pytest.mark.parametrize(
    "links", [(np.array([1.0, 0.0]), np.array([0.0, 1.0])), (np.full(2, 0.5), np.full(2, 0.5))]
)
def test_no_turns_where_no_link_is_too_full(links: tuple[Floats, Floats]) -> None:
    """Jobs on different links, or on links that carry both, get no turns."""
    cycles = [_cycle(name, 1.0, 0.5, own) for name, own in zip("ab", links, strict=True)]
    assert turns_of(cycles) == {}


def test_worthless_turns_are_not_given() -> None:
    """No turns are given for bursts that seldom or always meet, for one job, or for none."""
    assert turns_of([_cycle("a", 1.0, 0.1), _cycle("b", 1.0, 0.1)]) == {}
    assert turns_of([_cycle("a", 1.0, 1.0), _cycle("b", 1.0, 1.0)]) == {}
    assert turns_of([_cycle("a", 1.0, 0.5)]) == {}
    assert turns_of([]) == {}


def test_a_job_that_is_hardly_held_up_is_not_made_to_wait() -> None:
    """Turns help two equal jobs; they would harm one of two that has eight times the QPs."""
    alike = [_cycle("a", 1.0, 0.52), _cycle("b", 1.0, 0.52)]
    assert set(turns_of(alike)) == {"a", "b"}
    assert turns_of([alike[0], replace(alike[1], qps=8.0)]) == {}


def test_a_job_that_meets_two_others_keeps_both_turns() -> None:
    """Of three jobs in a row, the outer two send while the one in the middle computes."""
    rows = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    cycles = [_cycle(name, 1.0, 0.45, row) for name, row in zip("abc", rows, strict=True)]
    turns = turns_of(cycles)
    pace = turns["b"].pace_seconds
    for name in "ac":
        apart = (turns[name].shift_seconds - turns["b"].shift_seconds) % pace
        assert 0.45 * (1 + TURN_SLACK) - 1e-9 <= apart <= pace - 0.45 * (1 + TURN_SLACK) + 1e-9


def test_what_a_job_that_went_leaves() -> None:
    """Turns are for the current jobs only: a job that is alone again has none."""
    cycles = [_cycle(name, 1.0, 0.45) for name in "ab"]
    assert set(turns_of(cycles)) == {"a", "b"}
    assert turns_of(cycles[1:]) == {}


@pytest.mark.parametrize(
    ("cycles", "reason"),
    [
        ([_cycle("a", 0.0, 0.5)], "give more than 0"),
        ([_cycle("a", float("nan"), 0.5)], "give more than 0"),
        ([_cycle("a", 1.0, 0.5), _cycle("a", 1.0, 0.5)], "has two iterations"),
        ([_cycle("a", 1.0, 0.5, -np.ones(1))], "less than 0"),
        ([_cycle("a", 1.0, 0.5), _cycle("b", 1.0, 0.5, np.ones(2))], "every link"),
        ([Cycle("a", 1.0, np.zeros((1, 0)))], "every link"),
        ([replace(_cycle("a", 1.0, 0.5), qps=0.0)], "0 QPs a flow"),
    ],
)
def test_bad_iterations_are_refused(cycles: list[Cycle], reason: str) -> None:
    """Bad iterations are refused with the reason."""
    with pytest.raises(InputError, match=reason):
        turns_of(cycles)


@settings(max_examples=examples(10))
@given(st.integers(0, 2**32 - 1))
def test_drawn_turns_fit(seed: int) -> None:
    """Each pace has room for its iteration and each link for its load; shifts are within paces."""
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 5))
    names = [str(number) for number in range(count)]
    cycles = [
        _cycle(
            name,
            random.choice([1.0, 2.0, random.uniform(0.5, 2)]),
            random.uniform(0.1, 0.6),
            random.integers(0, 2, 3) * random.uniform(0.5, 1, 3),
        )
        for name in names
    ]
    turns = turns_of(cycles)
    assert turns == turns_of(cycles), seed
    busy = np.zeros(3)
    for one in cycles:
        if one.job in turns:
            turn = turns[one.job]
            assert turn.pace_seconds >= one.seconds * (1 + TURN_SLACK) * (1 - 1e-9), seed
            assert 0 <= turn.shift_seconds <= turn.pace_seconds * (1 + 1e-9), seed
            assert 0 <= turn.saved + 1e-9 < 1, seed
            busy += one.used.mean(axis=1) * one.seconds / turn.pace_seconds
    assert (busy <= 1 + 1e-9).all(), seed
