"""What one trial came to; a line of JSON in a campaign's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from heddle_controller.model.fabric import Fabric
from heddle_emulator.campaign.events import FaultEvent, FaultKind, Trial

NEEDLESS = 1e-6
"""Relative; gaps and utilisations nearer than that are equal."""


@dataclass(frozen=True, slots=True)
class Result:
    """One trial, measured by walking packets of all flows through the agents' tables."""

    number: int
    events: tuple[tuple[str, int], ...]
    """Kind and row of each, see ``FaultEvent``."""
    words: str
    """The same, for people."""
    affected: int = 0
    """Flows that had a QP on what broke."""
    cut_off: int = 0
    """Flows whose ends nothing joins any more; they count in none of the following."""
    stranded_local: int = 0
    """QPs that get nowhere once agents have repaired, before BGP or the controller said a word.

    One lost link leaves none where plans have backups. Where several are lost, a flow may have lost
    its backup too, and falls to the underlay, which knows of far links only from BGP.
    """
    slowest_local: float = 1.0
    """Least max-min fair rate over demand of any flow, at the same moment."""
    stranded_bgp: int = 0
    """The same once BGP has converged, still before the controller has said a word."""
    stranded: int = 0
    """QPs that get nowhere once the new plan is acknowledged."""
    worst: float = 0.0
    """Greatest utilisation of a link between switches, under the new plan."""
    slowest: float = 1.0
    """Least max-min fair rate over demand of any flow, under the new plan."""
    gap: float = 0.0
    """By how much the plan's certificate is above what it proves to be the least."""
    moved: int = 0
    """Flows of which a QP goes another way than before the failure."""
    acked_seconds: float = 0.0
    """From the failure to the last FIB ack of the new plan."""
    mended_seconds: float = 0.0
    """From the end of the failure to the last FIB ack of the plan after it."""
    regained: bool = True
    """Whether, mended, no link is fuller than before and nothing is stranded."""
    seconds: float = 0.0
    """All that the trial took, measuring included."""
    fault: str = ""
    """Why it could not be played to its end; then nothing else counts."""

    @property
    def bad(self) -> bool:
        """Whether somebody should look at it."""
        return bool(self.fault or self.stranded or self.stranded_bgp or not self.regained)

    def record(self) -> dict[str, Any]:
        """As the file has it."""
        return asdict(self)

    def trial(self) -> Trial:
        """The trial that it came of."""
        return Trial(
            self.number, tuple(FaultEvent(FaultKind(kind), row) for kind, row in self.events)
        )


def begun(trial: Trial, fabric: Fabric) -> Result:
    """The result of a trial of which nothing is known yet."""
    events = tuple((event.kind.value, event.row) for event in trial.events)
    words = ", ".join(event.words(fabric) for event in trial.events)
    return Result(trial.number, events, words)


def read_result(record: Mapping[str, Any]) -> Result:
    """From a line of the file; ValueError where it is none of this form."""
    known = {field.name for field in fields(Result)}
    if not known >= record.keys() or not {"number", "events", "words"} <= record.keys():
        raise ValueError("not a result of this version")
    events = tuple((str(kind), int(row)) for kind, row in record["events"])
    return Result(**{**record, "events": events})
