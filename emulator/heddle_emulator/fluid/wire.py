"""What packets cost beyond what they carry: headers on every one, and time on every hop.

The fluid world knows no packets. What it has to know of them is counted here: a header for
each packet of a message, the last of which may be short; the time that starting a message
and passing switches takes, whatever is sent; the time that a packet is sent once more for
each link behind the slowest, where it is sent on only when all of it is there; and the size of
the pieces in which trees and chains pass on what they get. Queues, losses and the time that
congestion control needs to find a fair rate are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Floats
from heddle_emulator.traffic.script import BITS, GIGA

_WHOLE = 1e-6
"""Of a packet; what rounding may add to a message without another packet."""


@dataclass(frozen=True, slots=True)
class Wire:
    """Packet overhead and latency; by default there is none of either."""

    payload_bytes: int = 4096
    """Of a full packet."""
    header_bytes: int = 0
    """Of each packet, with everything that takes time on the wire: preamble, gap, checksums."""
    startup_seconds: float = 0.0
    """From being told to send until the first bit leaves, each message."""
    hop_seconds: float = 0.0
    """From entering a link until leaving the switch or NIC behind it, beside a packet's length."""
    store_and_forward: bool = False
    """Whether a packet leaves a switch only when all of it is there."""
    piece_bytes: int = 0
    """That trees and chains pass on at a time; 0 for as little as can be."""

    @property
    def swelling(self) -> float:
        """Bytes on the wire for each byte of payload in full packets, at least 1."""
        return 1 + self.header_bytes / self.payload_bytes

    def sent(self, gbit: Floats, messages: Floats) -> Floats:
        """Gbit on the wire for so many Gbit of payload in so many equal messages."""
        if not self.header_bytes:
            return gbit
        size = gbit * GIGA / BITS
        packets = np.ceil(size / messages / self.payload_bytes - _WHOLE) * messages
        found: Floats = gbit + packets * (self.header_bytes * BITS / GIGA)
        return found

    def packet(self, gbit: Floats, messages: Floats) -> Floats:
        """Gbit of the largest packet of so many equal messages, header included."""
        payload = np.minimum(gbit / messages, self.payload_bytes * BITS / GIGA)
        found: Floats = payload + self.header_bytes * BITS / GIGA
        return found

    def pieces(self, gbit: Floats) -> Floats:
        """Equal pieces that so many Gbit of payload go in; infinite if as small as can be."""
        if not self.piece_bytes:
            return np.full(len(gbit), np.inf)
        found: Floats = np.maximum(np.ceil(gbit * GIGA / BITS / self.piece_bytes - _WHOLE), 1.0)
        return found


NO_COST = Wire()
ROCE = Wire(
    # Preamble and gap 20, Ethernet 18, IPv4 20, UDP 8, base transport header 12, checksum 4.
    header_bytes=82,
    startup_seconds=4e-6,
    hop_seconds=6e-7,
    store_and_forward=True,
    piece_bytes=128 << 10,
)
"""RoCEv2 with packets of 4096 bytes; a few microseconds for a message to start, as NCCL needs, and
pieces as it takes them for some tens of MiB."""
TCP_SEGMENTS = Wire(payload_bytes=1448, header_bytes=66)
"""TCP with time stamps in Ethernet frames of 1500 bytes, as a kernel's shaper counts them: Ethernet
14, IPv4 20, TCP 32."""
TCP_ACKNOWLEDGED = 66 / (2 * (1448 + 66))
"""Bytes of acknowledgements, one for two segments, for each byte of segments."""
