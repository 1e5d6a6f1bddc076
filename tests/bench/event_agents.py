"""The agents of all switches of a fabric in one process, for the event bench.

`python -m tests.bench.event_agents ADDRESS FABRIC` reads one change per line from standard input,
"down LINK" or "up LINK", where LINK is a row. It tells the agents at both ends of the link, and
answers with the time on the monotonic clock, which all processes of a machine share. It ends with
its input.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from pathlib import Path

import structlog

from heddle_agent.agent import Agent
from heddle_agent.fib import MemoryFib, NextHop, NicIds
from heddle_agent.session import Channels
from heddle_agent.watch import ManualLinks
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.fabric_file import load_fabric_file


async def run(address: str, fabric: Fabric) -> None:
    """Run every switch's agent until standard input ends."""
    channels, names, links = Channels(), NicIds(), _links(fabric)
    agents = [
        Agent(
            fabric="fabrics/f1",
            switch=watch_of,
            controllers=[address],
            fib=MemoryFib(watch_of, watch.next_hops, seed=row, names=names),
            links=watch,
            channels=channels,
        )
        for row, (watch_of, watch) in enumerate(links.items())
    ]
    running = [asyncio.create_task(agent.run()) for agent in agents]
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    while line := await asyncio.to_thread(sys.stdin.readline):
        _change(fabric, links, *line.split())
    await asyncio.gather(*(agent.stop() for agent in agents))
    await asyncio.gather(*running)
    await channels.close()


def _links(fabric: Fabric) -> dict[str, ManualLinks]:
    """Return the links that each switch sees, by switch."""
    structure = fabric.structure
    first, arcs = structure.out
    ids, found = structure.nodes.ids, {}
    for row in fabric.rows_of_kind(*(kind for kind in NodeKind if kind != NodeKind.NIC)).tolist():
        own = arcs[first[row] : first[row + 1]].tolist()
        hops = [
            NextHop(ids[int(structure.head[arc])], str(structure.links.key[arc >> 1]))
            for arc in own
        ]
        found[ids[row]] = ManualLinks(ids[row], hops)
    return found


def _change(fabric: Fabric, links: dict[str, ManualLinks], what: str, link: str) -> None:
    row, table = int(link), fabric.structure.links
    ids = fabric.structure.nodes.ids
    one, other, key = ids[int(table.a[row])], ids[int(table.b[row])], str(table.key[row])
    sys.stdout.write(f"{time.monotonic()}\n")
    sys.stdout.flush()
    for switch, peer in ((one, other), (other, one)):
        watch = links[switch]
        (watch.down if what == "down" else watch.up)(peer, key)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    asyncio.run(run(sys.argv[1], load_fabric_file(Path(sys.argv[2]))))
