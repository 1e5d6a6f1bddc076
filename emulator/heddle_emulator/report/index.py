"""The page over many drills: which held, which did not, and where each is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heddle_emulator.report import words
from heddle_emulator.report.evidence import Evidence
from heddle_emulator.report.page import VerdictBox, environment, verdict


@dataclass(frozen=True, slots=True)
class Entry:
    """One drill and its page."""

    page: str
    """Relative to the index, as a URL."""
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class IndexRow:
    """An entry as it is shown."""

    page: str
    evidence: Evidence
    verdict: VerdictBox
    held: int
    """Expectations that did."""


def index(entries: Sequence[Entry]) -> str:
    """HTML of a folder's index, drills that failed first."""
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
