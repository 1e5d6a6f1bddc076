"""Interfaces, routes and rules of the kernel, as far as the backend speaks of them."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from heddle_agent.fib.linux import marks
from heddle_agent.fib.linux.addresses import Family, of_kernel, widened
from heddle_agent.fib.linux.netlink import (
    CREATE,
    EXCL,
    REPLACE,
    KernelError,
    Netlink,
    attribute,
    attributes,
    messages,
    native,
    nest,
    number,
    string,
)

NEW_LINK, GET_LINK, SET_LINK = 16, 18, 19
NEW_ADDRESS, GET_ADDRESS = 20, 22
NEW_ROUTE, DELETE_ROUTE, GET_ROUTE = 24, 25, 26
NEW_RULE, DELETE_RULE, GET_RULE = 32, 33, 34

_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBi")
_ROUTE = struct.Struct("=BBBBBBBBI")
_RULE = _ROUTE  # the same shape: fields of the rule header are named alike
_OIF, _GATEWAY, _PRIORITY, _TABLE = 4, 5, 6, 15  # attributes of routes; rules share two
_GOTO_TARGET, _FWMARK, _FWMASK, _PROTOCOL = 4, 10, 16, 21
_UNICAST, _UNIVERSE, _ONLINK = 1, 0, 0x4
_TO_TABLE, _GOTO, _NOTHING, _INVERT = 1, 2, 3, 0x2
_ALL_BITS = 0xFFFFFFFF
IGNORE_LINKDOWN = 29
"""Number of the setting ignore_routes_with_linkdown among those of IPv4, from 1."""
_AF_SPEC = 26
_SETTINGS = {Family.IPV4: (1, IGNORE_LINKDOWN - 1), Family.IPV6: (2, 39)}
"""Attribute of an interface's settings, and the place of that one among them, from 0."""


_Network: TypeAlias = ipaddress.IPv4Interface | ipaddress.IPv6Interface
_VERSIONS = {Family.IPV4: 4, Family.IPV6: 6}


class Place(NamedTuple):
    """What has one route: the table of a slot, in one family."""

    slot: int
    family: Family


class Interface(NamedTuple):
    """One network interface."""

    number: int
    name: str
    up: bool
    """As the administrator wants it; carrier is another matter."""
    ignores_linkdown: frozenset[Family]
    """Families whose routes over it are passed over while it has no carrier."""
    networks: tuple[_Network, ...]
    """Its addresses."""

    def peer(self, family: Family) -> bytes | None:
        """The other end's address, where a network of the interface has room for only one."""
        for network in self.networks:
            others = [host for host in _few(network) if host != network.ip]
            if len(others) == 1 and network.version == _VERSIONS[family]:
                return widened(others[0].packed)
        return None

    def reaches(self, address: bytes) -> bool:
        """Whether an address is on a network of the interface."""
        host = ipaddress.ip_address(of_kernel(address))
        return any(host in one.network and host != one.ip for one in self.networks)


class Request(NamedTuple):
    """One request to the kernel."""

    kind: int
    flags: int
    body: bytes


class Rule(NamedTuple):
    """A rule of ours, as far as one differs from another."""

    family: Family
    preference: int
    mark: int
    mask: int


def _few(network: _Network) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    whole = network.network
    return list(whole.hosts()) if whole.num_addresses <= 4 else []  # noqa: PLR2004 - a /30


def interfaces_by_name(kernel: Netlink) -> dict[str, Interface]:
    """All interfaces by name."""
    networks: dict[int, list[_Network]] = {}
    for body in _dumped(kernel, GET_ADDRESS, _ADDRESS.pack(0, 0, 0, 0, 0)):
        found = attributes(body[_ADDRESS.size :])
        family, bits, _, _, index = _ADDRESS.unpack_from(body)
        local = found.get(2) or found.get(1)
        if local is not None and family in _VERSIONS:
            networks.setdefault(index, []).append(ipaddress.ip_interface((local, bits)))
    read = (_interface(body, networks) for body in _dumped(kernel, GET_LINK, _LINK.pack(*[0] * 5)))
    return {interface.name: interface for interface in read}


def _interface(body: bytes, networks: dict[int, list[_Network]]) -> Interface:
    _, _, index, flags, _ = _LINK.unpack_from(body)
    found = attributes(body[_LINK.size :])
    inner = attributes(found.get(_AF_SPEC, b""))
    ignores = frozenset(family for family in Family if _ignores(family, inner.get(family, b"")))
    name = string(found[3])
    return Interface(index, name, bool(flags & 1), ignores, tuple(networks.get(index, ())))


def _ignores(family: Family, told: bytes) -> bool:
    """Whether the settings of an interface say so."""
    kind, place = _SETTINGS[family]
    settings = attributes(told).get(kind, b"")[4 * place :]
    return len(settings) >= 4 and number(settings[:4]) != 0  # noqa: PLR2004 - bytes of one


def ignore_linkdown(interface: int, *, on: bool) -> Request:
    """Have routes of IPv4 over an interface without carrier passed over, or not.

    The kernel takes no such request for IPv6.
    """
    setting = nest(_SETTINGS[Family.IPV4][0], native(IGNORE_LINKDOWN, int(on)))
    body = _LINK.pack(0, 0, interface, 0, 0) + nest(_AF_SPEC, nest(Family.IPV4, setting))
    return Request(SET_LINK, 0, body)


def add_route(place: Place, interface: int, gateway: bytes) -> Request:
    """Everything in a slot's table leaves over a link, in place of what was there."""
    body = _route(place, _ONLINK) + native(_OIF, interface)
    body += attribute(_GATEWAY, of_kernel(gateway))
    return Request(NEW_ROUTE, CREATE | REPLACE, body)


def delete_route(place: Place) -> Request:
    """Leave a slot's table without a route."""
    return Request(DELETE_ROUTE, 0, _route(place, 0))


def _route(place: Place, flags: int) -> bytes:
    head = _ROUTE.pack(place.family, 0, 0, 0, 0, marks.PROTOCOL, _UNIVERSE, _UNICAST, flags)
    return head + native(_TABLE, marks.TABLES + place.slot) + native(_PRIORITY, marks.METRIC)


def our_routes(kernel: Netlink) -> Iterator[Place]:
    """Slots and families whose tables hold a route of ours."""
    for family in Family:
        head = _ROUTE.pack(family, 0, 0, 0, 0, marks.PROTOCOL, 0, 0, 0)
        for body in _dumped(kernel, GET_ROUTE, head):
            slot = _told(attributes(body[_ROUTE.size :]), _TABLE) - marks.TABLES
            if _ROUTE.unpack_from(body)[5] == marks.PROTOCOL and slot in marks.SLOTS:
                yield Place(slot, family)


def slot_rules(place: Place) -> list[Rule]:
    """The rules of a slot: its marks as a primary, and as a backup."""
    whole = marks.SLOT_MASK
    primary, backup = place.slot << marks.PRIMARY_SHIFT, place.slot
    by_primary = marks.TAG_MASK | whole << marks.PRIMARY_SHIFT
    return [
        Rule(place.family, marks.BY_PRIMARY, marks.TAG | primary, by_primary),
        Rule(place.family, marks.BY_BACKUP, marks.TAG | backup, marks.TAG_MASK | whole),
    ]


def shared_rules(family: Family) -> list[Rule]:
    """Rules of all slots together: packets that are not ours pass by all others at once."""
    return [
        Rule(family, marks.PASSED, 0, 0),
        Rule(family, marks.PASS_BY, marks.TAG, marks.TAG_MASK),
    ]


def change_rule(rule: Rule, *, add: bool = True) -> Request:
    """Add or remove a rule."""
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
    """Rules that bear our protocol and one of our preferences."""
    for family in Family:
        for body in _dumped(kernel, GET_RULE, _RULE.pack(family, *[0] * 8)):
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
    """Send requests at once, in this order; what the kernel said to each."""
    return kernel.requests(requests) if requests else []


def _dumped(kernel: Netlink, kind: int, body: bytes) -> Iterator[bytes]:
    answers = {GET_LINK: NEW_LINK, GET_ADDRESS: NEW_ADDRESS, GET_ROUTE: NEW_ROUTE}
    wanted = answers.get(kind, NEW_RULE)
    for data in kernel.dump(kind, body):
        for message in messages(data):
            if message.kind == wanted:
                yield message.body
