"""Hashing over many seeds at once: the slowest flow of each.

``ecmp`` takes one seed after another, through tables. Here packets of all seeds take a hop
together, each over one of its equal-cost next hops, drawn uniformly as by a good hash. The rates of
all seeds are found in one filling, in which every seed has a fabric of its own. So a thousand seeds
take a few seconds on a small fabric.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints, starts
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths
from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.strategy.ways import EqualCostHops
from heddle_emulator.underlay import Underlay

LOST = -2
"""Takes the place of the next hop if there is none."""
BATCH = 250
"""Seeds that are processed together, to limit memory."""


def hashed_slowest(fabric: Fabric, flows: Flows, seeds: int, seed: int = 0) -> Floats:
    """Return the slowest flow of each of so many hashes drawn from ``seed``, shape (seeds,).

    A QP without a path adds nothing to its flow.
    """
    found = []
    for begin in range(0, seeds, BATCH):
        random = np.random.default_rng([seed, begin])
        found.append(_slowest(fabric, flows, min(BATCH, seeds - begin), random))
    return np.concatenate([np.empty(0), *found])


def _slowest(fabric: Fabric, flows: Flows, seeds: int, random: np.random.Generator) -> Floats:
    arcs, count = 2 * fabric.link_count, len(flows)
    flow = np.repeat(np.arange(seeds * count, dtype=np.int64), np.tile(flows.qps, seeds))
    taken = _walked(fabric, flows, flow % count, random)
    paths = _joined(flow, taken, arcs)
    own = Paths(
        paths.flow,
        paths.first_qp,
        paths.last_qp,
        paths.first,
        paths.arcs + paths.flow[paths.owner()] // count * arcs,
    )
    everyone = flows.take(np.tile(np.arange(count, dtype=np.int64), seeds))
    ratios = flow_ratios(np.tile(fabric.structure.capacity, seeds), everyone, own)
    slowest: Floats = ratios.reshape(seeds, count).min(axis=1)
    return slowest


def _walked(fabric: Fabric, flows: Flows, flow: Ints, random: np.random.Generator) -> Ints:
    """Return the arcs that a packet of each flow takes, then ``NONE``; ``LOST`` if stuck."""
    ways, head = EqualCostHops(Underlay(fabric)), fabric.structure.head
    node, goal = flows.source[flow], flows.destination[flow]
    hops: list[Ints] = []
    open_ = np.arange(len(flow), dtype=np.int64)
    while len(open_):
        codes, which = np.unique(node[open_] * fabric.node_count + goal[open_], return_inverse=True)
        ends = codes // fabric.node_count, codes % fabric.node_count
        place, arcs = ways.all(*ends) if hops else _out_of_nics(ways.underlay, ends[0])
        count = np.bincount(place, minlength=len(codes))
        drawn = starts(count)[which] + (random.random(len(open_)) * count[which]).astype(np.int64)
        arc = np.append(arcs, LOST)[np.where(count[which] > 0, drawn, -1)]
        taken = np.full(len(flow), NONE, dtype=np.int64)
        taken[open_] = arc
        hops.append(taken)
        open_, arc = open_[arc != LOST], arc[arc != LOST]
        node[open_] = head[arc]
        open_ = open_[node[open_] != goal[open_]]
    return np.stack(hops, axis=1)


def _out_of_nics(underlay: Underlay, nics: Ints) -> tuple[Ints, Ints]:
    """Return the live links of NICs: the place of each among the NICs, and the arc."""
    pairs = [underlay.arcs_of(nic) for nic in nics.tolist()]
    counts = [len(pair) for pair in pairs]
    return np.repeat(np.arange(len(nics), dtype=np.int64), counts), np.concatenate(pairs)


def _joined(flow: Ints, taken: Ints, arcs: int) -> Paths:
    """Return packets of one flow on one route as a path; leave out those that are lost."""
    rows = np.flatnonzero((taken != LOST).all(axis=1))
    code = flow[rows]
    for hop in taken[rows].T:  # flows stay in order, as the first part of a code
        _, code = np.unique(code * (arcs + 1) + hop + 1, return_inverse=True)
    _, first, count = np.unique(code, return_index=True, return_counts=True)
    rows = rows[first]
    used = taken[rows] != NONE
    nothing = np.zeros(len(rows), dtype=np.int64)
    return Paths(flow[rows], nothing, count - 1, starts(used.sum(axis=1)), taken[rows][used])
