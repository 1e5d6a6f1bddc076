"""Agents of every so many-th switch of a fabric, with connections of their own over mTLS.

`python -m tests.bench.takeover_agents FABRIC CERTIFICATES ADDRESS,ADDRESS FIRST STEP` keeps their
sessions up until standard input ends. Each line there is a question, answered by a line of JSON.
`up` waits until every agent has a session with every controller. `over EPOCH` waits until every
agent has accepted a greater epoch, and tells when each did so, in Unix seconds. Both tell how many
sessions were begun.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import structlog

from heddle_agent.agent import Agent
from heddle_agent.fib import MemoryFib, NextHop, NicIds
from heddle_agent.session import Channels, Tls
from heddle_agent.table import Fence
from heddle_agent.watch import ManualLinks
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.fabric_file import load_fabric_file
from tests.support.waiting import until

AT_ONCE = 64
"""Agents that dial at the same time, since they share this machine's processors."""


class Crowd:
    """The agents, and when each accepted which epoch."""

    def __init__(self, fabric: Fabric, folder: Path, addresses: list[str], some: slice) -> None:
        structure, names = fabric.structure, NicIds()
        first, arcs = structure.out
        self.accepted: dict[str, dict[int, float]] = {}
        self.controllers = len(addresses)
        self.agents = []
        for row in np.flatnonzero(structure.nodes.kind != NodeKind.NIC)[some].tolist():
            switch = structure.nodes.ids[row]
            heads = structure.head[arcs[first[row] : first[row + 1]]].tolist()
            links = ManualLinks(switch, [NextHop(structure.nodes.ids[head]) for head in heads])
            files = (folder / f"agent-f1-{switch}{end}.pem" for end in ("", "-key"))
            self.accepted[switch] = {}
            self.agents.append(
                Agent(
                    fabric="fabrics/f1",
                    switch=switch,
                    controllers=addresses,
                    fib=MemoryFib(switch, links.next_hops, seed=row, names=names),
                    links=links,
                    channels=Channels(Tls(folder / "ca.pem", *files)),
                    remember=partial(self._remember, switch),
                )
            )

    def _remember(self, switch: str, fence: Fence) -> None:
        self.accepted[switch].setdefault(fence.epoch, time.time())

    async def start(self) -> list[asyncio.Task[None]]:
        """Start the agents, a few at a time."""
        running = []
        for first in range(0, len(self.agents), AT_ONCE):
            some = self.agents[first : first + AT_ONCE]
            running += [asyncio.create_task(agent.run()) for agent in some]
            await until(lambda some=some: all(agent.connected for agent in some))  # type: ignore[misc]
        return running

    def sessions(self) -> int:
        """Return the number of sessions begun since the start."""
        return sum(agent.sessions.begun for agent in self.agents)

    async def up(self) -> dict[str, object]:
        """Wait until every agent has a session with every controller."""
        wanted = self.controllers
        await until(lambda: all(agent.sessions.connected == wanted for agent in self.agents))
        return {"sessions": self.sessions()}

    async def over(self, epoch: int) -> dict[str, object]:
        """Wait until every agent has accepted a greater epoch."""
        accepted = self.accepted.values()
        await until(lambda: all(max(times, default=0) > epoch for times in accepted))
        first = [min(at for one, at in times.items() if one > epoch) for times in accepted]
        return {"sessions": self.sessions(), "times": first}


async def run(crowd: Crowd) -> None:
    """Answer questions until standard input ends."""
    running = await crowd.start()
    gc.collect()
    gc.freeze()
    while line := await asyncio.to_thread(sys.stdin.readline):
        what, *numbers = line.split()
        answer = await (crowd.over(int(numbers[0])) if what == "over" else crowd.up())
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    for task in running:
        task.cancel()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    _, file, certificates, several, start, step = sys.argv
    whole, own = load_fabric_file(Path(file)), slice(int(start), None, int(step))
    asyncio.run(run(Crowd(whole, Path(certificates), several.split(","), own)))
