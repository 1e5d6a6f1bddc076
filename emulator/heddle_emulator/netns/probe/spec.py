"""What a probe is to send and receive, as one line of JSON between processes.

A sender numbers the packets of every flow and notes when it sent each; a receiver
notes which came, when (by the kernel's own stamp) and over how many hops. Both clocks
are CLOCK_REALTIME of one machine, so they need no agreement. A packet's payload is
``PACKET``: flow row, number, then zeros up to its size.

Packets are sent in flow order at each instant, by a schedule that does not drift: a
sender that was held up catches up, and the notes tell the truth about when.
"""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import asdict, dataclass
from typing import Any

PACKET = struct.Struct("!II")
UDP, TCP = "udp", "tcp"
HEADERS = {socket.AF_INET: 14 + 20 + 8, socket.AF_INET6: 14 + 40 + 8}
"""Ethernet, IP and UDP: bytes of a packet that a shaper counts beyond the payload, by family."""
SMALL = 64
"""Payload of a probe that only asks whether there is a way."""
FULL_PAYLOAD = 1400
"""Payload of a flow that fills its cable."""


@dataclass(frozen=True, slots=True)
class NamedPort:
    """A QP whose source port is told by the agent of its host, which may change it at any time."""

    file: str
    """That the agent writes."""
    flow: str
    place: int
    """Among the QPs of the flow."""
    ports: tuple[int, ...]
    """All that may be told."""


@dataclass(frozen=True, slots=True)
class ProbeFlow:
    """One stream of packets: a flow, or one QP of it."""

    name: str
    source_space: str
    """Namespace of the sender."""
    destination_space: str
    source: str
    """Address of the NIC it leaves."""
    destination: str
    source_port: int
    destination_port: int
    rate: float
    """UDP: packets a second; TCP: as much as there is room for."""
    size: int = SMALL
    """Payload, bytes."""
    protocol: str = UDP
    named: NamedPort | None = None
    """Who tells the port of UDP instead of ``source_port``, before each packet."""

    @property
    def family(self) -> socket.AddressFamily:
        """The family of its addresses."""
        return family_of(self.source)


def family_of(address: str) -> socket.AddressFamily:
    """The family of an address, for a socket."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def dump(flows: list[ProbeFlow], folder: str) -> str:
    """One line of JSON; results go to ``folder``."""
    return json.dumps({"folder": folder, "flows": [asdict(flow) for flow in flows]})


def load(line: str) -> tuple[list[ProbeFlow], str]:
    """What ``dump`` made."""
    told = json.loads(line)
    return [_flow(**flow) for flow in told["flows"]], told["folder"]


def _flow(named: dict[str, Any] | None, **others: Any) -> ProbeFlow:  # noqa: ANN401 - as written
    return ProbeFlow(**others, named=NamedPort(**named) if named else None)
