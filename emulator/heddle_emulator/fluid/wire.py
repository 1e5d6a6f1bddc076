"""What packets cost beyond what they carry: headers on every one, and time on every hop.

The fluid world knows no packets. Headers make everything that is sent over a fabric
longer by the same part; starting a message and passing switches takes time that does
not depend on how much is sent. Queues, losses and the time that congestion control
needs to find a fair rate are left out.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    """From entering a link until leaving the switch or NIC behind it."""

    @property
    def swelling(self) -> float:
        """Bytes on the wire for each byte of payload, at least 1."""
        return 1 + self.header_bytes / self.payload_bytes


NO_COST = Wire()
ROCE = Wire(
    # Preamble and gap 20, Ethernet 18, IPv4 20, UDP 8, base transport header 12, checksum 4.
    header_bytes=82,
    startup_seconds=4e-6,
    hop_seconds=6e-7,
)
"""RoCEv2 with packets of 4096 bytes; a few microseconds for a message to start, as NCCL needs."""
TCP_SEGMENTS = Wire(payload_bytes=1448, header_bytes=66)
"""TCP with time stamps in Ethernet frames of 1500 bytes, as a kernel's shaper counts them: Ethernet
14, IPv4 20, TCP 32."""
TCP_ACKNOWLEDGED = 66 / (2 * (1448 + 66))
"""Bytes of acknowledgements, one for two segments, for each byte of segments."""
