"""Real controllers on a real Redis: nothing is lost, whichever controller ends and however."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.support.depth import examples
from tests.support.health import is_healthy
from tests.support.replicating import SECONDS, House, Replica, job, replicated
from tests.support.waiting import until


def both(house: House) -> tuple[Replica, Replica]:
    """Return the leader and another replica; on a busy machine the lead may have moved."""
    leader = house.leader()
    return leader, next(one for one in house.replicas if one is not leader)


async def furnish(house: House) -> None:
    """Submit a job at the last replica, wait until it is programmed, and watch its packets."""
    hosts = house.fabric.structure.host_names
    follower = await house.client(house.replicas[-1])
    await house.submit(follower, job("first", hosts[:4]))
    await house.agree(follower)
    house.watch()


async def test_replicas_share_the_work_and_hand_it_over(tmp_path: Path) -> None:
    """Agents and clients use any replica, and a SIGTERM of the leader hands the lead to the other.

    The stopped replica hands over its lease before anything else ends, and exits with status 0.
    """
    async with replicated(tmp_path) as house:
        await furnish(house)
        epochs = [replica.epoch for replica in house.replicas]
        assert len(set(epochs)) == len(epochs), "no epoch is given twice"
        for replica in house.replicas:
            assert await is_healthy(await house.client(replica))
        for agent in house.fleet.agents.values():
            assert agent.sessions.connected == len(house.replicas)
        first, second = both(house)
        epoch = first.epoch
        first.signal(signal.SIGTERM)
        await house.leads(second, epoch)
        assert await asyncio.wait_for(first.controller.process.wait(), SECONDS) == 0
        await house.agree(await house.client(second))


async def test_agents_obey_the_next_leader_and_one_that_slept_is_refused(tmp_path: Path) -> None:
    """After SIGSTOP of the leader another one leads, over the sessions that it already has.

    After SIGCONT the first neither commits nor programs any more.
    """
    async with replicated(tmp_path) as house:
        await furnish(house)
        first, second = both(house)
        client, epoch = await house.client(second), first.epoch
        agents = house.fleet.agents.values()
        begun = [agent.sessions.begun for agent in agents]
        hosts = house.fabric.structure.host_names
        first.signal(signal.SIGSTOP)
        try:
            await house.leads(second, epoch)
            await until(lambda: min(agent.held.epoch for agent in agents) > epoch, "every agent")
            assert [agent.sessions.begun for agent in agents] == begun, "none had to come anew"
            await house.submit(client, job("second", hosts[4:6]))
            await house.agree(client)
        finally:
            first.signal(signal.SIGCONT)
        await house.submit(client, job("third", hosts[6:8]))
        await house.agree(client)
        generation = (await client.programmed_plan(0, SECONDS)).generation
        assert min(agent.held.epoch for agent in agents) > epoch
        await until(
            lambda: {agent.held.epoch for agent in agents} == {house.leader().epoch},
            "every agent to follow the leader",
        )
        again = await house.client(first)
        # It answers what it last read until it has read what the store sends it.
        found = await again.programmed_plan(generation - 1, SECONDS)
        assert found.epoch != epoch


STEPS = ("after push", "before commit", "after commit", "before record_programmed")
"""Calls at which the leader is killed, from commit over push to acknowledgement.

``test_reconcile_crash`` shows without processes that no other call is worse. Each run of the tests
takes the first two.
"""


@pytest.mark.deep
async def test_the_leader_dies_at_every_step(tmp_path: Path) -> None:
    """The leader is killed at each step of its work, while clients submit and withdraw jobs.

    Every acknowledged job is programmed in the end, and no packet of the first job is ever lost.
    """
    async with replicated(tmp_path) as house:
        await furnish(house)
        hosts = house.fabric.structure.host_names
        for number, step in enumerate(STEPS[: examples(2, len(STEPS))]):
            _, other = both(house)
            client = await house.client(other)
            house.doom(step)
            if number % 2 == 0:
                await house.submit(client, job("coming", hosts[4:]))
            else:
                await house.withdraw(other)
            dead = await house.death()
            (other,) = house.replicas
            await house.leads(other, dead.epoch)
            await house.again(dead)
            await house.agree(await house.client(other))
