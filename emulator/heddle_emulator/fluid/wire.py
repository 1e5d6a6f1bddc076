"""What packets cost beyond their payload: headers on every one, and time on every hop.

The fluid world has no packets, so their costs are computed here:

- a header for each packet of a message, whose last packet may be short;
- the time to start a message and to pass switches, whatever is sent;
- the time to send a packet again on each link after the slowest, where switches forward a packet
  only when all of it has arrived;
- the size of the pieces in which trees and chains pass on what they receive.

Queues, losses and the time that congestion control needs to find a fair rate are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Floats
from heddle_emulator.traffic.script import BITS, GIGA

_WHOLE = 1e-6
"""Fraction of a packet that rounding may add to a message without another packet."""


@dataclass(frozen=True, slots=True)
class Wire:
    """Packet overhead and latency; the default has neither."""

    payload_bytes: int = 4096
    """Payload of a full packet."""
    header_bytes: int = 0
    """Overhead of each packet, with all that takes time on the wire: preamble, gap, checksums."""
    startup_seconds: float = 0.0
    """Time for each message from the order to send until its first bit leaves."""
    hop_seconds: float = 0.0
    """Time from entering a link to leaving the switch or NIC behind it, besides serialisation."""
    store_and_forward: bool = False
    """Whether a packet leaves a switch only when all of it has arrived."""
    piece_bytes: int = 0
    """Bytes that trees and chains pass on at a time; 0 means as small as possible."""

    @property
    def swelling(self) -> float:
        """Bytes on the wire for each byte of payload in full packets, at least 1."""
        return 1 + self.header_bytes / self.payload_bytes

    def sent(self, gbit: Floats, messages: Floats) -> Floats:
        """Return Gbit on the wire for ``gbit`` of payload in so many equal messages."""
        if not self.header_bytes:
            return gbit
        size = gbit * GIGA / BITS
        packets = np.ceil(size / messages / self.payload_bytes - _WHOLE) * messages
        found: Floats = gbit + packets * (self.header_bytes * BITS / GIGA)
        return found

    def packet(self, gbit: Floats, messages: Floats) -> Floats:
        """Return Gbit of the largest packet of so many equal messages, header included."""
        payload = np.minimum(gbit / messages, self.payload_bytes * BITS / GIGA)
        found: Floats = payload + self.header_bytes * BITS / GIGA
        return found

    def pieces(self, gbit: Floats) -> Floats:
        """Return the number of equal pieces of so much payload; infinite if as small as can be."""
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
"""RoCEv2 with packets of 4096 bytes.

A message takes a few microseconds to start, as with NCCL, and pieces have the size that NCCL uses
for some tens of MiB.
"""
