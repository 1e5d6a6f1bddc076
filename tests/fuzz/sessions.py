"""Target: sessions of agents, from the introduction to the end, with the service behind them.

An input is the messages of an agent, each preceded by its length in two bytes. Whatever they are, a
session that fails must end with a status that blames the agent. It must not leave a stream or a
task behind, and a link may be seen down only if one of its ends has had a session.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

from heddle.v1 import agent_pb2 as pb
from heddle_controller.reconcile.observations import Observations
from heddle_controller.reconcile.unannounced import UnannouncedTerms
from heddle_controller.serve.agents.counters import CounterBook
from heddle_controller.serve.agents.gateway import Gateway
from heddle_controller.serve.agents.link_book import LinkBook
from heddle_controller.serve.agents.overlays import OverlayBook
from heddle_controller.serve.agents.service import AgentService, SessionTerms
from heddle_controller.serve.flow_index import FlowIndexes
from heddle_controller.serve.interceptors.around import status_of
from heddle_controller.serve.rates import RateBook
from heddle_controller.store.store import Store
from heddle_controller.telemetry.metrics import Telemetry
from tests.fuzz.target import Target, check
from tests.fuzz.wires import disturbed, framed, messages_of, parts_of

PATIENCE = 240.0
"""Seconds after which a session hangs, or leaves a task behind."""


class Listener:
    """The stream as the service sees it, which keeps everything that is written."""

    def __init__(self) -> None:
        self.heard: list[pb.ControllerMessage] = []

    async def write(self, message: pb.ControllerMessage) -> None:
        """Keep a message of the controller."""
        self.heard.append(message)


class Sessions:
    """The service of agents, over a store that others use too."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        telemetry = Telemetry()
        self._loop, self._store = loop, store
        self._gateway = Gateway(telemetry, 64)
        self._observations = Observations(UnannouncedTerms(0.1, 1.0))
        counters = CounterBook(FlowIndexes(store), RateBook(), telemetry, self._observations)
        self._service = AgentService(
            store,
            self._gateway,
            counters,
            SessionTerms("fuzz", 0.0, 0.0, meters=True),
            lambda: 1,
            observations=self._observations,
            links=LinkBook(telemetry),
            overlays=OverlayBook(store, lambda: 1, telemetry, lambda _: None),
        )
        self._sessions = 0
        self._seen: set[str] = set()

    def run(self, content: bytes) -> bool:
        """Run one session; return whether it was accepted and went to its end."""
        messages = messages_of(pb.AgentMessage, content)
        if messages is None:
            return False
        self._sessions += 1
        return self._loop.run_until_complete(self._session(messages))

    async def _session(self, messages: Sequence[pb.AgentMessage]) -> bool:
        before = len(asyncio.all_tasks())
        listener = Listener()
        context: Any = listener
        try:
            async with asyncio.timeout(PATIENCE):
                await self._service.Session(_each(messages), context)
        except TimeoutError:
            raise
        except Exception as error:
            if status_of(error) is None:
                raise
        accepted = bool(listener.heard)
        if accepted:
            self._seen.add(messages[0].session_parameters.switch)
        end = self._loop.time() + PATIENCE
        while len(asyncio.all_tasks()) > before:  # reports may still be on their way to the store
            check(self._loop.time() < end, "a session leaves no task behind")
            await asyncio.sleep(0.001)
        check(not self._gateway.sessions("f1"), "nor a stream")
        first = [one.WhichOneof("message") for one in listener.heard[:1]]
        check(first in ([], ["session_accepted"]), "the first word is that it is accepted")
        if self._sessions % 50 == 0:
            await self._judge()
        return accepted and first == ["session_accepted"]

    async def _judge(self) -> None:
        """Check that links are seen down only by switches at their ends that had a session."""
        record = await self._store.get_fabric("f1")
        for low, high, key in self._observations.of("f1").down:
            ends = {low, high}
            check(record.fabric.find_links(low, high, key), "a link that there is")
            check(ends & self._seen, f"nobody at {ends} has said that it is down")


async def _each(messages: Sequence[pb.AgentMessage]) -> AsyncIterator[pb.AgentMessage]:
    for message in messages:
        yield message


def target(sessions: Sessions, good: dict[str, Any]) -> Target:
    """Return the target, whose inputs are sessions of almost good messages.

    The introduction is good more often than not.
    """
    first = pb.AgentMessage(session_parameters=good["session"])
    later = [
        pb.AgentMessage(push_result=good["result"]),
        pb.AgentMessage(link_state=good["links"]),
        pb.AgentMessage(counters=good["counters"]),
        pb.AgentMessage(overlay=pb.OverlayReport(withdrawn=True)),
    ]

    def some(chance: random.Random) -> list[bytes]:
        begin = [first if chance.random() < 0.7 else disturbed(first, chance)]
        rest = [disturbed(chance.choice(later), chance) for _ in range(chance.randrange(5))]
        return [one.SerializeToString() for one in [*begin, *rest]]

    def make(chance: random.Random) -> bytes:
        return framed(some(chance))

    def vary(content: bytes, chance: random.Random) -> bytes:
        parts = parts_of(content)
        at = chance.randint(0, len(parts))
        parts[at : at + chance.randrange(2)] = some(chance)[chance.randrange(2) :]
        return framed(parts)

    good_one = framed([one.SerializeToString() for one in [first, *later]])
    return Target("session of an agent, whole", sessions.run, [good_one], make, vary, weight=3)
