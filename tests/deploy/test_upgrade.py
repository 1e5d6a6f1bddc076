"""A running pair of replicas is upgraded and rolled back, one replica after the other."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.needs import missing
from tests.support.replicating import SECONDS, House, job, replicated, running
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
BEFORE = 10
"""If nothing was released yet, the old code is this many commits before the newest one."""


def git(*words: str) -> str | None:
    """Return the output of a git command in this repository; None if it fails."""
    done = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The code of the newest release or of an earlier commit; HEDDLE_UPGRADE_FROM may name one."""
    release = git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD")
    commit = os.environ.get("HEDDLE_UPGRADE_FROM") or release or f"HEAD~{BEFORE}"
    tree = tmp_path / "old"
    tree.mkdir()
    archive = tmp_path / "old.tar"
    if git("archive", f"--output={archive}", commit, "proto", "controller") is None:
        missing(f"{commit} of this repository: a clone with its history")
    subprocess.run(["tar", "-xf", archive, "-C", tree], check=True)
    return tree


async def replaced(house: House, position: int) -> None:
    """End one replica gracefully, and start its successor at the same address."""
    before = house.replicas[position]
    epoch = house.leader().epoch
    led = house.leader() is before
    before.signal(signal.SIGTERM)
    assert await asyncio.wait_for(before.controller.process.wait(), SECONDS) == 0
    house.replicas.remove(before)
    if led:
        await house.leads(house.replicas[0], epoch)
    after = await house.again(before)
    house.replicas.remove(after)
    house.replicas.insert(position, after)
    agents = house.fleet.agents.values()
    await until(lambda: all(agent.sessions.connected == 2 for agent in agents), "sessions")


def seen_by(tree: Path) -> list[str]:
    """Return the paths of the code that replicas of a tree run."""
    ask = "import heddle_controller as c, heddle.v1 as v; print(c.__file__, *v.__path__)"
    command = [*running(tree), "-c", ask]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.timeout(1800)
async def test_a_pair_is_upgraded_and_rolled_back(tmp_path: Path, old: Path) -> None:
    """Upgrade from old code to new, replica by replica, and back in the same way.

    At every step a job is submitted at the replica that has just been replaced, and the previous
    one is deleted at the other. Everything acknowledged gets programmed, all agents get a session
    with both replicas, and no packet of the job that runs all the while is ever lost.
    """
    where = seen_by(old)
    assert all(Path(each).is_relative_to(old) for each in where), where
    async with replicated(tmp_path, tree=old) as house:
        hosts = house.fabric.structure.host_names
        await house.submit(await house.client(house.replicas[0]), job("first", hosts[:4]))
        await house.agree(await house.client(house.replicas[1]))
        house.watch()
        for tree in (None, old):
            house.tree = tree
            for position in (0, 1):
                await replaced(house, position)
                one, other = house.replicas[position], house.replicas[1 - position]
                if len(house.jobs) > 1:
                    await house.withdraw(other)
                await house.submit(await house.client(one), job(f"at-{one.name}", hosts[4:]))
                for replica in (one, other):
                    await house.agree(await house.client(replica))
