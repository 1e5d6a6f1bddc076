"""Target: what a controller sends in a session, to the agent's half of it.

An input is the controller's messages, each preceded by its length in two bytes. Every push must be
answered, entries must lead over the switch's own links, and peer keys that are too short to be safe
must be refused.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import grpc

from heddle.v1 import agent_pb2 as pb
from heddle_agent.fib import MemoryFib
from heddle_agent.peers import PeerConfiguration, PeerNotices
from heddle_agent.peers.keys import LEAST_BYTES
from heddle_agent.session.conversation import Conversation, ForeignError
from heddle_agent.session.encode import Identity
from heddle_agent.table import Forwarding, TableWorker
from tests.fuzz import columns
from tests.fuzz.target import Target, check
from tests.fuzz.wires import disturbed, framed, messages_of, parts_of
from tests.support.agent_worlds import SPINES, SWITCH, FixedUnderlay
from tests.support.peer_notices import FABRIC, KEY, LossyNetwork, Place

PATIENCE = 240.0
"""Seconds after which a session hangs."""
IDENTITY = Identity(FABRIC, SWITCH, "i1", "1.0")


class Controller:
    """The stream as the agent's half sees it: these messages, and then the end."""

    def __init__(self, messages: Sequence[pb.ControllerMessage]) -> None:
        self._messages = list(messages)
        self.heard: list[pb.AgentMessage] = []

    async def read(self) -> object:
        """Return the next message, or EOF."""
        await asyncio.sleep(0)
        return self._messages.pop(0) if self._messages else grpc.aio.EOF

    async def write(self, message: pb.AgentMessage) -> None:
        """Note a message of the agent."""
        self.heard.append(message)

    def cancel(self) -> bool:
        """End the stream."""
        self._messages.clear()
        return True


class Agent:
    """What is behind one session of an agent: table, peer notices and their configuration."""

    def __init__(self) -> None:
        self.fib = MemoryFib(SWITCH, SPINES, FixedUnderlay(), table_size=64)
        forwarding = Forwarding(SWITCH, self.fib, (hop.port for hop in SPINES))
        place = Place(LossyNetwork(random.Random(1)), SWITCH)
        self.peer_configuration = PeerConfiguration(place, clock=lambda: 0.0)
        self.notices = PeerNotices(
            fabric=FABRIC,
            switch=SWITCH,
            keys=self.peer_configuration.keys,
            network=place,
            heard=lambda *_: None,
            boot=1,
        )
        self.worker = TableWorker(forwarding)

    async def talk(self, messages: Sequence[pb.ControllerMessage]) -> bool:
        """Run one session to its end, and return whether it was accepted."""
        call: Any = Controller(messages)
        reports: list[pb.OverlayReport] = []
        conversation = Conversation(
            call,
            self.worker,
            links=list,
            answered=Counter(),
            introduced=lambda peers, keys: self.peer_configuration.update(
                self.notices, peers, keys
            ),
            overlay_told=reports.append,
        )
        try:
            async with asyncio.timeout(PATIENCE):
                accepted = await conversation.introduce(IDENTITY)
                await conversation.run(accepted.counter_interval_seconds)
        except (ForeignError, asyncio.InvalidStateError):
            return False
        self.judge(messages[1:], call.heard)
        return True

    def judge(
        self, messages: Sequence[pb.ControllerMessage], heard: Sequence[pb.AgentMessage]
    ) -> None:
        """Check that every push was answered, and that nothing forbidden was done."""
        asked = Counter(one.push.nonce for one in messages if one.HasField("push"))
        told = Counter(one.push_result.nonce for one in heard if one.HasField("push_result"))
        check(asked.keys() == told.keys(), "every push is answered, and no other")
        check(all(told[nonce] >= count for nonce, count in asked.items()), "as often as asked")
        local = {hop.port for hop in SPINES}
        groups = self.fib.read_back().values()
        check(all(group.primary.port in local for group in groups), "next hops are the switch's")
        check(
            all(len(key) >= LEAST_BYTES for key in self.peer_configuration.keys.keys),
            "keys are safe",
        )


class Conversations:
    """Runs each session with an agent of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, content: bytes) -> bool:
        """Run one input."""
        messages = messages_of(pb.ControllerMessage, content)
        if messages is None:
            return False
        return self._loop.run_until_complete(Agent().talk(messages))


def target(loop: asyncio.AbstractEventLoop, push: pb.Push) -> Target:
    """Return the target, whose inputs are sessions of almost good messages."""
    first = pb.ControllerMessage(session_accepted=pb.SessionAccepted(controller_id="c", epoch=1))
    later = [
        pb.ControllerMessage(peer_configuration=pb.PeerConfiguration(keys=[KEY])),
        pb.ControllerMessage(overlay=pb.OverlayOrder(withdrawn=True, epoch=1)),
    ]

    def some(chance: random.Random) -> list[bytes]:
        made = [first if chance.random() < 0.8 else disturbed(first, chance)]
        for _ in range(chance.randrange(4)):
            if chance.random() < 0.6:
                made.append(pb.ControllerMessage(push=columns.changed(push, chance)))
            else:
                made.append(disturbed(chance.choice(later), chance))
        return [one.SerializeToString() for one in made]

    def make(chance: random.Random) -> bytes:
        return framed(some(chance))

    def vary(content: bytes, chance: random.Random) -> bytes:
        parts = parts_of(content)
        at = chance.randint(0, len(parts))
        parts[at : at + chance.randrange(2)] = some(chance)[chance.randrange(2) :]
        return framed(parts)

    good = [first, pb.ControllerMessage(push=push), *later]
    content = framed([one.SerializeToString() for one in good])
    return Target("session of a controller", Conversations(loop).run, [content], make, vary, 3)
