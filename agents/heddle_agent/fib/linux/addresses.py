"""Addresses as 16 bytes; IPv4 addresses are written ::ffff:a.b.c.d, so that all are alike.

Only addresses that go to the kernel have the length of their family.
"""

from __future__ import annotations

import socket
from enum import IntEnum

MAPPED = bytes(10) + b"\xff\xff"
"""The first 12 bytes of every IPv4 address."""


class Family(IntEnum):
    """Address families, numbered as in the kernel."""

    IPV4 = 2
    IPV6 = 10

    @property
    def bits(self) -> int:
        """Number of bits of an address."""
        return 32 if self is Family.IPV4 else 128


def packed_address(address: str) -> bytes | None:
    """Return an address as 16 bytes; None if it is not an IP address."""
    try:
        if ":" not in address:
            return MAPPED + socket.inet_pton(socket.AF_INET, address)
        return socket.inet_pton(socket.AF_INET6, address)
    except (OSError, ValueError):
        return None


def family_of(address: bytes) -> Family:
    """Return the family of an address of 16 bytes."""
    return Family.IPV4 if address.startswith(MAPPED) else Family.IPV6


def written(address: bytes) -> str:
    """Return an address of 16 bytes as text."""
    return socket.inet_ntop(family_of(address), of_kernel(address))


def of_kernel(address: bytes) -> bytes:
    """Shorten an address of 16 bytes to the length of its family."""
    return address.removeprefix(MAPPED)


def widened(address: bytes) -> bytes:
    """Extend an address from the kernel to 16 bytes."""
    return MAPPED + address if len(address) == len(MAPPED) // 3 else address
