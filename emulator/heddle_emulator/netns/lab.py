"""A lab: a real kernel and FRR for every switch of a fabric, on one machine.

It is built in this order: namespaces, settings, cables, addresses, speeds, then FRR. Every step
waits for the one before, and none for a timer. The kernel's side of a lab is a set of scripts for
``ip -batch`` and ``tc -batch``, which pure functions make.

Cables are veth pairs. They are made inside their namespaces, so that nothing appears among the
machine's own interfaces. Settings that interfaces inherit (forwarding, the hash, what to do without
carrier) are written before any interface exists. Every end has an interface index that no other end
of the lab has. If both ends of a pair had the same index, the kernel would take them for devices
without a lower one, whose loss of carrier is not urgent, and report it up to a second late.

A cable of limited speed is shaped on sending, at both ends. Packets marked CS6 (BGP, BFD and the
agents' own hellos) go first, as on a real switch: a full cable must not look like a dead one.
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
"""The whole TOS byte of CS6."""
QUEUE_PACKETS = 100
FIRST_INDEX = 1000
"""First index of the lab's interfaces; the kernel's own choices stay below it."""
FIRST_NIC_TABLE = 100
"""Routing table of a host's first NIC; the next NICs have the next tables."""
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
"""Settings of switches. Hash policy 3 with fields 55 hashes addresses, protocol and ports of the
packet itself. With policy 1, the kernel hashes packets of local sockets by the socket instead."""


WITHOUT_IPV6 = {
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
}
WITH_IPV6 = {
    "net/ipv6/conf/default/accept_dad": "0",
    "net/ipv6/conf/all/keep_addr_on_down": "1",
    "net/ipv6/conf/default/keep_addr_on_down": "1",
}
"""Make IPv6 addresses behave as IPv4 ones: no duplicate detection, and they stay on down links."""
ON_SWITCHES_WITH_IPV6 = {
    "net/ipv6/conf/all/forwarding": "1",
    "net/ipv6/conf/all/ignore_routes_with_linkdown": "1",
    "net/ipv6/conf/default/ignore_routes_with_linkdown": "1",
    "net/ipv6/fib_multipath_hash_policy": "3",
    "net/ipv6/fib_multipath_hash_fields": "55",
    "net/ipv6/icmp/ratelimit": "0",
}


def settings(layout: Layout, node: str, seed: int) -> dict[str, str]:
    """Return the settings of a node's namespace: files under /proc/sys and their content."""
    told = EVERYWHERE | (WITH_IPV6 if layout.ipv6 else WITHOUT_IPV6)
    if node in layout.switches:
        told |= ON_SWITCHES | (ON_SWITCHES_WITH_IPV6 if layout.ipv6 else {})
        told |= hash_setting(node, seed)
    return told


def hash_setting(switch: str, seed: int) -> dict[str, str]:
    """Return the setting that seeds a switch's ECMP hash."""
    return {"net/ipv4/fib_multipath_hash_seed": str(hash_seed(switch, seed))}


def hash_seed(switch: str, seed: int) -> int:
    """Return the seed of a switch's ECMP hash, fixed by its name and the lab's seed; never 0."""
    return zlib.crc32(f"{seed}/{switch}".encode()) or 1


def cables_script(layout: Layout, spaces: dict[str, str]) -> str:
    """Return lines for ``ip -batch`` that add all veth pairs; ``spaces`` has nodes' namespaces."""
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
    """Return the line for a pair of (name, namespace), with this index and the next one."""
    near, far = (
        f"name {name} index {index + place} netns {space}"
        for place, (name, space) in enumerate(ends)
    )
    return f"link add {near} type veth peer {far}"


def switch_script(layout: Layout, switch: str, mbit_per_gbps: float = 0.0) -> str:
    """Return lines for ``ip -batch`` in a switch: addresses, and routes to its attached NICs.

    If speed is limited, the interface aliases tell the agent the speed of each cable in the lab.
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
        elif layout.ipv6:  # the NIC's neighbour discovery needs an answer on this interface
            lines.append(_added(layout, layout.address(switch), port.name))
        alias = f"{port.alias},{gbps[port]:g}" if mbit_per_gbps else port.alias
        lines.append(f"link set {port.name} alias {alias} up")
        if nic:
            lines.append(_nic_route(layout, port))
    return "\n".join(lines) + "\n"


def _nic_route(layout: Layout, port: Port) -> str:
    """Return the line with the route of a switch to the NIC at its port."""
    return f"route replace {port.peer_address}/{layout.bits} dev {port.name}"


def _added(layout: Layout, address: str, interface: str, *, shared: int = 0) -> str:
    """Return a line that adds an address; its prefix is ``shared`` bits shorter than a full one."""
    at_once = " nodad" if layout.ipv6 else ""
    return f"addr add {address}/{layout.bits - shared} dev {interface}{at_once}"


def host_script(layout: Layout, host: str) -> str:
    """Return lines for ``ip -batch`` in a host, which needs ``-6`` if the fabric speaks IPv6.

    Packets with the address of a NIC as their source leave by that NIC's cable.
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
    """Return lines for ``ip -batch`` in ``mgmt`` that make a bridge to every switch."""
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
    """Return lines for ``tc -batch`` that limit a node's cables; control traffic goes first."""
    rate_of = _speeds(layout, mbit_per_gbps)
    lines = [line for port in layout.ports[node] for line in _shaped(port, rate_of[port])]
    return "\n".join(lines) + "\n"


def speed_script(port: Port, mbit: float) -> str:
    """Return lines for ``tc -batch`` that give a shaped port another speed."""
    lines = (line for line in _shaped(port, mbit) if line.startswith("class add"))
    return "".join(f"{line.replace('add', 'change', 1)}\n" for line in lines)


def _speeds(layout: Layout, per_gbps: float) -> dict[Port, float]:
    """Return the speed of the cable at each port, ``per_gbps`` for each Gbit/s of the fabric."""
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
    """Options of a lab beside its fabric."""

    rate_mbit: float = FASTEST_MBIT
    """Speed of the fabric's fastest cable in Mbit/s, the others in proportion; 0 is unlimited."""
    bfd: frr.Bfd | None = None
    """BFD between switches; none by default."""
    seed: int = 0
    """Seed of the switches' ECMP hashes."""


Telling = Callable[[str], None]


def silent(_: str) -> None:
    """Report to nobody."""


class Lab:
    """One lab. Leaving its ``with`` removes it, also after an error."""

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
        """Folder of the lab's configurations, logs and state."""
        return self.claim.folder

    @property
    def mbit_per_gbps(self) -> float:
        """Mbit/s in the lab for each Gbit/s of the fabric; 0 if speed is not limited."""
        fastest = max((cable.gbps for cable in self.layout.cables), default=1.0)
        return self.options.rate_mbit / fastest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def build(self, report: Telling = silent) -> None:
        """Build namespaces and cables. There are no routes between switches yet.

        Raises:
            LabError: a command fails, or the kernel lacks something.
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
        """Start FRR on every switch. BGP has not converged yet when this returns.

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
        """Return the folder of the configuration, sockets and logs of a switch's FRR."""
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
        """Seed the switches' ECMP hashes anew."""
        tools.write_settings(
            {self.spaces[switch]: hash_setting(switch, seed) for switch in self.layout.switches}
        )

    def link_switch(self, node: str) -> LinkSwitch:
        """Return the object that takes interfaces of a node's namespace up and down."""
        if node not in self._switches:
            self._switches[node] = LinkSwitch(self.spaces[node])
        return self._switches[node]

    def far_end(self, row: int) -> Port:
        """Return the end of a cable that is taken down to cut it. The other end loses its carrier.

        On a cable between tiers it is the upper end, so that leaves see a lost carrier as in a
        real fabric.
        """
        fabric, cable = self.layout.fabric, self.layout.cables[row]
        kind, index = fabric.structure.nodes.kind, fabric.structure.index
        return max(cable.ends, key=lambda port: int(kind[index[port.node]]))

    def set_link(self, row: int, *, up: bool) -> None:
        """Cut a cable, given by link row, or connect it again."""
        port = self.far_end(row)
        self.link_switch(port.namespace).set(port.name, up=up)
        if up and port.peer in self.layout.nic_port:  # the kernel has dropped the route
            line = _nic_route(self.layout, port)
            tools.run_inside(self.spaces[port.namespace], ["ip", "-batch", "-"], line + "\n")

    def set_speed(self, row: int, gbps: float) -> None:
        """Limit a cable to ``gbps`` of the fabric each way. Only for labs with limited speed."""
        for port in self.layout.cables[row].ends:
            script = speed_script(port, gbps * self.mbit_per_gbps)
            tools.run_inside(self.spaces[port.namespace], ["tc", "-batch", "-"], script)

    def remove(self) -> None:
        """End all processes of the lab and delete everything of it; may be called twice."""
        for switch in self._switches.values():
            switch.close()
        self._switches.clear()
        mark.remove(self.claim)
