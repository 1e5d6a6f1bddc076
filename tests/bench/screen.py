"""The bench's output: tables with colours and progress bars on a terminal, else plain lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tests.bench.rows import Row

Advance: TypeAlias = Callable[[int], None]
"""Called with the number of steps that are done so far."""

HEAD = ("who", "figure", "target", "reached", "note")
GAP = "   "
JUDGED = {True: ("yes", "green"), False: ("NO", "bold red"), None: ("", "")}


class Screen:
    """Writes the tables to standard output, and progress to standard error."""

    def __init__(self, out: Console | None = None, progress: Console | None = None) -> None:
        self._out = out or Console(highlight=False)
        self._progress = progress or Console(highlight=False, stderr=True)

    @contextmanager
    def progress(self, text: str, total: int) -> Iterator[Advance]:
        """Show a progress bar on a terminal; elsewhere print a line at begin and end."""
        if self._progress.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            with Progress(*columns, TimeElapsedColumn(), console=self._progress) as bar:
                task = bar.add_task(text, total=total)
                yield lambda done: bar.update(task, completed=done)
            return
        self._line(f"{text}: begun, {total} to do")
        reached = 0

        def count(done: int) -> None:
            nonlocal reached
            reached = done

        yield count
        self._line(f"{text}: {reached} of {total} done")

    def _line(self, text: str) -> None:
        self._progress.print(Text(text), soft_wrap=True)
        sys.stderr.flush()

    def table(self, rows: Sequence[Row]) -> None:
        """Print one table for each measure, in the order in which measures first occur."""
        for measure in dict.fromkeys(row.measure for row in rows):
            own = [row for row in rows if row.measure == measure]
            if self._out.is_terminal:
                self._out.print(_rich(measure, own))
            else:
                self._plain(measure, own)

    def verdict(self, rows: Sequence[Row]) -> None:
        """Print how many targets are reached."""
        judged = [row for row in rows if row.reached is not None]
        reached = sum(bool(row.reached) for row in judged)
        style = "bold green" if reached == len(judged) else "bold yellow"
        self._out.print(Text(f"{reached} of {len(judged)} targets reached", style=style))

    def _plain(self, measure: str, rows: Sequence[Row]) -> None:
        cells = [HEAD, *(_cells(row) for row in rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
        lines = [f"== {measure}"]
        for line in cells:
            padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            lines.append(GAP.join(padded).rstrip())
        self._out.print(Text("\n".join([*lines, ""])), soft_wrap=True)


def _cells(row: Row) -> tuple[str, ...]:
    return (row.who, row.figure, row.target, JUDGED[row.reached][0], row.note)


def _rich(measure: str, rows: Sequence[Row]) -> Table:
    title = Text(measure, style="bold cyan")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in HEAD:
        table.add_column(Text(name), overflow="fold")
    for row in rows:
        cells = [Text(cell) for cell in _cells(row)]
        cells[HEAD.index("reached")].stylize(JUDGED[row.reached][1])
        cells[HEAD.index("note")].stylize("dim")
        if row.target:
            cells[0].stylize("bold")
        table.add_row(*cells)
    return table
