"""Many agents in one process, for the push bench: real sessions, tables in memory.

`python -m tests.bench.push_agents ADDRESS FABRIC` runs those of all leaves of a fabric file until
standard input ends.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path

import structlog

from heddle_agent.agent import Agent
from heddle_agent.fib import MemoryFib, Names, NextHop
from heddle_agent.session import Channels
from heddle_agent.watch import ManualLinks
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.fabric_file import load_fabric_file


async def run(address: str, fabric: Fabric) -> None:
    """The agents of all leaves."""
    channels, names = Channels(), Names()
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
    # What is young is looked through as in a process of each agent's own; what two thousand of them
    # have kept, at once, is not.
    gc.set_threshold(20_000, 1_000, 1_000)
    await asyncio.to_thread(sys.stdin.read)
    await asyncio.gather(*(agent.stop() for agent in agents))
    await asyncio.gather(*running)
    await channels.close()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    asyncio.run(run(sys.argv[1], load_fabric_file(Path(sys.argv[2]))))
