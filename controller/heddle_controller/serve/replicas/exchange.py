"""All that goes between replicas, for the gateway: implements its ``Replicas``."""

from __future__ import annotations

import asyncio
import secrets

import structlog

from heddle.v1 import relay_pb2 as pb
from heddle_controller.reconcile.replicas import Relay
from heddle_controller.serve.agents.gateway import Gateway
from heddle_controller.serve.agents.stream import AgentStream
from heddle_controller.serve.replicas.addresses import Addresses
from heddle_controller.serve.replicas.branch import Branch
from heddle_controller.serve.replicas.conditions import Conditions
from heddle_controller.serve.replicas.mirrors import Mirrors
from heddle_controller.serve.replicas.post import CALL_SECONDS, Post

log = structlog.stdlib.get_logger(__name__)


class Exchange:
    """One replica's end."""

    def __init__(
        self, relay: Relay, gateway: Gateway, holder: str, pace: float = CALL_SECONDS
    ) -> None:
        """``holder`` is this replica's name, for people; ``pace`` as in ``Post``."""
        self._post = Post(relay, f"{holder}/{secrets.token_hex(4)}", pace)
        self._branch = Branch(self._post, gateway.tenure)
        self._mirrors = Mirrors(self._post, gateway, holder)
        self.addresses = Addresses(self._post)
        self.conditions = Conditions(self._post)
        for stream in gateway.local():
            self._branch.opened(stream)
        gateway.replicas = self

    def lead(self, epoch: int) -> None:
        """See ``Replicas``."""
        self._mirrors.lead(epoch)

    def retire(self, epoch: int) -> None:
        """See ``Replicas``."""
        self._mirrors.retire(epoch)

    def opened(self, stream: AgentStream) -> None:
        """See ``Replicas``."""
        self._branch.opened(stream)
        self.addresses.opened(stream)

    def closed(self, stream: AgentStream) -> None:
        """See ``Replicas``."""
        self._branch.closed(stream)
        self.addresses.closed(stream)
        self._mirrors.vacant(stream.about)

    async def run(self) -> None:
        """Read, send and call, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._post.run())
            tasks.create_task(self._call())
            tasks.create_task(self.conditions.run())
            async for letter in self._post.letters():
                if letter is None:
                    self._branch.lost()
                    self._mirrors.lost()
                    self._mirrors.call()
                    self.addresses.ask()
                    continue
                for note in letter.notes:
                    try:
                        self._take(letter.sender, note)
                    except Exception:  # a fault in one note ends neither us nor the others
                        log.exception("note not understood", sender=letter.sender)

    async def _call(self) -> None:
        while True:
            await asyncio.sleep(self._post.pace)
            self._mirrors.call()

    def _take(self, sender: str, note: pb.Note) -> None:
        match note.WhichOneof("note"):
            case "call":
                self._branch.called(sender, note.call)
            case "push":
                self._branch.push(note.push)
            case "roster":
                self._mirrors.roster(sender, note.roster)
            case "opened":
                self._mirrors.opened(sender, note.opened)
            case "closed":
                self._mirrors.closed(sender, note.closed)
            case "result":
                self._mirrors.result(sender, note.result)
            case "beat":
                self._mirrors.beat(sender, note.beat)
            case "addresses":
                self.addresses.heard(sender, note.addresses)
            case "conditions":
                self.conditions.heard(sender, note.conditions)
