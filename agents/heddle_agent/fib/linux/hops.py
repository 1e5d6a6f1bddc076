"""Next hops in the kernel: for each a slot, a table with one route, and two rules.

The route is there while the link is held to be up, so losing a link, whoever noticed, is one route
deleted, for all groups and entries that leave by it. Slots are remembered by the caller (a slot is
part of marks that outlive this process); tables and rules are made when a next hop is first used.

``avoid`` may come from another thread at any time. Whoever adds or removes routes holds the lock
until the kernel has answered, so no route is added that was to be avoided when it was asked for;
that is a matter of a few requests, while a dump may take long and is done without.
"""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address
from typing import TypeAlias

import structlog

from heddle_agent.fib.linux import marks, rtnetlink
from heddle_agent.fib.linux.netlink import KernelError, Netlink
from heddle_agent.fib.linux.rtnetlink import Interface, Request
from heddle_agent.fib.values import Group, NextHop

_log = structlog.get_logger()

Port: TypeAlias = tuple[str, str]
"""A link of this switch: neighbour and link key."""


@dataclass(frozen=True, slots=True)
class Cable:
    """Where a link of the fabric is plugged in."""

    interface: str
    """Name of the network interface."""
    gateway: str = ""
    """The neighbour's IPv4 address on it; empty: by the interface's network or the fabric."""


class UnresolvedError(Exception):
    """A next hop to which packets cannot be sent, and why."""


class Hops:
    """The next hops of one switch."""

    def __init__(self, kernel: Netlink, urgent: Netlink, cables: Mapping[Port, Cable]) -> None:
        """``urgent`` is for whoever calls ``avoid``, ``kernel`` for all else."""
        self._kernel = kernel
        self._urgent = urgent
        self._lock = threading.Lock()  # what is below, except for what is replaced as a whole
        self._cables = dict(cables)
        self._moved: set[Port] = set()  # links on another interface than their routes
        self._known: dict[Port, NextHop] = {}
        self.slots: dict[Port, int] = {}
        self.changed_interfaces: dict[int, str] = {}
        """Interfaces whose ignore_routes_with_linkdown we have set."""
        self._down: frozenset[Port] = frozenset()
        self._avoided: frozenset[Port] = frozenset()
        self.avoidances = 0
        """How often there was something to avoid: tells whether there has been since."""
        self._routes: dict[int, tuple[int, str]] = {}  # interface and gateway by slot
        self._routed: set[int] = set()
        self._ruled: set[int] = set()

    def indexes(self) -> dict[Port, int]:
        """Indexes of the interfaces of all links, as far as they are there."""
        present = rtnetlink.interfaces(self._kernel)
        return {
            port: present[cable.interface].number
            for port, cable in self._cables.items()
            if cable.interface in present
        }

    def slots_of(self, ports: Collection[Port]) -> frozenset[int]:
        """The slots of some links, as far as they have one."""
        return frozenset(slot for port, slot in self.slots.items() if port in ports)

    def load(self, slots: Mapping[int, str], interfaces: Mapping[int, str]) -> None:
        """Take over what was noted."""
        noted = ((slot, json.loads(note)) for slot, note in slots.items())
        self.slots = {(node, key): slot for slot, (node, key) in noted}
        self.changed_interfaces = dict(interfaces)

    def adopt(self, hops: Iterable[NextHop]) -> None:
        """Know the next hops of entries found in the kernel; nothing changes before ``restore``."""
        present = rtnetlink.interfaces(self._kernel)
        for hop in dict.fromkeys(hops):
            try:
                self._learn(hop, present)
            except UnresolvedError as error:
                _log.warning("entries found that lead nowhere", why=str(error))

    def resolve(self, hops: Iterable[NextHop]) -> dict[NextHop, str]:
        """Have tables and rules for next hops; those that cannot be had, and why."""
        strange: dict[NextHop, str] = {}
        present: dict[str, Interface] | None = None
        for hop in hops:
            if present is None:
                present = rtnetlink.interfaces(self._kernel)
            try:
                self._learn(hop, present)
            except UnresolvedError as error:
                strange[hop] = str(error)
        if present is not None:
            refused = self._establish()
            strange.update((hop, refused[s]) for hop in hops if (s := self._slot(hop)) in refused)
        return strange

    def strange(self, groups: Collection[Group]) -> dict[Group, str]:
        """Groups with a next hop to which packets cannot be sent, and why."""
        hops = {hop for g in groups for hop in (g.primary, g.backup) if hop is not None}
        lost = self.resolve(hops)
        return {
            group: lost[hop]
            for group in groups
            for hop in (group.backup, group.primary)
            if hop in lost
        }

    def steer(self, down: Collection[Port]) -> None:
        """These links of the switch are held to be down: at once no route over them."""
        with self._lock:
            fresh = self.slots_of(frozenset(down) - self._down)
            self._down = frozenset(down) | self._down
            self._empty(self._kernel, fresh)

    def avoid(self, ports: Collection[Port]) -> None:
        """At once no route over these either, whatever another thread is about to add."""
        with self._lock:
            fresh = self.slots_of(frozenset(ports) - self._avoided)
            self._avoided = frozenset(ports) | self._avoided
            self.avoidances += 1
            self._empty(self._urgent, fresh)

    def restore(self, down: Collection[Port], avoidances: int) -> None:
        """All links but these are held to be up: routes over them again.

        ``avoidances`` is as many as there had been when the caller began: if there has been another
        since, nothing that is avoided is his to bring back.
        """
        with self._lock:
            self._down = frozenset(down)
            if self.avoidances == avoidances:
                self._avoided = frozenset()
        self._establish()

    def plug(self, port: Port, cable: Cable) -> None:
        """A link is on this interface from now on; routes follow when they are next restored."""
        with self._lock:
            self._cables[port] = cable
            self._moved.add(port)

    def refresh(self) -> None:
        """Put back routes and rules that are no longer there, whoever took them."""
        if self._routes:
            before = frozenset(self._routed)
            gone = before.difference(rtnetlink.our_routes(self._kernel))
            with self._lock:
                self._routed -= gone
                self._moved |= {port for port, slot in self.slots.items() if slot in gone}
            rules = set(rtnetlink.our_rules(self._kernel))
            self._ruled = {s for s in self._ruled if rules.issuperset(rtnetlink.slot_rules(s))}
            if not rules.issuperset(rtnetlink.SHARED_RULES):
                self._ruled = set()
            self._establish()

    def _slot(self, hop: NextHop) -> int:
        return self.slots.get(hop.port, 0)

    def _learn(self, hop: NextHop, present: Mapping[str, Interface]) -> None:
        """Interface, gateway and slot of a next hop."""
        cable = self._cables.get(hop.port)
        if cable is None:
            raise UnresolvedError(f"no link to {hop.node} key {hop.key}")
        interface = present.get(cable.interface)
        if interface is None:
            raise UnresolvedError(
                f"the link to {hop.node} key {hop.key} is interface {cable.interface},"
                " which this switch does not have"
            )
        route = interface.number, _gateway(hop, cable, interface)
        slot = self._slot(hop) or self._free()
        self.slots = {**self.slots, hop.port: slot}
        self._known[hop.port] = hop
        if self._routes.get(slot) != route:
            with self._lock:
                self._routes[slot] = route
                self._routed.discard(slot)
        if not interface.ignores_linkdown:
            self._ignore_linkdown(interface)

    def _follow(self) -> None:
        """Have routes of links that moved lead over the interfaces that these are on now."""
        with self._lock:
            moved, self._moved = self._moved, set()
        hops = [self._known[port] for port in moved if port in self._known]
        if not hops:
            return
        present = rtnetlink.interfaces(self._kernel)
        for hop in hops:
            try:
                self._learn(hop, present)
            except UnresolvedError as error:
                self._moved.add(hop.port)
                _log.warning("a link that moved leads nowhere yet", why=str(error))

    def _free(self) -> int:
        used = set(self.slots.values())
        for slot in marks.SLOTS:
            if slot not in used:
                return slot
        raise UnresolvedError(f"all {len(marks.SLOTS)} next hops that marks can tell are in use")

    def _ignore_linkdown(self, interface: Interface) -> None:
        """Let the kernel pass over routes by itself when the carrier goes."""
        (error,) = rtnetlink.ask(
            self._kernel, [rtnetlink.ignore_linkdown(interface.number, on=True)]
        )
        if error is None:
            self.changed_interfaces[interface.number] = interface.name
        else:
            _log.warning(
                "ignore_routes_with_linkdown not set: a lost carrier waits for the agent",
                interface=interface.name,
                why=error.strerror,
            )

    def _establish(self) -> dict[int, str]:
        """Rules and routes that should be there and are not; slots that failed, and why."""
        self._follow()
        rules: list[Request] = []
        for slot in self._routes.keys() - self._ruled:
            shared = () if self._ruled or rules else rtnetlink.SHARED_RULES
            rules += map(rtnetlink.change_rule, (*shared, *rtnetlink.slot_rules(slot)))
        with self._lock:
            barred = self.slots_of(self._down | self._avoided)
            wanted = self._routes.keys() - self._routed - barred
            routes = {slot: rtnetlink.add_route(slot, *self._routes[slot]) for slot in wanted}
            failed = self._ask(self._kernel, routes)
            self._routed |= wanted - failed.keys()
        for error in rtnetlink.ask(self._kernel, rules):
            if error is not None and error.errno != errno.EEXIST:
                reason = f"no rule for it: {error.strerror}"
                return dict.fromkeys(self._routes.keys() - self._ruled, reason)
        self._ruled |= self._routes.keys()
        # An interface that is switched off has no routes; its groups are on their backups.
        return {
            slot: f"the kernel refuses its route: {error.strerror}"
            for slot, error in failed.items()
            if error.errno != errno.ENETDOWN
        }

    def _empty(self, kernel: Netlink, slots: Collection[int]) -> None:
        self._ask(kernel, {slot: rtnetlink.delete_route(slot) for slot in slots})
        self._routed.difference_update(slots)

    @staticmethod
    def _ask(kernel: Netlink, requests: Mapping[int, Request]) -> dict[int, KernelError]:
        """Send requests about slots; those that failed. What is gone already was deleted."""
        answers = zip(requests, rtnetlink.ask(kernel, list(requests.values())), strict=True)
        return {slot: e for slot, e in answers if e is not None and e.errno != errno.ESRCH}


def _gateway(hop: NextHop, cable: Cable, interface: Interface) -> str:
    """The address that packets are sent to on the link."""
    if cable.gateway:
        return cable.gateway
    told = hop.address
    if told and not _is_ipv4(told):
        raise UnresolvedError(f"{hop.node} has address {told}: only IPv4 can be forwarded")
    if told and interface.reaches(told):
        return told
    found = interface.peer() or told
    if not found:
        raise UnresolvedError(
            f"no address for {hop.node} key {hop.key}: give the node an address in the fabric, or"
            f" interface {interface.name} one in a network of two"
        )
    return found


def _is_ipv4(text: str) -> bool:
    try:
        IPv4Address(text)
    except AddressValueError:
        return False
    return True
