"""flows.csv: one demand per row, with the bytes it sends and the time it begins.

Rows are read in chunks, and each chunk becomes columns at once. So a million rows never exist as a
million lists, equal names share one string, and garbage is refused at its first chunk. Problems
name the line. Whether a NIC exists is checked later by ``resolve``, which knows the fabric.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path

import numpy as np

from heddle.text import number, similar, some_of
from heddle_controller.model.arrays import Bools, Floats, Ints
from heddle_controller.model.demand import Demands, Transfers
from heddle_controller.model.errors import CURE, MAX_PROBLEMS, InputError, Problem, refuse, sensible
from heddle_controller.model.files.content import MEBIBYTE, open_content
from heddle_controller.model.files.records import short
from heddle_controller.model.flows import TrafficClass

_CEILING = 1024 * MEBIBYTE
"""Size limit, unpacked. A million flows take about 50 MB."""
LONGEST_LINE = 1 << 16
"""Most characters in a line. A file with longer lines is not CSV."""
CHUNK = 1 << 13
"""Rows read at a time."""
REQUIRED = ("flow", "src", "dst", "gbps", "job", "phase")
OPTIONAL = ("qps", "class", "bytes", "start_s")
CLASSES = {"": int(TrafficClass.BANDWIDTH)} | {c.name.lower(): int(c) for c in TrafficClass}
MOST_QPS = 1 << 14
"""Most QPs of a flow: as many as there are source ports between two NICs."""
_OF_NUMBERS = dict.fromkeys(map(ord, "0123456789+-.eE "))
"""Characters of numbers. If a column has only these, Python's ``float`` reads it as ``number``
does, and faster."""
MOST_FLOW_BYTES = 1e15
LATEST_START = 86_400.0
"""Latest start in seconds: one day. Much later times could not hold the microseconds that
messages take."""
_SPELT_ALIKE = 0.75
"""Similarity from which on a column's name counts as another one, misspelt."""
LONGEST_COUNT = 9
"""Most digits of a number of QPs. Longer ones are refused without conversion, which would be slow
and would fail for thousands of digits."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some rows as columns. ``lines`` holds the line that each row ends on."""

    lines: Sequence[int]
    columns: dict[str, Sequence[str]]


def load_demands(
    path: Path, *, qps: int | None = None, note: Callable[[str], object] | None = None
) -> Demands:
    """Read the demands in a flows.csv, plain or gzip.

    The columns may come in any order. Columns that are not part of the format are ignored, except
    that one which is nearly named like a missing optional column is refused. If ``qps`` is given,
    every flow has that many QPs, whatever the file says. ``note`` is called with a sentence that
    names the ignored columns, if there are any.

    Raises:
        InputError: the file cannot be read or is no such CSV; or with a problem for each faulty
            line, at most ``MAX_PROBLEMS``.
    """
    return load_transfers(path, qps=qps, note=note)[0]


def load_transfers(
    path: Path, *, qps: int | None = None, note: Callable[[str], object] | None = None
) -> tuple[Demands, Transfers]:
    """Read a flows.csv like ``load_demands``, with its columns ``bytes`` and ``start_s``.

    The ``Transfers`` have one row per demand.

    Raises:
        InputError: as ``load_demands``.
    """
    ignored: list[str] = []
    with open_content(path, _CEILING) as content:
        text = io.TextIOWrapper(content, encoding="utf-8-sig", newline="")
        try:
            found = _read(_chunks(_lines(text, path), path, ignored), path, qps)
        finally:
            text.detach()  # open_content closes the file
    if ignored and note is not None:
        note(_said_of(ignored, path))
    return found


def _said_of(ignored: Sequence[str], path: Path) -> str:
    names = some_of([short(name) for name in ignored], MAX_PROBLEMS)
    known = ", ".join((*REQUIRED, *OPTIONAL))
    return f"note: {path}: line 1: ignored: {names}; the known columns are {known}"


def _lines(text: io.TextIOWrapper, path: Path) -> Iterator[str]:
    """Yield lines; refuse a line that is too long and a file that is too large."""
    size = 0
    for line_number in count(1):
        line = text.readline(LONGEST_LINE)
        size += len(line)
        if len(line) >= LONGEST_LINE:
            reason = f"the line is longer than {LONGEST_LINE} characters; is it the right file?"
            raise refuse(str(path), f"line {line_number}", reason)
        if size > _CEILING:
            reason = f"the ceiling of {_CEILING / MEBIBYTE:g} MiB is passed; split the file"
            raise refuse(str(path), f"line {line_number}", reason)
        if not line:
            return
        yield line


def _no_header(path: Path) -> InputError:
    optional = "".join(f"[,{name}]" for name in OPTIONAL)
    return refuse(str(path), "line 1", f"no header; it must be {','.join(REQUIRED)}{optional}")


def _chunks(text: Iterator[str], path: Path, ignored: list[str]) -> Iterator[_Chunk]:
    """Yield the rows in chunks, and add the named columns that are not read to ``ignored``."""
    reader = csv.reader(text)
    try:
        header = [name.strip().lower() for name in next(reader, ())]
        places = _places(header, path)
        ignored += [name for name in header if name and name not in places]
        while True:
            first = reader.line_num
            rows = [*islice(reader, CHUNK)]
            if not rows:
                return
            lines: Sequence[int] = range(first + 1, first + 1 + len(rows))
            if reader.line_num - first != len(rows) or not all(rows):
                lines, rows = _with_lines(rows, first)
            _check_width(rows, lines, len(header), path)
            columns = [*zip(*rows, strict=True)] or [()] * len(header)
            yield _Chunk(lines, {name: columns[at] for name, at in places.items()})
    except csv.Error as error:
        reason = f"malformed CSV: {error}"
        raise refuse(str(path), f"line {reader.line_num}", reason) from error
    except UnicodeDecodeError as error:
        record = f"near line {reader.line_num + 1}"
        raise refuse(str(path), record, "not UTF-8 text; save the file as UTF-8") from error


def _places(header: list[str], path: Path) -> dict[str, int]:
    """Return the position of each known column in the header."""
    missing = [name for name in REQUIRED if name not in header]
    if len(missing) == len(REQUIRED):
        raise _no_header(path)
    if missing:
        raise refuse(str(path), "line 1", f"the header lacks {', '.join(missing)}")
    known = [name for name in (*REQUIRED, *OPTIONAL) if name in header]
    absent = [name for name in OPTIONAL if name not in header]
    for name in header:
        if name not in known and (close := similar(name, absent, cutoff=_SPELT_ALIKE)):
            cure = f"is it {close[0]!r}? Else give it another name"
            raise refuse(str(path), "line 1", f"the header has an unknown {short(name)}: {cure}")
    if twice := [name for name in known if header.count(name) > 1]:
        raise refuse(str(path), "line 1", f"the header has {twice[0]!r} twice; keep one")
    return {name: header.index(name) for name in known}


def _with_lines(rows: list[list[str]], first: int) -> tuple[list[int], list[list[str]]]:
    """Return the rows that are not blank, preceded by the line that each ends on.

    Rows may span several lines. ``first`` is the number of lines before them.
    """
    lines, line = [], first
    for row in rows:
        line += 1 + sum(field.count("\n") for field in row)
        lines.append(line)
    kept = [at for at, row in enumerate(rows) if row]
    return [lines[at] for at in kept], [rows[at] for at in kept]


def _check_width(rows: list[list[str]], lines: Sequence[int], width: int, path: Path) -> None:
    if set(map(len, rows)) <= {width}:
        return
    faulty = [at for at, row in enumerate(rows) if len(row) != width][:MAX_PROBLEMS]
    raise InputError(
        str(path),
        *(
            Problem(f"line {lines[at]}", f"has {len(rows[at])} fields, the header {width}")
            for at in faulty
        ),
    )


def _read(chunks: Iterator[_Chunk], path: Path, qps: int | None) -> tuple[Demands, Transfers]:
    names: dict[str, str] = {}
    lines: list[Sequence[int]] = []
    problems: list[Problem] = []
    parts: list[Demands] = []
    transfers: list[Transfers] = []
    for chunk in chunks:
        parts.append(_part(chunk, qps, names, problems))
        transfers.append(_transfers(chunk, problems))
        lines.append(chunk.lines)
        if len(problems) >= MAX_PROBLEMS:
            break
    ids = _joined([part.ids for part in parts])
    problems += _id_problems(ids, chain.from_iterable(lines))
    if problems:
        problems.sort(key=lambda problem: int(problem.record.removeprefix("line ")))
        raise InputError(str(path), *problems[:MAX_PROBLEMS])
    return _all_demands(ids, parts), Transfers(
        np.concatenate([*(part.bytes for part in transfers), np.empty(0)]),
        np.concatenate([*(part.start for part in transfers), np.empty(0)]),
    )


def _all_demands(ids: tuple[str, ...], parts: list[Demands]) -> Demands:
    return Demands(
        ids=ids,
        source=_joined([part.source for part in parts]),
        destination=_joined([part.destination for part in parts]),
        gbps=np.concatenate([*(part.gbps for part in parts), np.empty(0)]),
        job=_joined([part.job for part in parts]),
        phase=_joined([part.phase for part in parts]),
        qps=np.concatenate([*(part.qps for part in parts), np.empty(0, np.int64)]),
        traffic_class=np.concatenate(
            [*(part.traffic_class for part in parts), np.empty(0, np.int64)]
        ),
    )


def _joined(parts: list[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(chain.from_iterable(parts))


def _part(
    chunk: _Chunk, qps: int | None, names: dict[str, str], problems: list[Problem]
) -> Demands:
    """Return the demands of a chunk, and add its problems to ``problems``.

    Equal names become one string, which ``names`` keeps from chunk to chunk.
    """

    def shared(name: str) -> tuple[str, ...]:
        return tuple([names.setdefault(value, value) for value in chunk.columns[name]])

    _check_ends(chunk, problems)
    return Demands(
        ids=tuple(chunk.columns["flow"]),
        source=shared("src"),
        destination=shared("dst"),
        gbps=_rates(chunk, problems),
        job=shared("job"),
        phase=shared("phase"),
        qps=_qps(chunk, problems, qps),
        traffic_class=_classes(chunk, problems),
    )


def _tell(chunk: _Chunk, problems: list[Problem], bad: Bools, name: str, cure: str) -> None:
    for row in np.flatnonzero(bad)[:MAX_PROBLEMS].tolist():
        said = f"{name} is {short(chunk.columns[name][row])}; {cure}"
        problems.append(Problem(f"line {chunk.lines[row]}", said))


def _rates(chunk: _Chunk, problems: list[Problem]) -> Floats:
    rates = _numbers(chunk.columns["gbps"])
    _tell(chunk, problems, ~sensible(rates), "gbps", CURE)
    return rates


def _transfers(chunk: _Chunk, problems: list[Problem]) -> Transfers:
    size = _numbers_or(chunk, "bytes", np.inf)
    bad = ~((size > 0) & (size <= MOST_FLOW_BYTES) | np.isposinf(size) & ~_told(chunk, "bytes"))
    cure = f"give a number above 0 and at most {MOST_FLOW_BYTES:g}, or leave it empty"
    _tell(chunk, problems, bad, "bytes", cure)
    start = _numbers_or(chunk, "start_s", 0.0)
    bad = ~((start >= 0) & (start <= LATEST_START))
    _tell(chunk, problems, bad, "start_s", f"give 0 to {LATEST_START:g} seconds")
    return Transfers(size, start)


def _told(chunk: _Chunk, name: str) -> Bools:
    """Return whether each row has a value in an optional column."""
    column = chunk.columns.get(name, [""] * len(chunk.lines))
    return np.array([bool(text.strip()) for text in column], dtype=np.bool_)


def _numbers_or(chunk: _Chunk, name: str, default: float) -> Floats:
    """Return the numbers of an optional column: the default if empty, nan if not a number."""
    values = np.full(len(chunk.lines), default)
    if (told := np.flatnonzero(_told(chunk, name))).size:
        column = chunk.columns[name]
        values[told] = _numbers([column[row] for row in told.tolist()])
    return values


def _numbers(column: Sequence[str]) -> Floats:
    """Return the numbers of a column, nan for text that is not a number."""
    try:
        plain = not "".join(column).translate(_OF_NUMBERS)
        return np.array([*map(float if plain else number, column)])
    except ValueError:
        return np.array([*map(_float, column)])


def _float(text: str) -> float:
    try:
        return number(text)
    except ValueError:
        return float("nan")


def _qps(chunk: _Chunk, problems: list[Problem], qps: int | None) -> Ints:
    if qps is not None or "qps" not in chunk.columns:
        return np.full(len(chunk.lines), 1 if qps is None else qps, dtype=np.int64)
    column = chunk.columns["qps"]
    numbers = {text: _count(text) for text in set(column)}
    counts = np.array([numbers[text] for text in column], dtype=np.int64)
    _tell(chunk, problems, counts < 1, "qps", f"give an integer from 1 to {MOST_QPS}")
    return counts


def _count(text: str) -> int:
    """Return the number of QPs in a field: 1 if it is empty, 0 if it is not a valid number."""
    text = text.strip()
    if not text:
        return 1
    plain = text.isascii() and text.isdecimal() and len(text) <= LONGEST_COUNT
    number = int(text) if plain else 0
    return number if number <= MOST_QPS else 0


def _classes(chunk: _Chunk, problems: list[Problem]) -> Ints:
    column = chunk.columns.get("class")
    if column is None:
        return np.zeros(len(chunk.lines), dtype=np.int64)
    codes = {text: CLASSES.get(text.strip().lower(), -1) for text in set(column)}
    classes = np.array([codes[text] for text in column], dtype=np.int64)
    _tell(chunk, problems, classes < 0, "class", "use bandwidth or latency")
    return classes


def _id_problems(ids: tuple[str, ...], lines: Iterable[int]) -> list[Problem]:
    first: dict[str, int] = {}
    if len(set(ids)) == len(ids) and "" not in ids:
        return []
    found: list[Problem] = []
    for flow, line in zip(ids, lines, strict=True):
        if not flow:
            found.append(Problem(f"line {line}", "has no flow id; give one"))
        elif first.setdefault(flow, line) != line:
            reason = f"flow {short(flow)} is already on line {first[flow]}; give each its own id"
            found.append(Problem(f"line {line}", reason))
        if len(found) == MAX_PROBLEMS:
            break
    return found


def _check_ends(chunk: _Chunk, problems: list[Problem]) -> None:
    ends = zip(chunk.lines, chunk.columns["src"], chunk.columns["dst"], strict=True)
    same = ((line, source) for line, source, destination in ends if source == destination)
    for line, source in islice(same, MAX_PROBLEMS):
        reason = f"src and dst are both {short(source)}; drop the flow or name two NICs"
        problems.append(Problem(f"line {line}", reason))
