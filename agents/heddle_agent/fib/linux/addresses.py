"""Addresses as 16 bytes, those of IPv4 as ::ffff:a.b.c.d, so that all of them are alike.

Only what is handed to the kernel has the length of its family.
"""

from __future__ import annotations

import socket
from enum import IntEnum

MAPPED = bytes(10) + b"\xff\xff"
"""What the addresses of IPv4 begin with."""


class Family(IntEnum):
    """As the kernel numbers them."""

    IPV4 = 2
    IPV6 = 10

    @property
    def bits(self) -> int:
        """How many bits an address has."""
        return 32 if self is Family.IPV4 else 128


def packed_address(address: str) -> bytes | None:
    """An address as 16 bytes; None if it is none."""
    try:
        if ":" not in address:
            return MAPPED + socket.inet_pton(socket.AF_INET, address)
        return socket.inet_pton(socket.AF_INET6, address)
    except (OSError, ValueError):
        return None


def family_of(address: bytes) -> Family:
    """The family of an address of 16 bytes."""
    return Family.IPV4 if address.startswith(MAPPED) else Family.IPV6


def written(address: bytes) -> str:
    """An address of 16 bytes as people write it."""
    return socket.inet_ntop(family_of(address), of_kernel(address))


def of_kernel(address: bytes) -> bytes:
    """An address of 16 bytes in the length of its family."""
    return address.removeprefix(MAPPED)


def widened(address: bytes) -> bytes:
    """An address of the kernel's as 16 bytes."""
    return MAPPED + address if len(address) == len(MAPPED) // 3 else address
