"""Interfaces, routes and rules of the kernel, as far as the backend speaks of them."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from typing import NamedTuple

from heddle_agent.fib.linux import marks
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

_IPV4 = 2
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBi")
_ROUTE = struct.Struct("=BBBBBBBBI")
_RULE = _ROUTE  # the same shape: fields of the rule header are named alike
_OIF, _GATEWAY, _PRIORITY, _TABLE = 4, 5, 6, 15  # attributes of routes; rules share two
_GOTO_TARGET, _FWMARK, _FWMASK, _PROTOCOL = 4, 10, 16, 21
_UNICAST, _UNIVERSE, _ONLINK = 1, 0, 0x4
_TO_TABLE, _GOTO, _NOTHING, _INVERT = 1, 2, 3, 0x2
_ALL_BITS = 0xFFFFFFFF
IGNORE_LINKDOWN = 29  # number of the interface setting ignore_routes_with_linkdown
_AF_SPEC, _CONF = 26, 1


class Interface(NamedTuple):
    """One network interface."""

    number: int
    name: str
    up: bool
    """As the administrator wants it; carrier is another matter."""
    ignores_linkdown: bool
    networks: tuple[ipaddress.IPv4Interface, ...]
    """Its addresses."""

    def peer(self) -> str | None:
        """The other end's address, where a network of the interface has room for only one."""
        for network in self.networks:
            others = [host for host in _few(network.network) if host != network.ip]
            if len(others) == 1:
                return str(others[0])
        return None

    def reaches(self, address: str) -> bool:
        """Whether an address is on a network of the interface."""
        host = ipaddress.IPv4Address(address)
        return any(host in one.network and host != one.ip for one in self.networks)


class Request(NamedTuple):
    """One request to the kernel."""

    kind: int
    flags: int
    body: bytes


class Rule(NamedTuple):
    """A rule of ours, as far as one differs from another."""

    preference: int
    mark: int
    mask: int


def _few(network: ipaddress.IPv4Network) -> list[ipaddress.IPv4Address]:
    return list(network.hosts()) if network.num_addresses <= 4 else []  # noqa: PLR2004 - a /30


def interfaces(kernel: Netlink) -> dict[str, Interface]:
    """All interfaces by name."""
    networks: dict[int, list[ipaddress.IPv4Interface]] = {}
    for body in _dumped(kernel, GET_ADDRESS, _ADDRESS.pack(_IPV4, 0, 0, 0, 0)):
        found = attributes(body[_ADDRESS.size :])
        _, bits, _, _, index = _ADDRESS.unpack_from(body)
        local = found.get(2) or found.get(1)
        if local is not None:
            networks.setdefault(index, []).append(ipaddress.IPv4Interface((local, bits)))
    read = (_interface(body, networks) for body in _dumped(kernel, GET_LINK, _LINK.pack(*[0] * 5)))
    return {interface.name: interface for interface in read}


def _interface(body: bytes, networks: dict[int, list[ipaddress.IPv4Interface]]) -> Interface:
    _, _, index, flags, _ = _LINK.unpack_from(body)
    found = attributes(body[_LINK.size :])
    inner = attributes(attributes(found.get(_AF_SPEC, b"")).get(_IPV4, b""))
    settings = inner.get(_CONF, b"")
    place = 4 * (IGNORE_LINKDOWN - 1)
    ignores = len(settings) >= place + 4 and number(settings[place:]) != 0
    name = string(found[3])
    return Interface(index, name, bool(flags & 1), ignores, tuple(networks.get(index, ())))


def ignore_linkdown(interface: int, *, on: bool) -> Request:
    """Have routes over an interface without carrier passed over, or not."""
    setting = nest(_CONF, native(IGNORE_LINKDOWN, int(on)))
    body = _LINK.pack(0, 0, interface, 0, 0) + nest(_AF_SPEC, nest(_IPV4, setting))
    return Request(SET_LINK, 0, body)


def add_route(slot: int, interface: int, gateway: str) -> Request:
    """Everything in a slot's table leaves over a link, in place of what was there."""
    body = _route(slot, _ONLINK) + native(_OIF, interface)
    body += attribute(_GATEWAY, ipaddress.IPv4Address(gateway).packed)
    return Request(NEW_ROUTE, CREATE | REPLACE, body)


def delete_route(slot: int) -> Request:
    """Leave a slot's table without a route."""
    return Request(DELETE_ROUTE, 0, _route(slot, 0))


def _route(slot: int, flags: int) -> bytes:
    head = _ROUTE.pack(_IPV4, 0, 0, 0, 0, marks.PROTOCOL, _UNIVERSE, _UNICAST, flags)
    return head + native(_TABLE, marks.TABLES + slot) + native(_PRIORITY, marks.METRIC)


def our_routes(kernel: Netlink) -> Iterator[int]:
    """Slots whose tables hold a route of ours."""
    head = _ROUTE.pack(_IPV4, 0, 0, 0, 0, marks.PROTOCOL, 0, 0, 0)
    for body in _dumped(kernel, GET_ROUTE, head):
        found = attributes(body[_ROUTE.size :])
        table = _told(found, _TABLE)
        if _ROUTE.unpack_from(body)[5] == marks.PROTOCOL and table - marks.TABLES in marks.SLOTS:
            yield table - marks.TABLES


def slot_rules(slot: int) -> list[Rule]:
    """The rules of a slot: its marks as a primary, and as a backup."""
    whole = marks.SLOT_MASK
    primary, backup = slot << marks.PRIMARY_SHIFT, slot
    return [
        Rule(marks.BY_PRIMARY, marks.TAG | primary, marks.TAG_MASK | whole << marks.PRIMARY_SHIFT),
        Rule(marks.BY_BACKUP, marks.TAG | backup, marks.TAG_MASK | whole),
    ]


SHARED_RULES = (Rule(marks.PASSED, 0, 0), Rule(marks.PASS_BY, marks.TAG, marks.TAG_MASK))
"""Rules of all slots together: packets that are not ours pass by all others at once."""


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
    body = _RULE.pack(_IPV4, 0, 0, 0, 0, 0, 0, action, flags) + native(_PRIORITY, rule.preference)
    if rule.mask:
        body += native(_FWMARK, rule.mark) + native(_FWMASK, rule.mask)
    body += attribute(_PROTOCOL, bytes([marks.PROTOCOL])) + extra
    return Request(NEW_RULE, CREATE | EXCL, body) if add else Request(DELETE_RULE, 0, body)


def our_rules(kernel: Netlink) -> Iterator[Rule]:
    """Rules that bear our protocol and one of our preferences."""
    for body in _dumped(kernel, GET_RULE, _RULE.pack(_IPV4, *[0] * 8)):
        found = attributes(body[_RULE.size :])
        preference = _told(found, _PRIORITY)
        ours = found.get(_PROTOCOL, b"") == bytes([marks.PROTOCOL])
        if ours and marks.PASS_BY <= preference <= marks.PASSED:
            mark = _told(found, _FWMARK)
            mask = _told(found, _FWMASK) or (_ALL_BITS if mark else 0)
            yield Rule(preference, mark, mask)


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
