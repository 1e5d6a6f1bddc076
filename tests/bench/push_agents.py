"""Many agents in one process, for the push bench: real sessions, tables in memory.

`python -m tests.bench.push_agents ADDRESS FABRIC` runs the agents of all leaves of a fabric file
until standard input ends. With `--bare` they have no tables, and acknowledge every push as
programmed.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from contextlib import suppress
from pathlib import Path

import structlog
from grpc import aio

from heddle.v1 import agent_pb2 as pb
from heddle.v1.agent_pb2_grpc import AgentServiceStub
from heddle_agent.agent import Agent
from heddle_agent.fib import MemoryFib, NextHop, NicIds
from heddle_agent.session import Address, Channels, Endpoint
from heddle_agent.watch import ManualLinks
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.fabric_file import load_fabric_file


async def run(address: str, fabric: Fabric) -> None:
    """Run the agents of all leaves until standard input ends."""
    channels, names = Channels(), NicIds()
    structure, agents = fabric.structure, []
    first, arcs = structure.out
    for row in fabric.rows_of_kind(NodeKind.LEAF).tolist():
        switch = structure.nodes.ids[row]
        heads = structure.head[arcs[first[row] : first[row + 1]]].tolist()
        links = ManualLinks(switch, [NextHop(structure.nodes.ids[head]) for head in heads])
        fib = MemoryFib(switch, links.next_hops, seed=row, names=names)
        agents.append(
            Agent(
                fabric="fabrics/f1",
                switch=switch,
                controllers=[address],
                fib=fib,
                links=links,
                channels=channels,
            )
        )
    running = [asyncio.create_task(agent.run()) for agent in agents]
    gc.collect()
    gc.freeze()
    # Collect young objects as often as a process with one agent would, but hardly ever collect the
    # old objects of two thousand agents at once.
    gc.set_threshold(20_000, 1_000, 1_000)
    await asyncio.to_thread(sys.stdin.read)
    await asyncio.gather(*(agent.stop() for agent in agents))
    await asyncio.gather(*running)
    await channels.close()


async def run_bare(address: str, fabric: Fabric) -> None:
    """Run sessions of all leaves that have no agent behind them."""
    channels, ids = Channels(), fabric.structure.nodes.ids
    where = Address.parse(address)
    channel = channels.get(Endpoint(where, where.host))
    switches = [ids[row] for row in fabric.rows_of_kind(NodeKind.LEAF).tolist()]
    running = [asyncio.create_task(_keep(channel, switch)) for switch in switches]
    await asyncio.to_thread(sys.stdin.read)
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    await channels.close()


async def _keep(channel: aio.Channel, switch: str) -> None:
    """Keep a session of a switch open.

    It dials again when the session fails, since gRPC does not accept thousands at the same moment.
    """
    while True:
        with suppress(aio.AioRpcError, asyncio.InvalidStateError):
            await _acknowledge(channel, switch)
        await asyncio.sleep(0.2)


async def _acknowledge(channel: aio.Channel, switch: str) -> None:
    """Introduce a switch, then acknowledge each push."""
    call = AgentServiceStub(channel).Session()
    about = pb.SessionParameters(fabric="fabrics/f1", switch=switch, instance_id=switch)
    await call.write(pb.AgentMessage(session_parameters=about))
    while isinstance(message := await call.read(), pb.ControllerMessage):
        if message.WhichOneof("message") == "push":
            push, answer = message.push, pb.AgentMessage()
            result = answer.push_result
            result.nonce, result.epoch = push.nonce, push.epoch
            result.generation = push.generation
            result.stage, result.status = pb.PUSH_STAGE_FIB, pb.PUSH_STATUS_APPLIED
            await call.write(answer)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    start = run_bare if "--bare" in sys.argv else run
    asyncio.run(start(sys.argv[1], load_fabric_file(Path(sys.argv[2]))))
