"""Load of arcs, by the rule of the whole project.

Flows of one job with different phases never run together, so a job's load on an
arc is the greatest of its phases, plus its flows that may run at any time; the
load of the arc is the sum over the jobs.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from heddle_controller.model.arrays import Floats, Ints, stable_order
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import ANY_PHASE, Flows


class ArcUses(Protocol):
    """Paths, as far as loads follow from them (``model.plan.Paths``)."""

    @property
    def flow(self) -> Ints:
        """Row of the flow of each path."""

    @property
    def arcs(self) -> Ints:
        """Arcs of all paths, laid end to end."""

    def owner(self) -> Ints:
        """Row of the path of each of these arcs."""

    def gbps(self, flows: Flows) -> Floats:
        """Rate of each path."""


def arc_loads(arc_count: int, flows: Flows, paths: ArcUses) -> Floats:
    """Load of each arc in Gbit/s, shape (arc_count,)."""
    owner = paths.owner()
    return phased_loads(
        arc_count,
        paths.arcs,
        paths.gbps(flows)[owner],
        flows.job[paths.flow][owner],
        flows.phase[paths.flow][owner],
    )


def phased_loads(arc_count: int, arcs: Ints, gbps: Floats, job: Ints, phase: Ints) -> Floats:
    """Load of each arc from parallel arrays, one element a use of an arc."""
    always = phase == ANY_PHASE
    loads = _summed(arcs[always], gbps[always], arc_count)
    arcs, gbps, job, phase = (column[~always] for column in (arcs, gbps, job, phase))
    if not len(arcs):
        return loads
    phases = int(phase.max()) + 1
    jobs = int(job.max()) + 1
    code = (arcs * jobs + job) * phases + phase
    order = stable_order(code)
    code, gbps = code[order], gbps[order]
    starts = np.flatnonzero(np.concatenate([[True], code[1:] != code[:-1]]))
    per_phase = np.add.reduceat(gbps, starts)
    arc_job = code[starts] // phases
    job_starts = np.flatnonzero(np.concatenate([[True], arc_job[1:] != arc_job[:-1]]))
    worst = np.maximum.reduceat(per_phase, job_starts)
    return loads + _summed(arc_job[job_starts] // jobs, worst, arc_count)


def _summed(arcs: Ints, gbps: Floats, arc_count: int) -> Floats:
    return np.bincount(arcs, weights=gbps, minlength=arc_count).astype(np.float64)


def utilization(fabric: Fabric, loads: Floats) -> Floats:
    """Load over capacity of each arc, shape (arcs,)."""
    return loads / fabric.structure.capacity


def worst_by_tier(fabric: Fabric, loads: Floats) -> dict[str, float]:
    """Greatest utilisation in each tier, from the hosts up."""
    structure = fabric.structure
    worst = structure.worst_by_tier(utilization(fabric, loads))
    return dict(zip(structure.tiers, worst.tolist(), strict=True))
