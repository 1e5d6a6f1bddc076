"""The status of a lab, read from its kernels: whether BGP has converged, and what runs.

The expected routes come from the emulator's own underlay, by hop counts over the graph. The actual
routes come from the kernels. After a loss, hop counts may allow a detour down and up again between
spines of one AS, which BGP never has. Such detours are left out.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heddle_controller.model.arrays import Bools, Ints
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.files.fabric_file import load_fabric_file
from heddle_emulator.netns import LabError, mark, tools
from heddle_emulator.netns.frr import Bfd, as_number
from heddle_emulator.netns.lab import Lab, LabOptions
from heddle_emulator.netns.layout import MGMT, Cable, Layout, lay_out
from heddle_emulator.underlay import Underlay

CONVERGE_POLL_SECONDS = 0.1

Ways = dict[str, frozenset[str]]
"""Interfaces towards each NIC, by the NIC's address."""


@dataclass(frozen=True, slots=True)
class Lack:
    """A switch whose kernel lacks expected routes to a NIC, or has others."""

    switch: str
    nic: str
    wanted: frozenset[str]
    found: frozenset[str]

    def __str__(self) -> str:
        wanted, found = ", ".join(sorted(self.wanted)), ", ".join(sorted(self.found))
        return f"{self.switch} reaches {self.nic} by {found or 'nothing'}, not by {wanted}"


def wait_converged(lab: Lab, seconds: float, fabric: Fabric | None = None) -> float:
    """Wait until every switch has all equal routes to every NIC; return the seconds that it took.

    ``fabric`` is the lab's fabric with the present states of links. By default links are as built.

    Raises:
        LabError: this took longer than ``seconds``. The message says what is lacking.
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
    """Return the first wrong route of each switch that has any, for links as in ``fabric``."""
    wanted = expected_ways(lab, fabric)
    found = (next(_lacks(s, wanted[s], kernel_ways(lab, s)), None) for s in wanted)
    return [lack for lack in found if lack is not None]


def expected_ways(lab: Lab, fabric: Fabric) -> dict[str, Ways]:
    """Return by switch the expected interfaces towards each NIC that BGP has a route to.

    A switch has no routes to its own NICs.
    """
    layout, underlay = lab.layout, Underlay(fabric)
    nodes = fabric.structure.nodes
    name = {(port.node, cable.link): port.name for cable in layout.cables for port in cable.ends}
    nics = [row for row in fabric.rows_of_kind(NodeKind.NIC).tolist() if underlay.group[row] >= 0]
    found: dict[str, Ways] = {}
    for switch, (arcs, takes) in _bgp_ways(layout, underlay).items():
        ports = [name[switch, int(arc) >> 1] for arc in arcs]
        sets = [
            frozenset(ports[i] for i in np.flatnonzero(takes[:, group]).tolist())
            for group in range(takes.shape[1])
        ]
        ways = {nodes.address[nic]: sets[int(underlay.group[nic])] for nic in nics}
        found[switch] = {address: way for address, way in ways.items() if way}
    return found


def _bgp_ways(layout: Layout, underlay: Underlay) -> dict[str, tuple[Ints, Bools]]:
    """Return ``Underlay.ways`` by switch, without routes that would cross an AS twice."""
    structure, places = underlay.fabric.structure, underlay.place
    rows = {switch: structure.index[switch] for switch in layout.switches}
    number = {row: as_number(layout, switch) for switch, row in rows.items()}
    ways = {row: underlay.ways(row) for row in number}
    for group, hops in enumerate(underlay.hops.T.tolist()):
        nearest_first = sorted((hops[places[row]], row) for row in number)
        crossed: dict[int, set[int]] = {}  # ASes of each switch's routes; none without a route
        for distance, row in nearest_first:
            arcs, takes = ways[row]
            heads = structure.head[arcs].tolist()
            for place in np.flatnonzero(takes[:, group]).tolist():
                others = crossed.get(heads[place], number.values())
                takes[place, group] = number[row] not in others
            beyond = [crossed[heads[place]] for place in np.flatnonzero(takes[:, group]).tolist()]
            if beyond or distance == 0:
                crossed[row] = {number[row]}.union(*beyond)
    return {switch: ways[row] for switch, row in rows.items()}


def kernel_ways(lab: Lab, switch: str) -> Ways:
    """Return the interfaces towards each address that a switch's kernel has from BGP."""
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


@dataclass(frozen=True, slots=True)
class Status:
    """The status of one lab."""

    name: str
    switches: int
    hosts: int
    cables: int
    programs: Counter[str]
    """Number of running processes by program: zebra, bgpd, bfdd, agent, controller, other."""
    cut: tuple[str, ...]
    """Names of the cables without carrier."""
    lacking: tuple[str, ...]
    """Wrong routes from BGP, in words."""
    agents: bool
    """Whether the lab was built with agents and a controller."""

    @property
    def faults(self) -> list[str]:
        """Programs that should run and do not, in words."""
        wanted = {"zebra": self.switches, "bgpd": self.switches}
        if self.agents:
            wanted |= {"agent": self.switches, "controller": 1}
        return [
            f"{count - self.programs[program]} of {count} {program} do not run"
            for program, count in wanted.items()
            if self.programs[program] < count
        ]


def reopen(name: str) -> Lab:
    """Return a lab that ``lab up`` has built. It can be inspected and changed.

    Raises:
        InputError: the name is no possible name of a lab.
        LabError: no lab with this name is up.
    """
    state = mark.read_state(mark.check_name(name))
    if state is None:
        known = ", ".join(lab for lab in mark.labs() if mark.read_state(lab)) or "none"
        raise LabError(f"lab {name} is not up (up: {known}); start it with 'lab up --name {name}'")
    bfd = Bfd(state["bfd_ms"]) if state["bfd_ms"] else None
    options = LabOptions(state["rate_mbit"], bfd, state["seed"])
    fabric = load_fabric_file(mark.FOLDER / name / "fabric.json")
    return Lab(mark.Claim(name), lay_out(fabric), options)


def keep(lab: Lab, *, agents: bool) -> None:
    """Make a finished lab stay when its builder ends, and release it."""
    options = lab.options
    bfd = options.bfd.milliseconds if options.bfd else 0
    state = {"rate_mbit": options.rate_mbit, "bfd_ms": bfd, "seed": options.seed, "agents": agents}
    lab.claim.write_state(state)
    lab.claim.release()


def status(lab: Lab) -> Status:
    """Return the present status of a lab."""
    state, layout = mark.read_state(lab.name) or {}, lab.layout
    fabric = present(lab)
    return Status(
        name=lab.name,
        switches=len(layout.switches),
        hosts=len(layout.hosts),
        cables=len(layout.cables),
        programs=_programs(lab),
        cut=tuple(fabric.link_name(cable.link) for cable in cut_cables(lab)),
        lacking=tuple(str(lack) for lack in lacks(lab, fabric)),
        agents=bool(state.get("agents")),
    )


def present(lab: Lab) -> Fabric:
    """Return the lab's fabric with the links' states from the kernels."""
    states = {cable.link: State.UP for cable in lab.layout.cables}
    states |= {cable.link: State.DOWN for cable in cut_cables(lab)}
    return lab.layout.fabric.with_links(states)


def cut_cables(lab: Lab) -> list[Cable]:
    """Return the cables with an end that has no carrier."""
    down = {
        (node, line.split(":")[1].split("@")[0].strip())
        for node in (*lab.layout.switches, *lab.layout.hosts)
        for line in tools.run_program(
            ["ip", "-netns", lab.spaces[node], "-oneline", "link"]
        ).splitlines()
        if "LOWER_UP" not in line
    }
    return [
        cable
        for cable in lab.layout.cables
        if any((port.namespace, port.name) in down for port in cable.ends)
    ]


def _programs(lab: Lab) -> Counter[str]:
    found: Counter[str] = Counter()
    controllers = lab.spaces[MGMT]
    for process, space in mark.processes(lab.spaces.values()).items():
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{process}/comm").read_text().strip()
            if name.startswith("agent "):
                name = "agent"
            elif space == controllers and name.startswith("heddle-control"):
                name = "controller"
            elif name not in {"zebra", "bgpd", "bfdd"}:
                name = "other"
            found[name] += 1
    return found
