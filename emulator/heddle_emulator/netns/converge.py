"""Whether BGP has told every switch all there is to know.

What ought to be comes from the emulator's own underlay, by hop counts over the graph;
what is, from the kernels. BGP between spines of one AS has no way where hop counts know
a detour down and up again, so such a detour is asked of nobody.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_emulator.netns import LabError, tools
from heddle_emulator.netns.lab import Lab
from heddle_emulator.underlay import Underlay

CONVERGE_POLL_SECONDS = 0.1

Ways = dict[str, frozenset[str]]
"""Interfaces by address of the NIC they lead to."""


@dataclass(frozen=True, slots=True)
class Lack:
    """A switch whose kernel has not the ways that it should."""

    switch: str
    nic: str
    wanted: frozenset[str]
    found: frozenset[str]

    def __str__(self) -> str:
        wanted, found = ", ".join(sorted(self.wanted)), ", ".join(sorted(self.found))
        return f"{self.switch} reaches {self.nic} by {found or 'nothing'}, not by {wanted}"


def wait_converged(lab: Lab, seconds: float, fabric: Fabric | None = None) -> float:
    """Wait until every switch has all equal ways to every NIC; returns how long it took.

    ``fabric`` is the lab's with its links as they are; without it, as when it was built.

    Raises:
        LabError: not after so many seconds; says what is lacking.
    """
    start = time.monotonic()
    wanted = expected_ways(lab, fabric or lab.layout.fabric)
    waiting = list(wanted)
    lack: Lack | None = None
    while waiting:
        lack = next(_lacks(waiting[0], wanted[waiting[0]], kernel_ways(lab, waiting[0])), None)
        if lack is None:
            waiting.pop(0)
        elif time.monotonic() - start > seconds:
            raise LabError(f"BGP has not converged after {seconds:g} s: {lack}")
        else:
            time.sleep(CONVERGE_POLL_SECONDS)
    return time.monotonic() - start


def lacks(lab: Lab, fabric: Fabric) -> list[Lack]:
    """The first way that each switch has not as it ought to, links being as in ``fabric``."""
    wanted = expected_ways(lab, fabric)
    found = (next(_lacks(s, wanted[s], kernel_ways(lab, s)), None) for s in wanted)
    return [lack for lack in found if lack is not None]


def expected_ways(lab: Lab, fabric: Fabric) -> dict[str, Ways]:
    """Interfaces that each switch ought to have towards each NIC beyond its own, by switch."""
    layout, underlay = lab.layout, Underlay(fabric)
    structure, nodes = fabric.structure, fabric.structure.nodes
    name = {(port.node, cable.link): port.name for cable in layout.cables for port in cable.ends}
    nics = [row for row in fabric.rows_of_kind(NodeKind.NIC).tolist() if underlay.group[row] >= 0]
    found: dict[str, Ways] = {}
    for switch in layout.switches:
        row = structure.index[switch]
        arcs, takes = underlay.ways(row)
        ports = [name[switch, int(arc) >> 1] for arc in arcs]
        sets = [
            frozenset(ports[i] for i in np.flatnonzero(takes[:, group]).tolist())
            for group in range(takes.shape[1])
        ]
        ways = {nodes.address[nic]: sets[int(underlay.group[nic])] for nic in nics}
        found[switch] = {address: way for address, way in ways.items() if way}
    return found


def kernel_ways(lab: Lab, switch: str) -> Ways:
    """Interfaces that the kernel of a switch has towards each address, from BGP."""
    family = "-6" if lab.layout.ipv6 else "-4"
    space = lab.spaces[switch]
    command = ["ip", family, "-json", "-netns", space, "route", "show", "proto", "bgp"]
    routes = json.loads(tools.run_program(command) or "[]")
    return {
        route["dst"]: frozenset(hop["dev"] for hop in route.get("nexthops", [route]))
        for route in routes
        if "dev" in route or "nexthops" in route
    }


def _lacks(switch: str, wanted: Ways, found: Ways) -> Iterator[Lack]:
    for address, ways in wanted.items():
        here = found.get(address, frozenset())
        if here != ways:
            yield Lack(switch, address, ways, here)
