"""Turns in training loops: waits follow the clock, are short, and need no controller."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.client import Client, Turn
from heddle.client.turns import SLACK, WINDOW, TurnClock
from heddle.v1 import common_pb2, placement_pb2
from heddle_controller.model import plan as model
from heddle_controller.serve.codec.job import job_to_pb
from tests.support.depth import examples
from tests.support.serving import Serving, serving
from tests.support.store_samples import job
from tests.support.waiting import wait_until

NOW = 1_790_000_000.0


def _turn(shift: float = 0.25, pace: float = 2.0) -> common_pb2.Turn:
    return common_pb2.Turn(job="j1", shift_seconds=shift, pace_seconds=pace, saved=0.2)


def _since(at: float, turn: common_pb2.Turn) -> float:
    """Return how long ago the latest turn began, in seconds."""
    return (at - turn.shift_seconds) % turn.pace_seconds


def test_iterations_that_are_short_enough_begin_at_their_turns() -> None:
    """Each iteration begins at the next turn, whenever the loop began."""
    clock, turn, now = TurnClock(), _turn(), NOW
    clock.hear(turn)
    for _ in range(10):
        before = now
        now += clock.wait_seconds(now)
        assert min(_since(now, turn), 2.0 - _since(now, turn)) < 1e-6
        assert now - before <= 2.0
        now += 1.9


def test_a_little_late_begins_at_once_and_catches_up() -> None:
    """After an iteration that is 1 % too long, the next begins at once. Shorter ones catch up."""
    clock, turn = TurnClock(), _turn()
    clock.hear(turn)
    now = NOW + clock.wait_seconds(NOW) + 2.02
    assert clock.wait_seconds(now) == 0.0
    now += 1.9
    assert clock.wait_seconds(now) == pytest.approx(0.08, abs=1e-6)


@settings(max_examples=examples(100, 5000), deadline=None)
@given(
    st.floats(0, 0.999),
    st.floats(1e-3, 1e3),
    st.lists(st.floats(0, 5), min_size=1, max_size=200),
    st.integers(0, 5),
)
def test_nobody_waits_for_long_whatever_comes(
    part: float, pace: float, lengths: list[float], back: int
) -> None:
    """No wait is longer than a pace. A job that is always late waits for little of its time."""
    clock, turn, now, waited = TurnClock(), _turn(part * pace, pace), NOW, 0.0
    clock.hear(turn)
    for row, length in enumerate(lengths):
        seconds = clock.wait_seconds(now)
        assert 0 <= seconds <= pace * (1 + 1e-6)
        waited += seconds
        now += seconds + (length + 1.05) * pace
        if row == back:
            now -= 3 * pace  # somebody sets the clock back
    spent = (sum(lengths) + 1.05 * len(lengths)) * pace
    assert waited <= 5 * pace + 2 * SLACK * spent


@pytest.mark.parametrize("pace", [0.0, -1.0, float("nan"), float("inf")])
def test_without_a_turn_nobody_waits(pace: float) -> None:
    """Nobody waits if no turn was heard, if it was taken back, or if its pace is not valid."""
    clock = TurnClock()
    assert clock.wait_seconds(NOW) == 0.0
    clock.hear(_turn())
    clock.hear(_turn(pace=pace))
    assert clock.wait_seconds(NOW) == 0.0


def test_drift_is_told_beyond_the_slack_and_once() -> None:
    """Only drift beyond the slack is reported, once, and only while there is a turn."""
    clock = TurnClock()
    told = [clock.measured(9.0) for _ in range(2 * WINDOW)]
    clock.hear(_turn())
    told += [clock.measured(1.0) for _ in range(WINDOW)]
    told += [clock.measured(1.0 + SLACK / 2) for _ in range(WINDOW)]
    assert not any(told)
    told = [clock.measured(1.1) for _ in range(2 * WINDOW)]
    assert [one for one in told if one] == [pytest.approx(0.1)]


@dataclass
class Waits:
    """A clock that only ``sleep`` moves."""

    now: float = NOW

    def clock(self) -> float:
        """Return the seconds since 1970."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += seconds


async def _certify(s: Serving, *turns: model.Turn) -> None:
    """Give the newest plan these turns."""
    done = await s.store.committed("f1")
    assert done is not None
    certificate = replace(done.plan.certificate, turns=turns)
    await s.store.certify("f1", epoch=s.epoch, generation=done.generation, certificate=certificate)


async def test_a_loop_follows_the_turns_of_plans_and_tells_drift(tmp_path: Path) -> None:
    """A loop follows new turns of the certificate, and stops waiting when there is none.

    It reports drift, which changes the job.
    """
    async with serving(tmp_path) as s:
        await s.put_fabric()
        spec = job_to_pb(replace(job(), compute_seconds=1.0, network_seconds=0.5))
        asked = placement_pb2.SubmitJobRequest(parent="fabrics/f1", job_id="j1", spec=spec)
        await s.jobs.SubmitJob(asked)
        await s.commit_plan()
        waits = Waits()
        with Client(f"127.0.0.1:{s.api.port}", fabric="f1") as client:
            turn = Turn(client, "j1", clock=waits.clock, sleep=waits.sleep)
            assert turn.wait() == 0.0
            for pace in (2.0, 3.0):
                own = model.Turn("j1", 0.25, pace, 0.3)
                await _certify(s, own, model.Turn("other", 0.5, 7.0, 0.3))

                def on_time(pace: float = pace) -> bool:
                    turn.wait()
                    since = (waits.now - 0.25) % pace
                    waits.now += 1.0
                    return min(since, pace - since) < 1e-6 and since % 1 < 1e-6

                await asyncio.to_thread(wait_until, on_time, f"turns every {pace} s")
            for length in (1.5, 1.8):
                for _ in range(WINDOW):
                    with turn:
                        waits.now += length

            def told() -> float:
                return client.get_job("j1").spec.compute_seconds

            await asyncio.to_thread(wait_until, lambda: told() != 1.0, "a drift that is told")
            assert await asyncio.to_thread(told) == pytest.approx(1.3)
            await _certify(s)
            await asyncio.to_thread(
                wait_until, lambda: turn.wait() == 0.0 == turn.wait(), "no turn any more"
            )
            turn.close()


def test_a_loop_goes_on_without_a_controller() -> None:
    """If nobody listens, no iteration waits and nothing is raised."""
    waits = Waits()
    with Client("127.0.0.1:1") as client:
        turn = Turn(client, "j1", clock=waits.clock, sleep=waits.sleep)
        for _ in range(2 * WINDOW):
            with turn:
                waits.now += 1.0
        turn.close()
    assert waits.now == NOW + 2 * WINDOW
