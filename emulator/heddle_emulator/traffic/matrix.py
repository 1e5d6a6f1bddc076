"""Who sends how much to whom, as a user has it: a square of bytes, a row for each sender.

As CSV a line for each sender, or as JSON ``{"bytes": [[…], …]}``; either may be gzip. Ranks are in
the order of hosts, GPU by GPU. What a rank has for itself stays where it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from heddle.text import number
from heddle_controller.model.arrays import Floats
from heddle_controller.model.errors import refuse
from heddle_controller.model.files.content import MEBIBYTE, open_content, read_json

CEILING = 256 * MEBIBYTE
LEAST_RANKS, MOST_RANKS = 2, 3_072
"""Nearly ten million messages; more would not fit into the memory of an ordinary machine."""
SHORT = 40


def load_matrix(path: Path) -> Floats:
    """Bytes by sender and receiver, shape (ranks, ranks).

    Raises:
        InputError: the file cannot be read, is no square of 2 to 3,072 ranks, holds what is no
            number of 0 or more, or nothing that one rank sends another.
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
    """Bytes of the rank that sends most, what it has for itself counted."""
    return float(matrix.sum(axis=1).max())


def most_moved(matrix: Floats) -> float:
    """Bytes that the busiest rank sends others or gets from them."""
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
    """What one place says."""
    try:
        value = number(told) if isinstance(told, str) else _float(told)
    except (ValueError, OverflowError):
        value = math.nan
    if not (value >= 0 and math.isfinite(value)) or isinstance(told, bool):
        record = f"row {row + 1}, column {column + 1}"
        reason = f"{json.dumps(told)[:SHORT]} is not a number of bytes, 0 or more"
        raise refuse(origin, record, reason)
    return value
