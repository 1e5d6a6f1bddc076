"""Finds the controllers behind the addresses that an agent was given.

A name may have several addresses. A headless service, for example, has one for each controller. The
agent keeps a session with each, so it looks names up itself, and again from time to time.
Certificates are still checked against the name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from typing import NamedTuple

import structlog

from heddle_agent.session.address import Address

_log = structlog.get_logger()


class Endpoint(NamedTuple):
    """The place where one controller listens."""

    address: Address
    """An IP address and a port."""
    name: str
    """The host as it was given; the controller's certificate must be for this name."""

    def __str__(self) -> str:
        return str(self.address)


def is_literal(address: Address) -> bool:
    """Whether the host is an IP address and needs no lookup."""
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        return False
    return True


class Resolver:
    """Looks names up, and reuses the last result while lookups fail."""

    def __init__(self, addresses: Iterable[Address]) -> None:
        self._addresses = tuple(dict.fromkeys(addresses))
        self._known: dict[Address, list[Endpoint]] = {}
        self._unresolved: set[Address] = set()
        """Addresses whose failure is already logged."""

    @property
    def settled(self) -> bool:
        """Whether all addresses are IP addresses, so that nothing needs to be looked up again."""
        return all(is_literal(address) for address in self._addresses)

    async def endpoints(self) -> list[Endpoint]:
        """Return every controller, each address once."""
        found = await asyncio.gather(*(self._lookup(address) for address in self._addresses))
        by_address = {one.address: one for several in reversed(found) for one in reversed(several)}
        return [*by_address.values()]

    async def _lookup(self, address: Address) -> list[Endpoint]:
        if is_literal(address):
            return [Endpoint(address, address.host)]
        loop = asyncio.get_running_loop()
        try:
            told = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            if address not in self._unresolved:
                self._unresolved.add(address)
                _log.warning("controller's name not resolved", name=str(address), why=str(error))
            return self._known.get(address, [])
        self._unresolved.discard(address)
        hosts = dict.fromkeys(str(where[0]) for *_, where in told)
        found = [Endpoint(Address(host, address.port), address.host) for host in hosts]
        self._known[address] = found
        return found
