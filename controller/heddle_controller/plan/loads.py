"""Computes the loads of a plan from those of a plan that differs little from it.

What an arc carries depends only on the paths over it. If two plans have the same flows in the same
rows, and perhaps more flows after them, only arcs that a changed row left or joined are added up
again. They are added up completely, in the order of rows, so the figures equal those of
``arc_loads`` bit for bit. What new jobs add is put on top, since new jobs come last. A plan keeps
its loads.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Floats, Ints, distinct
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import Paths, Plan, changed_places, phased_loads

_WORTH = 8
"""If more than one in this many uses of arcs differs, everything is added up."""


def loads_after(plan: Plan, known: Plan | None) -> Floats:
    """Return the load of each arc in Gbit/s, shape (arcs,).

    ``known`` is an earlier plan whose loads may have been computed, or None.
    """
    loads = None
    if known is not None and "loads" not in plan.__dict__:
        loads = _from_known(plan, known)
    return plan.loads if loads is None else plan.with_loads(loads).loads


def _from_known(plan: Plan, known: Plan) -> Floats | None:
    """Return the loads from those of ``known``; None if it has none or differs too much."""
    if "loads" not in known.__dict__ or plan.fabric.structure is not known.fabric.structure:
        return None
    paths, now, was = _of_known_flows(plan, known), plan.paths.arcs, known.paths.arcs
    places = None if paths is None else changed_places(known.paths, paths)
    if places is None:
        return None
    behind, loads = np.arange(len(was), len(now)), known.loads
    if len(behind) and _of_new_jobs(plan, known):
        loads, behind = loads + _loads_of(plan, np.arange(len(loads)), behind), behind[:0]
    if (len(places) + len(behind)) * _WORTH > len(now):
        return None
    arcs = distinct(np.concatenate([now[places], was[places], now[behind]]))
    touched = np.zeros(len(loads), dtype=np.bool_)
    touched[arcs] = True
    loads = loads.copy()
    loads[arcs] = _loads_of(plan, arcs, np.flatnonzero(touched[now]))
    return loads


def _of_new_jobs(plan: Plan, known: Plan) -> bool:
    """Whether all flows after those of an earlier plan belong to new jobs, which sums add last.

    False if any flow of the plan has no phase.
    """
    flows, count = plan.flows, len(known.flows)
    return bool(
        (flows.phase != ANY_PHASE).all()
        and flows.job[count:].min() > flows.job[:count].max(initial=-1)
    )


def _of_known_flows(plan: Plan, known: Plan) -> Paths | None:
    """Return the paths of an earlier plan's flows; None if these flows do not come first."""
    paths = plan.paths
    if plan.flows.same_as(known.flows):
        return paths
    if not plan.flows.begins_with(known.flows):
        return None
    count = int(np.searchsorted(paths.flow, len(known.flows)))
    return Paths(
        paths.flow[:count],
        paths.first_qp[:count],
        paths.last_qp[:count],
        paths.first[: count + 1],
        paths.arcs[: paths.first[count]],
    )


def _loads_of(plan: Plan, arcs: Ints, uses: Ints) -> Floats:
    """Return the loads of some arcs, ascending. ``uses`` are all places of them in ``arcs``."""
    paths, flows = plan.paths, plan.flows
    row = np.searchsorted(paths.first, uses, side="right") - 1
    flow = paths.flow[row]
    return phased_loads(
        len(arcs),
        np.searchsorted(arcs, paths.arcs[uses]),
        paths.gbps(flows, row),
        flows.job[flow],
        flows.phase[flow],
    )
