"""Which functions a job and a lost link pass in the controller, and the lists of that in the page.

ARCHITECTURE.md lists the files of both walks, found by tracing the real programs. ``python -m
tests.support.walking`` prints the current lists, and the number of functions in each.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

from tests.support.replicating import SECONDS, House, Replica, job, replicated

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "ARCHITECTURE.md"
TRACED = TESTS / "support" / "traced"
UNNAMED = re.compile(r"<(listcomp|setcomp|dictcomp|genexpr|lambda)>")
"""Names of code inside a function, which counts as part of that function."""

IDLE_SECONDS = 3.0
"""Long enough for some renewals of the lease.

What happens in this time is not counted as part of a walk.
"""
LEADER_AND_PLANNER = 2
"""Number of processes that are traced."""
ROUNDS = 4
NO_COUNTERS = "--counter-interval-seconds=0"
"""Agents report counters at intervals, whatever else happens, so that is turned off."""

Function = tuple[str, str]
"""File below the controller's package, and qualified name."""


@dataclass(frozen=True)
class Walks:
    """Functions that were called, by what happened at the time."""

    idle: frozenset[Function]
    """While nothing was asked for."""
    job: frozenset[Function]
    """From ``SubmitJob`` until the job is reported as programmed."""
    link: frozenset[Function]
    """From a lost link until the plan without it is reported as programmed."""


def traced_environment(folder: Path) -> dict[str, str]:
    """Return an environment in which programs record their calls in a folder."""
    return {"HEDDLE_TRACE": str(folder), "PYTHONPATH": f"{TRACED}:{TESTS.parent}"}


async def walk(folder: Path) -> Walks:
    """Trace a leader on Redis; ``traced_environment`` of ``folder / "trace"`` must be set."""
    trace = folder / "trace"
    async with replicated(folder, 1, NO_COUNTERS) as house:
        leader = house.replicas[0]
        hosts = house.fabric.structure.host_names
        await house.submit(await house.client(leader), job("first", hosts[:3]))
        await house.agree(await house.client(leader))
        # These two begin first. Whether others, which answer questions and compute losses, have
        # begun is a matter of time. Their work is no part of the walks.
        begun = sorted(trace.glob("*.pid"), key=lambda path: path.stat().st_mtime_ns)
        pids = {int(path.stem) for path in begun[:LEADER_AND_PLANNER]}
        follower = await house.another(NO_COUNTERS)
        idle = await _traced(trace, pids, lambda: asyncio.sleep(IDLE_SECONDS))

        async def submitted() -> None:
            await house.submit(await house.client(leader), job("second", hosts[3:6]))
            await _programmed(house, follower)

        async def lost() -> None:
            generation = (
                await (await house.client(follower)).programmed_plan(0, SECONDS)
            ).generation
            await house.fleet.set_link("z0-l0", "z0-s0", None, up=False)
            await (await house.client(follower)).programmed_plan(generation, SECONDS)

        return Walks(idle, await _traced(trace, pids, submitted), await _traced(trace, pids, lost))


async def _programmed(house: House, replica: Replica) -> None:
    client = await house.client(replica)
    await client.programmed_jobs([one.name for one in house.jobs], SECONDS)


async def _traced(
    trace: Path, pids: Iterable[int], work: Callable[[], Awaitable[None]]
) -> frozenset[Function]:
    on = trace / "on"
    on.touch()
    await _exist([trace / f"{pid}.tracing" for pid in pids])
    await work()
    on.unlink()
    written = [trace / f"{pid}.json" for pid in pids]
    await _exist(written)
    found: set[Function] = set()
    for path in written:
        found |= {
            (file, name)
            for file, _, name in json.loads(path.read_text())
            if not UNNAMED.search(name)
        }
        path.unlink()
    return frozenset(found)


async def _exist(paths: Iterable[Path]) -> None:
    async with asyncio.timeout(SECONDS):
        for path in paths:
            while not path.exists():  # noqa: ASYNC110 - other processes write them
                await asyncio.sleep(0.01)


def files_of(functions: Iterable[Function]) -> frozenset[str]:
    """Return the files of functions, below the controller's package."""
    return frozenset(file for file, _ in functions)


def written(files: Iterable[str]) -> str:
    """Return files by folder, in the form of the page."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for file in files:
        room, _, name = file.rpartition("/")
        rooms[room or "."].add(name.removesuffix(".py"))
    lines = (f"- `{room}/`: {', '.join(sorted(names))}" for room, names in sorted(rooms.items()))
    return "\n".join(fill(line, 98, subsequent_indent="  ") for line in lines)


def _traced_once() -> Walks:
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        trace.mkdir()
        os.environ.update(traced_environment(trace))
        return asyncio.run(walk(Path(folder)))


def main() -> None:
    """Print the lists of the page: files that every round passed, and files that some passed."""
    rounds = [_traced_once() for _ in range(ROUNDS)]
    sometimes: set[str] = set()
    for title, kind in (("walk of a job", "job"), ("walk of a lost link", "link")):
        own = [getattr(walks, kind) - walks.idle for walks in rounds]
        always = frozenset.intersection(*map(files_of, own))
        sometimes |= frozenset.union(*map(files_of, own)) - always
        count = ", ".join(str(len(functions)) for functions in own)
        head = f"{title}: {count} functions in {len(always)} files\n"
        sys.stdout.write(f"{head}{written(always)}\n")
    sys.stdout.write(f"now and then:\n{written(sometimes)}\n")


if __name__ == "__main__":
    main()
