"""What programs of a lab have logged, and when; all clocks are one machine's."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from heddle_emulator.netns.programs import LEADING, Programs

DOWN = '"event": "link down"'
"""How an agent logs a cable that it believes down."""
PROGRAMMED = '"event": "push programmed"'
"""How it logs a push that its kernel has taken."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A cable that an agent saw go down."""

    when: int
    """Nanoseconds."""
    switch: str
    link: str


def detections(programs: Programs, after: int) -> list[Sighting]:
    """What agents saw after a moment, in ns; from their own logs."""
    found = [
        Sighting(when, switch, str(told.get("link", "")))
        for when, switch, told in _logged(programs, DOWN)
    ]
    return [one for one in found if one.when > after]


def programming(programs: Programs, generations: Collection[int]) -> list[tuple[int, int]]:
    """From when to when agents had their kernels take plans of these generations, in ns each."""
    return [
        (when - round(told["seconds"] * 1e9), when)
        for when, _, told in _logged(programs, PROGRAMMED)
        if told["generation"] in generations
    ]


def leaders(programs: Programs, after: int) -> list[tuple[int, str]]:
    """Controllers that came to lead after a moment, and when, in ns."""
    told = _logged(programs, LEADING, programs.replicas)
    found = [(when, programs.log_of(replica).stem) for when, replica, _ in told]
    return sorted(one for one in found if one[0] > after)


def _logged(
    programs: Programs, event: str, nodes: Iterable[str] = ()
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """When in ns, whose, and what was said, of all lines about an event; of all agents or some."""
    for node in nodes or programs.lab.layout.switches:
        with contextlib.suppress(FileNotFoundError):
            text = programs.log_of(node).read_text(errors="replace")
            for line in text.splitlines():
                if event in line:
                    with contextlib.suppress(ValueError, KeyError):
                        told = json.loads(line)
                        when = datetime.fromisoformat(told["timestamp"])
                        yield round(when.timestamp() * 1e9), node, told
