"""Rows of a CSV of hosts and switches, with the columns found by name."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from heddle_controller.importers.options import check_words
from heddle_controller.importers.text import read_text
from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem, refuse
from heddle_controller.model.files.records import short

_COLUMNS = {
    "host": ("host", "hostname", "host_name", "server", "ip", "node", "name"),
    "leaf": ("leaf", "asw", "tor", "rtsw", "rsw", "leaf_switch"),
    "spine": ("spine", "psw", "ctsw", "agg", "fsw", "spine_switch"),
    "core": ("core", "dsw", "atsw", "ssw", "super_spine", "core_switch"),
}
"""Our word for each column, and the names it is found by where no mapping tells."""

_NEEDED = ("host", "leaf")


@dataclass(frozen=True, slots=True)
class HostRow:
    """One host and the switches above it; spine and core are "" where no column tells."""

    where: str
    """Where the file tells it, for people."""
    host: str
    leaf: str
    spine: str
    core: str


def read_rows(path: Path, mapping: Mapping[str, str]) -> list[HostRow]:
    """The rows of a host table, plain or gzip, each host once.

    Raises:
        InputError: the file cannot be read or is no CSV, a column is missing, a cell is
            empty, a host stands twice.
    """
    check_words(mapping, _COLUMNS, str(path))
    content = read_text(path, "JSON")
    try:
        lines = csv.reader(io.StringIO(content, newline=""), strict=True)
        header = [name.strip() for name in next(lines, [])]
        found = _columns(header, mapping, path)
        rows = list(_rows(lines, header, found, path))
    except csv.Error as error:
        raise refuse(str(path), "", f"malformed CSV: {error}") from error
    if not rows:
        raise refuse(str(path), "", "no host below the header; give a row for each host")
    refuse_twice(rows, str(path))
    return rows


def _columns(header: list[str], mapping: Mapping[str, str], path: Path) -> dict[str, int]:
    """Where each of our columns is."""
    lower = [name.lower() for name in header]
    found = {}
    for ours, names in _COLUMNS.items():
        theirs = mapping.get(ours)
        if theirs is None and not (mapping and ours not in _NEEDED):
            theirs = next((header[lower.index(name)] for name in names if name in lower), None)
        elif theirs is not None and theirs not in header:
            close = get_close_matches(theirs, header, n=1)
            hint = f"did you mean {close[0]}?" if close else f"they are {short(header)}"
            raise refuse(str(path), "line 1", f"no column {theirs!r} for {ours}; {hint}")
        if theirs is not None:
            found[ours] = header.index(theirs)
    for ours in _NEEDED:
        if ours not in found:
            reason = f"no column for {ours} in {short(header)}; map one, such as {ours}=NAME"
            raise refuse(str(path), "line 1", reason)
    return found


def _rows(
    lines: Iterator[list[str]], header: list[str], found: Mapping[str, int], path: Path
) -> Iterator[HostRow]:
    problems = []
    for number, cells in enumerate(lines, 2):
        if not any(cell.strip() for cell in cells):
            continue
        named = {ours: cells[row].strip() for ours, row in found.items() if row < len(cells)}
        empty = [header[row] for ours, row in found.items() if not named.get(ours)]
        if empty:
            problems.append(Problem(f"line {number}", f"{empty[0]} is empty; fill it in"))
            if len(problems) == MAX_PROBLEMS:
                break
        else:
            yield HostRow(f"line {number}", *(named.get(ours, "") for ours in _COLUMNS))
    if problems:
        raise InputError(str(path), *problems)


def refuse_twice(rows: list[HostRow], origin: str) -> None:
    """Refuse two rows of one host."""
    first: dict[str, HostRow] = {}
    problems = []
    for row in rows:
        if first.setdefault(row.host, row) is not row:
            reason = f"stands in {first[row.host].where} too; give each host once"
            problems.append(Problem(f"{row.where}, host {row.host!r}", reason))
    if problems:
        raise InputError(origin, *problems[:MAX_PROBLEMS])
