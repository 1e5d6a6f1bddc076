"""What a probe has to send and receive, as one line of JSON between processes.

The sender numbers the packets of every flow, and notes when it sent each. The receiver notes which
came, when (by the kernel's time stamp) and with which TTL. Both use CLOCK_REALTIME of the same
machine, so their times are comparable. A packet's payload is ``PACKET``, which is flow row and
number, and then zeros up to its size.

Packets of one instant are sent in order of the flows. The schedule does not drift: a delayed sender
catches up, and its notes have the true times.
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
"""Bytes of Ethernet, IP and UDP headers, which a shaper counts beside the payload, by family."""
SMALL = 64
"""Payload in bytes of a probe that only checks whether packets arrive."""
FULL_PAYLOAD = 1400
"""Payload in bytes of a flow that sends at a rate in Mbit/s."""


@dataclass(frozen=True, slots=True)
class NamedPort:
    """A QP whose source port is in a file of its host's agent, which may change it at any time."""

    file: str
    """The file that the agent writes."""
    flow: str
    place: int
    """Position of the QP among those of the flow."""
    ports: tuple[int, ...]
    """All ports that the file may name."""


@dataclass(frozen=True, slots=True)
class ProbeFlow:
    """One stream of packets: a flow, or one QP of it."""

    name: str
    source_space: str
    """Namespace of the sender."""
    destination_space: str
    source: str
    """Address of the sending NIC."""
    destination: str
    source_port: int
    destination_port: int
    rate: float
    """Packets per second of UDP. TCP ignores it and sends as much as it can."""
    size: int = SMALL
    """Payload of a packet in bytes."""
    protocol: str = UDP
    named: NamedPort | None = None
    """Where the UDP source port is read before each packet, instead of ``source_port``."""

    @property
    def family(self) -> socket.AddressFamily:
        """The socket family of the flow's addresses."""
        return family_of(self.source)


def family_of(address: str) -> socket.AddressFamily:
    """Return the socket family of an address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def dump(flows: list[ProbeFlow], folder: str) -> str:
    """Return flows, and the folder for results, as one line of JSON."""
    return json.dumps({"folder": folder, "flows": [asdict(flow) for flow in flows]})


def load(line: str) -> tuple[list[ProbeFlow], str]:
    """Return the flows and the folder of a line that ``dump`` made."""
    told = json.loads(line)
    return [_flow(**flow) for flow in told["flows"]], told["folder"]


def _flow(named: dict[str, Any] | None, **others: Any) -> ProbeFlow:  # noqa: ANN401 - as written
    return ProbeFlow(**others, named=NamedPort(**named) if named else None)
