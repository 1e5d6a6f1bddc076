"""A second path for every path, used the moment the first breaks.

A backup avoids the switch-to-switch links of its path, and its switches too where
it can. In a fabric of tiers the backups are rotations: the flows of one uplink
fall back on different slots, one further for each, so that after any single
failure no other link takes on more than its even share of what was lost, to
within one flow. Elsewhere, and where the rotation meets only holes, the backup is
the least loaded candidate that shares the fewest links and then switches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import NONE, Floats, Ints
from heddle_controller.model.flows import Flows
from heddle_controller.model.load import arc_loads
from heddle_controller.model.plan import Paths, starts
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.carry import choice_arcs
from heddle_controller.solve.detour import shortest_way
from heddle_controller.solve.export import with_nics
from heddle_controller.solve.layers import ordinals
from heddle_controller.solve.network import Network
from heddle_controller.solve.planes import Planes

MOST_CORE_TURNS = 4
"""Cores tried for one slot of a backup between zones before the next slot."""


def backups_of(
    network: Network, candidates: Candidates, planes: Planes | None, flows: Flows, paths: Paths
) -> Paths:
    """A backup for each path, without arcs where there is none; parallel to ``paths``."""
    inner = _inner_arcs(network, paths)
    backup = np.full((len(paths), 4), NONE, dtype=np.int64)
    if planes is not None:
        homed_once = (network.nic_arc[flows.source[paths.flow]] != NONE) & (
            network.nic_arc[flows.destination[paths.flow]] != NONE
        )
        _rotate(planes, np.where(homed_once[:, None], inner, NONE), backup)
    lengths = (backup != NONE).sum(axis=1)
    pieces: list[Ints] = list(backup)
    source = network.terminal[flows.source[paths.flow]]
    destination = network.terminal[flows.destination[paths.flow]]
    bare = (lengths == 0) & (inner[:, 0] != NONE) & (source != NONE) & (destination != NONE)
    if bare.any():
        used = np.append(arc_loads(network.arc_count, flows, paths), 0.0) * network.per_gbps
        for row in np.flatnonzero(bare).tolist():
            choice = candidates.between(int(source[row]), int(destination[row]))
            pieces[row] = least_shared(network, choice, paths.of(row), used)
            lengths[row] = len(pieces[row])
    flat = np.concatenate([*pieces, np.empty(0, dtype=np.int64)])
    chosen = Paths(paths.flow, paths.first_qp, paths.last_qp, starts(lengths), flat[flat != NONE])
    return with_nics(network, flows, chosen, lengths > 0)


def _inner_arcs(network: Network, paths: Paths) -> Ints:
    """The switch-to-switch arcs of each path, the first five, padded with ``NONE``."""
    inner = np.zeros(network.arc_count, dtype=np.bool_)
    inner[network.inner] = True
    owner, keep = paths.owner(), inner[paths.arcs]
    owner, arcs = owner[keep], paths.arcs[keep]
    place = np.arange(len(owner)) - np.searchsorted(owner, owner)
    result = np.full((len(paths), 5), NONE, dtype=np.int64)
    fits = place < result.shape[1]
    result[owner[fits], place[fits]] = arcs[fits]
    return result


def _rotate(planes: Planes, inner: Ints, backup: Ints) -> None:
    """Fills in backups by rotating slots, for paths over one spine or one core."""
    network, layer = planes.network, planes.spines
    last = np.where(inner[:, 3] != NONE, inner[:, 3], inner[:, 1])
    usual = (inner[:, 1] != NONE) & ((inner[:, 2] == NONE) | (inner[:, 3] != NONE))
    usual &= inner[:, 4] == NONE
    rows = np.flatnonzero(usual)
    slot = layer.slot_of_arc[inner[rows, 0]]
    rows, slot = rows[slot != NONE], slot[slot != NONE]
    width = layer.width[layer.part[network.tail[inner[rows, 0]]]]
    turn = ordinals(inner[rows, 0])
    # The last step comes back to the slot itself: another cable to the same switch.
    for step in range(int(width.max(initial=1))):
        open_ = np.flatnonzero((backup[rows, 0] == NONE) & (width > step))
        if not len(open_):
            return
        chosen, wide, turns = rows[open_], width[open_], turn[open_]
        other = 1 + (turns + step) % np.maximum(wide - 1, 1)
        shifted = (slot[open_] + np.where(step < wide - 1, other, 0)) % wide
        up = layer.cables(network.tail[inner[chosen, 0]], shifted, turns + 1)
        down = layer.cables(network.head[last[chosen]], shifted, turns + 1)
        good = (up != NONE) & (down != NONE)
        good &= (up != inner[chosen, 0]) & ((down ^ 1) != last[chosen])
        fresh = _Spines(chosen[good], up[good], down[good], turns[good])
        _fill(planes, fresh, inner, backup)


@dataclass(frozen=True, slots=True, eq=False)
class _Spines:
    """The outer arcs of backups, one row each."""

    rows: Ints
    """Rows of the paths they are for."""
    up: Ints
    """Arc from the source's leaf."""
    down: Ints
    """Arc from the destination's leaf, to be travelled backwards."""
    turn: Ints
    """How far to rotate cores."""


def _fill(planes: Planes, spines: _Spines, inner: Ints, backup: Ints) -> None:
    """Writes backups over the spines given, through a core where zones differ."""
    network, cores = planes.network, planes.cores
    rows, up, down = spines.rows, spines.up, spines.down
    within = inner[rows, 2] == NONE
    meet = within & (network.head[up] == network.head[down])
    backup[rows[meet], 0], backup[rows[meet], 1] = up[meet], down[meet] ^ 1
    low, high = network.head[up], network.head[down]
    between = np.flatnonzero(
        ~within & (cores.part[low] == cores.part[high]) & (cores.part[low] != NONE)
    )
    slot = cores.slot_of_arc[inner[rows[between], 1]]
    width = cores.width[cores.part[low[between]]]
    for step in range(MOST_CORE_TURNS):
        shifted = (slot + spines.turn[between] + step) % width
        turns = spines.turn[between]
        climb = cores.cables(low[between], shifted, turns)
        fall = cores.cables(high[between], shifted, turns)
        good = (climb != NONE) & (fall != NONE) & (backup[rows[between], 0] == NONE)
        chosen = between[good]
        backup[rows[chosen]] = np.stack(
            [up[chosen], climb[good], fall[good] ^ 1, down[chosen] ^ 1], axis=1
        )


def least_shared(network: Network, choice: Ints, taken: Ints, used: Floats) -> Ints:
    """The candidate with the fewest links, then switches, in common; none if equal."""
    if not len(choice):
        return np.empty(0, dtype=np.int64)
    links = _shared(choice >> 1, taken >> 1)
    head = np.append(network.head, NONE)
    switches = _shared(head[choice], network.head[taken[:-1]])
    worst = used[choice].max(axis=1, initial=0.0)
    best = int(np.lexsort((worst, switches, links))[0])
    if links[best]:
        detour = _detour(network, taken)
        if len(detour):
            return detour
    chosen: Ints = choice[best][choice[best] != network.pad]
    if np.isin(chosen, taken).all():
        return np.empty(0, dtype=np.int64)
    return chosen


def _detour(network: Network, taken: Ints) -> Ints:
    """The shortest way between the terminals of a path that uses none of its links.

    Empty where there is none.
    """
    choice = taken[choice_arcs(network)[taken]]
    allowed = network.usable.copy()
    allowed[choice] = False
    allowed[choice ^ 1] = False
    ends = int(network.tail[choice[0]]), int(network.head[choice[-1]])
    return shortest_way(network, *ends, allowed)


def _shared(rows: Ints, taken: Ints) -> Ints:
    """How many elements of each row are among those taken."""
    count: Ints = (rows[:, :, None] == taken).any(axis=2).sum(axis=1)
    return count
