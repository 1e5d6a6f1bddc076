"""A lab: real kernels and FRR for every switch of a fabric, on one machine.

Built in the order of what stands on what: namespaces, settings, cables, addresses,
speeds, then FRR. Every step waits for the one before and none for a timer.

The kernel's side of a lab as scripts for ``ip -batch`` and ``tc -batch``. Pure.

Cables are veth pairs made in their namespaces from the start, so that nothing appears
among the machine's own interfaces. Settings that interfaces inherit (forwarding, the
hash, what to do without carrier) are written before any interface is there. Every end
has an index that no other end of the lab has: where both ends of a pair bear the same
one, the kernel takes the pair for a device without a lower one, whose lost carrier can
wait, and tells of it up to a second late.

A cable of limited speed is shaped where it is left, at both ends. What is marked CS6
(BGP, BFD and the agents' own hellos) goes first, as on a real switch: a full cable
must not look like a dead one.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Self

from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_emulator.netns import frr, mark, tools
from heddle_emulator.netns.kernel import LinkSwitch
from heddle_emulator.netns.layout import MANAGEMENT, MGMT, MGMT_PORT, Layout, Port, down_links
from heddle_emulator.netns.tools import FRR

BRIDGE = "br0"
CONTROL_TOS = 0xC0
"""CS6, the whole byte."""
QUEUE_PACKETS = 100
FIRST_INDEX = 1000
"""Of interfaces; those that the kernel numbers by itself stay below."""
FIRST_NIC_TABLE = 100
"""Routing table of a host's first NIC."""
EVERYWHERE = {
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
}
ON_SWITCHES = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/send_redirects": "0",
    "net/ipv4/conf/default/send_redirects": "0",
    "net/ipv4/conf/all/ignore_routes_with_linkdown": "1",
    "net/ipv4/conf/default/ignore_routes_with_linkdown": "1",
    "net/ipv4/fib_multipath_hash_policy": "3",
    "net/ipv4/fib_multipath_hash_fields": "55",
    "net/ipv4/icmp_ratelimit": "0",
}
"""Hash policy 3 with fields 55: addresses, protocol and ports of the packet itself. By policy 1
the packets that a socket of this machine sends are hashed by the socket instead."""


WITHOUT_IPV6 = {
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
}
WITH_IPV6 = {
    "net/ipv6/conf/default/accept_dad": "0",
    "net/ipv6/conf/all/keep_addr_on_down": "1",
    "net/ipv6/conf/default/keep_addr_on_down": "1",
}
"""No address waits for its duplicate, and none goes with its interface: as addresses of IPv4."""
ON_SWITCHES_WITH_IPV6 = {
    "net/ipv6/conf/all/forwarding": "1",
    "net/ipv6/conf/all/ignore_routes_with_linkdown": "1",
    "net/ipv6/conf/default/ignore_routes_with_linkdown": "1",
    "net/ipv6/fib_multipath_hash_policy": "3",
    "net/ipv6/fib_multipath_hash_fields": "55",
    "net/ipv6/icmp/ratelimit": "0",
}


def settings(layout: Layout, node: str, seed: int) -> dict[str, str]:
    """Files under /proc/sys of one namespace, and what to write into them."""
    told = EVERYWHERE | (WITH_IPV6 if layout.ipv6 else WITHOUT_IPV6)
    if node in layout.switches:
        told |= ON_SWITCHES | (ON_SWITCHES_WITH_IPV6 if layout.ipv6 else {})
        told |= hash_setting(node, seed)
    return told


def hash_setting(switch: str, seed: int) -> dict[str, str]:
    """The setting that seeds a switch's hash."""
    return {"net/ipv4/fib_multipath_hash_seed": str(hash_seed(switch, seed))}


def hash_seed(switch: str, seed: int) -> int:
    """Seed of a switch's ECMP hash: every switch its own, the same in every lab of a seed."""
    return zlib.crc32(f"{seed}/{switch}".encode()) or 1


def cables_script(layout: Layout, spaces: dict[str, str]) -> str:
    """For ``ip -batch``: every veth pair; ``spaces`` is the namespace of each node."""
    pairs = [
        ((a.name, spaces[a.namespace]), (b.name, spaces[b.namespace]))
        for a, b in (cable.ends for cable in layout.cables)
    ]
    pairs += [
        ((MGMT_PORT, spaces[switch]), (f"m{place}", spaces[MGMT]))
        for place, switch in enumerate(layout.switches)
    ]
    lines = map(_veth, pairs, count(FIRST_INDEX, 2))
    return "\n".join(lines) + "\n"


def _veth(ends: tuple[tuple[str, str], tuple[str, str]], index: int) -> str:
    """A pair of interfaces, each with its name and namespace, by this index and the next."""
    near, far = (
        f"name {name} index {index + place} netns {space}"
        for place, (name, space) in enumerate(ends)
    )
    return f"link add {near} type veth peer {far}"


def switch_script(layout: Layout, switch: str, mbit_per_gbps: float = 0.0) -> str:
    """For ``ip -batch`` inside a switch: addresses, and ways to the NICs that hang on it.

    Where speed is limited, aliases tell the agent what each cable is meant for in the lab.
    """
    gbps = _speeds(layout, mbit_per_gbps / 1e3)
    lines = [
        "link set lo up",
        _added(layout, layout.address(switch), "lo"),
        f"addr add {layout.management(switch)}/{MANAGEMENT.prefixlen} dev {MGMT_PORT}",
        f"link set {MGMT_PORT} up",
    ]
    for port in layout.ports[switch]:
        nic = port.peer in layout.nic_port
        if not nic:
            lines.append(_added(layout, port.address, port.name, shared=1))
        elif layout.ipv6:  # the NIC asks for its neighbour there, and no other interface answers
            lines.append(_added(layout, layout.address(switch), port.name))
        alias = f"{port.alias},{gbps[port]:g}" if mbit_per_gbps else port.alias
        lines.append(f"link set {port.name} alias {alias} up")
        if nic:
            lines.append(f"route add {port.peer_address}/{layout.bits} dev {port.name}")
    return "\n".join(lines) + "\n"


def _added(layout: Layout, address: str, interface: str, *, shared: int = 0) -> str:
    """An address on an interface, alone or with one other; one of IPv6 is of use at once."""
    at_once = " nodad" if layout.ipv6 else ""
    return f"addr add {address}/{layout.bits - shared} dev {interface}{at_once}"


def host_script(layout: Layout, host: str) -> str:
    """For ``ip -batch`` inside a host, with ``-6`` where the fabric speaks IPv6.

    Every NIC sends what bears its address by its own cable.
    """
    lines = ["link set lo up"]
    ports = layout.ports[host]
    for number, port in enumerate(ports):
        table = FIRST_NIC_TABLE + number
        way = f"default via {port.peer_address} dev {port.name} onlink src {port.address}"
        lines += [
            _added(layout, port.address, port.name),
            f"link set {port.name} alias {port.alias} up",
            f"route add {way} table {table}",
            f"rule add from {port.address} table {table} pref {table}",
        ]
        if number == 0:
            lines.append(f"route add {way}")
    return "\n".join(dict.fromkeys(lines)) + "\n"


def management_script(layout: Layout) -> str:
    """For ``ip -batch`` inside ``mgmt``: a bridge that every switch is on."""
    lines = [
        "link set lo up",
        f"link add {BRIDGE} type bridge",
        f"addr add {layout.management(MGMT)}/{MANAGEMENT.prefixlen} dev {BRIDGE}",
        f"link set {BRIDGE} up",
    ]
    for place, _ in enumerate(layout.switches):
        lines.append(f"link set m{place} master {BRIDGE} up")
    return "\n".join(lines) + "\n"


def shaping_script(layout: Layout, node: str, mbit_per_gbps: float) -> str:
    """For ``tc -batch`` inside a namespace: each cable at its speed, control traffic first."""
    rate_of = _speeds(layout, mbit_per_gbps)
    lines = [line for port in layout.ports[node] for line in _shaped(port, rate_of[port])]
    return "\n".join(lines) + "\n"


def speed_script(port: Port, mbit: float) -> str:
    """For ``tc -batch``: a port that is shaped sends at another speed from now on."""
    lines = (line for line in _shaped(port, mbit) if line.startswith("class add"))
    return "".join(f"{line.replace('add', 'change', 1)}\n" for line in lines)


def _speeds(layout: Layout, per_gbps: float) -> dict[Port, float]:
    """Speed of the cable at each port, so much for each Gbit/s of the fabric."""
    return {port: cable.gbps * per_gbps for cable in layout.cables for port in cable.ends}


def _shaped(port: Port, mbit: float) -> Iterator[str]:
    rate, on = f"{round(mbit * 1e6)}bit", f"dev {port.name}"
    burst = max(3200, round(mbit * 1e6 / 8 * 0.001))
    limits = f"ceil {rate} burst {burst} cburst {burst}"
    yield f"qdisc add {on} root handle 1: htb default 20"
    yield f"class add {on} parent 1: classid 1:1 htb rate {rate} {limits}"
    yield f"class add {on} parent 1:1 classid 1:10 htb rate {round(mbit * 1e5)}bit {limits} prio 0"
    yield f"class add {on} parent 1:1 classid 1:20 htb rate {round(mbit * 9e5)}bit {limits} prio 1"
    yield f"qdisc add {on} parent 1:20 handle 20: pfifo limit {QUEUE_PACKETS}"
    yield (
        f"filter add {on} parent 1: protocol ip prio 1 u32"
        f" match ip dsfield {CONTROL_TOS:#x} 0xff flowid 1:10"
    )
    yield (
        f"filter add {on} parent 1: protocol ipv6 prio 2 u32"
        f" match ip6 priority {CONTROL_TOS:#x} 0xff flowid 1:10"
    )


FASTEST_MBIT = 100.0


@dataclass(frozen=True, slots=True)
class LabOptions:
    """How a lab differs from another of the same fabric."""

    rate_mbit: float = FASTEST_MBIT
    """Speed of the fabric's fastest cable in Mbit/s, the others in proportion; 0 is unlimited."""
    bfd: frr.Bfd | None = None
    """BFD between switches; none by default."""
    seed: int = 0
    """Draws the switches' ECMP hashes."""


Telling = Callable[[str], None]


def silent(_: str) -> None:
    """Report to nobody."""


class Lab:
    """One lab. A ``with`` removes it at its end, whatever happened inside."""

    def __init__(
        self, claim: mark.Claim, layout: Layout, options: LabOptions | None = None
    ) -> None:
        self.claim, self.layout = claim, layout
        self.options = options or LabOptions()
        self.spaces = {node: mark.namespace(claim.lab, node) for node in layout.namespaces}
        self._switches: dict[str, LinkSwitch] = {}

    @property
    def name(self) -> str:
        """The lab's name."""
        return self.claim.lab

    @property
    def folder(self) -> Path:
        """Configurations, logs and state."""
        return self.claim.folder

    @property
    def mbit_per_gbps(self) -> float:
        """Mbit/s of the lab for each Gbit/s of the fabric; 0 where speed is not limited."""
        fastest = max((cable.gbps for cable in self.layout.cables), default=1.0)
        return self.options.rate_mbit / fastest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def build(self, report: Telling = silent) -> None:
        """Namespaces and cables, as yet without routes between switches.

        Raises:
            LabError: something cannot be had.
        """
        layout, spaces = self.layout, self.spaces
        report(f"{len(spaces)} namespaces, {len(layout.cables)} cables")
        tools.run_program(
            ["ip", "-batch", "-"], "".join(f"netns add {s}\n" for s in spaces.values())
        )
        seed = self.options.seed
        tools.write_settings({spaces[n]: settings(layout, n, seed) for n in spaces})
        tools.run_program(["ip", "-batch", "-"], cables_script(layout, spaces))
        tools.each(self._address, spaces)
        if self.options.rate_mbit:
            tools.each(self._shape, (*layout.switches, *layout.hosts))
        for row in down_links(layout.fabric):
            self.set_link(row, up=False)
        save_fabric_file(layout.fabric, self.folder / "fabric.json")

    def start_underlay(self, report: Telling = silent) -> None:
        """FRR on every switch; BGP is still talking when it returns.

        Raises:
            LabError: a daemon does not start.
        """
        report(f"FRR on {len(self.layout.switches)} switches")
        tools.each(self._start_frr, self.layout.switches)

    def _address(self, node: str) -> None:
        layout = self.layout
        if node == MGMT:
            script = management_script(layout)
        elif node in layout.switches:
            script = switch_script(layout, node, self.mbit_per_gbps)
        else:
            script = host_script(layout, node)
        options = ["-6"] if layout.ipv6 and node in layout.hosts else []
        tools.run_inside(self.spaces[node], ["ip", *options, "-batch", "-"], script)

    def _shape(self, node: str) -> None:
        script = shaping_script(self.layout, node, self.mbit_per_gbps)
        tools.run_inside(self.spaces[node], ["tc", "-batch", "-"], script)

    def frr_folder(self, switch: str) -> Path:
        """Where FRR of a switch has its configuration, sockets and logs."""
        return self.folder / "frr" / switch

    def _start_frr(self, switch: str) -> None:
        folder, bfd = self.frr_folder(switch), self.options.bfd
        folder.mkdir(parents=True)
        (folder / "vty").mkdir()
        (folder / "zebra.conf").write_text(frr.zebra_config(switch))
        (folder / "bgpd.conf").write_text(frr.bgpd_config(self.layout, switch, bfd))
        (folder / "bfdd.conf").write_text(frr.bfdd_config(switch))
        for path in (folder, folder / "vty", *folder.glob("*.conf")):
            shutil.chown(path, "frr", "frr")
        for daemon in ("zebra", *(["bfdd"] if bfd else []), "bgpd"):
            self._start_daemon(switch, folder, daemon)

    def _start_daemon(self, switch: str, folder: Path, daemon: str) -> None:
        command = [
            str(FRR / daemon),
            "-d",
            *("-u", "frr", "-g", "frr", "-P", "0"),
            *("-f", str(folder / f"{daemon}.conf")),
            *("-i", str(folder / f"{daemon}.pid")),
            *("-z", str(folder / "zserv.sock")),
            *("--vty_socket", str(folder / "vty")),
            *("--log", f"file:{folder / f'{daemon}.log'}"),
        ]
        if daemon == "bfdd":
            command += ["--bfdctl", str(folder / "bfdd.sock")]
        tools.run_inside(self.spaces[switch], command)
        tools.go_ahead((folder / f"{daemon}.pid").read_text().strip())

    def reseed(self, seed: int) -> None:
        """Draw the switches' ECMP hashes anew."""
        tools.write_settings(
            {self.spaces[switch]: hash_setting(switch, seed) for switch in self.layout.switches}
        )

    def link_switch(self, node: str) -> LinkSwitch:
        """What takes interfaces of a node's namespace up and down."""
        if node not in self._switches:
            self._switches[node] = LinkSwitch(self.spaces[node])
        return self._switches[node]

    def far_end(self, row: int) -> Port:
        """The end of a cable that is taken down, so that the other loses its carrier.

        Of a cable between tiers that is the upper one, so that leaves see what leaves of a
        real fabric see.
        """
        fabric, cable = self.layout.fabric, self.layout.cables[row]
        kind, index = fabric.structure.nodes.kind, fabric.structure.index
        return max(cable.ends, key=lambda port: int(kind[index[port.node]]))

    def set_link(self, row: int, *, up: bool) -> None:
        """Cut a cable, or join it again, by link row."""
        port = self.far_end(row)
        self.link_switch(port.namespace).set(port.name, up=up)

    def set_speed(self, row: int, gbps: float) -> None:
        """Have a cable carry so much each way, where speeds are limited."""
        for port in self.layout.cables[row].ends:
            script = speed_script(port, gbps * self.mbit_per_gbps)
            tools.run_inside(self.spaces[port.namespace], ["tc", "-batch", "-"], script)

    def remove(self) -> None:
        """End and delete everything that bears the lab's mark; may be called twice."""
        for switch in self._switches.values():
            switch.close()
        self._switches.clear()
        mark.remove(self.claim)
