"""Next hops in the kernel: each has a slot, a table with one route, and two rules.

A slot has these for each address family that entries use, IPv4 and IPv6. The tables of both have
the same number, and the kernel keeps them apart.

The route exists while the link counts as up. So the loss of a link means deleting one route, which
serves all groups and entries that leave by it. The caller remembers slots, because a slot is part
of marks that outlive this process. Tables and rules are made when a next hop is first used.

``avoid`` may be called from another thread at any time. All code that adds or removes routes holds
the lock until the kernel has answered, so no route is added that should be avoided. That takes only
a few requests. A dump may take long and is made without the lock.
"""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from heddle_agent.fib.linux import marks, rtnetlink
from heddle_agent.fib.linux.addresses import Family, family_of, packed_address
from heddle_agent.fib.linux.rtnetlink import Interface, Place, Request
from heddle_agent.fib.values import Group, NextHop
from heddle_agent.netlink import KernelError, Netlink

_log = structlog.get_logger()

OwnLink: TypeAlias = tuple[str, str]
"""A link of this switch, as neighbour and link key."""


@dataclass(frozen=True, slots=True)
class Cable:
    """The interface and gateway of one link."""

    interface: str
    """Name of the network interface."""
    gateway: str = ""
    """The neighbour's address on the interface. If empty, it comes from the interface's network or
    from the fabric."""


_NAMES = {Family.IPV4: "IPv4", Family.IPV6: "IPv6"}


class UnresolvedError(Exception):
    """A next hop to which packets cannot be sent; the message says why."""


class Hops:
    """The next hops of one switch."""

    def __init__(self, kernel: Netlink, urgent: Netlink, cables: Mapping[OwnLink, Cable]) -> None:
        """Take two sockets: ``urgent`` for ``avoid``, ``kernel`` for everything else."""
        self._kernel = kernel
        self._urgent = urgent
        self._lock = threading.Lock()  # for the fields below, except those replaced as a whole
        self._cables = dict(cables)
        self._moved: set[OwnLink] = set()  # links whose routes need a new interface
        self._known: dict[OwnLink, NextHop] = {}
        self.slots: dict[OwnLink, int] = {}
        self._families: frozenset[Family] = frozenset()
        """Address families of the entries; only these have routes and rules."""
        self._warned: set[tuple[str, Family]] = set()
        self.changed_interfaces: dict[int, str] = {}
        """Interfaces, by index, whose ignore_routes_with_linkdown we have set."""
        self._down: frozenset[OwnLink] = frozenset()
        self._avoided: frozenset[OwnLink] = frozenset()
        self.avoidances = 0
        """Number of calls of ``avoid``. A caller can compare it to see whether there was one
        since."""
        self._routes: dict[Place, tuple[int, bytes]] = {}  # interface and gateway
        self._routed: set[Place] = set()
        self._ruled: set[Place] = set()

    def indexes(self) -> dict[OwnLink, int]:
        """Return the interface index of each link whose interface exists."""
        present = rtnetlink.interfaces_by_name(self._kernel)
        return {
            port: present[cable.interface].number
            for port, cable in self._cables.items()
            if cable.interface in present
        }

    def slots_of(self, ports: Collection[OwnLink]) -> frozenset[int]:
        """Return the slots of these links, as far as they have one."""
        return frozenset(slot for port, slot in self.slots.items() if port in ports)

    def load(self, slots: Mapping[int, str], interfaces: Mapping[int, str]) -> None:
        """Take over slots and interfaces from notes, besides those that are known."""
        noted = ((slot, json.loads(note)) for slot, note in slots.items())
        known = {port: slot for port, slot in self.slots.items() if slot not in slots}
        self.slots = {**known, **{(node, key): slot for slot, (node, key) in noted}}
        self.changed_interfaces = {**interfaces, **self.changed_interfaces}

    def adopt(self, hops: Iterable[NextHop], families: Collection[Family]) -> None:
        """Learn the next hops of entries found in the kernel; ``restore`` then writes routes."""
        self._families = frozenset(families)
        present = rtnetlink.interfaces_by_name(self._kernel)
        for hop in dict.fromkeys(hops):
            for why in self._learn(hop, present).values():
                _log.warning("entries found that lead nowhere", why=why)

    def resolve(self, hops: Collection[NextHop]) -> dict[tuple[NextHop, Family], str]:
        """Make tables and rules for next hops; return those for which that failed, and why."""
        if not hops:
            return {}
        present = rtnetlink.interfaces_by_name(self._kernel)
        strange = {
            (hop, family): why for hop in hops for family, why in self._learn(hop, present).items()
        }
        refused = self._establish()
        for hop in hops:
            for family in self._families:
                if (place := Place(self._slot(hop), family)) in refused:
                    strange[hop, family] = refused[place]
        return strange

    def strange(
        self, groups: Collection[Group], families: Collection[Family]
    ) -> dict[tuple[Group, Family], str]:
        """Return groups with a next hop to which packets of a family cannot be sent, and why."""
        hops = {hop for g in groups for hop in (g.primary, g.backup) if hop is not None}
        if not self._families.issuperset(families):
            self._families |= frozenset(families)
            hops.update(self._known.values())
        lost = self.resolve(hops)
        return {
            (group, family): lost[hop, family]
            for group in groups
            for family in self._families
            for hop in (group.backup, group.primary)
            if hop is not None and (hop, family) in lost
        }

    def steer(self, down: Collection[OwnLink]) -> None:
        """Treat these links as down too, and remove routes over them at once."""
        with self._lock:
            fresh = self.slots_of(frozenset(down) - self._down)
            self._down = frozenset(down) | self._down
            self._empty(self._kernel, fresh)

    def avoid(self, ports: Collection[OwnLink]) -> None:
        """Remove routes over these links at once, even if another thread is about to add one."""
        with self._lock:
            fresh = self.slots_of(frozenset(ports) - self._avoided)
            self._avoided = frozenset(ports) | self._avoided
            self.avoidances += 1
            self._empty(self._urgent, fresh)

    def restore(self, down: Collection[OwnLink], avoidances: int) -> None:
        """Treat all links except ``down`` as up, and restore the routes over them.

        ``avoidances`` is the value of that field when the caller began. If it has changed, avoided
        links are not restored.
        """
        with self._lock:
            self._down = frozenset(down)
            if self.avoidances == avoidances:
                self._avoided = frozenset()
        self._establish()

    def plug(self, port: OwnLink, cable: Cable) -> None:
        """Use this interface for a link; routes follow when they are next restored."""
        with self._lock:
            self._cables[port] = cable
            self._moved.add(port)

    def refresh(self) -> None:
        """Restore routes and rules that are missing."""
        if self._routes:
            before = frozenset(self._routed)
            gone = before.difference(rtnetlink.our_routes(self._kernel))
            slots = {place.slot for place in gone}
            with self._lock:
                self._routed -= gone
                self._moved |= {port for port, slot in self.slots.items() if slot in slots}
            rules = set(rtnetlink.our_rules(self._kernel))
            self._ruled = {
                place
                for place in self._ruled
                if rules.issuperset(rtnetlink.slot_rules(place))
                and rules.issuperset(rtnetlink.shared_rules(place.family))
            }
            self._establish()

    def _slot(self, hop: NextHop) -> int:
        return self.slots.get(hop.port, 0)

    def _learn(self, hop: NextHop, present: Mapping[str, Interface]) -> dict[Family, str]:
        """Learn interface, gateways and slot of a next hop; return families without, and why."""
        strange: dict[Family, str] = {}
        routes: dict[Family, tuple[int, bytes]] = {}
        slot = self._slot(hop)
        try:
            cable, interface = self._plugged(hop, present)
            slot = slot or self._free()
        except UnresolvedError as error:
            return dict.fromkeys(self._families, str(error))
        for family in self._families:
            try:
                routes[family] = interface.number, _gateway(hop, cable, interface, family)
            except UnresolvedError as error:
                strange[family] = str(error)
        if not routes:
            return strange
        self.slots = {**self.slots, hop.port: slot}
        self._known[hop.port] = hop
        for family, route in routes.items():
            place = Place(slot, family)
            if self._routes.get(place) != route:
                with self._lock:
                    self._routes[place] = route
                    self._routed.discard(place)
            if family not in interface.ignores_linkdown:
                self._ignore_linkdown(interface, family)
        if interface.number in self.changed_interfaces:
            self.changed_interfaces[interface.number] = interface.name
        return strange

    def _plugged(self, hop: NextHop, present: Mapping[str, Interface]) -> tuple[Cable, Interface]:
        """Return the cable and the interface of a next hop; UnresolvedError if there is none."""
        cable = self._cables.get(hop.port)
        if cable is None:
            raise UnresolvedError(f"no link to {hop.node} key {hop.key}")
        interface = present.get(cable.interface)
        if interface is None:
            raise UnresolvedError(
                f"the link to {hop.node} key {hop.key} is interface {cable.interface},"
                " which this switch does not have"
            )
        return cable, interface

    def _follow(self) -> None:
        """Update the routes of links that moved to another interface."""
        with self._lock:
            moved, self._moved = self._moved, set()
        hops = [self._known[port] for port in moved if port in self._known]
        if not hops:
            return
        present = rtnetlink.interfaces_by_name(self._kernel)
        for hop in hops:
            for why in self._learn(hop, present).values():
                self._moved.add(hop.port)
                _log.warning("a link that moved leads nowhere yet", why=why)

    def _free(self) -> int:
        used = set(self.slots.values())
        for slot in marks.SLOTS:
            if slot not in used:
                return slot
        raise UnresolvedError(f"all {len(marks.SLOTS)} next hops that marks can tell are in use")

    def _ignore_linkdown(self, interface: Interface, family: Family) -> None:
        """Make the kernel skip routes over an interface that has lost its carrier.

        For IPv6 only an administrator can set this, so it is only logged.
        """
        why = "sysctl net.ipv6.conf.all.ignore_routes_with_linkdown=1 has the kernel do it"
        if family is Family.IPV4:
            (error,) = rtnetlink.ask(
                self._kernel, [rtnetlink.ignore_linkdown(interface.number, on=True)]
            )
            if error is None:
                self.changed_interfaces[interface.number] = interface.name
                return
            why = str(error.strerror)
        if (interface.name, family) not in self._warned:
            self._warned.add((interface.name, family))
            _log.warning(
                "ignore_routes_with_linkdown not set: a lost carrier waits for the agent",
                interface=interface.name,
                family=family.name,
                why=why,
            )

    def _establish(self) -> dict[Place, str]:
        """Add missing rules and routes; return the places for which that failed, and why."""
        self._follow()
        rules: list[Request] = []
        shared = {place.family for place in self._ruled}
        for place in self._routes.keys() - self._ruled:
            wanted_rules = rtnetlink.slot_rules(place)
            if place.family not in shared:
                shared.add(place.family)
                wanted_rules = rtnetlink.shared_rules(place.family) + wanted_rules
            rules += map(rtnetlink.change_rule, wanted_rules)
        with self._lock:
            barred = self.slots_of(self._down | self._avoided)
            if left := barred & {place.slot for place in self._routed}:  # the kernel failed before
                self._empty(self._kernel, left)
            wanted = {place for place in self._routes if place.slot not in barred} - self._routed
            routes = {place: rtnetlink.add_route(place, *self._routes[place]) for place in wanted}
            failed = self._ask(self._kernel, routes)
            self._routed |= wanted - failed.keys()
        for error in rtnetlink.ask(self._kernel, rules):
            if error is not None and error.errno != errno.EEXIST:
                reason = f"no rule for it: {error.strerror}"
                return dict.fromkeys(self._routes.keys() - self._ruled, reason)
        self._ruled |= self._routes.keys()
        # An interface that is set down cannot have routes; its groups are on their backups.
        return {
            place: f"the kernel refuses its route: {error.strerror}"
            for place, error in failed.items()
            if error.errno != errno.ENETDOWN
        }

    def _empty(self, kernel: Netlink, slots: Collection[int]) -> None:
        places = [place for place in self._routes if place.slot in slots]
        self._ask(kernel, {place: rtnetlink.delete_route(place) for place in places})
        self._routed.difference_update(places)

    @staticmethod
    def _ask(kernel: Netlink, requests: Mapping[Place, Request]) -> dict[Place, KernelError]:
        """Send requests about places; return failures. Deleting what is absent is none."""
        answers = zip(requests, rtnetlink.ask(kernel, list(requests.values())), strict=True)
        return {place: e for place, e in answers if e is not None and e.errno != errno.ESRCH}


def _gateway(hop: NextHop, cable: Cable, interface: Interface, family: Family) -> bytes:
    """Return the address to which packets of a family are sent on the link."""
    if cable.gateway:
        given = packed_address(cable.gateway)
        if given is not None and family_of(given) is family:
            return given
    told = packed_address(hop.address)
    if told is not None and family_of(told) is not family:
        told = None
    if told is not None and interface.reaches(told):
        return told
    found = interface.peer(family) or told
    if found is None:
        raise UnresolvedError(
            f"no {_NAMES[family]} address for {hop.node} key {hop.key}: give the node an address in"
            f" the fabric, or interface {interface.name} one in a network of two"
        )
    return found
