"""Evidence as a world would give it, for tests of reports, and a reader of pages.

``Reader`` reads pages like a browser, without one.
"""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import numpy as np

from heddle_controller.model.arrays import Floats
from heddle_controller.model.fabric import Fabric, State
from heddle_emulator.report.evidence import (
    Certified,
    Chart,
    Convergence,
    Event,
    Evidence,
    Fact,
    Found,
    Mark,
    Measured,
    Stages,
    Story,
    TimeSeries,
)
from heddle_emulator.report.maps import Snapshot, heat_maps
from heddle_emulator.topology.clos import clos

FAULT = 0.1
EVENTS = (
    Event(FAULT, Mark.FAULT, "cable s0 to l1 cut", "s0-l1"),
    Event(FAULT + 0.0004, Mark.DETECTED, "s0 saw its port go down", "s0"),
    Event(FAULT + 0.0011, Mark.NOTICE, "l3 told by a peer notice", "l3"),
    Event(FAULT + 0.0012, Mark.REPAIR, "l3 flips 9 entries to backups", "l3"),
    Event(FAULT + 0.048, Mark.PLAN, "generation 2: 14 flows move", "controller"),
    Event(FAULT + 0.097, Mark.ACK, "generation 2 stands", "controller"),
    Event(1.4, Mark.MEND, "cable s0 to l1 mended", "s0-l1"),
)
RATES = Chart(
    "Rate of each job",
    "Gbit/s",
    (
        TimeSeries("train", (0.0, FAULT, 0.1012, 2.0), (1600.0, 800.0, 1500.0, 1600.0)),
        TimeSeries("serve", (0.0, FAULT, 0.1012, 2.0), (400.0, None, 400.0, 400.0)),
    ),
    ceiling=1600.0,
)
HELD = Found("recovered: held", held=True, what="recovered of train",
             wanted="p99 at most 10.0 ms", got="6.1 ms", line=12)  # fmt: skip
LOST = Found("slowest: lost", held=False, what="slowest of train",
             wanted="median at least 0.97", got="0.91", line=13)  # fmt: skip
TIMES = (0.0012, 0.0031, 0.0061)


def story(fabric: Fabric, during: Floats | None = None) -> Story:
    """Return a run in which the first cable between switches is cut, so others are fuller."""
    cable = int(np.flatnonzero(fabric.structure.nodes.kind[fabric.structure.links.a] > 0)[0])
    broken = fabric.with_links({cable: State.DOWN})
    even = np.full(2 * fabric.link_count, 0.875)
    fuller = np.where(broken.carries, 1.25, 0.0) if during is None else during
    snapshots = [
        Snapshot("before", 0.0, even, fabric.carries),
        Snapshot("during", FAULT, fuller, broken.carries),
        Snapshot("after", 2.0, even, fabric.carries),
    ]
    proven = Certified("before", 0.875, 0.875, 0.0, "cut", {"leaf-spine": 0.875})
    return Story(
        title="run 2 of 3, the slowest to recover",
        clock="virtual",
        seconds=2.0,
        events=EVENTS,
        charts=(RATES,),
        maps=heat_maps(fabric, snapshots),
        certificates=(proven,),
    )


def held(fabric: Fabric | None = None, *, drill: str = "remote-link") -> Evidence:
    """Return a drill with every section, whose expectations all held."""
    fabric = fabric or clos(leaves=4, spines=8, nics_per_leaf=8, nics_per_host=8)
    measured = Measured("recovered", "from the fault", "s", "train", "", TIMES, *TIMES[1:],
                        TIMES[0], TIMES[2])  # fmt: skip
    never = Measured("recovered", "from the fault", "s", "hashed", "", (0.2, None), 0.2, max=None)
    stages = Convergence(("detect", "program"), (Stages("run 1", (0.001, 0.04)),))
    return Evidence(
        drill=drill,
        proves="No flow stays on a dead path",
        file="tests/drills/fluid/remote-link.yaml",
        world="fluid",
        seed=7,
        held=True,
        seconds=3.5,
        expectations=(HELD,),
        measured=(measured, never),
        stories=(story(fabric),),
        convergence=stages,
        facts=(Fact("fabric", "4 leaves, 8 spines"),),
        assumptions=("Detection takes 0.4 ms.",),
        command="heddle-emulator drill tests/drills/fluid/remote-link.yaml",
        scenario="drill: remote-link\n",
    )


def lost() -> Evidence:
    """Return the same drill with an expectation that failed."""
    return replace(held(drill="lost"), held=False, expectations=(HELD, LOST))


def unplayed() -> Evidence:
    """Return a drill that could not be played, of which only the reason is known."""
    return Evidence("unplayed", "Something", "x.yaml", "netns", 1, held=False, seconds=0.1,
                    fault="the lab cannot be had: run as root")  # fmt: skip


VOID = {"meta", "link", "br", "img"}


class Reader(HTMLParser):
    """Reads a page as a browser would, and notes what it could run or fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag, and expect its end."""
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag that has no end."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Check that this ends the tag that was opened last."""
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        """Note words that a reader sees."""
        if not self.open or self.open[-1] not in {"script", "style"}:
            self.words.append(data)

    @property
    def text(self) -> str:
        """All words, with single spaces."""
        return " ".join(" ".join(self.words).split())

    def count(self, tag: str) -> int:
        """Return the number of tags of a name."""
        return sum(name == tag for name, _ in self.tags)
