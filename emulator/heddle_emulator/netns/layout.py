"""The parts of a lab: namespaces, cables and addresses. All functions are pure.

Every switch is a network namespace, and so is every host with all its NICs. One more namespace,
``mgmt``, has the controller and the management network, to which every switch is connected.

The order of the fabric determines addresses, so that two labs of one fabric are alike. Cables
between switches get addresses from 198.18.0.0/15, and management from 169.254.0.0/16. NICs and
switches keep the fabric's addresses. Without those, NICs get addresses from 10.0.0.0/8 and switches
from 100.64.0.0/10. If the fabric has IPv6 addresses, cables (fd00:198::/64) and nodes without
address (fd00:10::/64, fd00:100::/64) get IPv6 addresses too. Management always uses IPv4.

An interface is named after its neighbour if the kernel allows that name. Its alias is always
"NEIGHBOUR,KEY", by which agents find their links.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_address

import numpy as np

from heddle_controller.model.arrays import NONE
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric, NodeKind, State

MANAGEMENT = IPv4Network("169.254.0.0/16")


@dataclass(frozen=True, slots=True)
class Networks:
    """The networks from which addresses of one family are taken."""

    cables: IPv4Network | IPv6Network
    nics: IPv4Network | IPv6Network
    switches: IPv4Network | IPv6Network


IPV4 = Networks(
    IPv4Network("198.18.0.0/15"), IPv4Network("10.0.0.0/8"), IPv4Network("100.64.0.0/10")
)
IPV6 = Networks(
    IPv6Network("fd00:198::/64"), IPv6Network("fd00:10::/64"), IPv6Network("fd00:100::/64")
)
MGMT = "mgmt"
"""Node name of the management network's namespace."""
MGMT_PORT = "mgmt0"
"""A switch's interface to the management network."""
LONGEST = 15
"""Most characters of an interface's name."""
MOST_NODES = 1000

_GOOD_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_GOOD_PORT = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,14}")
_TAKEN = {"lo", "all", "default", MGMT_PORT}


@dataclass(frozen=True, slots=True)
class Port:
    """One end of a cable."""

    node: str
    """The fabric's node that it belongs to: a switch or a NIC."""
    namespace: str
    """The node whose namespace it is in: the switch itself, or the NIC's host."""
    name: str
    """Name of the interface."""
    peer: str
    """The fabric's node at the other end."""
    key: str
    address: str
    """Address of this end without a prefix length; on a cable to a NIC, the node's own."""
    peer_address: str

    @property
    def alias(self) -> str:
        """Alias of the interface, by which agents know the link."""
        return f"{self.peer},{self.key}"


@dataclass(frozen=True, slots=True)
class Cable:
    """One link of the fabric."""

    link: int
    """Link row."""
    a: Port
    b: Port
    gbps: float

    @property
    def ends(self) -> tuple[Port, Port]:
        """Both ends."""
        return self.a, self.b


@dataclass(frozen=True, eq=False)
class Layout:
    """Everything that a lab is built from."""

    fabric: Fabric
    """The fabric, with an address for every node."""
    switches: tuple[str, ...]
    hosts: tuple[str, ...]
    cables: tuple[Cable, ...]

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Nodes that have a namespace, ``mgmt`` first."""
        return (MGMT, *self.switches, *self.hosts)

    @cached_property
    def ports(self) -> dict[str, tuple[Port, ...]]:
        """Interfaces by namespace, without those of the management network."""
        found: dict[str, list[Port]] = {name: [] for name in self.namespaces}
        for cable in self.cables:
            for port in cable.ends:
                found[port.namespace].append(port)
        return {name: tuple(ports) for name, ports in found.items()}

    @cached_property
    def nic_port(self) -> dict[str, Port]:
        """The interface of each NIC by the NIC's id; the first one if it has several."""
        nics = set(self.hosts)
        found: dict[str, Port] = {}
        for cable in self.cables:
            for port in cable.ends:
                if port.namespace in nics:
                    found.setdefault(port.node, port)
        return found

    @property
    def ipv6(self) -> bool:
        """Whether the fabric speaks IPv6 instead of IPv4."""
        return is_ipv6(self.fabric)

    @property
    def bits(self) -> int:
        """Number of bits of an address of the fabric."""
        return 128 if self.ipv6 else 32

    def router_id(self, switch: str) -> str:
        """Return a switch's BGP router id, which always looks like an IPv4 address."""
        return str(IPV4.switches.network_address + 1 + self._place[switch])

    def address(self, node: str) -> str:
        """Return the address of a NIC or of a switch's loopback."""
        structure = self.fabric.structure
        return structure.nodes.address[structure.index[node]]

    def management(self, node: str) -> str:
        """Return the address of a switch or of ``mgmt`` on the management network."""
        number = 1 if node == MGMT else 2 + self._place[node]
        return str(MANAGEMENT.network_address + number)

    @cached_property
    def _place(self) -> dict[str, int]:
        return {node: place for place, node in enumerate(self.switches)}


def lay_out(fabric: Fabric) -> Layout:
    """Return the layout of a lab of a fabric.

    Raises:
        InputError: a name that no namespace can have, an address that is invalid or needed by the
            lab, more nodes than one machine carries, or a NIC with several links.
    """
    fabric = with_addresses(fabric)
    nodes, links = fabric.structure.nodes, fabric.structure.links
    is_nic = nodes.kind == NodeKind.NIC
    ends = np.bincount(np.concatenate([links.a, links.b]), minlength=fabric.node_count)
    for row in np.flatnonzero(is_nic & (ends > 1)).tolist():
        reason = "has several links, and a lab has one for each NIC; play drills in virtual time"
        raise refuse(fabric.name, f"node {nodes.ids[row]}", reason)
    host_of = {
        row: _host(fabric, row) if is_nic[row] else nodes.ids[row]
        for row in range(fabric.node_count)
    }
    switches = tuple(nodes.ids[row] for row in np.flatnonzero(~is_nic).tolist())
    hosts = tuple(dict.fromkeys(host_of[row] for row in np.flatnonzero(is_nic).tolist()))
    _check_names(fabric, switches, hosts)
    return Layout(fabric, switches, hosts, _cables(fabric, host_of))


def with_addresses(fabric: Fabric) -> Fabric:
    """Return the fabric with addresses for all nodes, and for links between switches.

    Addresses that nodes already have stay.

    Raises:
        InputError: an address is invalid, occurs twice, mixes families, or is needed by the lab.
    """
    nodes = fabric.structure.nodes
    given, networks = _checked(fabric), _networks(fabric)
    numbers = {True: int(networks.nics.network_address)}
    numbers[False] = int(networks.switches.network_address)
    addresses = []
    for kind, address in zip(nodes.kind.tolist(), nodes.address, strict=True):
        nic = kind == NodeKind.NIC
        new = str(ip_address(address)) if address else ""
        while not new:
            numbers[nic] += 1
            candidate = str(type(networks.nics.network_address)(numbers[nic]))
            new = "" if candidate in given else candidate
        addresses.append(new)
    filled = replace(nodes, address=tuple(addresses))
    fabric = replace(fabric, structure=replace(fabric.structure, nodes=filled))
    ends = tuple(
        ("", "") if NodeKind.NIC in nodes.kind[[a, b]] else _end_addresses(fabric, row)
        for row, (a, b) in enumerate(
            zip(fabric.structure.links.a, fabric.structure.links.b, strict=True)
        )
    )
    links = replace(fabric.structure.links, address=ends)
    return replace(fabric, structure=replace(fabric.structure, links=links))


def is_ipv6(fabric: Fabric) -> bool:
    """Return whether any node of a fabric has an IPv6 address."""
    return any(":" in address for address in fabric.structure.nodes.address)


def _networks(fabric: Fabric) -> Networks:
    return IPV6 if is_ipv6(fabric) else IPV4


def _checked(fabric: Fabric) -> set[str]:
    nodes, seen = fabric.structure.nodes, set[str]()
    cables, version = _networks(fabric).cables, 6 if is_ipv6(fabric) else 4
    for node, text in zip(nodes.ids, nodes.address, strict=True):
        if not text:
            continue
        try:
            address = ip_address(text)
        except ValueError:
            reason = f"address {text!r} is no IP address"
            raise refuse(fabric.name, f"node {node}", reason) from None
        if address.version != version:
            reason = f"address {text} is of IPv4 and others are of IPv6: a lab speaks one of them"
            raise refuse(fabric.name, f"node {node}", reason)
        for net in (cables, MANAGEMENT):
            if address in net:
                reason = f"address {text} is in {net}, which the lab uses itself; take another"
                raise refuse(fabric.name, f"node {node}", reason)
        if str(address) in seen:
            raise refuse(fabric.name, f"node {node}", f"address {text} belongs to another node too")
        seen.add(str(address))
    return seen


def _host(fabric: Fabric, row: int) -> str:
    structure = fabric.structure
    host = int(structure.nodes.host[row])
    return structure.nodes.ids[row] if host == NONE else structure.host_names[host]


def _check_names(fabric: Fabric, switches: tuple[str, ...], hosts: tuple[str, ...]) -> None:
    names = (*switches, *hosts)
    if len(names) > MOST_NODES:
        reason = f"{len(names):,} switches and hosts; one machine carries {MOST_NODES:,} at most"
        raise refuse(fabric.name, "", reason)
    for name in names:
        if name == MGMT or not _GOOD_NODE.fullmatch(name):
            reason = "cannot name a namespace: use letters, digits, '-', '_', '.', and not 'mgmt'"
            raise refuse(fabric.name, f"node {name}", reason)
    twice = set(switches) & set(hosts)
    if twice:
        raise refuse(fabric.name, f"node {min(twice)}", "is both a switch and a host; rename one")


def _cables(fabric: Fabric, host_of: dict[int, str]) -> tuple[Cable, ...]:
    """Return the cables of all links. A link that is down has one too, which is cut later."""
    structure, used = fabric.structure, dict[str, set[str]]()
    nodes, links = structure.nodes, structure.links
    cables = []
    for row in range(fabric.link_count):
        ends = int(links.a[row]), int(links.b[row])
        key = str(links.key[row])
        parallel = len(structure.links_between[min(ends), max(ends)]) > 1
        addresses = _end_addresses(fabric, row)
        ports = []
        for side, (end, other) in enumerate((ends, ends[::-1])):
            own = nodes.ids[end] if nodes.kind[end] == NodeKind.NIC else nodes.ids[other]
            space = host_of[end]
            name = _port_name(own, key if parallel else "", used.setdefault(space, set()))
            pair = addresses[side], addresses[1 - side]
            ports.append(Port(nodes.ids[end], space, name, nodes.ids[other], key, *pair))
        cables.append(Cable(row, ports[0], ports[1], float(links.gbps[row])))
    return tuple(cables)


def _end_addresses(fabric: Fabric, row: int) -> tuple[str, str]:
    """Return the addresses of a cable's ends: on a cable to a NIC, those of its two nodes."""
    nodes, links = fabric.structure.nodes, fabric.structure.links
    a, b = int(links.a[row]), int(links.b[row])
    if NodeKind.NIC in nodes.kind[[a, b]]:
        return nodes.address[a], nodes.address[b]
    base = _networks(fabric).cables.network_address + 2 * row
    return str(base), str(base + 1)


def _port_name(neighbour: str, key: str, used: set[str]) -> str:
    """Return an unused name after ``neighbour``, or a numbered one if that is no valid name."""
    plain = f"{neighbour}_{key}" if key else neighbour
    tail = plain.rsplit("-", 1)[-1]
    for name in (plain, tail):
        if _GOOD_PORT.fullmatch(name) and name not in used | _TAKEN:
            used.add(name)
            return name
    name = next(f"p{i}" for i in range(len(used) + 1) if f"p{i}" not in used)
    used.add(name)
    return name


def down_links(fabric: Fabric) -> list[int]:
    """Return the link rows that the fabric says are down."""
    return np.flatnonzero(fabric.effective == State.DOWN).tolist()
