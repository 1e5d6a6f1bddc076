"""Long tables in pieces, so that a plan that differs little from the last is packed in little time.

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
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from heddle_controller.model.arrays import Bools, Ints
from heddle_controller.state.codec.container import DamagedError, narrowed, pack_raw, raw, unpack

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
