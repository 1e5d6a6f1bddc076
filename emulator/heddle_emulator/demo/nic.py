"""The demo with ``--nic``: nobody may program the switches, so NICs choose source ports.

It is a lab of real kernels. Every switch is a network namespace with FRR and nothing of Heddle, and
hashes with a seed of its own. Hosts probe which path each of their source ports takes, ``heddle
plan`` chooses ports, hosts send from these, and the kernels' counters say where the packets went.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import FIRST_SOURCE_PORT, Flows, qp_ports
from heddle_emulator.demo.screen import Screen
from heddle_emulator.netns import mark, tools, witness
from heddle_emulator.netns.lab import Lab, LabOptions
from heddle_emulator.netns.layout import lay_out
from heddle_emulator.netns.steering import count_packets, learn, plan_by_ports
from heddle_emulator.netns.up import bring_up
from heddle_emulator.topology import clos, hashing, with_ipv6
from heddle_emulator.traffic import flows_between

_NAME = "demo-nic"
EXACT = 1e-6


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the lab."""

    leaves: int = 8
    spines: int = 8
    nics_per_leaf: int = 8
    qps: int = 4
    probes: int = 64


def play_nic(
    screen: Screen, *, seed: int, ipv6: bool = False, size: Size | None = None, name: str = _NAME
) -> bool:
    """Run the demo and return whether everything that it claims held.

    Raises:
        LabError: This machine cannot run a lab, or the lab fails.
    """
    tools.check_needs()
    size = size or Size()
    fabric = hashing(
        clos(
            leaves=size.leaves,
            spines=size.spines,
            nics_per_leaf=size.nics_per_leaf,
            nics_per_host=size.nics_per_leaf,
        )
    )
    fabric = with_ipv6(fabric) if ipv6 else fabric
    screen.title("Switches that nobody may program")
    with Lab(mark.claim(name), lay_out(fabric), LabOptions(rate_mbit=0.0, seed=seed)) as lab:
        bring_up(lab, None, screen.line)
        witness.place(lab)
        running = Counter(
            Path(f"/proc/{process}/comm").read_text().strip()
            for process in mark.processes([lab.spaces[s] for s in lab.layout.switches])
        )
        screen.check(set(running) == {"zebra", "bgpd"}, f"switches run FRR alone: {dict(running)}")
        flows = _across(fabric, flows_between(fabric, "permutation", seed=seed, qps=size.qps))
        _show(screen, lab, flows, size)
    return not screen.failed


def _across(fabric: Fabric, flows: Flows) -> Flows:
    """Return the flows that leave their host."""
    host = fabric.structure.nodes.host
    return flows.take(np.flatnonzero(host[flows.source] != host[flows.destination]))


def _show(screen: Screen, lab: Lab, flows: Flows, size: Size) -> None:
    usual = qp_ports(
        np.repeat(flows.source_ports(), flows.qps), np.tile(np.arange(size.qps), len(flows))
    )
    screen.title("Hashing alone")
    hashed = float(count_packets(lab, flows, usual).utilization.max())
    screen.line(
        f"{len(flows)} flows of {size.qps} QPs, ports as they come: worst link {hashed:.2f}"
    )
    screen.title("Hosts probe, Heddle chooses ports")
    learned = learn(lab, flows, [FIRST_SOURCE_PORT + port for port in range(size.probes)])
    paths = sum(len(pair["paths"]) for pair in learned["pairs"])
    screen.line(f"{size.probes} ports of each two NICs probed: {paths} paths known")
    planned = plan_by_ports(lab, flows, learned)
    screen.title("Hosts send from these ports")
    found = count_packets(lab, flows, planned.ports)
    worst = float(found.utilization.max())
    on = sum(arcs == frozenset(way) for arcs, way in zip(found.arcs, planned.ways, strict=True))
    screen.check(
        on == len(planned.ways), f"QPs on the path that was predicted: {on} of {len(planned.ways)}"
    )
    screen.check(
        abs(worst - 1.0) < EXACT,
        f"worst link by the kernels' counters {worst:.2f}, hashed {hashed:.2f}",
    )
