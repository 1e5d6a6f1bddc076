"""Who sends how much to whom: matrices of bytes from a file, and patterns drawn from a seed.

A file has a square of bytes, a row for each sender: a CSV line, or in JSON ``{"bytes": [[…], …]}``.
Either may be compressed with gzip. Ranks are in the order of hosts, GPU by GPU. What a rank has for
itself is not sent.

A pattern gets the number of NICs that take part and returns places among them, one pair per flow.
The hardest one is the random permutation: every NIC sends and receives at line rate, which a
non-blocking fabric carries, but hashing does not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from heddle.text import number
from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.errors import refuse
from heddle_controller.model.files.content import MEBIBYTE, open_content, read_json
from heddle_controller.model.files.flows_file import MOST_FLOW_BYTES

CEILING = 256 * MEBIBYTE
LEAST_RANKS, MOST_RANKS = 2, 3_072
"""Limits of a matrix; 3,072 ranks make nearly ten million messages, all that memory can hold."""
SHORT = 40


def load_matrix(path: Path) -> Floats:
    """Return the bytes by sender and receiver, shape (ranks, ranks).

    Raises:
        InputError: The file cannot be read, is no square of 2 to 3,072 ranks, holds something else
            than numbers of bytes that a flow may send, or has nothing that one rank sends another.
    """
    origin = str(path)
    rows = _json_rows(path) if path.name.removesuffix(".gz").endswith(".json") else _csv_rows(path)
    if not LEAST_RANKS <= len(rows) <= MOST_RANKS:
        raise refuse(origin, "", f"has {len(rows)} rows; give 2 to {MOST_RANKS:,}, one a rank")
    found = np.empty((len(rows), len(rows)))
    for place, row in enumerate(rows):
        if len(row) != len(rows):
            reason = f"has {len(row)} numbers, and there are {len(rows)} rows; give a square"
            raise refuse(origin, f"row {place + 1}", reason)
        found[place] = [_number(told, origin, place, column) for column, told in enumerate(row)]
    if not (found * ~np.eye(len(rows), dtype=np.bool_)).any():
        raise refuse(origin, "", "nobody sends anybody else anything; give some bytes above 0")
    return found


def most_sent(matrix: Floats) -> float:
    """Return the bytes of the rank that sends most, including what it has for itself."""
    return float(matrix.sum(axis=1).max())


def most_moved(matrix: Floats) -> float:
    """Return the most bytes that a rank sends to others or receives from them."""
    others = matrix * ~np.eye(len(matrix), dtype=np.bool_)
    return float(max(others.sum(axis=0).max(), others.sum(axis=1).max()))


def _json_rows(path: Path) -> list[Sequence[object]]:
    document = read_json(path, CEILING)
    rows = document.get("bytes") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise refuse(str(path), "bytes", 'missing; give {"bytes": [[0, 1048576, …], …]}')
    return rows


def _csv_rows(path: Path) -> list[Sequence[object]]:
    with open_content(path, CEILING) as file:
        content = file.read(CEILING + 1)
    if len(content) > CEILING:
        raise refuse(str(path), "", f"unpacks to more than {CEILING // MEBIBYTE} MiB")
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise refuse(str(path), "", "is not UTF-8 text; give numbers with commas") from error
    return [line.split(",") for line in lines if line.strip()]


def _float(told: object) -> float:
    return float(told) if isinstance(told, int | float) else math.nan


def _number(told: object, origin: str, row: int, column: int) -> float:
    """Return the number in one place of the matrix."""
    try:
        value = number(told) if isinstance(told, str) else _float(told)
    except (ValueError, OverflowError):
        value = math.nan
    if not 0 <= value <= MOST_FLOW_BYTES or isinstance(told, bool):
        record = f"row {row + 1}, column {column + 1}"
        most = f"from 0 to {MOST_FLOW_BYTES:g}"
        reason = f"{json.dumps(told)[:SHORT]} is not a number of bytes {most}"
        raise refuse(origin, record, reason)
    return value


_Pairs: TypeAlias = tuple[Ints, Ints]
Pattern: TypeAlias = Callable[[int, np.random.Generator], _Pairs]
"""Returns places of sources and destinations, given a number of NICs and a generator."""

MOST_FLOWS = 10_000_000
"""A file with more flows would not fit into the memory of an ordinary machine."""


def permutation(nics: int, random: np.random.Generator) -> _Pairs:
    """Every NIC sends to one other, and each receives from one other."""
    target = random.permutation(nics).astype(np.int64)
    # NICs that drew themselves swap targets in a ring; a single one takes a random partner.
    fixed = np.flatnonzero(target == np.arange(nics))
    if len(fixed) == 1:
        fixed = np.append(fixed, (fixed[0] + 1 + random.integers(nics - 1)) % nics)
    target[fixed] = target[np.roll(fixed, 1)]
    return np.arange(nics, dtype=np.int64), target


def shift(nics: int, _: np.random.Generator) -> _Pairs:
    """Every NIC sends to the one half the fabric further on, which is the longest way."""
    source = np.arange(nics, dtype=np.int64)
    return source, (source + max(nics // 2, 1)) % nics


def _all_to_all(nics: int, _: np.random.Generator) -> _Pairs:
    """Every NIC sends to every other."""
    if nics * (nics - 1) > MOST_FLOWS:
        reason = f"makes {nics * (nics - 1):,} flows of {nics:,} NICs; take fewer with --nics"
        raise refuse("traffic", "all-to-all", reason)
    source, offset = np.divmod(np.arange(nics * (nics - 1), dtype=np.int64), nics - 1)
    return source, (source + 1 + offset) % nics


def incast(nics: int, random: np.random.Generator) -> _Pairs:
    """All others send to the same NIC."""
    target = int(random.integers(nics))
    source = np.delete(np.arange(nics, dtype=np.int64), target)
    return source, np.full(nics - 1, target, dtype=np.int64)


def uniform(nics: int, random: np.random.Generator) -> _Pairs:
    """Every NIC sends to any other, so some NICs are sent more than they can receive."""
    source = np.arange(nics, dtype=np.int64)
    return source, (source + 1 + random.integers(nics - 1, size=nics)) % nics


def incasts(nics: int, fan_in: int, random: np.random.Generator) -> _Pairs:
    """Groups of one receiver and ``fan_in`` senders; NICs that are left over do nothing.

    Raises:
        InputError: There are too few NICs for one group, or ``fan_in`` is below 1.
    """
    if not 1 <= fan_in < nics:
        raise refuse("traffic", "fan-in", f"is {fan_in}; give 1 to {nics - 1}, the others of a NIC")
    groups = nics // (fan_in + 1)
    drawn = random.permutation(nics)[: groups * (fan_in + 1)].astype(np.int64)
    members = drawn.reshape(groups, fan_in + 1)
    return members[:, 1:].ravel(), np.repeat(members[:, 0], fan_in)


PATTERNS: dict[str, Pattern] = {
    "permutation": permutation,
    "shift": shift,
    "all-to-all": _all_to_all,
    "incast": incast,
    "uniform": uniform,
}
