from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from heddle_controller.model.fabric import State
from heddle_controller.state.records import LinkName
from tests.support.depth import examples
from tests.support.dying_ports import Death
from tests.support.reconcile_world import House, ring, three_tiers
from tests.support.waiting import PATIENCE

J1 = ring("j1", "h0.0.0", "h1.0.0", "h0.1.0", "h1.1.0")
J2 = ring("j2", "h0.0.1", "h1.0.1", "h0.1.1", "h1.1.1")


async def change_everything(house: House) -> None:
    """Change jobs, a switch and a link; the store has acknowledged all when this returns."""
    await house.store.submit_job("f1", J2)
    await house.store.set_switch_state("f1", "s0.0", State.DRAINED)
    await house.store.set_link_state("f1", LinkName("s1.0", "c0.0"), State.DRAINED)


async def nothing() -> None:
    """Make no changes."""


async def die(
    house: House, at: int, say: Callable[[], Awaitable[None]], *, after: bool, of: str = ""
) -> str:
    """Run a controller until it dies of its ``at``-th call, and return which call that was.

    It dies before the call or after it. If ``of`` is given, only calls of that name count. The
    result is empty if the controller did not die.
    """
    death = Death(at, after=after, of=of)
    async with house.running(through=death.through):
        await say()
        calm = asyncio.create_task(through(house))
        struck = asyncio.create_task(death.struck.wait())
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([calm, struck], return_when=asyncio.FIRST_COMPLETED)
        for task in (calm, struck):
            task.cancel()
    return death.where


async def through(house: House) -> None:
    """Wait until the newest intent is planned, both jobs are programmed, and all is recorded."""

    async def planned() -> bool:
        versions = await house.store.versions("f1")
        return (await house.committed()).program.intent_version == versions.intent

    await house.until(planned, "a plan of the newest intent")
    await house.programmed("j1", "j2")
    await house.settled()


async def converge(house: House) -> None:
    """Run a controller until everything has settled, and check plan and packets."""
    async with house.running():
        await through(house)
        done = await house.committed()
        assert set(done.plan.flows.job_names) == {"j1", "j2"}
        assert not house.trouble(done.plan.fabric, done.plan.flows)
        row = done.plan.fabric.structure.index["s0.0"]
        assert row not in done.plan.fabric.structure.head[done.plan.paths.arcs]


@pytest.mark.deep
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_killed_at_every_call(tmp_path: Path, after: bool) -> None:  # noqa: FBT001 - a parameter
    """Whichever call of store or gateway a controller dies of, the next one completes the work.

    Nothing that was acknowledged is lost. No packet of the job that runs all the time is lost at
    any operation of any switch, before the death or after it. `make test` tries some of the calls,
    among them one of each important name.
    """
    deaths: Counter[str] = Counter()
    for at in range(1, 400, examples(5, 1)):
        where = await killed_at(tmp_path / str(at), at, after=after)
        if not where:
            break
        deaths[where.split()[1]] += 1
    else:
        raise AssertionError("the controller never finished")
    # The order of calls differs from run to run, so one of these may have been met by no number.
    for name in {"intent", "commit", "push", "record_programmed", "record_jobs"} - deaths.keys():
        where = await killed_at(tmp_path / name, 1, after=after, of=name)
        assert where.endswith(name), f"it did not die of {name}"


def house_in(folder: Path) -> House:
    """Return a controller's surroundings in a new folder."""
    folder.mkdir()
    return House(folder, three_tiers())


async def killed_at(folder: Path, at: int, *, after: bool, of: str = "") -> str:
    """Kill a controller once, let the next complete the work, and return which call it died of.

    The result is empty if the controller did not die.
    """
    house = house_in(folder)
    async with house.running():
        await house.store.put_fabric("f1", house.fabric)
        await house.store.submit_job("f1", J1)
        await house.programmed("j1")
        await house.settled()
        lost = house.watch_packets(house.fabric, J1)
    where = await die(house, at, partial(change_everything, house), after=after, of=of)
    await converge(house)
    assert not lost, f"packets were lost around {where}: {lost[0]}"
    return where


async def test_killed_again_and_again(tmp_path: Path) -> None:
    """Several deaths in a row, at different calls, lose no packet either."""
    house = House(tmp_path, three_tiers())
    async with house.running():
        await house.store.put_fabric("f1", house.fabric)
        await house.store.submit_job("f1", J1)
        await house.programmed("j1")
        await house.settled()
    lost = house.watch_packets(house.fabric, J1)
    assert await die(house, 6, partial(change_everything, house), after=True)
    for at in range(4, 20, 3):
        await die(house, at, nothing, after=at % 2 == 0)
    await converge(house)
    assert not lost
