"""What clients, agents and packets see while the Redis of all replicas hangs."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import grpc
from google.rpc import error_details_pb2
from grpc import aio

from heddle.v1 import fabric_pb2, placement_pb2
from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from heddle.v1.placement_pb2_grpc import PlacementServiceStub
from heddle_controller.model.job import Job
from heddle_emulator.client.api import job_to_pb
from tests.support.replicating import NAME, SECONDS, Replica, job, replicated
from tests.support.serving import detail, refusal


async def stale(replica: Replica) -> tuple[bool, float]:
    """Return whether a replica marks a read as stale, and how many seconds old it is."""
    async with replica.controller.channel() as channel:
        call = FabricServiceStub(channel).GetFabric(fabric_pb2.GetFabricRequest(name=NAME))
        assert (await call).name == NAME
        marks = dict(await call.trailing_metadata() or ())
        return marks.get("heddle-stale") == "true", float(marks.get("heddle-stale-seconds", 0))


async def until_stale(replica: Replica, *, wanted: bool) -> None:
    """Wait until a replica marks its reads as stale, or no longer does."""
    async with asyncio.timeout(SECONDS):
        while (await stale(replica))[0] is not wanted:  # noqa: ASYNC110 - what is polled has no event
            await asyncio.sleep(0.05)


def asked_for(wanted: Job) -> placement_pb2.SubmitJobRequest:
    """Return a request that is the same each time, also in its id."""
    return placement_pb2.SubmitJobRequest(
        parent=NAME, job_id=wanted.name, spec=job_to_pb(wanted), request_id="w1"
    )


async def write(replica: Replica, wanted: Job) -> aio.AioRpcError:
    """Return the error with which a write is refused."""
    async with replica.controller.channel() as channel:
        stub = PlacementServiceStub(channel)
        return await refusal(stub.SubmitJob(asked_for(wanted), timeout=SECONDS))


async def test_redis_away(tmp_path: Path) -> None:
    """While Redis hangs, writes are refused with a retry delay, and reads are marked as stale.

    Once the server is back, a leader with a new epoch plans for what agents saw meanwhile, over the
    same sessions. A refused write may have been made all the same, so repeating its request makes
    it once. No replica says that it follows itself.
    """
    async with replicated(tmp_path) as house:
        hosts, client = house.fabric.structure.host_names, await house.client(house.replicas[1])
        await house.submit(client, job("first", hosts[:4]))
        await house.agree(client)
        sessions = sum(agent.sessions.begun for agent in house.fleet.agents.values())
        epoch = house.leader().epoch
        assert not (await stale(house.replicas[0]))[0]
        second = job("second", hosts[4:])
        house.redis.signal(signal.SIGSTOP)
        for replica in house.replicas:
            error = await write(replica, second)
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            delay = detail(error, error_details_pb2.RetryInfo).retry_delay
            assert delay.ToTimedelta().total_seconds() > 0
            await until_stale(replica, wanted=True)
        await house.fleet.set_link("z0-l0", "z0-s0", None, up=False)
        await asyncio.sleep(2)  # longer than the lease
        house.redis.signal(signal.SIGCONT)
        for replica in house.replicas:
            await until_stale(replica, wanted=False)
        async with asyncio.timeout(SECONDS):
            while house.leader().epoch == epoch:  # noqa: ASYNC110 - a log has no events
                await asyncio.sleep(0.05)
        house.fabric = house.fleet.world
        async with house.replicas[0].controller.channel() as channel:
            await PlacementServiceStub(channel).SubmitJob(asked_for(second), timeout=SECONDS)
        house.jobs.append(second)
        await house.agree(client)
        after = sum(agent.sessions.begun for agent in house.fleet.agents.values())
        assert after == sessions
        for replica in house.replicas:
            followed = {event["leader"] for event in replica.events("following")}
            assert replica.name not in followed
