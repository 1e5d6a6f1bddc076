"""Plans and their programs as columns; the structure they speak of is kept apart.

Long tables in pieces, so that a plan that differs little from the last is packed in little time.

A piece is a container of its own, of some rows of one table. Cuts go by content (flows or switches
in blocks of so many), not by place: where rows come or go, the pieces before and after stay what
they were. What a piece was compressed to is remembered by a hash of what went in, and beside the
columns of the newest few tables, so that most pieces are compared with those of the plan before and
not even hashed. What comes out is whole and the same whoever packed it, and whatever came before.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from heddle_controller.model.arrays import Bools, Ints, starts
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
)
from heddle_controller.model.program import Entries, Program
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
"""Pieces remembered, in all some tens of megabytes at most."""
_SIZE = 4

TABLES_KEPT = 12
"""Of which the columns are remembered: a few plans, most often of one fabric."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of one table, and where they are cut: as many bounds for each, the ends included."""

    name: str
    columns: Mapping[str, npt.NDArray[Any]]
    bounds: Mapping[str, Ints]

    @property
    def piece_count(self) -> int:
        """Into how many it is cut."""
        return len(next(iter(self.bounds.values()))) - 1

    def piece(self, part: int) -> dict[str, npt.NDArray[Any]]:
        """The columns of one piece."""
        return {
            name: column[self.bounds[name][part] : self.bounds[name][part + 1]]
            for name, column in self.columns.items()
        }

    def like(self, other: Table) -> bool:
        """Whether it is a table of the same columns, and about as long."""
        return (
            self.name == other.name
            and self.columns.keys() == other.columns.keys()
            and self.piece_count == other.piece_count
        )

    def same_pieces(self, other: Table) -> Bools:
        """Which pieces are just those of another table ``like`` this one."""
        same = np.ones(self.piece_count, dtype=np.bool_)
        for name, column in self.columns.items():
            was = other.columns[name]
            if column.dtype != was.dtype:
                return np.zeros_like(same)
            now, then = self.bounds[name], other.bounds[name]
            same &= np.diff(now) == np.diff(then)
            if np.array_equal(now, then):
                places = np.flatnonzero(column != was)
                same[np.searchsorted(now, places, side="right") - 1] = False
                continue
            for part in np.flatnonzero(same).tolist():
                mine = column[now[part] : now[part + 1]]
                same[part] = np.array_equal(mine, was[then[part] : then[part + 1]])
        return same


@dataclass(frozen=True, slots=True)
class _Packed:
    table: Table
    pieces: Sequence[bytes]


def table(name: str, columns: Mapping[str, Ints], key: Ints, block: int, long: str = "") -> Table:
    """A table cut where ``key``, an ascending number a row, enters another block of so many.

    Where it has compressed rows, "lengths" says how many elements of column ``long`` are of each.
    """
    most = int(key[-1]) + 1 if len(key) else 0
    cuts = np.searchsorted(key, np.arange(block, most, block))
    rows = np.concatenate([[0], cuts, [len(key)]])
    bounds = dict.fromkeys(columns, rows)
    if long:
        bounds[long] = np.concatenate([[0], np.cumsum(columns["lengths"])])[rows]
    return Table(name, {key: narrowed(column) for key, column in columns.items()}, bounds)


class PiecePacker:
    """Packs tables in pieces, and remembers what it packed; threads may share one."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[bytes, bytes] = OrderedDict()
        """Compressed pieces by a hash of what they hold; the newest last."""
        self._tables: deque[_Packed] = deque(maxlen=TABLES_KEPT)
        """The newest last."""

    def pack(self, heads: Iterable[bytes], tables: Iterable[Table]) -> bytes:
        """Containers, and then the tables, in one piece of bytes.

        JSON parts of containers are told apart by their keys; a "table" is that of their columns.
        """
        pieces = list(heads)
        for one in tables:
            pieces += self._packed(one)
        number = len(pieces).to_bytes(_SIZE, "big")
        return _MAGIC + number + b"".join(len(one).to_bytes(_SIZE, "big") + one for one in pieces)

    def _packed(self, one: Table) -> Sequence[bytes]:
        """The pieces of a table, those that the table before had too without a second look."""
        with self._lock:
            known = next((k for k in reversed(self._tables) if k.table.like(one)), None)
        same = one.same_pieces(known.table) if known else np.zeros(one.piece_count, dtype=np.bool_)
        pieces = [
            known.pieces[part]
            if known and same[part]
            else self._compressed(raw({"table": one.name}, one.piece(part)))
            for part in range(one.piece_count)
        ]
        with self._lock:
            self._tables.append(_Packed(one, pieces))
        return pieces

    def _compressed(self, content: bytes) -> bytes:
        key = hashlib.blake2b(content, digest_size=16).digest()
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


def unpack_pieces(packed: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON parts together, and all columns, those of tables as "table.column".

    Raises:
        DamagedError: not made by ``PiecePacker``, or changed since.
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
NODES_A_PIECE = 16
FLOWS_KEPT = 4
"""Sets of flows whose packed form is remembered."""


class PlanPacker:
    """Packs plans; one that is like an earlier one takes little time."""

    def __init__(self) -> None:
        self._pieces = PiecePacker()
        self._flows: deque[tuple[Flows, bytes]] = deque(maxlen=FLOWS_KEPT)
        """The newest few, and what they were packed to."""

    def pack(self, plan: Plan, program: Program) -> bytes:
        """Bytes of a plan and its program, without the structure."""
        entries = program.entries
        states = {"link_state": plan.fabric.link_state, "node_state": plan.fabric.node_state}
        states |= ports_columns(plan)
        columns = {name: getattr(entries, name) for name in ENTRIES}
        columns |= {"lengths": np.diff(entries.risk_first), "risk_links": entries.risk_links}
        return self._pieces.pack(
            [pack(plan_meta(plan, program), states), self._packed_flows(plan.flows)],
            [
                _paths_table("paths", plan.paths),
                _paths_table("backups", plan.backups),
                table("entries", columns, entries.switch, NODES_A_PIECE, "risk_links"),
            ],
        )

    def _packed_flows(self, flows: Flows) -> bytes:
        """Most plans are of the flows of the one before, so these are packed once for them all."""
        for known, packed in [*self._flows]:
            if known is flows:
                return packed
        meta = {"table": "flows", "ids": flows.ids}
        meta |= {"job_names": flows.job_names, "phase_names": flows.phase_names}
        packed = pack(meta, {name: getattr(flows, name) for name in _FLOWS})
        self._flows.append((flows, packed))
        return packed


def plan_meta(plan: Plan, program: Program) -> dict[str, Any]:
    """What there is to say of a plan and its program besides their tables."""
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
    """The ports of NICs, if they carry flows; see ``ports_of``."""
    ports = plan.nic_ports
    return {} if ports is None else {f"ports.{one}": getattr(ports, one) for one in _PORTS}


def ports_of(columns: Mapping[str, Any]) -> NicPorts | None:
    """The ports in columns."""
    if f"ports.{_PORTS[0]}" not in columns:
        return None
    return NicPorts(*(columns[f"ports.{one}"] for one in _PORTS))


def certificate_from_meta(meta: dict[str, Any]) -> Certificate:
    """The certificate in what ``plan_meta`` gave."""
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


def _paths_table(name: str, paths: Paths) -> Table:
    columns = {one: getattr(paths, one) for one in PATHS}
    columns |= {"lengths": np.diff(paths.first), "arcs": paths.arcs}
    return table(name, columns, paths.flow, FLOWS_A_PIECE, "arcs")


def unpack_plan(packed: bytes, structure: Structure) -> tuple[Plan, Program]:
    """The plan and its program on the structure that they were made on.

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
