"""Codec of deltas: a plan as its differences from the plan before.

A lost link moves a few of perhaps ten thousand flows. Compressing and writing all other paths again
would be most of the cost of a commit. So a plan of the same flows on the same structure is stored
as a delta. For each table it has the numbers of the old rows that are gone, and the new rows with
their numbers. So the size of a write depends on what changed. Reading a plan takes the last plan
that was stored whole, and each delta since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from heddle_controller.model.arrays import NONE, Ints, cut_rows, starts
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.plan import Paths, Plan, changed_rows, differing
from heddle_controller.model.program import Edit, Entries, Program
from heddle_controller.plan.diff import difference, partners
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
"""Part of the rows of a table that may change; beyond it, a plan is packed whole."""

Whole = tuple[Plan, Program]
"""A complete plan and its program."""


def pack_delta(made: Whole, before: Whole) -> bytes | None:
    """Return a plan and its program as a delta to those before.

    None if they must or should be stored whole: the structure or the flows differ, or too many
    rows do.
    """
    (plan, program), (earlier, was) = made, before
    structure = plan.fabric.structure
    if structure is not earlier.fabric.structure or not plan.flows.same_as(earlier.flows):
        return None
    columns: dict[str, Any] = {}
    for name, kind in (("link_state", "links"), ("node_state", "nodes")):
        old, new = getattr(earlier.fabric, name), getattr(plan.fabric, name)
        rows = np.flatnonzero(old != new)
        columns |= {f"{kind}.rows": rows, f"{kind}.state": new[rows]}
    for name, old, new in (
        ("paths", earlier.paths, plan.paths),
        ("backups", earlier.backups, plan.backups),
    ):
        edit = _paths_edit(old, new, len(plan.flows))
        if not _worth(edit, old):
            return None
        columns |= _packed(name, _PATHS, edit, new.take(edit.came))
    entries = program.entries
    changed = known_edit(was.entries, entries, stages=True) or _compared(was.entries, entries)
    if changed is None or not _worth(changed, was.entries):
        return None
    columns |= _packed("entries", _ENTRIES, changed, entries.take(changed.came))
    columns |= ports_columns(plan)
    # Most columns have few rows. Joined into one, they are packed once and not thirty times.
    lengths = [[name, len(column)] for name, column in columns.items()]
    rows = np.concatenate([*columns.values()])
    return pack(plan_meta(plan, program) | {"columns": lengths}, {"rows": rows})


class _Form(NamedTuple):
    """Names of the columns of a table with compressed rows."""

    flat: tuple[str, ...]
    """Columns with one element per row."""
    long: str
    """The column with several elements per row."""
    first: str
    """The column that says where each row's elements begin in ``long``."""


_PATHS, _ENTRIES = _Form(PATHS, "arcs", "first"), _Form(ENTRIES, "risk_links", "risk_first")


def unpack_delta(packed: bytes, before: Whole) -> Whole:
    """Return the plan and program that a delta makes of those before.

    Raises:
        DamagedError: the bytes are not a delta that ``pack_delta`` made to these.
    """
    meta, together = unpack(packed)
    try:
        ends = np.cumsum([length for _, length in meta["columns"]])
        parts = np.split(together["rows"], ends[:-1])
        names = (name for name, _ in meta["columns"])
        return _applied(meta, dict(zip(names, parts, strict=True)), before)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DamagedError(f"delta of a plan: {error!r}") from error


def _worth(edit: Edit, old: Paths | Entries) -> bool:
    return len(edit.gone) + len(edit.came) <= _MOST * len(old)


def _paths_edit(old: Paths, new: Paths, flows: int) -> Edit:
    """Return the difference between two sets of paths.

    If only arcs differ, single paths are replaced. Otherwise all paths of each flow that differs
    are.
    """
    rows = changed_rows(old, new)
    if rows is not None:
        return Edit(rows, rows)
    other = differing(old, new, flows)
    return Edit(np.flatnonzero(other[old.flow]), np.flatnonzero(other[new.flow]))


def _compared(old: Entries, new: Entries) -> Edit | None:
    """Compare two sets of entries. None if those that are in both have changed their order."""
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
    """Return an edit of the table ``name`` as columns. ``some`` has the rows that came."""
    columns = {f"{name}.{one}": getattr(some, one) for one in (*form.flat, form.long)}
    columns[f"{name}.lengths"] = np.diff(getattr(some, form.first))
    return columns | {f"{name}.gone": edit.gone, f"{name}.came": edit.came}


def _applied(meta: dict[str, Any], columns: Mapping[str, Any], earlier: Whole) -> Whole:
    before, was = earlier
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
    """Return the columns of a table after its edit."""
    gone, came = columns[f"{name}.gone"], columns[f"{name}.came"]
    _check(gone, len(old))
    _check(came, len(old) - len(gone) + len(came))
    kept = np.ones(len(old), dtype=np.bool_)
    kept[gone] = False
    stay = old.take(np.flatnonzero(kept))
    # For each new row, its place among the rows that stay followed by those that came.
    order = np.full(len(stay) + len(came), NONE, dtype=np.int64)
    order[came] = len(stay) + np.arange(len(came))
    order[order == NONE] = np.arange(len(stay))
    result = {
        one: np.concatenate([getattr(stay, one), columns[f"{name}.{one}"]])[order]
        for one in form.flat
    }
    lengths = np.concatenate([np.diff(getattr(stay, form.first)), columns[f"{name}.lengths"]])
    bounds, places = cut_rows(starts(lengths), order)
    together = np.concatenate([getattr(stay, form.long), columns[f"{name}.{form.long}"]])
    return {
        **result,
        form.first: bounds,
        form.long: together[places],
    }


def _check(rows: Ints, count: int) -> None:
    """Raise ``ValueError`` unless rows ascend and lie between 0 and ``count - 1``."""
    if len(rows) and (rows[0] < 0 or rows[-1] >= count or (np.diff(rows) <= 0).any()):
        raise ValueError("rows out of place")
