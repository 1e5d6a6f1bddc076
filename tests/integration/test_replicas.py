"""Real controllers on a real Redis: whoever of them ends, and however, nothing is lost."""

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
    """Who leads, and the other: a machine that holds a leader up for long gives the lead away."""
    leader = house.leader()
    return leader, next(one for one in house.replicas if one is not leader)


async def furnish(house: House) -> None:
    """A job that runs all the while, asked for at one replica and programmed by the other."""
    hosts = house.fabric.structure.host_names
    follower = await house.client(house.replicas[-1])
    await house.submit(follower, job("first", hosts[:4]))
    await house.agree(follower)
    house.watch()


async def test_replicas_share_the_work_and_hand_it_over(tmp_path: Path) -> None:
    """Agents are with every replica, clients with either; all is planned once and told alike.

    After a SIGTERM the lease is handed over before anything else ends, and the exit is in order.
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
    """SIGSTOP: once the lease is over another leads, and has every session already.

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
        epochs = {agent.held.epoch for agent in agents}
        assert epochs == {house.leader().epoch}
        assert epoch not in epochs
        again = await house.client(first)
        assert (await again.programmed_plan(0, SECONDS)).generation == generation


STEPS = ("after push", "before commit", "after commit", "before record_programmed")
"""From intent over plan, commit and push to ack. That no other call is worse is shown without
processes, by ``test_reconcile_crash``; the first two are enough for every run of the tests."""


@pytest.mark.deep
async def test_the_leader_dies_at_every_step(tmp_path: Path) -> None:
    """At each step of its work SIGKILL meets whoever leads, while others ask for more.

    Every job that was acknowledged is there in the end and programmed, and no packet of the job
    that ran all the while was ever lost.
    """
    async with replicated(tmp_path) as house:
        await furnish(house)
        hosts = house.fabric.structure.host_names
        for number, step in enumerate(STEPS[: examples(2, len(STEPS))]):
            leader = house.leader()
            other = next(one for one in house.replicas if one is not leader)
            epoch, client = leader.epoch, await house.client(other)
            leader.doom(step)
            if number % 2 == 0:
                await house.submit(client, job("coming", hosts[4:]))
            else:
                await house.withdraw(other)
            await asyncio.wait_for(leader.controller.process.wait(), SECONDS)
            house.replicas.remove(leader)
            await house.leads(other, epoch)
            await house.again(leader)
            await house.agree(client)
