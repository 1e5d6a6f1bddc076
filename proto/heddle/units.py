"""The hosts of a fabric, grouped by the switches they connect to, as schedulers want it."""

from __future__ import annotations

from dataclasses import dataclass

from heddle.names import natural
from heddle.v1 import fabric_pb2 as pb


@dataclass(frozen=True, slots=True)
class HostUnit:
    """Hosts whose NICs connect to the same switches: one leaf, or the leaves of one rail unit."""

    switches: tuple[str, ...]
    """Ids of the switches, in natural order; empty for hosts without links."""
    zone: str
    """Zone of the first of these switches; empty if there are no switches."""
    hosts: tuple[str, ...]
    """The hosts in natural order; at least one."""


def host_units(fabric: pb.Fabric) -> list[HostUnit]:
    """Return all hosts of a fabric, each in exactly one unit, in natural order of their switches.

    The fabric must contain its nodes and links.
    """
    switches_of = _switches_of_hosts(fabric)
    zone_of = {node.id: node.zone for node in fabric.nodes if node.kind != pb.NODE_KIND_NIC}
    hosts_of: dict[tuple[str, ...], list[str]] = {}
    for host in sorted(switches_of, key=natural):
        key = tuple(sorted(switches_of[host], key=natural))
        hosts_of.setdefault(key, []).append(host)
    order = sorted(hosts_of, key=lambda key: [natural(switch) for switch in key])
    return [HostUnit(key, zone_of[key[0]] if key else "", tuple(hosts_of[key])) for key in order]


def _switches_of_hosts(fabric: pb.Fabric) -> dict[str, set[str]]:
    host_of = {n.id: n.host for n in fabric.nodes if n.kind == pb.NODE_KIND_NIC and n.host}
    found: dict[str, set[str]] = {host: set() for host in host_of.values()}
    switches = {node.id for node in fabric.nodes if node.kind != pb.NODE_KIND_NIC}
    for link in fabric.links:
        for nic, other in ((link.source, link.target), (link.target, link.source)):
            if nic in host_of and other in switches:
                found[host_of[nic]].add(other)
    return found
