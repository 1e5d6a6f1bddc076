"""Which ranks' NICs send to which when a group runs a collective, and the phases of a job.

**Patterns.** Each pattern maps groups (one row for each group, ranks ascending) to hops:
pairs of ranks on different hosts whose NICs exchange data at the same time. Hops inside a
host run over NVLink and make no flow in the fabric.

Rings, chains and trees have the same shape as NCCL's. Members are visited host by host, so
that a group enters and leaves each host once. There are as many rings ("channels") as each
host has members of the group. Channel ``c`` enters and leaves every host by the NIC of its
``c``-th member there. So a hop between hosts stays on the rail of one local rank, and no
NIC of the group is idle.

All-to-all and send/recv go from rank to rank. With PXN (NCCL's "PCI x NVLink"), the data
first moves over NVSwitch to the GPU of the same host that is on the destination's rail, so
that source and destination NIC are on the same rail. Pass ``rail`` to use PXN. ``jobs`` does
so by default where the fabric's NICs carry rails, as NCCL does by itself, because only there
a cross-rail hop costs a trip through a spine.

**Phases.** A rank waits for its tensor-parallel partners before it talks to its replicas, so
groups of different kinds take turns. Operations of one group take turns too, because one
communicator does one thing after another, unless one of them says that they overlap. But
operations of a group that send by the same pattern (an all-gather and a reduce-scatter, both
on a ring) are one phase: a path that is good for one of them is good for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import NONE, Ints, distinct
from heddle_controller.model.job import Algorithm, Collective, Group, Operation

ROOT = 0
"""The member at the root of both trees; as a parent in ``_in_order`` it means "none"."""


def double_tree(members: int) -> tuple[Ints, Ints]:
    """Return the parent and child of each edge of two binary trees over ``members`` members.

    In a single binary tree, half of the members are leaves and only receive, while inner members
    send everything twice, so half of the bandwidth is idle. Two trees that each carry half of the
    data, in which the inner members of one are leaves of the other, use all of it (Sanders, Speck,
    Träff 2009).

    The first tree is the in-order tree on positions 1 to n. The level of a position is the number
    of its trailing zero bits, so odd positions are leaves. The second tree is the first one with
    every position moved on by one, cyclically.

    Members are 0 to ``members - 1``. Each of them except 0 is a child once in each tree, so both
    arrays have shape (2 x (members - 1),): the first tree's edges, then the second's.
    """
    inner = members - 1
    child = np.arange(1, members, dtype=np.int64)
    parent = _in_order(child, inner)
    parents = np.concatenate([parent, _moved_on(parent, inner)])
    return parents, np.concatenate([child, _moved_on(child, inner)])


def _in_order(places: Ints, inner: int) -> Ints:
    """Return the parents of positions in the in-order tree on 1 to ``inner``; ROOT for its top."""
    parent = places
    low = parent & -parent
    outside = np.ones(len(places), dtype=np.bool_)
    while outside.any():
        parent = np.where(outside, (parent ^ low) | low << 1, parent)
        parent = np.where(outside & (low > inner), ROOT, parent)
        low = parent & -parent
        outside = parent > inner
    return parent


def _moved_on(places: Ints, inner: int) -> Ints:
    return np.where(places == ROOT, ROOT, places % max(inner, 1) + 1)


RankPairs = tuple[Ints, Ints]
"""Sending and receiving rank of each hop; the ranks are on different hosts."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The hosts and rails of ranks."""

    host: Ints
    """Number of each rank's host, from 0 and ascending, shape (ranks,)."""
    rail: Ints | None = None
    """Rail of each rank's NIC, ``NONE`` if it has none, shape (ranks,). If given, all-to-all
    and send/recv use PXN. If None, each rank sends from its own NIC."""


Pattern = Callable[[Ints, Layout], RankPairs]


def channels(groups: Ints, host_of_rank: Ints) -> list[Ints]:
    """Return the channels of each group: rows of one rank on each host, hosts in rank order.

    A group on ``k`` hosts whose smallest part has ``m`` members gives ``m`` rows of ``k``
    ranks. Each array has shape (channels, k), for groups of the same ``k`` and ``m``. Groups
    on a single host have no channels.
    """
    count, members = groups.shape
    rank, row = groups.ravel(), np.repeat(np.arange(count), members)
    host = host_of_rank[rank]
    new = np.ones(len(rank), dtype=bool)
    new[1:] = (host[1:] != host[:-1]) | (row[1:] != row[:-1])
    start = np.flatnonzero(new)
    row_of_run = row[start]
    length = np.diff(np.append(start, len(rank)))
    width = np.full(count, members)
    np.minimum.at(width, row_of_run, length)
    hosts = np.bincount(row_of_run, minlength=count)
    shape = hosts * (members + 1) + width
    found = []
    for key in distinct(shape[hosts > 1]).tolist():
        number, wide = divmod(key, members + 1)
        runs = start[shape[row_of_run] == key]
        firsts = runs.reshape(-1, 1, number) + np.arange(wide).reshape(1, -1, 1)
        found.append(rank[firsts.reshape(-1, number)])
    return found


def ring(groups: Ints, layout: Layout) -> RankPairs:
    """Each channel as a ring: all-reduce, all-gather and reduce-scatter."""
    lines = channels(groups, layout.host)
    return _joined([(line, np.roll(line, -1, axis=1)) for line in lines])


def chain(groups: Ints, layout: Layout) -> RankPairs:
    """Each channel from its first host to its last: a pipelined broadcast."""
    lines = channels(groups, layout.host)
    return _joined([(line[:, :-1], line[:, 1:]) for line in lines])


def tree_down(groups: Ints, layout: Layout) -> RankPairs:
    """Both trees of each channel, from the first host down: a broadcast."""
    hops = []
    for line in channels(groups, layout.host):
        parent, child = double_tree(line.shape[1])
        hops.append((line[:, parent], line[:, child]))
    return _joined(hops)


def tree_both(groups: Ints, layout: Layout) -> RankPairs:
    """Both trees of each channel, up and then down at the same time: an all-reduce."""
    down = tree_down(groups, layout)
    return _joined([down, down[::-1]])


def pairwise(groups: Ints, layout: Layout) -> RankPairs:
    """Every member to every other member: all-to-all."""
    others = ~np.eye(groups.shape[1], dtype=bool)
    first, second = np.nonzero(others)
    return _point_to_point([(groups[:, first], groups[:, second])], layout)


def neighbours(groups: Ints, layout: Layout) -> RankPairs:
    """Each member and the next one, in both directions: activations forward, gradients back."""
    forward = groups[:, :-1], groups[:, 1:]
    return _point_to_point([forward, forward[::-1]], layout)


def neighbours_round(groups: Ints, layout: Layout) -> RankPairs:
    """As ``neighbours``, and the last member and the first: interleaved pipeline stages."""
    forward = groups, np.roll(groups, -1, axis=1)
    return _point_to_point([forward, forward[::-1]], layout)


def pass_round(groups: Ints, layout: Layout) -> RankPairs:
    """Each member to the next one, and the last to the first: ring attention."""
    return _point_to_point([(groups, np.roll(groups, -1, axis=1))], layout)


def _joined(parts: list[RankPairs]) -> RankPairs:
    """Return all hops as two flat arrays."""
    empty = np.empty(0, dtype=np.int64)
    return (
        np.concatenate([empty, *(source.ravel() for source, _ in parts)]),
        np.concatenate([empty, *(destination.ravel() for _, destination in parts)]),
    )


def _point_to_point(parts: list[RankPairs], layout: Layout) -> RankPairs:
    """Return the hops between hosts, with PXN if the layout has rails."""
    source, destination = _joined(parts)
    apart = layout.host[source] != layout.host[destination]
    source, destination = source[apart], destination[apart]
    if layout.rail is None:
        return source, destination
    return _relay(source, destination, layout.rail, layout.host), destination


def _relay(source: Ints, destination: Ints, rail: Ints, host: Ints) -> Ints:
    """Return the rank on each source's host that is on the destination's rail, else the source."""
    ranks = np.arange(len(rail) - 1, -1, -1)  # backwards, so that the least rank of a rail wins
    relays = np.full((int(host.max()) + 1, max(int(rail.max()), 0) + 2), NONE)
    relays[host[ranks], rail[ranks]] = ranks
    relays[:, NONE] = NONE
    wanted = rail[destination]
    relay = relays[host[source], wanted]
    return np.where((rail[source] != wanted) & (relay != NONE), relay, source)


_PATTERNS: dict[Operation, dict[Algorithm, Pattern]] = {
    **{
        operation: {Algorithm.AUTO: ring, Algorithm.RING: ring, Algorithm.PAIRWISE: pairwise}
        for operation in (Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
    },
    Operation.BROADCAST: {
        Algorithm.AUTO: chain,
        Algorithm.RING: chain,
        Algorithm.TREE: tree_down,
    },
    Operation.ALL_TO_ALL: {Algorithm.AUTO: pairwise, Algorithm.PAIRWISE: pairwise},
    Operation.SEND_RECV: {Algorithm.AUTO: pass_round, Algorithm.RING: pass_round},
}
_PATTERNS[Operation.ALL_REDUCE][Algorithm.TREE] = tree_both

_STAGES: dict[Algorithm, Pattern] = {
    Algorithm.AUTO: neighbours,
    Algorithm.RING: neighbours_round,
}


def patterns_of(operation: Operation, group: Group) -> dict[Algorithm, Pattern]:
    """Return the pattern of each algorithm that can do an operation; AUTO always can.

    Send/recv over pipeline stages is no ring unless RING says that the stages are
    interleaved. Over any other group it passes data around a ring.
    """
    if operation is Operation.SEND_RECV and group is Group.PP:
        return _STAGES
    return _PATTERNS[operation]


def pattern_of(collective: Collective) -> Pattern:
    """Return the pattern of a collective, whose algorithm must be in ``patterns_of``."""
    return patterns_of(collective.operation, collective.group)[collective.algorithm]


def rank_pairs(collective: Collective, groups: Ints, layout: Layout) -> RankPairs:
    """Return the hops of a collective over groups; its algorithm must be in ``patterns_of``."""
    return pattern_of(collective)(groups, layout)


TREES: tuple[Pattern, ...] = (tree_down, tree_both)

_NAMES: dict[Pattern, str] = {
    ring: "ring",
    chain: "chain",
    tree_down: "tree-down",
    tree_both: "tree",
    pairwise: "pairwise",
    neighbours: "stages",
    neighbours_round: "stages-round",
    pass_round: "pass-round",
}


def pattern_name(collective: Collective) -> str:
    """Return the name of a collective's pattern; its algorithm must be in ``patterns_of``."""
    return _NAMES[pattern_of(collective)]


def runs_on_channels(pattern: Pattern) -> bool:
    """Return whether a pattern goes host by host over channels, and not from rank to rank."""
    return pattern in (ring, chain, *TREES)


Way = tuple[Group, str]
"""A kind of group, and the name of the pattern by which it sends (``pattern_name``)."""


def send_pattern(collective: Collective) -> Way:
    """Return the group and the pattern name of a collective."""
    return collective.group, pattern_name(collective)


def phase_names(collectives: Iterable[Collective]) -> dict[Way, str]:
    """Return the phase of each group and pattern among a job's collectives.

    A phase has the name of its group ("dp"). If the group has several phases, the name of
    the pattern follows ("dp-ring", "dp-pairwise"). The keys are ordered by group (tp, pp, dp,
    cp, ep, world) and then by pattern, whatever the order of the collectives.
    """
    ways, at_once = set(), set()
    for one in collectives:
        ways.add(send_pattern(one))
        if one.overlap:
            at_once.add(one.group)
    of_group = {group: sorted(name for own, name in ways if own is group) for group in Group}
    return {
        (group, name): group.value if len(own) == 1 or group in at_once else f"{group.value}-{name}"
        for group, own in of_group.items()
        for name in own
    }


def phases_of(collectives: Iterable[Collective]) -> dict[str, tuple[Collective, ...]]:
    """Return the collectives of each phase, by name, with the bytes of equal ones added up."""
    wanted = tuple(collectives)
    total: dict[Collective, int] = {}
    for one in wanted:
        kind = replace(one, bytes=0, overlap=False)
        total[kind] = total.get(kind, 0) + one.bytes
    found: dict[str, tuple[Collective, ...]] = {}
    for way, name in phase_names(wanted).items():
        own = [
            replace(kind, bytes=size) for kind, size in total.items() if send_pattern(kind) == way
        ]
        found[name] = (*found.get(name, ()), *own)
    return found
