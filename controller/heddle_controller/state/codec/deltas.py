"""A plan as what it has otherwise than an earlier one, its *base*, which is stored whole.

A lost link moves a few of some ten thousand flows. To compress and write the other paths again is
most of what a commit costs, so a plan of the same flows on the same structure is kept as a delta:
of every table the rows of the base that are gone, and the rows that stand in the plan instead, with
where they stand. Nobody says what has changed, both are compared. Deltas do not build on deltas:
to read a plan takes its base and nothing else. One that has become long is not worth it any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from heddle_controller.model.arrays import NONE, Ints, starts
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.model.program import Edit, Entries, Program
from heddle_controller.plan.diff import difference, differing, partners
from heddle_controller.plan.entry_edits import known_edit
from heddle_controller.state.codec.container import DamagedError, pack, unpack
from heddle_controller.state.codec.plans import (
    ENTRIES,
    PATHS,
    certificate_from_meta,
    plan_meta,
    ports_columns,
    ports_of,
)

_MOST = 1 / 8
"""Of the rows of a table, or of the bytes of the base, beyond which a plan is packed whole."""

EDITS_KEPT = 4

Whole = tuple[Plan, Program]


@dataclass(slots=True, eq=False)
class Base:
    """A plan that a store has whole, and that later ones are compared with."""

    id: str
    """Blob of the stored plan."""
    whole: Whole
    size: int
    """Bytes it takes there."""
    _edits: deque[tuple[Entries, Edit]] = field(default_factory=lambda: deque(maxlen=EDITS_KEPT))
    """Entries of the newest plans beside this, and how this becomes them."""

    def pack(self, plan: Plan, program: Program) -> bytes | None:
        """Bytes of a plan and its program beside this; None where they are better packed whole."""
        before, was = self.whole
        structure = plan.fabric.structure
        if structure is not before.fabric.structure or not plan.flows.same_as(before.flows):
            return None
        columns: dict[str, Any] = {}
        for name, kind in (("link_state", "links"), ("node_state", "nodes")):
            old, new = getattr(before.fabric, name), getattr(plan.fabric, name)
            rows = np.flatnonzero(old != new)
            columns |= {f"{kind}.rows": rows, f"{kind}.state": new[rows]}
        for name, old, new in (
            ("paths", before.paths, plan.paths),
            ("backups", before.backups, plan.backups),
        ):
            edit = _paths_edit(old, new, len(plan.flows))
            if not _worth(edit, old):
                return None
            columns |= _packed(name, _PATHS, edit, new.take(edit.came))
        entries = program.entries
        changed = self._entries_edit(was.entries, entries)
        if changed is None or not _worth(changed, was.entries):
            return None
        columns |= _packed("entries", _ENTRIES, changed, entries.take(changed.came))
        columns |= ports_columns(plan)
        packed = pack(plan_meta(plan, program), columns)
        return packed if len(packed) <= _MOST * self.size else None

    def _entries_edit(self, old: Entries, new: Entries) -> Edit | None:
        """None where entries that stay do not keep their order.

        What was found for the plan before is gone on from, where it is known how that became this.
        Rows that came, went and came again stay in such an edit, so a long one is found anew.
        """
        edit = self._continued(old, new)
        if edit is None or not _worth(edit, old):
            edit = _compared(old, new)
        if edit is not None:
            self._edits.append((new, edit))
        return edit

    def _continued(self, old: Entries, new: Entries) -> Edit | None:
        step = known_edit(old, new, stages=True)
        if step is not None:
            return step
        for last, edit in reversed([*self._edits]):
            step = known_edit(last, new, stages=True)
            if step is not None:
                return edit.then(step)
        return None


class _Form(NamedTuple):
    """Columns of a table of compressed rows."""

    flat: tuple[str, ...]
    """One element a row."""
    long: str
    first: str
    """Where the elements of ``long`` begin that are of each row."""


_PATHS, _ENTRIES = _Form(PATHS, "arcs", "first"), _Form(ENTRIES, "risk_links", "risk_first")


def unpack_delta(packed: bytes, base: Whole) -> Whole:
    """The plan and its program, of a delta and of its base.

    Raises:
        DamagedError: the bytes are not what ``Base.pack`` made of a plan beside this base.
    """
    meta, columns = unpack(packed)
    try:
        return _applied(meta, columns, base)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DamagedError(f"delta of a plan: {error!r}") from error


def _worth(edit: Edit, old: Paths | Entries) -> bool:
    return len(edit.gone) + len(edit.came) <= _MOST * len(old)


def _paths_edit(old: Paths, new: Paths, flows: int) -> Edit:
    """Flows are all the same or all other: of one that moved every path is written."""
    other = differing(old, new, flows)
    return Edit(np.flatnonzero(other[old.flow]), np.flatnonzero(other[new.flow]))


def _compared(old: Entries, new: Entries) -> Edit | None:
    partner = partners(old, new)
    kept = np.ones(len(new), dtype=np.bool_)
    kept[difference(old, new, partner)[0]] = False
    kept[kept] = old.stage[partner[kept]] == new.stage[kept]
    stays = partner[kept]
    if (stays[1:] <= stays[:-1]).any():
        return None
    gone = np.ones(len(old), dtype=np.bool_)
    gone[stays] = False
    return Edit(np.flatnonzero(gone), np.flatnonzero(~kept))


def _packed(name: str, form: _Form, edit: Edit, some: Paths | Entries) -> dict[str, Any]:
    """Columns of an edit; ``some`` are the rows that came."""
    columns = {f"{name}.{one}": getattr(some, one) for one in (*form.flat, form.long)}
    columns[f"{name}.lengths"] = np.diff(getattr(some, form.first))
    return columns | {f"{name}.gone": edit.gone, f"{name}.came": edit.came}


def _applied(meta: dict[str, Any], columns: Mapping[str, Any], base: Whole) -> Whole:
    before, was = base
    states = {}
    for name, kind in (("link_state", "links"), ("node_state", "nodes")):
        states[name] = getattr(before.fabric, name).copy()
        states[name][columns[f"{kind}.rows"]] = columns[f"{kind}.state"]
    paths = _edited(columns, "paths", _PATHS, before.paths)
    backups = _edited(columns, "backups", _PATHS, before.backups)
    plan = replace(
        before,
        fabric=Fabric(before.fabric.structure, **states),
        paths=Paths(**paths),
        backups=Paths(**backups),
        certificate=certificate_from_meta(meta),
        unrouted={int(row): str(reason) for row, reason in meta["unrouted"]},
        notes=tuple(meta["notes"]),
        nic_ports=ports_of(columns),
    )
    epoch, generation, intent_version = meta["program"]
    rows: dict[str, Any] = _edited(columns, "entries", _ENTRIES, was.entries)
    return plan, Program(epoch, generation, intent_version, Entries(**rows))


def _edited(
    columns: Mapping[str, Any], name: str, form: _Form, old: Paths | Entries
) -> dict[str, Ints]:
    """The columns of a table after its edit."""
    gone, came = columns[f"{name}.gone"], columns[f"{name}.came"]
    _check(gone, len(old))
    _check(came, len(old) - len(gone) + len(came))
    kept = np.ones(len(old), dtype=np.bool_)
    kept[gone] = False
    stay = old.take(np.flatnonzero(kept))
    # Row of the old ones that stay, or behind them of those that came, for each new row.
    order = np.full(len(stay) + len(came), NONE, dtype=np.int64)
    order[came] = len(stay) + np.arange(len(came))
    order[order == NONE] = np.arange(len(stay))
    result = {
        one: np.concatenate([getattr(stay, one), columns[f"{name}.{one}"]])[order]
        for one in form.flat
    }
    lengths = np.concatenate([np.diff(getattr(stay, form.first)), columns[f"{name}.lengths"]])
    begins = starts(lengths)[:-1]
    bounds = starts(lengths[order])
    together = np.concatenate([getattr(stay, form.long), columns[f"{name}.{form.long}"]])
    within = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths[order])
    return {
        **result,
        form.first: bounds,
        form.long: together[np.repeat(begins[order], lengths[order]) + within],
    }


def _check(rows: Ints, count: int) -> None:
    """Raises ``ValueError`` for what is no ascending rows of so many."""
    if len(rows) and (rows[0] < 0 or rows[-1] >= count or (np.diff(rows) <= 0).any()):
        raise ValueError("rows out of place")
