"""What the demo holds itself to, as plain functions over what was measured and what was said.

Comparisons go QP by QP: two sets of paths are the same only if every packet that was
walked went exactly where the controller says it goes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heddle.v1 import common_pb2
from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.load import arc_loads, worst_by_tier
from heddle_controller.model.plan import Paths
from heddle_emulator.client import Routed
from heddle_emulator.client.routes import qp_arcs

CLOSE = 1e-6
"""Relative; utilisations and bounds nearer than that are equal."""


def strays(walked: Paths, told: Routed) -> Ints:
    """Rows of flows that go, by any QP, elsewhere than the controller lists."""
    went, said = qp_arcs(walked), qp_arcs(told.paths)
    flows = {flow for flow, _ in went.keys() | said.keys()}
    stray = {qp[0] for qp in went.keys() | said.keys() if went.get(qp) != said.get(qp)}
    return np.array(sorted(stray & flows), dtype=np.int64)


def needless(fabric: Fabric, flows: Flows, before: Paths, after: Paths, among: Ints) -> Ints:
    """Flows that moved although no link of theirs was lost, and that had no need to.

    A flow had need if, put back on its way of before, it would make the worst link of
    some tier worse than it is.
    """
    worst = worst_by_tier(fabric, arc_loads(2 * fabric.link_count, flows, after))
    found = []
    for flow in among.tolist():
        back = _with(after, before, flow)
        would = worst_by_tier(fabric, arc_loads(2 * fabric.link_count, flows, back))
        if all(would[tier] <= worst[tier] * (1 + CLOSE) for tier in worst):
            found.append(flow)
    return np.array(found, dtype=np.int64)


def _with(paths: Paths, other: Paths, flow: int) -> Paths:
    """Paths, but one flow's from another set. Their order does not matter for loads."""
    kept = paths.take(np.flatnonzero(paths.flow != flow))
    own = other.take(np.flatnonzero(other.flow == flow))
    return replace(
        kept,
        flow=np.concatenate([kept.flow, own.flow]),
        first_qp=np.concatenate([kept.first_qp, own.first_qp]),
        last_qp=np.concatenate([kept.last_qp, own.last_qp]),
        first=np.concatenate([kept.first, kept.first[-1] + own.first[1:]]),
        arcs=np.concatenate([kept.arcs, own.arcs]),
    )


def gap(certificate: common_pb2.Certificate, tier: str) -> float:
    """How far a tier's worst link is above what was proven possible; 0 is optimal."""
    for row in certificate.tiers:
        if row.tier == tier and row.lower_bound > 0:
            return row.max_utilization / row.lower_bound - 1
    return 0.0


def disagreements(certificate: common_pb2.Certificate, worst: dict[str, float]) -> list[str]:
    """Tiers whose worst link was measured to be other than the certificate says."""
    said = {row.tier: row.max_utilization for row in certificate.tiers}
    return [
        f"{tier}: measured {worst[tier]:.4f}, certified {said.get(tier, 0.0):.4f}"
        for tier in worst
        if abs(worst[tier] - said.get(tier, 0.0)) > CLOSE * max(worst[tier], 1.0)
    ]
