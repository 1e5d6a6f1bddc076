"""Ports instead of entries: NICs of a 1:1 zone choose source ports, and the switches hash.

Each case is a permutation with 4 to 16 QPs per flow, and newly drawn hash functions of all
switches. ``PROBES`` ports of each pair of NICs are probed. Then a packet of each QP is walked from
the port that the plan gives it, and the worst link is computed from the packets' paths.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.flows import FIRST_SOURCE_PORT
from heddle_controller.model.plan import arc_loads, utilization
from heddle_controller.solve import plan_anew, solve
from heddle_emulator.switches import Switches
from heddle_emulator.topology import clos, hashing
from heddle_emulator.walk import probed, walk
from tests.bench.pool import each
from tests.bench.rows import Row, Scale, quantile, spread
from tests.bench.screen import Screen
from tests.bench.workloads import permutations

TITLE = "ports chosen by NICs, switches hash: worst link beside programmed switches"
QPS = (4, 8, 16)
PROBES = 64
"""Ports probed for each pair of NICs."""
CASES = {"quick": 2, "default": 20, "full": 200}
WANTED = 0.99
EQUAL = 1e-9


@dataclass(frozen=True, slots=True)
class Case:
    """A zone, traffic and hashes."""

    leaves: int
    spines: int
    nics_per_leaf: int
    qps: int
    seed: int

    def __str__(self) -> str:
        shape = f"{self.leaves} x {self.spines} x {self.nics_per_leaf}"
        return f"{shape}, {self.qps} QPs, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Found:
    """Worst links of a case, as utilisation."""

    case: Case
    programmed: float
    by_ports: float
    hashed: float
    """Worst link of the same QPs with default source ports."""
    as_told: bool
    """Whether the packets of all QPs load the links as planned."""
    seconds: float
    """Processor time of the plan by ports."""

    @property
    def near(self) -> bool:
        """Whether the worst link is within one QP of the plan for programmed switches."""
        return self.as_told and self.by_ports <= self.programmed + 1 / self.case.qps + EQUAL


def run(case: Case) -> Found:
    """Probe, plan and walk one case."""
    fabric = hashing(clos(leaves=case.leaves, spines=case.spines, nics_per_leaf=case.nics_per_leaf))
    flows = permutations(fabric, case.seed, 1, case.qps)
    hashes = Switches(fabric, case.seed)
    programmed = solve(fabric, flows).certificate.max_utilization
    ports = FIRST_SOURCE_PORT + np.arange(PROBES)
    known = probed(fabric, flows, hashes, np.tile(ports, (len(flows), 1)))
    start = time.process_time()
    plan = plan_anew(replace(fabric, port_paths=known), flows)
    seconds = time.process_time() - start
    arcs = 2 * fabric.link_count
    told = plan.qp_ports() if not plan.unrouted else None
    taken = walk(fabric, flows, hashes, told).paths()
    loads = arc_loads(arcs, flows, taken)
    usual = arc_loads(arcs, flows, walk(fabric, flows, hashes).paths())
    return Found(
        case,
        programmed,
        float(utilization(fabric, loads).max()),
        float(utilization(fabric, usual).max()),
        bool(np.allclose(loads, plan.loads)),
        seconds,
    )


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return a row for the chosen ports, and one for the same QPs hashed."""
    cases = [Case(*scale.zone, QPS[seed % len(QPS)], seed) for seed in range(CASES[scale.name])]
    found: list[Found] = []
    with screen.progress(TITLE, len(cases)) as advance:
        for one in each(run, cases, scale.workers):
            found.append(one)
            advance(len(found))
    return [_ports(found), _hashed(found)]


def _ports(found: list[Found]) -> Row:
    near = sum(one.near for one in found)
    seconds = [one.seconds for one in found]
    worst = max(found, key=lambda one: one.by_ports - one.programmed)
    leaves, _, nics = worst.case.leaves, worst.case.spines, worst.case.nics_per_leaf
    return Row(
        TITLE,
        f"{leaves * nics:,} NICs, {QPS[0]} to {QPS[-1]} QPs",
        f"{near} of {len(found)} within one QP",
        f"{WANTED:.0%} within one QP, {PROBES} probes of each two NICs",
        near >= WANTED * len(found),
        f"planned in {quantile(seconds, 0.5):.1f} s of processor (most {max(seconds):.1f});"
        f" furthest: {worst.by_ports:.4g} beside {worst.programmed:.4g}, {worst.case}",
        {
            "near": near,
            "cases": len(found),
            "seconds": spread(seconds),
            "missed": [str(one.case) for one in found if not one.near],
        },
    )


def _hashed(found: list[Found]) -> Row:
    worst = [one.hashed for one in found]
    return Row(
        TITLE,
        "the same QPs hashed",
        f"worst link {quantile(worst, 0.5):.2f}, most {max(worst):.2f}",
        data={"worst": spread(worst)},
    )
