"""Reports on disk: for each drill a page and its JSON, for all of them an index and JUnit XML.

Pages are made from the JSON, so a page can be made again, by a newer version or from a file that
was sent. Files are replaced as a whole.

``index`` makes the page over many drills: which held, which did not, and where to read more.
``junit`` makes the XML for CI: a suite for each drill, a case for each expectation.

``flaws`` checks what types cannot express and drawings rely on. Evidence from a world is always
correct. A file may have been written by hand or with bad intent, and is refused with the place of
what is wrong.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from pydantic import TypeAdapter, ValidationError

from heddle_controller.model.errors import refuse
from heddle_controller.model.files.content import write_content
from heddle_emulator.report import words
from heddle_emulator.report.evidence import Chart, Convergence, Evidence, HeatMap, Moment, Story
from heddle_emulator.report.page import VerdictBox, environment, page, verdict


@dataclass(frozen=True, slots=True)
class Entry:
    """One drill and its page."""

    page: str
    """URL relative to the index."""
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class IndexRow:
    """An entry as it is shown."""

    page: str
    evidence: Evidence
    verdict: VerdictBox
    held: int
    """Number of expectations that held."""


def index(entries: Sequence[Entry]) -> str:
    """Return the HTML of a folder's index, drills that failed first."""
    rows = [_row(entry) for entry in entries]
    rows.sort(key=lambda row: (row.evidence.held, row.evidence.drill))
    held = sum(row.evidence.held for row in rows)
    return (
        environment()
        .get_template("index.html")
        .render(
            rows=rows,
            held=held,
            sentence=_sentence(held, len(rows)),
            seconds=sum(row.evidence.seconds for row in rows),
            worlds=sorted({row.evidence.world for row in rows}),
        )
    )


def _sentence(held: int, total: int) -> str:
    if held == total:
        return "The one drill held" if total == 1 else f"All {words.count(total, 'drill')} held"
    return f"{total - held} of {words.count(total, 'drill')} failed"


def _row(entry: Entry) -> IndexRow:
    held = sum(one.held for one in entry.evidence.expectations)
    return IndexRow(entry.page, entry.evidence, verdict(entry.evidence), held)


_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not allow."""


def junit(evidences: Iterable[Evidence]) -> str:
    """Return the JUnit document as text."""
    root = Element("testsuites")
    for evidence in evidences:
        _suite(root, evidence)
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _suite(root: Element, evidence: Evidence) -> None:
    name, found = _said(evidence.drill), evidence.expectations
    errors = 1 if evidence.fault else 0
    failures = sum(not one.held for one in found)
    numbers = {"tests": len(found) + errors, "failures": failures, "errors": errors}
    told = {"name": name, **{key: str(value) for key, value in numbers.items()}}
    suite = SubElement(root, "testsuite", told | {"time": f"{evidence.seconds:.3f}"})
    if evidence.fault:
        case = SubElement(suite, "testcase", classname=name, name="runs")
        SubElement(case, "error", message=_said(evidence.fault))
    for one in found:
        what = _said(f"{one.what}: {one.wanted}")
        case = SubElement(suite, "testcase", classname=name, name=what)
        if not one.held:
            SubElement(case, "failure", message=_said(one.text))


def _said(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


Flaw = tuple[str, str]
"""A place, and what is wrong there."""


def flaws(evidence: Evidence) -> Iterator[Flaw]:
    """Yield everything that is inconsistent."""
    if not math.isfinite(evidence.seconds):
        yield "seconds", "is not a time"
    for number, story in enumerate(evidence.stories):
        yield from ((f"stories[{number}].{at}", reason) for at, reason in _story(story))
    if evidence.convergence is not None:
        yield from _convergence(evidence.convergence)


def _story(story: Story) -> Iterator[Flaw]:
    for number, event in enumerate(story.events):
        if not math.isfinite(event.at):
            yield f"events[{number}].at", "is not a time"
    for number, chart in enumerate(story.charts):
        yield from ((f"charts[{number}].{at}", reason) for at, reason in _chart(chart))
    for number, one in enumerate(story.maps):
        yield from ((f"maps[{number}].{at}", reason) for at, reason in _map(one))


def _chart(chart: Chart) -> Iterator[Flaw]:
    for number, line in enumerate(chart.lines):
        at = f"lines[{number}]"
        if len(line.times) != len(line.values):
            yield at, f"has {len(line.times)} times and {len(line.values)} values"
        if not all(map(math.isfinite, line.times)) or any(a > b for a, b in pairwise(line.times)):
            yield f"{at}.times", "are not in order"


def _map(one: HeatMap) -> Iterator[Flaw]:
    shape = len(one.rows), len(one.columns)
    for number, moment in enumerate(one.moments):
        yield from ((f"moments[{number}].{at}", why) for at, why in _moment(moment, shape))


def _moment(moment: Moment, shape: tuple[int, int]) -> Iterator[Flaw]:
    rows, columns = shape
    if len(moment.values) != rows or any(len(line) != columns for line in moment.values):
        yield "values", f"are not {rows} rows of {columns}"
        return
    if any(value is not None and value < 0 for line in moment.values for value in line):
        yield "values", "are below 0"
    for number, cell in enumerate(moment.dead):
        if not (0 <= cell.row < rows and 0 <= cell.column < columns):
            yield f"dead[{number}]", "is not a cell of the map"


def _convergence(convergence: Convergence) -> Iterator[Flaw]:
    for number, run in enumerate(convergence.runs):
        at = f"convergence.runs[{number}]"
        if len(run.seconds) != len(convergence.stages):
            yield at, f"has {len(run.seconds)} stages of {len(convergence.stages)}"
        if not all(math.isfinite(length) and length >= 0 for length in run.seconds):
            yield at, "has a stage that is not a time"


INDEX, JUNIT = "index.html", "junit.xml"
_LONGEST = 120
"""Most letters of a file's name."""


@dataclass(frozen=True, slots=True)
class Read:
    """A report that was found in a folder."""

    stem: str
    evidence: Evidence


def write(folder: Path, evidences: Sequence[Evidence]) -> None:
    """Write a page and a JSON file for each drill, and an index and junit.xml.

    A folder holds the newest report of each drill. Older reports of other drills stay, and index
    and junit.xml cover all. So a library of drills may be played by several commands.

    Raises:
        InputError: The folder cannot be made, or a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refuse(str(folder), "", f"cannot be made: {error.strerror}") from error
    names = file_names(evidences)
    for name, evidence in zip(names, evidences, strict=True):
        _put(folder / f"{name}.json", to_json(evidence) + "\n")
    for name in names:
        _put(folder / f"{name}.html", page(read_evidence(folder / f"{name}.json")))
    _put_whole(folder, list(_reports(folder)))


def render(path: Path) -> list[Path]:
    """Make the pages of one report's JSON, or of all in a folder, again; return their paths.

    Raises:
        InputError: A file is not a report, a folder contains none, or a page cannot be written.
    """
    if path.is_file():
        page_path = path.with_suffix(".html")
        _put(page_path, page(read_evidence(path)))
        return [page_path]
    found = list(_reports(path))
    if not found:
        raise refuse(str(path), "folder", "has no report in it; name one that `--report` wrote")
    for one in found:
        _put(path / f"{one.stem}.html", page(one.evidence))
    _put_whole(path, found)
    return [*(path / f"{one.stem}.html" for one in found), path / INDEX]


_FORM = TypeAdapter(Evidence)


def to_json(evidence: Evidence) -> str:
    """Return evidence as JSON. Numbers that are not finite become null."""
    return _FORM.dump_json(evidence).decode()


def read_evidence(path: Path) -> Evidence:
    """Return the evidence in a report's JSON file.

    Raises:
        InputError: The file is not a report; the message names the place of what is wrong.
    """
    return parse_evidence(path.read_bytes(), str(path))


def parse_evidence(text: str | bytes, origin: str) -> Evidence:
    """Do the same for the content of a file called ``origin``. Unknown keys are ignored."""
    try:
        evidence = _FORM.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = f"{first['msg']}; give a drill's report"
        raise refuse(origin, _place(first["loc"]), what) from None
    for place, reason in flaws(evidence):
        raise refuse(origin, place, f"{reason}; give a drill's report as it was written")
    return evidence


def _place(parts: Iterable[int | str]) -> str:
    """Return where a value is in a file, such as ``stories[0].title``."""
    words = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return "".join(words).removeprefix(".") or "file"


def _reports(folder: Path) -> Iterable[Read]:
    """Yield all reports of a folder by name; ignore other files."""
    for path in sorted(folder.glob("*.json")):
        try:
            yield Read(path.stem, read_evidence(path))
        except ValueError:
            continue


def file_names(evidences: Sequence[Evidence]) -> list[str]:
    """Return a unique file name for each drill, because users choose the names of drills."""
    found: list[str] = []
    for evidence in evidences:
        plain = re.sub(r"[^\w.-]+", "-", evidence.drill)[:_LONGEST].strip(".-") or "drill"
        plain = f"{plain}-drill" if plain in {"index", "junit"} else plain
        number, name = 2, plain
        while name in found:
            name, number = f"{plain}-{number}", number + 1
        found.append(name)
    return found


def _put_whole(folder: Path, found: Sequence[Read]) -> None:
    _put(folder / JUNIT, junit(one.evidence for one in found))
    _put(folder / INDEX, index([Entry(quote(f"{one.stem}.html"), one.evidence) for one in found]))


def _put(path: Path, text: str) -> None:
    write_content(path, text.encode())
