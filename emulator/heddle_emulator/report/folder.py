"""Reports on disk: for each drill a page and its JSON, for all of them an index and JUnit XML.

The JSON is the truth and pages are made of it, so that a page can be made again, by a newer
version or of a file that somebody sent. Files appear whole or not at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from heddle_controller.model.errors import refuse
from heddle_emulator.report.evidence import Evidence
from heddle_emulator.report.index import Entry, index
from heddle_emulator.report.junit import junit
from heddle_emulator.report.page import page
from heddle_emulator.report.plain import PlainError, from_plain, to_plain
from heddle_emulator.report.sound import flaws

INDEX, JUNIT = "index.html", "junit.xml"
_LONGEST = 120
"""Letters of a file's name."""


@dataclass(frozen=True, slots=True)
class Read:
    """A report that was found in a folder."""

    stem: str
    evidence: Evidence


def write(folder: Path, evidences: Sequence[Evidence]) -> None:
    """Write a page and a JSON file for each drill, and an index and junit.xml.

    A folder holds the newest report of each drill: what others left there stays, and index and
    junit.xml are of all. So a library may be played in several commands.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = file_names(evidences)
    for name, evidence in zip(names, evidences, strict=True):
        text = json.dumps(to_plain(evidence), separators=(",", ":"), allow_nan=False)
        _put(folder / f"{name}.json", text + "\n")
    for name in names:
        _put(folder / f"{name}.html", page(read_evidence(folder / f"{name}.json")))
    _put_whole(folder, list(_reports(folder)))


def render(path: Path) -> list[Path]:
    """Make the pages of a report's JSON, or of all in a folder, again; returns them.

    Raises:
        InputError: a file that is no report, or a folder with none.
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


def read_evidence(path: Path) -> Evidence:
    """A report's JSON.

    Raises:
        InputError: it is none, with the place of what is wrong.
    """
    try:
        evidence = from_plain(Evidence, json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:
        if isinstance(error, PlainError):
            raise refuse(str(path), error.place, f"{error.reason}; give a drill's report") from None
        raise refuse(str(path), "file", f"is not JSON: {error}") from None
    for place, reason in flaws(evidence):
        raise refuse(str(path), place, f"{reason}; give a drill's report as it was written")
    return evidence


def _reports(folder: Path) -> Iterable[Read]:
    """All reports of a folder by name; what is not one is passed over."""
    for path in sorted(folder.glob("*.json")):
        try:
            yield Read(path.stem, read_evidence(path))
        except ValueError:
            continue


def file_names(evidences: Sequence[Evidence]) -> list[str]:
    """A name for each that is fit for a file, and its own: drills are named by users."""
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
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
