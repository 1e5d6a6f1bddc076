"""What the demo prints: colours, tables and a progress bar on a terminal, else plain lines.

Plain lines contain the same words and numbers, one fact per line, so that a log of the demo can be
read and searched. The functions at the end make the demo's tables from measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from heddle.text import clean, clean_lines
from heddle.v1 import common_pb2
from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.job import Job
from heddle_controller.model.plan import Paths
from heddle_emulator.client.api import qp_arcs
from heddle_emulator.demo.scene import PARTS
from heddle_emulator.hosts import of_several
from heddle_emulator.walk import Measurement

Advance: TypeAlias = Callable[[int, int], None]
"""Called with how many are done and how many there are."""

Row: TypeAlias = Sequence[str]
GAP = "  "


class Screen:
    """Prints to one console."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self.failed = 0
        """Number of checks that did not hold."""

    @property
    def rich(self) -> bool:
        """Whether the console is a terminal."""
        return self._console.is_terminal

    def title(self, text: str) -> None:
        """Print the title of a step."""
        if self.rich:
            self._console.rule(Text(text, style="bold cyan"), align="left", style="cyan")
        else:
            self._print(f"\n== {text}")

    def line(self, text: str, style: str = "") -> None:
        """Print one line."""
        self._print(text, style)

    def check(self, held: bool, text: str) -> None:  # noqa: FBT001 - "check(this, that it says)"
        """Print a claim and whether it held; if it did not, the demo fails."""
        self.failed += not held
        mark, style = ("ok", "green") if held else ("FAILED", "bold red")
        self._print(f"{mark:6} {text}", style)

    def table(self, head: Row, rows: Sequence[Row], *, left: int = 1, ours: bool = False) -> None:
        """Print rows under a head; the first ``left`` columns are words, the others numbers.

        With ``ours`` the last column is highlighted.
        """
        if self.rich:
            self._console.print(_table(head, rows, left, ours=ours))
            return
        widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
        for row in (head, *rows):
            cells = [
                cell.ljust(width) if column < left else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            self._print(GAP.join(cells).rstrip())

    @contextmanager
    def progress(self, text: str) -> Iterator[Advance]:
        """Show a progress bar; without a terminal, print one line at the end."""
        if self.rich:
            with self._bar() as bar:
                task = bar.add_task(text, total=None)
                yield lambda done, total: bar.update(task, completed=done, total=total)
            return
        reached = (0, 0)

        def count(done: int, total: int) -> None:
            nonlocal reached
            reached = (done, total)

        yield count
        self._print(f"{text}: {reached[0]} of {reached[1]}")

    def _bar(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(clean_lines(text), style=style), soft_wrap=True)


def _table(head: Row, rows: Sequence[Row], left: int, *, ours: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for column, name in enumerate(head):
        style = "bold green" if ours and column == len(head) - 1 else ""
        justify: Literal["left", "right"] = "left" if column < left else "right"
        table.add_column(Text(name), justify=justify, style=style)
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    return table


JOB_HEAD = ("job", "runs", "hosts", "GPUs", "flows", "Gbit/s")
TIER_HEAD = ("tier", "worst link", "proven least", "gap")
_FEW = 3
MOVED_HEAD = ("flow", "QPs moved", "was by", "is by")


def fabric_words(fabric: Fabric) -> str:
    """Describe a fabric in one line."""
    counts = np.bincount(fabric.structure.nodes.kind, minlength=len(NodeKind)).tolist()
    nics, leaves, spines, cores, _ = counts
    links = "two links of 200 Gbit/s each" if of_several(fabric) else "400 Gbit/s"
    above = f", {cores} cores; {len(fabric.structure.zone_names)} zones, 1:1 inside, 7:1 between"
    return (
        f"{nics} NICs at {links} in {len(fabric.structure.host_names)} hosts, {leaves} leaves,"
        f" {spines} spines{above if cores else '; 1:1'}; {fabric.link_count:,} links"
    )


def job_rows(jobs: list[Job], flows: Flows) -> list[Row]:
    """Return a row for each job: what it runs, and the flows it makes."""
    what = {part.name: part.what for part in PARTS}
    rows: list[Row] = []
    for number, job in enumerate(jobs):
        own = flows.gbps[flows.job == number]
        gpus = job.rank_count
        words = (what[job.name], str(len(job.hosts)), str(gpus), f"{len(own):,}")
        rows.append((job.name, *words, f"{own.sum():,.0f}"))
    return rows


def compare_rows(columns: dict[str, Measurement]) -> tuple[Row, list[Row]]:
    """Return head and rows: worst link per tier, slowest flow, collisions; side by side."""
    found = list(columns.values())
    rows: list[Row] = [
        (f"worst {tier} link", *(f"{one.worst[tier]:.3f}" for one in found))
        for tier in found[0].worst
    ]
    rows.append(("slowest flow (1 is the roofline)", *(f"{one.slowest:.3f}" for one in found)))
    rows.append(("QPs on overloaded links", *(_share(one) for one in found)))
    return ("measured by walking packets", *columns), rows


def _share(found: Measurement) -> str:
    total = len(found.walk.flow)
    return f"{found.collisions:,} ({found.collisions / max(total, 1):.0%})"


def tier_rows(certificate: common_pb2.Certificate) -> list[Row]:
    """Return a row of the certificate for each tier."""
    return [
        (
            tier.tier,
            f"{tier.max_utilization:.3f}",
            f"{tier.lower_bound:.3f}",
            f"{tier.max_utilization / tier.lower_bound - 1:.1%}" if tier.lower_bound > 0 else "-",
        )
        for tier in certificate.tiers
    ]


def moved_rows(fabric: Fabric, flows: Flows, before: Paths, after: Paths, which: Ints) -> list[Row]:
    """Return for each flow how many QPs moved, and the switches of their old and new paths."""
    was, now = qp_arcs(before), qp_arcs(after)
    rows: list[Row] = []
    for flow in which.tolist():
        qps = range(int(flows.qps[flow]))
        moved = [qp for qp in qps if was.get((flow, qp)) != now.get((flow, qp))]
        old = {_over(fabric, was.get((flow, qp), ())) for qp in moved}
        new = {_over(fabric, now.get((flow, qp), ())) for qp in moved}
        count = f"{len(moved)} of {len(qps)}"
        rows.append((flows.ids[flow], count, _listed(old), _listed(new)))
    return rows


def _listed(ways: set[str]) -> str:
    """List paths in order; of more than a few, only the first, the last and their number."""
    names = sorted(ways)
    if len(names) <= _FEW:
        return ", ".join(names)
    return f"{names[0]} … {names[-1]} ({len(names)})"


def _over(fabric: Fabric, arcs: tuple[int, ...]) -> str:
    """Return the switches between the two leaves of a path."""
    heads = [int(fabric.structure.head[arc]) for arc in arcs[1:-2]]
    return " ".join(fabric.structure.nodes.ids[head] for head in heads) or "-"
