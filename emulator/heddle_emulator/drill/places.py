"""Which cables of a fabric a step speaks of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle_controller.model.fabric import Fabric, Ints, NodeKind
from heddle_emulator.drill.scenario import Bundle, CableName, Target

_TIER = {NodeKind.LEAF: 1, NodeKind.SPINE: 2, NodeKind.CORE: 3}


def cables(fabric: Fabric, target: Target) -> Sequence[int]:
    """Link rows of a cable or bundle by name; none where there is no such, or for hops."""
    if isinstance(target, CableName):
        return fabric.find_links(target.a, target.b, target.key)
    if isinstance(target, Bundle):
        return _bundle(fabric, target)
    return ()


def _bundle(fabric: Fabric, bundle: Bundle) -> Sequence[int]:
    """Cables between switches that have one end in a zone, or at a switch."""
    structure = fabric.structure
    inside = np.zeros(fabric.node_count, dtype=np.bool_)
    if bundle.of in structure.index:
        inside[structure.index[bundle.of]] = True
    elif bundle.of in structure.zone_names:
        inside = structure.nodes.zone == structure.zone_names.index(bundle.of)
    kind, links = structure.nodes.kind, structure.links
    between = (kind[links.a] != NodeKind.NIC) & (kind[links.b] != NodeKind.NIC)
    chosen = between & (inside[links.a] != inside[links.b])
    if bundle.upwards:
        tier = _tiers(kind)
        low = np.where(inside[links.a], links.a, links.b)
        high = links.a + links.b - low
        chosen &= tier[high] > tier[low]
    rows: list[int] = np.flatnonzero(chosen).tolist()
    return rows


def _tiers(kind: Ints) -> Ints:
    return np.array([_TIER.get(NodeKind(int(one)), 0) for one in kind], dtype=np.int64)


def switches(fabric: Fabric) -> frozenset[str]:
    """Ids of all switches."""
    nodes = fabric.structure.nodes
    rows = np.flatnonzero(nodes.kind != NodeKind.NIC)
    return frozenset(nodes.ids[row] for row in rows.tolist())
