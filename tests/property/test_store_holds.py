"""No GPU is held twice, whatever schedulers ask for and in whatever order.

A table of (host, GPU) cells says what must be accepted and what refused, and with which error.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.state.demands import DemandsPut, demands_put, put_demands
from heddle_controller.state.errors import AlreadyExists, FailedPrecondition, NotFound
from heddle_controller.state.jobs import (
    delete_job,
    release_hosts,
    reserve_hosts,
    submit_job,
    update_job,
)
from heddle_controller.state.records import Reservation
from heddle_controller.state.view import META, Change, Stamp, View
from heddle_controller.store.embedded import open_embedded
from heddle_controller.store.store import Store
from tests.support.depth import examples, fresh_seeds
from tests.support.store_samples import clos, demands, job

HOSTS = ("h0.0", "h0.1", "h1.0", "h1.1")
MEMORY = Path("/dev/shm")
FOLDER = MEMORY if MEMORY.is_dir() else None
"""A folder in memory if there is one, since durability is not tested here."""
WHOLE = range(6)
"""GPU numbers that stand for a whole host, which are more than any part has."""

Part = tuple[int, ...]
parts = st.permutations(range(4)).flatmap(
    lambda gpus: st.integers(1, 3).map(lambda count: tuple(gpus[:count]))
)


@st.composite
def wants(draw: st.DrawFn) -> dict[str, Part]:
    """Draw some hosts, all of them whole or each in part."""
    hosts = draw(st.lists(st.sampled_from(HOSTS), min_size=1, max_size=3, unique=True))
    whole = draw(st.booleans())
    return {host: () if whole else draw(parts) for host in hosts}


@dataclass(frozen=True)
class Step:
    """One request, and the seconds that pass before it."""

    kind: str
    name: str
    want: dict[str, Part]
    redeems: str
    seconds: int
    later: int


steps = st.builds(
    Step,
    st.sampled_from(["submit", "submit", "update", "delete", "reserve", "release"]),
    st.sampled_from(["a", "b", "c"]),
    wants(),
    st.sampled_from(["", "", "a", "b"]),
    st.sampled_from([10, 100]),
    st.sampled_from([0, 0, 20]),
)


def cells(want: dict[str, Part]) -> set[tuple[str, int]]:
    """The (host, GPU) cells of a request. A whole host has more cells than any part."""
    return {(host, gpu) for host, part in want.items() for gpu in part or WHOLE}


@dataclass
class Table:
    """What jobs hold, and what reservations keep until they end, by name."""

    jobs: dict[str, dict[str, Part]] = field(default_factory=dict)
    kept: dict[str, tuple[dict[str, Part], float]] = field(default_factory=dict)
    now: float = 1000.0

    def standing(self) -> dict[str, dict[str, Part]]:
        """The reservations that have not expired."""
        return {name: want for name, (want, end) in self.kept.items() if end > self.now}

    def fits(self, want: dict[str, Part], name: str, redeems: str) -> bool:
        """Whether no other job holds any of it and no other reservation what is new to the job."""
        wanted = cells(want)
        others = [held for other, held in self.jobs.items() if other != name]
        fresh = wanted - cells(self.jobs.get(name, {}))
        kept = [held for other, held in self.standing().items() if other != redeems]
        return not any(wanted & cells(held) for held in others) and not any(
            fresh & cells(held) for held in kept
        )

    async def take(self, store: Store, step: Step) -> None:
        """Ask the store, and compare its answer with the table."""
        self.now += step.later
        ask = {"submit": self._place, "update": self._place, "reserve": self._reserve}
        if step.kind in ask:
            await ask[step.kind](store, step)
        elif step.kind == "delete" and self.jobs.pop(step.name, None) is not None:
            await store.delete_job("f", step.name)
        elif step.kind == "release" and step.name in self.standing():
            await store.release("f", step.name)
            self.kept.pop(step.name)

    async def _place(self, store: Store, step: Step) -> None:
        known = step.name in self.jobs
        there = not step.redeems or step.redeems in self.standing()
        if step.kind == "submit" and known:
            return
        if step.kind == "update" and not known:
            with pytest.raises(NotFound):
                await self._write(store, step)
        elif there and self.fits(step.want, step.name, step.redeems):
            await self._write(store, step)
            self.jobs[step.name] = step.want
            self.kept.pop(step.redeems, None)
        else:
            with pytest.raises(FailedPrecondition):
                await self._write(store, step)

    async def _reserve(self, store: Store, step: Step) -> None:
        name, want = step.name, step.want
        if name in self.standing():
            return
        held = [*self.jobs.values(), *self.standing().values()]
        reserve = store.reserve("f", name, tuple(want), step.seconds, gpus=_gpus(want))
        if any(cells(want) & cells(one) for one in held):
            with pytest.raises(FailedPrecondition):
                await reserve
        else:
            await reserve
            self.kept[name] = want, self.now + step.seconds

    async def _write(self, store: Store, step: Step) -> None:
        gpus = _gpus(step.want)
        one = job(step.name, tuple(step.want), gpus=gpus)
        write = store.submit_job if step.kind == "submit" else store.update_job
        await write("f", one, reservation=step.redeems)


def _gpus(want: dict[str, Part]) -> tuple[Part, ...]:
    return tuple(want.values()) if all(want.values()) else ()


@pytest.mark.deep
@settings(max_examples=examples(12, 2000))
@given(st.lists(steps, min_size=5, max_size=30))
def test_no_gpu_is_held_twice(asked: Sequence[Step]) -> None:
    """What the table has room for is accepted, all else is refused, and in the end all is free."""
    asyncio.run(_play(asked))


async def _play(asked: Sequence[Step]) -> None:
    table = Table()
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        store = await open_embedded(Path(folder) / "store.db", lambda: table.now)
        try:
            await store.put_fabric("f", clos())
            for step in asked:
                await table.take(store, step)
                stored = {one.job.name: one.job.held for one in await store.list_jobs("f")}
                assert stored == table.jobs, step
                kept = {one.name: one.held for one in await store.list_reservations("f")}
                assert kept == table.standing(), step
            for name in list(table.jobs):
                await store.delete_job("f", name)
            for name in table.standing():
                await store.release("f", name)
            await store.submit_job("f", job("last", HOSTS))
        finally:
            await store.close()


def decided(view: View, step: Step, now: float) -> Change | None:
    """Return what a request would change, decided on a view; None if it is refused."""
    stamp, want, name = Stamp(now, f"{step.kind} {step.name}"), step.want, step.name
    one = job(name, tuple(want), gpus=_gpus(want))
    kept = Reservation(name, tuple(want), now, now + step.seconds, _gpus(want))
    ways: dict[str, Callable[[], Change]] = {
        "submit": lambda: submit_job(view, one, stamp, redeems=step.redeems)[0],
        "update": lambda: update_job(view, one, "", stamp, redeems=step.redeems)[0],
        "delete": lambda: delete_job(view, name, "", stamp),
        "reserve": lambda: reserve_hosts(view, kept, stamp)[0],
        "release": lambda: release_hosts(view, name, stamp),
        "demand": lambda: put_demands(view, [], _set_of(name), stamp)[0],
    }
    try:
        return ways[step.kind]()
    except (AlreadyExists, FailedPrecondition, NotFound):
        return None


def _set_of(name: str) -> DemandsPut:
    """A demand set of one flow, whose id may not be that of a job of this name."""
    return demands_put(
        "f", f"of-{name}", demands(("h0.0.n0", "h1.0.n0"), ids=f"{name}/dp/x->y"), name
    )


def _drawn(random: Random) -> Step:
    """A request for few hosts by few names, so that two often want the same."""
    whole, hosts = random.random() < 0.2, random.sample(HOSTS[:2], random.randint(1, 2))
    want: dict[str, Part] = {host: () if whole else (random.randrange(4),) for host in hosts}
    kinds = ["submit", "submit", "update", "delete", "reserve", "release"]
    kind = random.choice(kinds) if random.random() < 0.95 else "demand"
    redeems = random.choice(["", "", "", random.choice("abc")])
    return Step(kind, random.choice("abc"), want, redeems, random.choice([10, 100]), 20)


def test_of_two_requests_at_once_the_second_is_decided_again() -> None:
    """Or it says the same after the first, so guards name every field that a decision needs."""
    for seed in fresh_seeds(150, 5000):
        random, before, now = Random(seed), View("f"), 1000.0
        before.take(META, b"{}")
        for _ in range(random.randint(2, 8)):
            now += random.choice([0, 0, 20])
            change = decided(before, _drawn(random), now)
            if change is not None:
                before.advance(change)
        asked = [_drawn(random) for _ in range(8)]
        changes = [decided(before, step, now) for step in asked]
        for first in filter(None, changes):
            after = View("f")
            after.replace(before.fields().items())
            after.advance(first)
            for step, late in zip(asked, changes, strict=True):
                if late is first or late is None:
                    continue
                if all(after.raw(field) == value for field, value in late.guards):
                    again = decided(after, step, now)
                    assert again is not None, (seed, step)
                    assert again.sets == late.sets, (seed, step)
