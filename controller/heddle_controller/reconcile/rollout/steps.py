"""What to send next: the pure heart of the rollout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Ints
from heddle_controller.model.program import Entries
from heddle_controller.reconcile.rollout.columns import Groups, appended, dead, distinct
from heddle_controller.reconcile.rollout.ledger import NEVER, Ledger
from heddle_controller.reconcile.southbound import PushMode


@dataclass(frozen=True, slots=True, eq=False)
class Switches:
    """What can be expected of each switch; arrays have one element a node."""

    ready: Bools
    """Connected, and nothing is under way to it."""
    stuck: Bools
    """Away, or silent, for so long that the others go on without it."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One push to one switch, and what it means for the ledger that it came from."""

    switch: int
    """Node row."""
    mode: PushMode
    sets: Ints
    """Rows of ``desired``."""
    deletes: Ints
    """Rows of ``old``."""
    withdraws: Ints
    """Rows of ``desired`` that are held and have to go for now."""
    sweep: bool
    completes: bool

    def entries(self, ledger: Ledger) -> tuple[Entries, Entries]:
        """Entries to set, and to delete, in the order of the push's operations."""
        gone = [ledger.old.take(self.deletes), ledger.desired.take(self.withdraws)]
        return ledger.desired.take(self.sets), appended(gone)


@dataclass(frozen=True, slots=True, eq=False)
class Agenda:
    """What could be done now if every switch were ready; rows as in ``Step``."""

    sets: Ints
    deletes: Ints
    withdraws: Ints
    blocked: Ints
    """Pairs that wait for a stuck switch or a failed entry, ascending."""
    pending: Ints
    """All pairs that do not have their new way yet, ascending."""


def agenda(ledger: Ledger, stuck: Bools) -> Agenda:
    """What is to be done now; see the package for the rules."""
    pairs, low = ledger.pending()
    standing = ledger.present & (ledger.partner == NONE)
    make = np.flatnonzero(~ledger.ok)
    make = make[ledger.depth[make] == pairs.of(low, ledger.pair[make], NEVER)]
    unset = np.flatnonzero(ledger.present & (ledger.old_depth != NONE))
    unset = unset[ledger.old_depth[unset] == pairs.of(low, ledger.old_pair[unset], NEVER)]
    held_up = ledger.failed[make] | stuck[ledger.desired.switch[make]]
    kept_up = ledger.undeletable[unset] | stuck[ledger.old.switch[unset]]
    blocked = distinct(
        np.concatenate([ledger.pair[make[held_up]], ledger.old_pair[unset[kept_up]]])
    )
    sets = make[~ledger.failed[make]]
    wayless = ledger.old_pair[standing & ~ledger.routed]
    giving_up = Groups(distinct(np.concatenate([blocked, wayless])))
    old, withdraws = _withdrawals(ledger, stuck, giving_up, pairs.of(low, ledger.pair, NEVER))
    old = old[~Groups(sets).index(ledger.partner[old])[1]]
    plain = _deletes(ledger, pairs, standing)
    deletes = distinct(np.concatenate([unset[~ledger.undeletable[unset]], plain, old]))
    return Agenda(sets, deletes, withdraws, blocked, pairs.keys)


def _deletes(ledger: Ledger, pending: Groups, standing: Bools) -> Ints:
    """Entries off the new ways, of pairs that are on theirs; of pairs without, from the source.

    The latter wait for a switch that is away as long as it takes: it still forwards,
    and what it sends must find the rest of the old way. One without a live link
    sends nothing.
    """
    rows = np.flatnonzero(standing & (ledger.old_depth == NONE))
    rows = rows[~pending.index(ledger.old_pair[rows])[1]]
    moved = rows[ledger.routed[rows]]
    rest = rows[~ledger.routed[rows]]
    sends = _sending(ledger)[ledger.old.switch[rest]]
    groups = Groups(distinct(ledger.old_pair[rest]))
    top = groups.greatest(ledger.old_pair[rest[sends]], ledger.old_height[rest[sends]])
    first = rest[ledger.old_height[rest] >= groups.of(top, ledger.old_pair[rest], NEVER)]
    deletes = np.concatenate([moved, first])
    kept: Ints = deletes[~ledger.undeletable[deletes]]
    return kept


def _sending(ledger: Ledger) -> Bools:
    """Which nodes have a link that carries, shape (nodes,)."""
    sending = np.zeros(ledger.fabric.node_count, dtype=np.bool_)
    sending[ledger.fabric.structure.tail[ledger.fabric.carries]] = True
    return sending


def _withdrawals(ledger: Ledger, stuck: Bools, asked: Groups, low: Ints) -> tuple[Ints, Ints]:
    """Rows of ``old`` and of ``desired`` that pairs must give up, the topmost first.

    Asked of pairs that are blocked, and of those without a new way. Each gives up
    entries that send packets to their death, or that take the room another needs,
    and before them all that lie above. What is above at a switch that is away, or
    that could not delete it, cannot be had: room is not made below it, but packets are
    kept from their death all the same, as an agent by itself would do.
    """
    if not len(asked.keys):
        return asked.keys, asked.keys
    old = np.flatnonzero(ledger.present & asked.index(ledger.old_pair)[1])
    upper = np.flatnonzero((ledger.ok | ledger.maybe) & (ledger.depth > low))
    pinned = asked.marked(
        np.concatenate(
            [
                ledger.old_pair[old[ledger.undeletable[old] | stuck[ledger.old.switch[old]]]],
                ledger.pair[upper[ledger.failed[upper] | stuck[ledger.desired.switch[upper]]]],
            ]
        )
    )
    crowded = ledger.knowledge.full[ledger.old.switch[old]] & (ledger.partner[old] == NONE)
    crowded &= asked.of(pinned.astype(np.int64), ledger.old_pair[old], 1) == 0
    cause = old[dead(ledger.old.take(old), ledger.fabric) | crowded]
    least = asked.least(ledger.old_pair[cause], ledger.old_height[cause], NEVER)
    old = old[ledger.old_height[old] >= asked.of(least, ledger.old_pair[old], NEVER)]
    old = old[~(ledger.undeletable[old] | stuck[ledger.old.switch[old]])]
    upper = upper[ledger.height[upper] >= asked.of(least, ledger.pair[upper], NEVER)]
    upper = upper[~(ledger.failed[upper] | stuck[ledger.desired.switch[upper]])]
    top = np.maximum(
        asked.greatest(ledger.old_pair[old], ledger.old_height[old]),
        asked.greatest(ledger.pair[upper], ledger.height[upper]),
    )
    return (
        old[ledger.old_height[old] >= asked.of(top, ledger.old_pair[old], NEVER)],
        upper[ledger.height[upper] >= asked.of(top, ledger.pair[upper], NEVER)],
    )


def next_steps(ledger: Ledger, switches: Switches) -> list[Step]:
    """At most one push for each ready switch; none when there is nothing to do."""
    return steps_of(ledger, agenda(ledger, switches.stuck), switches)


def steps_of(ledger: Ledger, todo: Agenda, switches: Switches) -> list[Step]:
    """The pushes of an agenda.

    When no entry is left that could be set or deleted without waiting for a stuck
    switch, the closing pushes go out: they sweep what nobody knows of, which may
    carry flows until then, and tell the generation.
    """
    where = (
        ledger.desired.switch[todo.sets],
        ledger.old.switch[todo.deletes],
        ledger.desired.switch[todo.withdraws],
    )
    left = _left(ledger)
    if not switches.stuck[np.concatenate(where)].all():
        return [_step(ledger, part, left) for part in _parts(todo, where, switches.ready)]
    return list(_closing(ledger, switches.ready, left))


def _left(ledger: Ledger) -> Ints:
    """Entries of each switch that are not as they should be."""
    nodes = ledger.fabric.node_count
    standing = ledger.present & (ledger.partner == NONE)
    unmade = np.bincount(ledger.desired.switch[~ledger.ok], minlength=nodes)
    unbroken = np.bincount(ledger.old.switch[standing], minlength=nodes)
    return (unmade + unbroken).astype(np.int64)


Part = tuple[int, Ints, Ints, Ints]
"""A switch, and its rows as in ``Step``."""


def _parts(todo: Agenda, where: Sequence[Ints], ready: Bools) -> Iterator[Part]:
    """The rows of an agenda, by ready switch."""
    columns = []
    for rows, of in zip((todo.sets, todo.deletes, todo.withdraws), where, strict=True):
        kept = np.flatnonzero(ready[of])
        order = kept[np.argsort(of[kept], kind="stable")]
        columns.append((rows[order], of[order]))
    for switch in distinct(np.concatenate([of for _, of in columns])).tolist():
        sets, deletes, withdraws = (
            rows[slice(*np.searchsorted(of, [switch, switch + 1]))] for rows, of in columns
        )
        yield switch, sets, deletes, withdraws


def _step(ledger: Ledger, part: Part, left: Ints) -> Step:
    switch, sets, deletes, withdraws = part
    gone = int(np.count_nonzero(ledger.partner[deletes] == NONE))
    whole = not len(withdraws) and int(left[switch]) == len(sets) + gone
    return Step(
        switch,
        ledger.knowledge.mode(switch),
        sets,
        deletes,
        withdraws,
        sweep=False,
        completes=whole and not ledger.knowledge.unknown[switch],
    )


def _closing(ledger: Ledger, ready: Bools, left: Ints) -> Iterator[Step]:
    knowledge = ledger.knowledge
    none = np.empty(0, dtype=np.int64)
    done = (left == 0) & (knowledge.unknown | (knowledge.generation != ledger.generation))
    crowded = knowledge.unknown & knowledge.full
    for switch in np.flatnonzero(ready & (done | crowded)).tolist():
        sweep, completes = bool(knowledge.unknown[switch]), bool(left[switch] == 0)
        yield Step(switch, knowledge.mode(switch), none, none, none, sweep, completes)
