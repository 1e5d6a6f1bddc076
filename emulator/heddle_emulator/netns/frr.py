"""The underlay: the FRR configuration of each switch. All functions are pure.

There is eBGP on every cable between switches. Each leaf has its own AS, the spines of a zone share
one, and all cores share one, so that no route goes up twice. In graphs without tiers every switch
has its own AS. All paths of equal length are used, whatever ASes they cross.

zebra must not make kernel next-hop groups, because after a flap a member of such a group never
comes back (FRR 8.4).
"""

from __future__ import annotations

from dataclasses import dataclass

from heddle_controller.model.arrays import NONE
from heddle_controller.model.fabric import NodeKind
from heddle_emulator.netns.layout import Layout, Port

FIRST_OWN_AS = 4_200_000_000
SPINE_AS = 64_600
CORE_AS = 64_500
BFD_COUNT = 3


@dataclass(frozen=True, slots=True)
class Bfd:
    """Settings of BFD on every cable between switches."""

    milliseconds: int
    """Milliseconds between two packets. Three missed packets mean a dead link."""


def as_number(layout: Layout, switch: str) -> int:
    """Return the AS number of a switch."""
    nodes = layout.fabric.structure.nodes
    row = layout.fabric.structure.index[switch]
    kind, zone = int(nodes.kind[row]), int(nodes.zone[row])
    if kind == NodeKind.SPINE:
        return SPINE_AS + (0 if zone == NONE else zone)
    return CORE_AS if kind == NodeKind.CORE else FIRST_OWN_AS + row


def zebra_config(switch: str) -> str:
    """Return the content of zebra.conf."""
    return f"hostname {switch}\nno zebra nexthop kernel enable\nip nht resolve-via-default\n"


def bgpd_config(layout: Layout, switch: str, bfd: Bfd | None = None) -> str:
    """Return the content of bgpd.conf: the neighbouring switches and the attached NICs."""
    own = as_number(layout, switch)
    peers = [port for port in layout.ports[switch] if port.peer not in layout.nic_port]
    nics = [port.peer_address for port in layout.ports[switch] if port.peer in layout.nic_port]
    lines = [
        f"hostname {switch}",
        "frr defaults datacenter",
        f"router bgp {own}",
        f" bgp router-id {layout.router_id(switch)}",
        " no bgp ebgp-requires-policy",
        " bgp network import-check",  # a NIC whose cable is cut is not announced
        " no bgp default ipv4-unicast",
        " bgp bestpath as-path multipath-relax",
        " timers bgp 3 9",
    ]
    lines += [line for port in peers for line in _neighbour(layout, port, bfd)]
    family = "ipv6" if layout.ipv6 else "ipv4"
    lines += [f" address-family {family} unicast", "  maximum-paths 64"]
    lines += [f"  network {address}/{layout.bits}" for address in dict.fromkeys(nics)]
    lines.append(f"  network {layout.address(switch)}/{layout.bits}")
    lines += [f"  neighbor {port.peer_address} activate" for port in peers]
    return "\n".join([*lines, " exit-address-family", ""])


def _neighbour(layout: Layout, port: Port, bfd: Bfd | None) -> list[str]:
    peer = port.peer_address
    lines = [
        f" neighbor {peer} remote-as {as_number(layout, port.peer)}",
        f" neighbor {peer} timers connect 1",
        f" neighbor {peer} advertisement-interval 0",
    ]
    if bfd is not None:
        lines.append(f" neighbor {peer} bfd {BFD_COUNT} {bfd.milliseconds} {bfd.milliseconds}")
    return lines


def bfdd_config(switch: str) -> str:
    """Return the content of bfdd.conf. Its sessions come from BGP."""
    return f"hostname {switch}\n"
