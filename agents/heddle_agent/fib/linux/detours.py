"""Detours around lost links, for flows whose primary and backup are both lost.

Such flows follow the underlay, but the underlay does not know of the loss yet. Until its routing
protocol has withdrawn the affected next hops, it hashes flows over them, and they would meet a lost
link. So for a while these flows have routes of their own, one per destination: the routes of the
main table, without such next hops. A destination with no next hop left, or one that the underlay
does not reach by gateways, gets no such route and follows the unchanged underlay.

Detours are useful while routing converges, and a risk afterwards, because they do not follow what
routing learns later. So the first ``refresh`` after ``LASTING_SECONDS`` removes them.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from heddle_agent.fib.linux import marks
from heddle_agent.fib.linux.addresses import Family, family_of, of_kernel, widened
from heddle_agent.fib.linux.entries import Entries
from heddle_agent.fib.linux.hops import Hops, OwnLink
from heddle_agent.fib.linux.nics import Nics
from heddle_agent.fib.linux.rtnetlink import (
    DELETE_ROUTE,
    GET_ROUTE,
    NEW_ROUTE,
    Place,
    Request,
    ask,
    change_rule,
    slot_rules,
)
from heddle_agent.fib.values import Group
from heddle_agent.netlink import (
    CREATE,
    REPLACE,
    KernelError,
    Netlink,
    attribute,
    attributes,
    messages,
    native,
    number,
)

LASTING_SECONDS = 3.0
MOST = 512  # destinations; flows to others wait until routing has converged

_TABLE = marks.TABLES + marks.DETOUR
_ROUTE = struct.Struct("=BBBBBBBBI")
_HOP = struct.Struct("=HBBi")  # length, flags, weight - 1, interface
_UNICAST = 1
_DESTINATION, _OIF, _GATEWAY, _PRIORITY, _MULTIPATH, _TABLE_ATTRIBUTE = 1, 4, 5, 6, 9, 15
_MATCH_ONLY = 0x2000  # return the route itself, not the result for one packet
_UNUSABLE = 0x1 | 0x10  # dead, or without carrier
_ON_LINK = 0x4


class RouteHop(NamedTuple):
    """One next hop of a route."""

    interface: int
    gateway: bytes
    weight: int
    """Weight minus 1, as in the kernel."""


class Detours:
    """The detours of one switch."""

    def __init__(self, kernel: Netlink) -> None:
        self._kernel = kernel
        self._since: float | None = None
        self._clean = False  # whether detours of an earlier agent are known to be removed

    @property
    def over(self) -> bool:
        """Whether there are detours and they have lasted long enough."""
        return self._since is not None and time.monotonic() - self._since >= LASTING_SECONDS

    def install(
        self, groups: Mapping[Group, Collection[OwnLink]], entries: Entries, nics: Nics, hops: Hops
    ) -> None:
        """Replace all detours by routes to the groups' destinations that avoid their next hops.

        Raises OSError if the kernel does not answer.
        """
        if not groups:
            self._clear()
            return
        indexes, wanted = hops.indexes(), dict[bytes, set[int]]()
        for destination, group in entries.leading_to(groups):
            avoided = {indexes[port] for port in groups[group] if port in indexes}
            wanted.setdefault(nics.addresses[destination], set()).update(avoided)
        self._install(wanted)

    def _install(self, wanted: Mapping[bytes, Collection[int]]) -> None:
        self._rule({family_of(destination) for destination in wanted})
        stale = set() if self._clean and self._since is None else set(_installed(self._kernel))
        self._since, self._clean = time.monotonic(), True
        requests: list[Request] = []
        for destination, avoided in list(wanted.items())[:MOST]:
            ways = self._ways(destination)
            left = [way for way in ways if way.interface not in avoided]
            if 0 < len(left) < len(ways):
                requests.append(_add(destination, left))
                stale.discard(destination)
        ask(self._kernel, [*map(_delete, stale), *requests])

    def _clear(self) -> None:
        if self._since is not None or not self._clean:
            ask(self._kernel, list(map(_delete, _installed(self._kernel))))
            self._since, self._clean = None, True

    def _rule(self, families: Collection[Family]) -> None:
        """Add the rules that lead packets to our tables, if they are not there."""
        for family in families:
            ask(self._kernel, list(map(change_rule, slot_rules(Place(marks.DETOUR, family)))))

    def _ways(self, destination: bytes) -> list[RouteHop]:
        """Return the next hops of the main table's route to a destination, if they are gateways."""
        family = family_of(destination)
        head = _ROUTE.pack(family, family.bits, 0, 0, 0, 0, 0, 0, _MATCH_ONLY)
        asked = head + attribute(_DESTINATION, of_kernel(destination))
        try:
            answers = self._kernel.get(GET_ROUTE, asked)
        except KernelError:  # the underlay has no route to it
            return []
        return [way for answer in answers for way in _hops(answer.body)]


def _hops(body: bytes) -> Iterator[RouteHop]:
    """Yield the usable next hops of a route in the kernel's format."""
    told = attributes(body[_ROUTE.size :])
    if _OIF in told and _GATEWAY in told:
        yield RouteHop(number(told[_OIF]), told[_GATEWAY], 0)
    several, at = told.get(_MULTIPATH, b""), 0
    while at + _HOP.size <= len(several):
        length, flags, weight, interface = _HOP.unpack_from(several, at)
        gateway = attributes(several[at + _HOP.size : at + length]).get(_GATEWAY)
        if gateway is not None and not flags & _UNUSABLE:
            yield RouteHop(interface, gateway, weight)
        at += max(length, _HOP.size) + (-length % 4)


def _add(destination: bytes, ways: Collection[RouteHop]) -> Request:
    hops = b""
    for way in ways:
        gateway = attribute(_GATEWAY, way.gateway)
        hops += _HOP.pack(_HOP.size + len(gateway), _ON_LINK, way.weight, way.interface) + gateway
    body = _head(destination) + attribute(_MULTIPATH, hops)
    return Request(NEW_ROUTE, CREATE | REPLACE, body)


def _delete(destination: bytes) -> Request:
    return Request(DELETE_ROUTE, 0, _head(destination))


def _head(destination: bytes) -> bytes:
    family = family_of(destination)
    head = _ROUTE.pack(family, family.bits, 0, 0, 0, marks.PROTOCOL, 0, _UNICAST, 0)
    table = native(_TABLE_ATTRIBUTE, _TABLE) + native(_PRIORITY, marks.METRIC)
    return head + table + attribute(_DESTINATION, of_kernel(destination))


def _installed(kernel: Netlink) -> list[bytes]:
    """Return the destinations of all routes in our tables, whoever made them."""
    return [destination for family in Family for destination in _of_family(kernel, family)]


def _of_family(kernel: Netlink, family: Family) -> list[bytes]:
    head = _ROUTE.pack(family, 0, 0, 0, 0, marks.PROTOCOL, 0, 0, 0) + native(
        _TABLE_ATTRIBUTE, _TABLE
    )
    found = []
    try:
        for data in kernel.dump(GET_ROUTE, head):
            for message in messages(data):
                told = attributes(message.body[_ROUTE.size :])
                if message.kind == NEW_ROUTE and number(told[_TABLE_ATTRIBUTE]) == _TABLE:
                    found.append(widened(told[_DESTINATION]))
    except KernelError:  # there is no such table yet
        return []
    return found


def remove_detours(kernel: Netlink) -> int:
    """Remove all detours and return how many there were."""
    laid = _installed(kernel)
    ask(kernel, list(map(_delete, laid)))
    return len(laid)
