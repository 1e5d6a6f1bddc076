from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from heddle_controller.store.embedded import open_embedded
from tests.support.store_samples import plain, plan_of

ROOT = Path(__file__).parents[3]

# Writes without end, and prints each write's mark once the store has acknowledged it.
WRITER = """
import asyncio, sys
from pathlib import Path
from heddle_controller.state.records import PlanFacts, Programmed, Request
from heddle_controller.store.embedded import open_embedded
from tests.support.store_samples import clos, job, plan_of, program_of
async def main():
    store = await open_embedded(Path(sys.argv[1]))
    await store.put_fabric("f1", clos(hosts=99))
    epoch = await store.acquire_leadership("writer")
    done = await store.committed("f1")
    generation = done.generation if done else 0
    start = len(await store.list_jobs("f1"))
    print("epoch", epoch, flush=True)
    for number in range(start, 10_000):
        wanted = job(f"j{number:05}", (f"h0.{number}",))
        await store.submit_job("f1", wanted, request=Request(f"r{number}"))
        print("job", number, flush=True)
        plan = plan_of((await store.intent("f1")).fabric)
        program = program_of(plan, epoch, generation + 1)
        await store.commit("f1", epoch=epoch, expected_generation=generation,
                           plan=plan, program=program, facts=PlanFacts())
        generation += 1
        print("plan", generation, flush=True)
        await store.record_programmed("f1", epoch=epoch,
                                      programmed=Programmed(0, {"l0": generation}, 1.0))
        print("held", generation, flush=True)
asyncio.run(main())
"""


def run_and_kill(path: Path, lines: int) -> dict[str, int]:
    """Kill the writer after this many lines. Return the last acknowledged write of each kind."""
    acknowledged: dict[str, int] = {}
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
        assert writer.stdout is not None
        for _ in range(lines):
            kind, number = writer.stdout.readline().split()
            acknowledged[kind] = int(number)
        writer.send_signal(signal.SIGKILL)
        for line in writer.stdout.readlines():  # printed before the kill, so acknowledged too
            if line.endswith("\n"):
                kind, number = line.split()
                acknowledged[kind] = int(number)
    return acknowledged


async def check(path: Path, acknowledged: dict[str, int]) -> None:
    """Everything that was acknowledged is there, and nothing is there in part."""
    store = await open_embedded(path)
    jobs = [record.job.name for record in await store.list_jobs("f1")]
    assert jobs == [f"j{number:05}" for number in range(len(jobs))]
    assert len(jobs) - 1 in (acknowledged.get("job", -1), acknowledged.get("job", -1) + 1)
    done = await store.committed("f1")
    generation = done.generation if done else 0
    assert generation in (acknowledged.get("plan", 0), acknowledged.get("plan", 0) + 1)
    if done:
        assert plain(done.plan) == plain(plan_of((await store.intent("f1")).fabric))
        assert done.program.generation == generation
        held, told = done.programmed.of("l0"), acknowledged.get("held", 0)
        assert told <= held <= generation  # a write may be stored without its acknowledgement
    versions = await store.versions("f1")
    assert versions.generation == generation
    await store.close()


@pytest.mark.parametrize("seed", range(3))
def test_acknowledged_writes_survive_sigkill(tmp_path: Path, seed: int) -> None:
    """After each of three kills, the next process has all writes and a greater epoch."""
    path, pick = tmp_path / "store.db", random.Random(seed)
    acknowledged: dict[str, int] = {}
    epoch = 0
    for _ in range(3):
        acknowledged |= run_and_kill(path, pick.randint(2, 12))
        assert acknowledged["epoch"] > epoch
        epoch = acknowledged["epoch"]
        asyncio.run(check(path, acknowledged))
