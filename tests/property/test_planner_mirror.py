"""Plans made through the pipe equal those of a planner in the same process."""

from __future__ import annotations

import os
import socket
from dataclasses import fields, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.demand import Demands
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.job import Job
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.model.program import Entries
from heddle_controller.planner import protocol
from heddle_controller.planner.core import PlanningCore, planning_engine
from heddle_controller.planner.planning import Planned
from heddle_controller.planner.port import PlanAnswer
from heddle_controller.planner.protocol import FabricMirror, Question, Unpacker, packed, received
from heddle_controller.state.records import DemandRecord, Intent, JobFacts, JobRecord, JobState
from tests.support.depth import examples, fresh_seeds
from tests.support.reconcile_world import ring, three_tiers
from tests.support.store_samples import demands

STEPS = 12
HOSTS = [f"h{zone}.{leaf}.{host}" for zone in range(2) for leaf in range(3) for host in range(2)]


def through(message: object) -> Any:
    """Send a message through the pipe and return what arrives."""
    one, other = socket.socketpair()
    unpacker = Unpacker()
    with one, other:
        data, file = packed(message)
        socket.send_fds(one, [data], [] if file is None else [file])
        if file is not None:
            os.close(file)
        while (found := unpacker.message()) is None:
            assert received(other, unpacker)
    return found[0]


@settings(max_examples=examples(8))
@given(st.integers(0, 2**32 - 1))
def test_long_columns_of_names_come_through_as_they_are(seed: int) -> None:
    """Columns of names arrive unchanged, also with empty names, NULs and lone surrogates."""
    chance = Random(seed)
    rows = chance.choice([0, 1, 1023, 1024, 3000])
    odd = chance.choice(["", "\0", "ü\n", "\ud800"])

    def column(distinct: int) -> tuple[str, ...]:
        names = [f"n{chance.randrange(10**6)}{odd if chance.random() < 0.1 else ''}"]
        names += [f"n{number}{odd if number % 97 == 0 else ''}" for number in range(distinct)]
        return tuple(chance.choice(["", *names]) for _ in range(rows))

    ids, source, destination, job, phase = (column(chance.choice([1, 40, 5000])) for _ in range(5))
    ones = np.ones(rows, dtype=np.int64)
    told = Demands(ids, source, destination, np.full(rows, 0.5), job, phase, ones, ones)
    found = through({"told": told, "rest": ("a",) * 2000})
    assert found["rest"] == ("a",) * 2000
    for one in fields(Demands):
        was, now = getattr(told, one.name), getattr(found["told"], one.name)
        assert type(was) is type(now)
        assert np.array_equal(was, now) if isinstance(was, np.ndarray) else was == now


class Ends:
    """Both ends of the pipe. ``lose`` replaces the planning process at the far end."""

    def __init__(self) -> None:
        self.lose()

    def lose(self) -> None:
        """Replace the planning process, as if it had ended."""
        self._core = PlanningCore(planning_engine(None))
        self._near, self._far = FabricMirror(), FabricMirror()

    def plan(self, intent: Intent, standing: Plan | None) -> PlanAnswer:
        """Plan through the pipe, like ``Planner.plan``."""
        given = {"standing": standing, "intent": intent}
        asked = through(tuple(protocol.ask(self._near, "plan", "f1", given)))
        answer = protocol.answered(self._core, self._far, Question(*asked))
        found: PlanAnswer = protocol.restored(self._near, through(answer))
        return found


class Story:
    """An intent that changes step by step."""

    def __init__(self, random: Random) -> None:
        self._random, self._version = random, 0
        self._fabric: Fabric = three_tiers(leaves=3)
        self._jobs: dict[str, JobRecord] = {}
        self._demands: tuple[DemandRecord, ...] = ()

    def next(self) -> Intent:
        """Change the intent at random and return it."""
        random = self._random
        random.choice([self._lose, self._lose, self._come, self._job, self._job, self._demand])()
        self._version += 1
        jobs = tuple(self._jobs[name] for name in sorted(self._jobs))
        return Intent("f1", self._version, 0.0, 1, self._fabric, jobs, self._demands)

    def _lose(self) -> None:
        rows = self._random.sample(range(self._fabric.link_count), self._random.choice([1, 1, 3]))
        state = self._random.choice([State.DOWN, State.DRAINED])
        self._fabric = self._fabric.with_links(dict.fromkeys(rows, state))

    def _come(self) -> None:
        rows = range(self._fabric.link_count)
        self._fabric = self._fabric.with_links(dict.fromkeys(rows, State.UP))
        if self._random.random() < 0.2:  # put again, so its structure is another object
            self._fabric = three_tiers(leaves=3)

    def _job(self) -> None:
        name = self._random.choice(["j1", "j2", "j3"])
        if self._random.random() < 0.3:
            self._jobs.pop(name, None)
            return
        job: Job = ring(name, *self._random.sample(HOSTS, self._random.randint(2, 6)))
        etag = f"e{self._version}"
        self._jobs[name] = JobRecord(job, etag, 0.0, JobFacts(etag, JobState.ACCEPTED))

    def _demand(self) -> None:
        ends = self._random.sample(HOSTS, 2)
        one = demands((ends[0].replace("h", "n"), ends[1].replace("h", "n")))
        self._demands = (DemandRecord("d", one, f"e{self._version}", 0.0),)


def assert_same(one: Planned | None, other: Planned | None, why: str) -> None:
    """Assert that both are the same plan with the same entries, or both None."""
    assert (one is None) == (other is None), why
    if one is None or other is None:
        return
    assert one.changed_count == other.changed_count, why
    assert one.plan.certificate == other.plan.certificate, why
    assert one.plan.unrouted == other.plan.unrouted, why
    assert one.plan.flows.same_as(other.plan.flows), why
    for mine, its in (
        (one.plan.paths, other.plan.paths),
        (one.plan.backups, other.plan.backups),
        (one.entries, other.entries),
    ):
        for column in fields(Paths if isinstance(mine, Paths) else Entries):
            if column.compare:
                pair = getattr(mine, column.name), getattr(its, column.name)
                assert np.array_equal(*pair), (why, column.name)


@pytest.mark.deep
def test_plans_that_come_through_the_pipe_are_those_of_a_planner_at_hand() -> None:
    """Plans are the same while links and jobs change and the process forgets."""
    for seed in fresh_seeds(6):
        random = Random(seed)
        story, ends, core = Story(random), Ends(), PlanningCore(planning_engine(None))
        near: Plan | None = None
        here: Plan | None = None
        for step in range(STEPS):
            intent, why = story.next(), f"seed {seed}, step {step}"
            if random.random() < 0.15:  # both planners forget everything
                ends.lose()
                core = PlanningCore(planning_engine(None))
            if near is not None and random.random() < 0.15:  # read again from the store
                near, here = replace(near), replace(here) if here else None
            far, direct = ends.plan(intent, near), core.plan(intent, here)
            assert far.refused == direct.refused, why
            assert_same(far.planned, direct.planned, why)
            if far.planned is not None and direct.planned is not None:
                assert far.planned.plan.fabric is intent.fabric, why
                near, here = far.planned.plan, direct.planned.plan


@pytest.mark.parametrize("rows", [0, 3, 9000])
def test_arrays_come_through_with_the_types_that_numpy_knows(rows: int) -> None:
    """Arrays arrive unchanged, of the very types that numpy has fast loops for."""
    wide = np.arange(6 * rows, dtype=np.int64).reshape(rows, 6)
    sent = [wide, wide[:, ::2], wide.T, wide / 7, wide > 3, wide.astype(np.int8), wide.astype(str)]
    for one, other in zip(sent, through(sent), strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
        if one.dtype.kind != "U" and one.flags.c_contiguous:
            assert other.dtype is np.dtype(one.dtype.type)


def test_what_is_large_is_shared_and_cannot_be_written() -> None:
    """A large array is shared between both ends and cannot be written."""
    large, small = np.arange(100_000), np.arange(10)
    came = through({"large": large, "small": small, "again": large})
    assert np.array_equal(came["large"], large)
    assert np.array_equal(came["small"], small)
    assert not came["large"].flags.owndata
    assert not came["large"].flags.writeable
