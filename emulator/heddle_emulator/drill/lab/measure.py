"""What one run in the lab has shown, as numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heddle_emulator.netns.probe.notes import Notes

LAST = 100_000_000
"""Nanoseconds at the end of a run in which a probe that loses packets is stranded."""
NANO = 1e9


@dataclass(frozen=True, slots=True)
class Window:
    """What is looked at, in nanoseconds by the machine's clock."""

    begin: int
    fault: int | None
    """When the first fault of the timeline struck; None if there is none."""
    end: int
    silent: bool = False
    """Whether it was silent: then it began with the first packet that was lost."""


def measured(
    probes: Mapping[str, Sequence[Notes]], offered: Mapping[str, float], window: Window
) -> dict[tuple[str, str], float]:
    """Values by measure and probe; a probe may be several streams.

    ``offered`` is the Mbit/s that each stream of a probe is to have, where it has a rate.
    """
    found: dict[tuple[str, str], float] = {}
    for name, all_notes in probes.items():
        notes = [one.within(window.begin, window.end) for one in all_notes]
        sent = sum(len(one.sent) for one in notes)
        lost = sum(one.lost_count() for one in notes)
        if sent:
            found["lost", name] = lost
            found["delivered", name] = 1 - lost / sent
        if sent and window.fault is not None:
            found["recovered", name] = max(_recovered(one, window) for one in notes)
            found["stranded", name] = sum(_is_stranded(one, window) for one in notes)
        if offered.get(name):
            rates = [one.mbit(window.begin, window.end) / offered[name] for one in notes]
            found["slowest", name] = min(rates)
            found["carried", name] = sum(rates) / len(rates)
    return found


def _recovered(notes: Notes, window: Window) -> float:
    fault = window.fault
    assert fault is not None
    if window.silent and notes.lost_count():
        fault = int(notes.sent[notes.lost][0])
    return notes.recovered(fault)


def _is_stranded(notes: Notes, window: Window) -> bool:
    return notes.within(window.end - LAST, window.end).lost_count() > 0
