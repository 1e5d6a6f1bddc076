"""What the demo prints: colours, tables and a progress bar on a terminal, plain lines elsewhere.

Plain lines hold the same words and numbers, one fact a line, so that a log of the
demo can be read and searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from heddle.text import clean, clean_lines

Advance: TypeAlias = Callable[[int, int], None]
"""Told how many are done, and of how many."""

Row: TypeAlias = Sequence[str]
GAP = "  "


class Screen:
    """One place to print to."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self.failed = 0
        """Checks that did not hold."""

    @property
    def rich(self) -> bool:
        """Whether a person watches on a terminal."""
        return self._console.is_terminal

    def title(self, text: str) -> None:
        """The beginning of a step."""
        if self.rich:
            self._console.rule(Text(text, style="bold cyan"), align="left", style="cyan")
        else:
            self._print(f"\n== {text}")

    def line(self, text: str, style: str = "") -> None:
        """One line."""
        self._print(text, style)

    def check(self, held: bool, text: str) -> None:  # noqa: FBT001 - "check(this, that it says)"
        """A claim and whether it held; one that did not makes the demo fail."""
        self.failed += not held
        mark, style = ("ok", "green") if held else ("FAILED", "bold red")
        self._print(f"{mark:6} {text}", style)

    def table(self, head: Row, rows: Sequence[Row], *, left: int = 1, ours: bool = False) -> None:
        """Rows under a head; the first ``left`` columns are words, the others numbers.

        With ``ours`` the last column stands out.
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
        """A bar while something is counted up; elsewhere a line when it is over."""
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
