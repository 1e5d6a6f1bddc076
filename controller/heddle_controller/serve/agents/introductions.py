"""What agents are told about their neighbours: the peers for peer notices, and NICs to count.

An agent that accepts peer notices says at which address. The controller sends it the agents of
the neighbouring switches and the keys of the fabric, again whenever an address, the fabric or the
keys change. A neighbour whose address this controller does not know is named without an address.
Then the agent keeps the address that another controller, or this one before a restart, has sent.

An agent that can count traffic without an entry gets the NICs at its switch, again whenever the
fabric changes. The list is empty if the controller does not look for unannounced flows.

Each key derives from a secret, the fabric and the number of a period of time, so replicas that
share the secret give out the same keys. Agents accept the key of the next period before it signs
and the key of the last period after, so they need not change keys at the same time.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from heddle.v1 import agent_pb2 as pb
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import NodeKind, Structure
from heddle_controller.reconcile.ports import Capability
from heddle_controller.serve.agents.stream import AgentStream
from heddle_controller.serve.errors import no_fabric_for, not_in_fabric
from heddle_controller.state.errors import FabricDeleted, NotFound, PortError
from heddle_controller.store.store import Store

log = structlog.stdlib.get_logger(__name__)

SETTLE_SECONDS = 0.1
"""Changes within this time after the first are sent together."""
_LOOK_SECONDS = 5.0
"""Interval at which fabrics and keys are checked for changes."""
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class KeySchedule:
    """The keys for peer notices, by fabric and time."""

    secret: bytes = field(default_factory=lambda: secrets.token_bytes(SECRET_BYTES), repr=False)
    period: float = 86_400.0
    """Seconds for which one key signs."""

    def keys(self, fabric: str, now: float) -> list[bytes]:
        """Return the key that signs at ``now`` (Unix seconds), the next one, and the last one."""
        number = int(now // self.period)
        return [self._key(fabric, number + step) for step in (0, 1, -1)]

    def _key(self, fabric: str, number: int) -> bytes:
        text = f"heddle peer notices\n{fabric}\n{self.period:g}\n{number}"
        return hmac.digest(self.secret, text.encode(), "sha256")


def read_secret(path: Path) -> bytes:
    """Return the secret in a file; create the file, readable only by its owner, if it is missing.

    Raises:
        InputError: the file cannot be created or read, or has fewer than ``SECRET_BYTES`` bytes.
    """
    with suppress(FileExistsError):
        try:
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise
        except OSError as error:
            reason = f"{path} cannot be made: {error.strerror}; name a file in a folder of ours"
            raise refuse("settings", "peer_key_secret", reason) from None
        with os.fdopen(made, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(SECRET_BYTES) + "\n")
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        reason = f"{path} cannot be read: {error.strerror}"
        raise refuse("settings", "peer_key_secret", reason) from None
    if len(secret) < SECRET_BYTES:
        cure = "openssl rand -hex 32 makes a good one"
        reason = f"{path} holds {len(secret)} bytes, give {SECRET_BYTES} or more; {cure}"
        raise refuse("settings", "peer_key_secret", reason)
    return secret


@dataclass(slots=True, eq=False)
class _FabricAgents:
    """What is known of the agents of one fabric."""

    structure: Structure
    addresses: dict[str, str] = field(default_factory=dict)
    """Address for peer notices by switch, also of agents that have left: they may still run."""
    streams: dict[str, AgentStream] = field(default_factory=dict)

    def neighbours(self, switch: str) -> Iterator[str]:
        """Return the switches that have a link to a switch."""
        nodes = self.structure.nodes
        return (nodes.ids[row] for row in self._next_to(switch) if nodes.kind[row] != NodeKind.NIC)

    def nics(self, switch: str) -> Iterator[pb.Endpoint]:
        """Yield the NICs that have a link to a switch."""
        nodes = self.structure.nodes
        for row in self._next_to(switch):
            if nodes.kind[row] == NodeKind.NIC:
                yield pb.Endpoint(nic=nodes.ids[row], address=nodes.address[row])

    def _next_to(self, switch: str) -> list[int]:
        row = self.structure.index.get(switch)
        return [] if row is None else self.structure.neighbours(row)


class Introductions:
    """Tells agents about each other, and about the NICs at their switches."""

    def __init__(self, schedule: KeySchedule, store: Store, *, meters: bool) -> None:
        """``meters``: whether agents shall count traffic that no entry matches."""
        self._meters = meters
        self._schedule = schedule
        self._store = store
        self._fabrics: dict[str, _FabricAgents] = {}
        self._dirty: set[tuple[str, str]] = set()
        self._flushing: asyncio.TimerHandle | None = None

    def joined(self, stream: AgentStream, structure: Structure) -> None:
        """Tell the agent of a new session about its neighbours, and them about it."""
        about = stream.about
        agents = self._fabrics.setdefault(about.fabric, _FabricAgents(structure))
        self._renew(about.fabric, agents, structure)
        agents.streams[about.switch] = stream
        self._mark(about.fabric, about.switch)
        if about.peer_address:
            self._learn(about.fabric, agents, about.switch, about.peer_address)

    def _renew(self, fabric: str, agents: _FabricAgents, structure: Structure) -> None:
        """If the fabric has changed, tell all agents again, and end sessions of other switches."""
        if structure is agents.structure:
            return
        agents.structure = structure
        for switch, stream in agents.streams.items():
            if switch in structure.index:
                self._mark(fabric, switch)
            else:
                stream.end(not_in_fabric(switch, fabric))

    def _learn(self, fabric: str, agents: _FabricAgents, switch: str, address: str) -> None:
        if agents.addresses.get(switch) != address:
            agents.addresses[switch] = address
            for neighbour in agents.neighbours(switch):
                self._mark(fabric, neighbour)

    def left(self, stream: AgentStream) -> None:
        """Forget a session that is over; no other agent is told, because its agent may run on."""
        agents = self._fabrics.get(stream.about.fabric)
        if agents is not None and agents.streams.get(stream.about.switch) is stream:
            del agents.streams[stream.about.switch]

    async def run(self) -> None:
        """Tell agents again when their fabric or its signing key changes, until cancelled.

        Sessions end if their fabric was deleted, or replaced by one without their switch. If the
        switch still has entries, its agent gets another session, to remove them.
        """
        known: dict[str, bytes] = {}
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for fabric, agents in list(self._fabrics.items()):
                try:
                    structure = (await self._store.get_fabric(fabric)).fabric.structure
                except FabricDeleted:
                    for stream in agents.streams.values():
                        stream.end(no_fabric_for(stream.about.switch, fabric))
                    continue
                except NotFound:
                    continue
                except PortError as error:
                    log.warning("fabric not read", fabric=fabric, why=str(error))
                    continue
                self._renew(fabric, agents, structure)
                signing = self._schedule.keys(fabric, time.time())[0]
                if known.get(fabric, signing) != signing:
                    for switch in agents.streams:
                        self._mark(fabric, switch)
                known[fabric] = signing

    def _mark(self, fabric: str, switch: str) -> None:
        self._dirty.add((fabric, switch))
        if self._flushing is None:
            loop = asyncio.get_running_loop()
            self._flushing = loop.call_later(SETTLE_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flushing = None
        dirty, self._dirty = self._dirty, set()
        keys = {fabric: self._schedule.keys(fabric, time.time()) for fabric, _ in dirty}
        for fabric, switch in dirty:
            agents = self._fabrics[fabric]
            stream = agents.streams.get(switch)
            if stream is None:
                continue
            if stream.about.peer_address:
                stream.introduce(self._message(agents, switch, keys[fabric]))
            if Capability.UNMATCHED in stream.about.capabilities:
                sources = agents.nics(switch) if self._meters else ()
                stream.meter(pb.Metering(sources=sources))

    def _message(
        self, agents: _FabricAgents, switch: str, keys: list[bytes]
    ) -> pb.PeerConfiguration:
        peers = [
            pb.NoticePeer(switch=peer, address=agents.addresses.get(peer, ""))
            for peer in agents.neighbours(switch)
        ]
        return pb.PeerConfiguration(peers=peers, keys=keys)
