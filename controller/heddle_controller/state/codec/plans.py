"""Codec of plans and their programs, as columns. The structure is stored apart.

Long tables are packed in pieces, so that a plan that differs little from the last is packed in
little time. A piece is a container of its own with some rows of one table. A table is cut by
content (after each block of flows or of switches) and not by position. So if rows are added or
removed, the pieces before and after do not change.

The compressed form of each piece is remembered by a hash of its content. The result is complete,
and it is the same bytes whatever was packed before.

A lost link moves a few of perhaps ten thousand flows. Compressing and writing all other paths again
would be most of the cost of a commit. So a plan of the same flows on the same structure is stored
as a delta. For each table it has the numbers of the old rows that are gone, and the new rows with
their numbers. So the size of a write depends on what changed. Reading a plan takes the last plan
that was stored whole, and each delta since.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from heddle_controller.model.arrays import NONE, Ints, cut_rows, starts
from heddle_controller.model.edits import Edit
from heddle_controller.model.fabric import Fabric, Structure
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import (
    AfterLoss,
    Certificate,
    NicPorts,
    Paths,
    Plan,
    TierCertificate,
    Turn,
    edit_of,
)
from heddle_controller.model.program import Entries, Program, known_edit
from heddle_controller.plan.diff import difference, partners
from heddle_controller.state.codec.container import (
    DamagedError,
    narrowed,
    pack,
    pack_raw,
    raw,
    unpack,
)

_MAGIC = b"HDL2"
_KEPT = 4096
"""How many pieces are remembered, together at most some tens of megabytes."""
_SIZE = 4
"""Bytes of a number of pieces, and of the length of a piece."""


def _cut(
    name: str, columns: Mapping[str, Ints], key: Ints, block: int, long: str
) -> Iterator[bytes]:
    """Yield the content of each piece of a table, at least one.

    Args:
        name: Name of the table.
        columns: Its columns. "lengths" says how many elements of ``long`` each row has.
        key: A number of each row, ascending. A cut is made where it passes a multiple of ``block``.
        block: How many numbers of ``key`` go into one piece.
        long: The column of compressed rows.
    """
    most = int(key[-1]) + 1 if len(key) else 0
    cuts = np.searchsorted(key, np.arange(block, most, block))
    rows = np.concatenate([[0], cuts, [len(key)]])
    bounds = dict.fromkeys(columns, rows) | {long: starts(columns["lengths"])[rows]}
    narrow = {one: narrowed(column) for one, column in columns.items()}
    for part in range(len(rows) - 1):
        piece = {
            one: column[bounds[one][part] : bounds[one][part + 1]] for one, column in narrow.items()
        }
        yield raw({"table": name}, piece)


def unpack_pieces(packed: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the merged JSON parts, and all columns. Columns of tables are named "table.column".

    Raises:
        DamagedError: the bytes were not made by ``PlanPacker``, or were changed since.
    """
    meta: dict[str, Any] = {}
    parts: dict[str, list[npt.NDArray[Any]]] = {}
    for piece in _split(packed):
        told, found = unpack(piece)
        if not isinstance(told, dict):
            raise DamagedError("has a piece that does not say what it is of")
        of = f"{told.pop('table')}." if "table" in told else ""
        meta |= told
        for name, column in found.items():
            parts.setdefault(of + name, []).append(column)
    return meta, {name: np.concatenate(part) for name, part in parts.items()}


def _split(packed: bytes) -> Sequence[bytes]:
    pieces, at = [], len(_MAGIC) + _SIZE
    while at < len(packed):
        end = at + _SIZE + int.from_bytes(packed[at : at + _SIZE], "big")
        if end > len(packed):
            raise DamagedError("ends in the middle of a piece")
        pieces.append(packed[at + _SIZE : end])
        at = end
    count = int.from_bytes(packed[len(_MAGIC) : len(_MAGIC) + _SIZE], "big")
    if packed[: len(_MAGIC)] != _MAGIC or len(pieces) != count:
        raise DamagedError(f"has {len(pieces)} pieces, and says {count}")
    return pieces


_FLOWS = (
    "source",
    "destination",
    "gbps",
    "job",
    "phase",
    "qps",
    "traffic_class",
    "weight",
    "bytes",
)
_PORTS = ("port", "backup", "probes")
PATHS = ("flow", "first_qp", "last_qp")
ENTRIES = (
    "switch",
    "source",
    "destination",
    "source_port",
    "destination_port",
    "primary",
    "backup",
    "stage",
)


FLOWS_A_PIECE = 256
"""How many flows have their paths in one piece."""
NODES_A_PIECE = 16
"""How many nodes have their entries in one piece."""
FLOWS_KEPT = 4
"""How many sets of flows have their packed form remembered."""


class PlanPacker:
    """Packs plans. A plan that is similar to an earlier one takes little time.

    Threads may share one.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[bytes, bytes] = OrderedDict()
        """Compressed pieces by the hash of their content; the last used comes last."""
        self._flows: deque[tuple[Flows, bytes]] = deque(maxlen=FLOWS_KEPT)
        """The sets of flows packed last, with their packed form."""

    def pack(self, plan: Plan, program: Program) -> bytes:
        """Return a plan and its program as bytes, without the structure.

        When they are read, the JSON parts of all pieces are merged. The key "table" gives the table
        that the columns of a piece belong to.
        """
        entries = program.entries
        states = {"link_state": plan.fabric.link_state, "node_state": plan.fabric.node_state}
        columns = {name: getattr(entries, name) for name in ENTRIES}
        columns |= {"lengths": np.diff(entries.risk_first), "risk_links": entries.risk_links}
        tables = chain(
            _paths_content("paths", plan.paths),
            _paths_content("backups", plan.backups),
            _cut("entries", columns, entries.switch, NODES_A_PIECE, "risk_links"),
        )
        head = pack(plan_meta(plan, program), states | ports_columns(plan))
        pieces = [head, self._packed_flows(plan.flows)]
        pieces += map(self._compressed, tables)
        number = len(pieces).to_bytes(_SIZE, "big")
        return _MAGIC + number + b"".join(len(one).to_bytes(_SIZE, "big") + one for one in pieces)

    def _packed_flows(self, flows: Flows) -> bytes:
        """Return packed flows. They are kept, as most plans share the flows of the one before."""
        for known, packed in [*self._flows]:
            if known is flows:
                return packed
        meta = {"table": "flows", "ids": flows.ids}
        meta |= {"job_names": flows.job_names, "phase_names": flows.phase_names}
        packed = pack(meta, {name: getattr(flows, name) for name in _FLOWS})
        self._flows.append((flows, packed))
        return packed

    def _compressed(self, content: bytes) -> bytes:
        key = hashlib.sha256(content).digest()
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
                return found
        made = pack_raw(content)
        with self._lock:
            self._known[key] = made
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return made


def _paths_content(name: str, paths: Paths) -> Iterator[bytes]:
    columns = {one: getattr(paths, one) for one in PATHS}
    columns |= {"lengths": np.diff(paths.first), "arcs": paths.arcs}
    return _cut(name, columns, paths.flow, FLOWS_A_PIECE, "arcs")


def plan_meta(plan: Plan, program: Program) -> dict[str, Any]:
    """Return all of a plan and its program that is not in tables, for JSON."""
    certificate = plan.certificate
    return {
        "certificate": [
            certificate.max_utilization,
            certificate.lower_bound,
            certificate.proof,
            [[t.tier, t.max_utilization, t.lower_bound] for t in certificate.tiers],
            [astuple(one) for one in certificate.after_loss],
            None if certificate.turns is None else [astuple(one) for one in certificate.turns],
            [certificate.unprotected, certificate.unprotected_flows],
        ],
        "unrouted": list(plan.unrouted.items()),
        "notes": plan.notes,
        "program": [program.epoch, program.generation, program.intent_version],
    }


def ports_columns(plan: Plan) -> dict[str, Ints]:
    """Return ``nic_ports`` of a plan as columns; empty if it is None. ``ports_of`` reads them."""
    ports = plan.nic_ports
    return {} if ports is None else {f"ports.{one}": getattr(ports, one) for one in _PORTS}


def ports_of(columns: Mapping[str, Any]) -> NicPorts | None:
    """Return the ``NicPorts`` in some columns, or None if there are none."""
    if f"ports.{_PORTS[0]}" not in columns:
        return None
    return NicPorts(*(columns[f"ports.{one}"] for one in _PORTS))


def certificate_from_meta(meta: dict[str, Any]) -> Certificate:
    """Return the certificate in what ``plan_meta`` returned."""
    worst, bound, proof, tiers, after_loss, turns, bare = meta["certificate"]
    return Certificate(
        worst,
        bound,
        proof,
        tuple(TierCertificate(*tier) for tier in tiers),
        tuple(AfterLoss(*one) for one in after_loss),
        unprotected=bare[0],
        unprotected_flows=tuple(bare[1]),
        turns=None if turns is None else tuple(Turn(*one) for one in turns),
    )


def unpack_plan(packed: bytes, structure: Structure) -> tuple[Plan, Program]:
    """Return a plan and its program from bytes and the structure that they were made on.

    Raises:
        DamagedError: the bytes are not what ``PlanPacker`` made.
    """
    meta, columns = unpack_pieces(packed)
    try:
        return _plan(meta, columns, structure)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"plan: {error!r}") from error


def _plan(
    meta: dict[str, Any], columns: dict[str, Any], structure: Structure
) -> tuple[Plan, Program]:
    def part(prefix: str, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: columns[f"{prefix}.{name}"] for name in names}

    def first(table: str) -> Ints:
        return starts(columns[f"{table}.lengths"])

    flows = Flows(
        ids=tuple(meta["ids"]),
        job_names=tuple(meta["job_names"]),
        phase_names=tuple(meta["phase_names"]),
        **part("flows", _FLOWS),
    )
    plan = Plan(
        fabric=Fabric(structure, columns["link_state"], columns["node_state"]),
        flows=flows,
        paths=Paths(**part("paths", (*PATHS, "arcs")), first=first("paths")),
        backups=Paths(**part("backups", (*PATHS, "arcs")), first=first("backups")),
        certificate=certificate_from_meta(meta),
        unrouted={int(row): str(reason) for row, reason in meta["unrouted"]},
        notes=tuple(meta["notes"]),
        nic_ports=ports_of(columns),
    )
    epoch, generation, intent_version = meta["program"]
    rows = part("entries", (*ENTRIES, "risk_links"))
    entries = Entries(**rows, risk_first=first("entries"))
    return plan, Program(epoch, generation, intent_version, entries)


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
        edit = edit_of(old, new)
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
