"""Collectives as moves: rings, double binary trees, halving and doubling, meshes, all-to-alls.

Rings and trees have NCCL's shape and use the channels of the controller's traffic model: as many as
a host has members, each entering and leaving by its own NIC. Meshes and all-to-alls go from rank to
rank.

With PXN a message first goes over NVSwitch to the GPU of the same host that is on the destination's
rail. What several GPUs of a host send to one NIC then leaves together, by one NIC and on one rail.
So on a rail-optimised fabric it passes a single leaf.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints
from heddle_controller.model.errors import refuse
from heddle_controller.traffic.patterns import ROOT, double_tree
from heddle_emulator.traffic.moves import Lines, Moves, Ranks, alone, join_moves, lines_of

Algorithm: TypeAlias = Callable[[Ints, Ranks, float], Moves]
"""Returns moves, given groups of ranks, shape (groups, members), their places, and bytes."""
_Pairs: TypeAlias = tuple[Ints, Ints]


def ring_all_reduce(groups: Ints, ranks: Ranks, size: float) -> Moves:
    """Move data round the ring twice: once to add up, once to distribute."""
    return _ring(groups, ranks, size, 2)


def ring_all_gather(groups: Ints, ranks: Ranks, size: float) -> Moves:
    """Move data round the ring once; a reduce-scatter moves the same."""
    return _ring(groups, ranks, size, 1)


def _ring(groups: Ints, ranks: Ranks, size: float, rounds: int) -> Moves:
    members = groups.shape[1]
    each = rounds * size * (members - 1) / members

    parts = []
    for lines in lines_of(groups, ranks):
        following, steps = np.roll(lines.ranks, -1, axis=1), rounds * (lines.ranks.shape[1] - 1)
        hops = lines.ranks, following, np.ones(following.shape)
        place = np.arange(following.shape[1], dtype=np.int64)
        parts.append(_stepwise(lines, hops, each, steps, (place, np.roll(place, -1))))
    return join_moves([*parts, _on_one_host(groups, ranks, each)])


def tree_all_reduce(groups: Ints, ranks: Ranks, size: float) -> Moves:
    """Move data up and down both trees at once, half of it on each."""
    parts = []
    for lines in lines_of(groups, ranks):
        parent, child = double_tree(lines.ranks.shape[1])
        up, down = lines.ranks[:, child], lines.ranks[:, parent]
        hops = np.hstack([up, down]), np.hstack([down, up])
        part, order = np.full(hops[0].shape, 0.5), _up_and_down(parent, child)
        parts.append(_stepwise(lines, (*hops, part), size, _tree_steps(lines), order))
    members = groups.shape[1]
    return join_moves([*parts, _on_one_host(groups, ranks, 2 * size * (members - 1) / members)])


def tree_all_gather(groups: Ints, ranks: Ranks, size: float) -> Moves:
    """Move up both trees what lies beneath, and down all the rest, half of the data on each."""
    parts = []
    for lines in lines_of(groups, ranks):
        hosts = lines.ranks.shape[1]
        parent, child = double_tree(hosts)
        beneath = _beneath(parent, child, hosts) / hosts
        up, down = lines.ranks[:, child], lines.ranks[:, parent]
        hops = np.hstack([up, down]), np.hstack([down, up])
        part = np.broadcast_to(np.concatenate([beneath, 1 - beneath]) / 2, hops[0].shape)
        order = _up_and_down(parent, child)
        parts.append(_stepwise(lines, (*hops, part), size, _tree_steps(lines), order))
    members = groups.shape[1]
    return join_moves([*parts, _on_one_host(groups, ranks, size * (members - 1) / members)])


def _up_and_down(parent: Ints, child: Ints) -> _Pairs:
    """Return pairs of edges where the second forwards what the first brought.

    Edges upwards come first; edges downwards are numbered after them.
    """
    above, under = _above(parent, child)
    edges, top = len(parent), np.flatnonzero(parent == ROOT)  # one edge per tree turns at the top
    return (
        np.concatenate([under, top, edges + above]),
        np.concatenate([above, edges + top, edges + under]),
    )


def _above(parent: Ints, child: Ints) -> _Pairs:
    """Return pairs of an edge and one beneath it, in either tree."""
    edges, members = len(parent), len(parent) // 2 + 1
    second = members * (np.arange(edges, dtype=np.int64) >= edges // 2)
    edge = np.zeros(2 * members, dtype=np.int64)
    edge[second + child] = np.arange(edges)
    under = np.flatnonzero(parent != ROOT)
    return edge[(second + parent)[under]], under


def _beneath(parent: Ints, child: Ints, members: int) -> Floats:
    """Return the number of members at or beneath the child of each edge, in the edge's tree."""
    edges = len(parent) // 2
    found = []
    for tree in (slice(0, edges), slice(edges, None)):
        above = np.zeros(members, dtype=np.int64)
        above[child[tree]] = parent[tree]
        weight, moving = np.zeros(members), np.arange(1, members)
        while len(moving):  # each member counts at all above it
            weight += np.bincount(moving, minlength=members)
            moving = above[moving]
            moving = moving[moving != 0]
        found.append(weight[child[tree]])
    return np.concatenate(found)


def chain_broadcast(groups: Ints, ranks: Ranks, size: float) -> Moves:
    """Broadcast from the first host to the last, chunk by chunk."""
    parts = []
    for lines in lines_of(groups, ranks):
        hops = lines.ranks[:, :-1], lines.ranks[:, 1:]
        steps = hops[0].shape[1]
        place = np.arange(steps, dtype=np.int64)
        order = place[:-1], place[1:]
        parts.append(_stepwise(lines, (*hops, np.ones(hops[0].shape)), size, steps, order))
    return join_moves([*parts, _on_one_host(groups, ranks, size)])


def tree_broadcast(groups: Ints, ranks: Ranks, size: float) -> Moves:
    """Broadcast from the first host down both trees, half of the data on each."""
    parts = []
    for lines in lines_of(groups, ranks):
        parent, child = double_tree(lines.ranks.shape[1])
        hops = lines.ranks[:, parent], lines.ranks[:, child]
        half, order = np.full(hops[0].shape, 0.5), _above(parent, child)
        parts.append(_stepwise(lines, (*hops, half), size, _tree_steps(lines) // 2, order))
    return join_moves([*parts, _on_one_host(groups, ranks, size)])


def _stepwise(
    lines: Lines, hops: tuple[Ints, Ints, Floats], size: float, steps: int, order: _Pairs
) -> Moves:
    """Return an activity for each line: its hops between hosts, and its way through each host.

    ``order`` has pairs of hops where the second forwards what the first brought.
    """
    source, destination, part = hops
    line = np.arange(len(lines.ranks), dtype=np.int64)
    within, near, far = lines.within
    none = np.empty(0, dtype=np.int64)
    return Moves(
        np.full(len(line), steps, dtype=np.int64),
        np.concatenate([np.repeat(line, source.shape[1]), within]),
        np.concatenate([source.ravel(), near]),
        np.concatenate([destination.ravel(), far]),
        np.concatenate([(size * lines.share[:, None] * part).ravel(), size * lines.share[within]]),
        none,
        none,
        brings=(line[:, None] * source.shape[1] + order[0]).ravel(),
        goes=(line[:, None] * source.shape[1] + order[1]).ravel(),
    )


def _tree_steps(lines: Lines) -> int:
    """Return the steps up and down again."""
    return 2 * int(np.ceil(np.log2(lines.ranks.shape[1])))


def _on_one_host(groups: Ints, ranks: Ranks, size: float) -> Moves:
    """Return the moves of groups within one host: a ring on NVLink, one activity per group."""
    host = ranks.host(groups)
    own = groups[(host == host[:, :1]).all(axis=1)]
    count, members = own.shape
    hop = np.repeat(np.arange(count, dtype=np.int64), members)
    none = np.empty(0, dtype=np.int64)
    steps = np.ones(count, dtype=np.int64)
    target = np.roll(own, -1, axis=1)
    return Moves(steps, hop, own.ravel(), target.ravel(), np.full(own.size, size), none, none)


def halving_doubling(groups: Ints, ranks: Ranks, size: float) -> Moves:  # noqa: ARG001 - an Algorithm
    """All-reduce in steps between partners: half with the nearest, a quarter with the next, back.

    Raises:
        InputError: The number of members is not a power of two.
    """
    count, members = groups.shape
    levels = members.bit_length() - 1
    if members != 1 << levels:
        raise refuse("collective", "halving-doubling", f"needs 2, 4, 8, … ranks, not {members}")
    place = np.arange(members, dtype=np.int64)
    order = [*range(levels), *reversed(range(levels))]
    sends, before, after = [], [], []
    own = np.arange(count * members, dtype=np.int64).reshape(count, members)
    for step, level in enumerate(order):
        partner = place ^ (1 << level)
        sends.append(
            alone(
                groups.ravel(),
                groups[:, partner].ravel(),
                np.full(groups.size, size / (2 << level)),
            )
        )
        if step:
            earlier = own + (step - 1) * own.size
            before += [earlier, earlier[:, place ^ (1 << order[step - 1])]]
            after += [own + step * own.size] * 2
    joined = join_moves(sends)
    none = np.empty(0, dtype=np.int64)
    return Moves(
        joined.steps,
        joined.activity,
        joined.source,
        joined.destination,
        joined.bytes,
        np.concatenate([none, *(pairs.ravel() for pairs in before)]),
        np.concatenate([none, *(pairs.ravel() for pairs in after)]),
    )


def mesh_all_gather(groups: Ints, ranks: Ranks, size: float) -> Moves:
    """Send every rank's part directly to every other; a reduce-scatter moves the same."""
    return all_to_all(groups, Ranks(ranks.hosts), size)


def mesh_all_reduce(groups: Ints, ranks: Ranks, size: float) -> Moves:
    """Send every rank's parts to those who add them up, who then send the sums to all others."""
    there = mesh_all_gather(groups, ranks, size)
    count = len(there)
    sums = np.arange(groups.size, dtype=np.int64) + 2 * count
    summing = np.full(int(groups.max(initial=-1)) + 1, -1, dtype=np.int64)
    summing[groups.ravel()] = sums
    own = np.arange(count, dtype=np.int64)
    return Moves(
        np.concatenate([there.steps, there.steps, np.zeros(groups.size, dtype=np.int64)]),
        np.concatenate([own, own + count]),
        np.concatenate([there.source, there.source]),
        np.concatenate([there.destination, there.destination]),
        np.concatenate([there.bytes, there.bytes]),
        np.concatenate([own, summing[there.source]]),
        np.concatenate([summing[there.destination], own + count]),
    )


def all_to_all(groups: Ints, ranks: Ranks, size: float) -> Moves:
    """Send every other rank a part of ``size`` over members, by PXN if ranks have rails."""
    members = groups.shape[1]
    return all_to_all_v(groups, ranks, np.full((members, members), size / members))


def all_to_all_rounds(groups: Ints, ranks: Ranks, size: float) -> Moves:  # noqa: ARG001 - an Algorithm
    """Send in rounds, one per other rank; in each round to the rank so much further on.

    A rank begins the next round when it has sent and received all of its current one.
    """
    members = groups.shape[1]
    place = np.arange(members, dtype=np.int64)
    own = np.arange(groups.size, dtype=np.int64).reshape(groups.shape)
    sends, before, after = [], [own[:, :0].ravel()], [own[:, :0].ravel()]
    for turn in range(1, members):
        target = groups[:, (place + turn) % members]
        sends.append(alone(groups.ravel(), target.ravel(), np.full(groups.size, size / members)))
        if turn > 1:
            earlier = own + (turn - 2) * own.size
            before += [earlier.ravel(), earlier[:, (place - turn + 1) % members].ravel()]
            after += [(own + (turn - 1) * own.size).ravel()] * 2
    joined = join_moves(sends)
    return replace(joined, before=np.concatenate(before), after=np.concatenate(after))


def all_to_all_v(groups: Ints, ranks: Ranks, sizes: Floats) -> Moves:
    """Send every other rank ``sizes[sender, receiver]`` bytes, the same in every group."""
    first, second = np.nonzero((sizes > 0) & ~np.eye(len(sizes), dtype=np.bool_))
    source, destination = groups[:, first].ravel(), groups[:, second].ravel()
    size = np.broadcast_to(sizes[first, second], (len(groups), len(first))).ravel()
    moves = alone(source, destination, size)
    return moves if ranks.rail is None else relayed(moves, ranks, ranks.rail)


HOT, HOTTER = 8, 3.0


def all_to_all_skewed(groups: Ints, ranks: Ranks, size: float) -> Moves:
    """Send as mixtures of experts do: one rank in eight gets three times as much as others."""
    members = groups.shape[1]
    asked = np.where(np.arange(members) % HOT == 0, HOTTER, 1.0)
    return all_to_all_v(groups, ranks, np.tile(size * asked / asked.sum(), (members, 1)))


def send_on(groups: Ints, ranks: Ranks, size: float) -> Moves:  # noqa: ARG001 - an Algorithm
    """Every rank sends to the next, the last one to the first."""
    target = np.roll(groups, -1, axis=1)
    return alone(groups.ravel(), target.ravel(), np.full(groups.size, size))


def hand_on(groups: Ints, ranks: Ranks, size: float) -> Moves:  # noqa: ARG001 - an Algorithm
    """Send to the next rank and back, without wrapping: activations on, gradients back."""
    on, back = groups[:, :-1].ravel(), groups[:, 1:].ravel()
    source, target = np.concatenate([on, back]), np.concatenate([back, on])
    return alone(source, target, np.full(len(source), size))


def hand_round(groups: Ints, ranks: Ranks, size: float) -> Moves:  # noqa: ARG001 - an Algorithm
    """Like ``hand_on``, also between last and first: interleaved stages."""
    following = np.roll(groups, -1, axis=1).ravel()
    source = np.concatenate([groups.ravel(), following])
    target = np.concatenate([following, groups.ravel()])
    return alone(source, target, np.full(len(source), size))


@dataclass(frozen=True, slots=True)
class CollectiveKind:
    """An operation as in nccl-tests."""

    algorithms: dict[str, Algorithm]
    """Algorithms by name; the first is the default."""
    factor: Callable[[int], float]
    """Returns bus bandwidth over algorithm bandwidth, given the number of ranks."""
    redop: str = "none"
    """Name of the reduction as nccl-tests prints it."""
    root: int = -1
    """The rank that it starts from; -1 if there is none."""
    divided: bool = False
    """Whether the size is that of all ranks together, while elements count for one rank."""


def _over(ranks: int) -> float:
    return (ranks - 1) / ranks


KINDS: dict[str, CollectiveKind] = {
    "all_reduce": CollectiveKind(
        {
            "ring": ring_all_reduce,
            "tree": tree_all_reduce,
            "halving-doubling": halving_doubling,
            "mesh": mesh_all_reduce,
        },
        lambda ranks: 2 * _over(ranks),
        redop="sum",
    ),
    "all_gather": CollectiveKind(
        {"ring": ring_all_gather, "tree": tree_all_gather, "mesh": mesh_all_gather},
        _over,
        divided=True,
    ),
    "reduce_scatter": CollectiveKind(
        {"ring": ring_all_gather, "mesh": mesh_all_gather}, _over, redop="sum", divided=True
    ),
    "broadcast": CollectiveKind(
        {"chain": chain_broadcast, "tree": tree_broadcast}, lambda _: 1.0, root=0
    ),
    "alltoall": CollectiveKind(
        {"pairwise": all_to_all, "rounds": all_to_all_rounds, "skewed": all_to_all_skewed},
        _over,
        divided=True,
    ),
    "sendrecv": CollectiveKind({"ring": send_on}, lambda _: 1.0, redop="sum"),
}

STAGES: dict[str, Algorithm] = {"handon": hand_on, "handround": hand_round}
"""Exchanges between pipeline stages, which nccl-tests has no name for."""


def relayed(moves: Moves, ranks: Ranks, rail: Ints) -> Moves:
    """Relay moves between hosts by PXN, and join those with the same relay and destination.

    Every move must be an activity of its own. In the result, an activity is all that one relay
    sends to one rank, together with what brings it to the relay; the two go in step.
    """
    apart = ranks.host(moves.source) != ranks.host(moves.destination)
    relay = np.where(apart, _relay(moves, ranks, rail), moves.source)
    width = int(moves.destination.max(initial=0)) + 1
    codes, activity = np.unique(relay * width + moves.destination, return_inverse=True)
    together = np.bincount(activity, weights=moves.bytes, minlength=len(codes))
    brought: Bools = relay != moves.source
    none = np.empty(0, dtype=np.int64)
    return Moves(
        np.ones(len(codes), dtype=np.int64),
        np.concatenate([np.arange(len(codes)), activity[brought]]).astype(np.int64),
        np.concatenate([codes // width, moves.source[brought]]),
        np.concatenate([codes % width, relay[brought]]),
        np.concatenate([together, moves.bytes[brought]]),
        none,
        none,
    )


def _relay(moves: Moves, ranks: Ranks, rail: Ints) -> Ints:
    """Return the first rank on the source's host on the destination's rail, or the source."""
    first_of, count = np.unique(ranks.hosts, return_index=True, return_counts=True)[1:]
    place = np.arange(len(rail)) - first_of[ranks.hosts]
    rails = np.full((len(count), int(count.max(initial=0))), NONE, dtype=np.int64)
    rails[ranks.hosts, place] = rail
    beside = rails[ranks.host(moves.source)]
    same = (beside == rail[moves.destination][:, None]) & (beside != NONE)
    first = first_of[ranks.host(moves.source)] + same.argmax(axis=1)
    own = ~same.any(axis=1) | (rail[moves.source] == rail[moves.destination])
    return np.where(own, moves.source, first)
