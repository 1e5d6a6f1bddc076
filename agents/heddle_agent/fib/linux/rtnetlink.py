"""Interfaces, routes and rules of the kernel, as far as the backend uses them."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from heddle_agent.fib.linux import marks
from heddle_agent.fib.linux.addresses import Family, of_kernel, widened
from heddle_agent.netlink import (
    CREATE,
    EXCL,
    REPLACE,
    KernelError,
    Netlink,
    attribute,
    attributes,
    native,
    nest,
    number,
    string,
)

GET_LINK, SET_LINK = 18, 19
GET_ADDRESS = 22
NEW_ROUTE, DELETE_ROUTE, GET_ROUTE = 24, 25, 26
NEW_RULE, DELETE_RULE, GET_RULE = 32, 33, 34

_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBi")
_ROUTE = struct.Struct("=BBBBBBBBI")
_RULE = _ROUTE  # the header of a rule has the same layout
_OIF, _GATEWAY, _PRIORITY, _TABLE = 4, 5, 6, 15  # attributes of routes; rules share two
_GOTO_TARGET, _FWMARK, _FWMASK, _PROTOCOL = 4, 10, 16, 21
_UNICAST, _UNIVERSE, _ONLINK = 1, 0, 0x4
_TO_TABLE, _GOTO, _NOTHING, _INVERT = 1, 2, 3, 0x2
_ALL_BITS = 0xFFFFFFFF
IGNORE_LINKDOWN = 29
"""Number of ignore_routes_with_linkdown among the IPv4 settings, counted from 1."""
_AF_SPEC = 26
_SETTINGS = {Family.IPV4: (1, IGNORE_LINKDOWN - 1), Family.IPV6: (2, 39)}
"""Attribute with an interface's settings, and the position of this one in it, counted from 0."""


_Network: TypeAlias = ipaddress.IPv4Interface | ipaddress.IPv6Interface
_VERSIONS = {Family.IPV4: 4, Family.IPV6: 6}


class Place(NamedTuple):
    """The place of one route: the table of a slot, in one family."""

    slot: int
    family: Family


class Interface(NamedTuple):
    """One network interface."""

    number: int
    name: str
    up: bool
    """Whether the administrator has set it up; carrier is separate."""
    ignores_linkdown: frozenset[Family]
    """Families whose routes over it are skipped while it has no carrier."""
    networks: tuple[_Network, ...]
    """Its addresses with their networks."""

    def peer(self, family: Family) -> bytes | None:
        """Return the other end's address, if a network of the interface has room for only one."""
        for network in self.networks:
            others = [host for host in _few(network) if host != network.ip]
            if len(others) == 1 and network.version == _VERSIONS[family]:
                return widened(others[0].packed)
        return None

    def reaches(self, address: bytes) -> bool:
        """Whether an address is on a network of the interface, and not its own."""
        host = ipaddress.ip_address(of_kernel(address))
        return any(host in one.network and host != one.ip for one in self.networks)


class Request(NamedTuple):
    """One request to the kernel."""

    kind: int
    flags: int
    body: bytes


class Rule(NamedTuple):
    """A rule of ours; the fields are those in which our rules differ."""

    family: Family
    preference: int
    mark: int
    mask: int


def _few(network: _Network) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    whole = network.network
    return list(whole.hosts()) if whole.num_addresses <= 4 else []  # noqa: PLR2004 - a /30


def interfaces_by_name(kernel: Netlink) -> dict[str, Interface]:
    """Return all interfaces by name."""
    networks: dict[int, list[_Network]] = {}
    for body in kernel.objects(GET_ADDRESS, _ADDRESS.pack(0, 0, 0, 0, 0)):
        found = attributes(body[_ADDRESS.size :])
        family, bits, _, _, index = _ADDRESS.unpack_from(body)
        local = found.get(2) or found.get(1)
        if local is not None and family in _VERSIONS:
            networks.setdefault(index, []).append(ipaddress.ip_interface((local, bits)))
    read = (_interface(body, networks) for body in kernel.objects(GET_LINK, _LINK.pack(*[0] * 5)))
    return {interface.name: interface for interface in read}


def _interface(body: bytes, networks: dict[int, list[_Network]]) -> Interface:
    _, _, index, flags, _ = _LINK.unpack_from(body)
    found = attributes(body[_LINK.size :])
    inner = attributes(found.get(_AF_SPEC, b""))
    ignores = frozenset(family for family in Family if _ignores(family, inner.get(family, b"")))
    name = string(found[3])
    return Interface(index, name, bool(flags & 1), ignores, tuple(networks.get(index, ())))


def _ignores(family: Family, told: bytes) -> bool:
    """Whether an interface's settings have ignore_routes_with_linkdown on."""
    kind, place = _SETTINGS[family]
    settings = attributes(told).get(kind, b"")[4 * place :]
    return len(settings) >= 4 and number(settings[:4]) != 0  # noqa: PLR2004 - bytes of one


def ignore_linkdown(interface: int, *, on: bool) -> Request:
    """Return a request to skip, or no longer skip, IPv4 routes over an interface without carrier.

    The kernel accepts no such request for IPv6.
    """
    setting = nest(_SETTINGS[Family.IPV4][0], native(IGNORE_LINKDOWN, int(on)))
    body = _LINK.pack(0, 0, interface, 0, 0) + nest(_AF_SPEC, nest(Family.IPV4, setting))
    return Request(SET_LINK, 0, body)


def add_route(place: Place, interface: int, gateway: bytes) -> Request:
    """Return a request to let everything in a slot's table leave over a link.

    The route replaces an earlier one.
    """
    body = _route(place, _ONLINK) + native(_OIF, interface)
    body += attribute(_GATEWAY, of_kernel(gateway))
    return Request(NEW_ROUTE, CREATE | REPLACE, body)


def delete_route(place: Place) -> Request:
    """Return a request to delete the route in a slot's table."""
    return Request(DELETE_ROUTE, 0, _route(place, 0))


def _route(place: Place, flags: int) -> bytes:
    head = _ROUTE.pack(place.family, 0, 0, 0, 0, marks.PROTOCOL, _UNIVERSE, _UNICAST, flags)
    return head + native(_TABLE, marks.TABLES + place.slot) + native(_PRIORITY, marks.METRIC)


def our_routes(kernel: Netlink) -> dict[Place, int]:
    """Return the slots and families whose tables hold a route of ours, each with its interface."""
    routes = {}
    for family in Family:
        head = _ROUTE.pack(family, 0, 0, 0, 0, marks.PROTOCOL, 0, 0, 0)
        for body in kernel.objects(GET_ROUTE, head):
            found = attributes(body[_ROUTE.size :])
            slot = _told(found, _TABLE) - marks.TABLES
            if _ROUTE.unpack_from(body)[5] == marks.PROTOCOL and slot in marks.SLOTS:
                routes[Place(slot, family)] = _told(found, _OIF)
    return routes


def slot_rules(place: Place) -> list[Rule]:
    """Return the rules of a slot: for marks with it as primary, and as backup."""
    whole = marks.SLOT_MASK
    primary, backup = place.slot << marks.PRIMARY_SHIFT, place.slot
    by_primary = marks.TAG_MASK | whole << marks.PRIMARY_SHIFT
    return [
        Rule(place.family, marks.BY_PRIMARY, marks.TAG | primary, by_primary),
        Rule(place.family, marks.BY_BACKUP, marks.TAG | backup, marks.TAG_MASK | whole),
    ]


def shared_rules(family: Family) -> list[Rule]:
    """Return the rules that all slots share; packets without our tag skip all others at once."""
    return [
        Rule(family, marks.PASSED, 0, 0),
        Rule(family, marks.PASS_BY, marks.TAG, marks.TAG_MASK),
    ]


def change_rule(rule: Rule, *, add: bool = True) -> Request:
    """Return a request to add or remove a rule."""
    flags, action, extra = 0, _TO_TABLE, b""
    if rule.preference == marks.PASS_BY:
        flags, action, extra = _INVERT, _GOTO, native(_GOTO_TARGET, marks.PASSED)
    elif rule.preference == marks.PASSED:
        action = _NOTHING
    else:
        shift = marks.PRIMARY_SHIFT if rule.preference == marks.BY_PRIMARY else 0
        extra = native(_TABLE, marks.TABLES + (rule.mark >> shift & marks.SLOT_MASK))
    head = _RULE.pack(rule.family, 0, 0, 0, 0, 0, 0, action, flags)
    body = head + native(_PRIORITY, rule.preference)
    if rule.mask:
        body += native(_FWMARK, rule.mark) + native(_FWMASK, rule.mask)
    body += attribute(_PROTOCOL, bytes([marks.PROTOCOL])) + extra
    return Request(NEW_RULE, CREATE | EXCL, body) if add else Request(DELETE_RULE, 0, body)


def our_rules(kernel: Netlink) -> Iterator[Rule]:
    """Yield the rules with our protocol and one of our preferences."""
    for family in Family:
        for body in kernel.objects(GET_RULE, _RULE.pack(family, *[0] * 8)):
            found = attributes(body[_RULE.size :])
            preference = _told(found, _PRIORITY)
            ours = found.get(_PROTOCOL, b"") == bytes([marks.PROTOCOL])
            if ours and marks.PASS_BY <= preference <= marks.PASSED:
                mark = _told(found, _FWMARK)
                mask = _told(found, _FWMASK) or (_ALL_BITS if mark else 0)
                yield Rule(family, preference, mark, mask)


def _told(found: dict[int, bytes], kind: int) -> int:
    return number(found[kind]) if kind in found else 0


def ask(kernel: Netlink, requests: list[Request]) -> list[KernelError | None]:
    """Send requests at once, in this order; return each one's error, None if none."""
    return kernel.requests(requests) if requests else []
