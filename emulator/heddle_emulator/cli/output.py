"""Printing without terminal control characters, and sizes as text.

Sizes are written as people do: 1M, 8GiB, 64MB, 1M..8G. KiB, MiB, GiB and TiB are powers of 1,024;
kB, MB, GB and TB are powers of 1,000. A letter alone is binary, as in nccl-tests.
"""

from __future__ import annotations

import math
import re
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from heddle.text import clean, clean_lines
from heddle_controller.model.errors import refuse
from heddle_controller.model.files.flows_file import MOST_FLOW_BYTES


def echo(text: str, *, err: bool = False) -> None:
    """Print one line of text, made safe for terminals."""
    click.echo(clean(text), err=err)  # noqa: TID251 - the one place


def echo_lines(text: str) -> None:
    """Print several lines, whose line ends are all the program's own."""
    click.echo(clean_lines(text))  # noqa: TID251 - the one place


_WIDEST = 10_000
"""Columns of a table, far more than any has."""


class CleanConsole(Console):
    """A console that makes all texts safe for terminals, also in tables."""

    @override
    def render_str(self, text: str, **more: Any) -> Text:
        """Implement ``Console.render_str``."""
        return super().render_str(clean_lines(text), **more)

    def print_table(self, table: Table) -> None:
        """Print a table as wide as its cells: a narrow terminal wraps lines, and cuts no number."""
        unbounded = self.options.update(max_width=_WIDEST)
        self.width = max(self.width, self.measure(table, options=unbounded).maximum)
        self.print(table)


NEVER_ENDS = "never: a flow has no path, so what waits for it does not end"


def finite(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record for JSON, which has no infinity: None stands for what never ends."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }


POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_MOST = 64
_LARGEST = 900 << 30
"""Largest size of a table, whose column of sizes has 12 digits."""


def sizes_of(text: str, factor: float = 2.0) -> list[int]:
    """Return the sizes of "1M,8M", or of "1M..8G", each ``factor`` times the one before.

    Raises:
        InputError: A text is no size, or not above 0, or above 900G, or there are more than 64
            sizes. The message names --sizes or --factor.
    """
    if not factor > 1:
        raise refuse("--factor", f"{factor:g}", "makes no sizes; give more than 1")
    found: list[int] = []
    for word in text.split(","):
        low, _, high = word.strip().partition("..")
        first = bytes_of(low, "--sizes")
        last = bytes_of(high, "--sizes") if high else first
        if max(first, last) > _LARGEST:
            reason = f"is too large for the table; give at most {_LARGEST >> 30}G"
            raise refuse("--sizes", word.strip(), reason)
        if last < first:
            raise refuse("--sizes", word.strip(), "ends below where it begins; swap the two")
        size = float(first)
        while size <= last * (1 + 1e-9):
            found.append(round(size))
            size *= factor
            if len(found) > _MOST:
                raise refuse(
                    "--sizes", word.strip(), f"makes more than {_MOST}; take a larger --factor"
                )
    return found


def bytes_of(text: str, option: str) -> int:
    """Return the bytes of "512", "8K", "1.5M", "8GiB", "64MB".

    Raises:
        InputError: The text is no size, or less than 1 byte, or more than a flow can have. The
            message names ``option``, which has the text.
    """
    match = re.fullmatch(
        r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*(?:([KMGTkmgt])(i?B)?|B)?", text.strip()
    )
    if match is None:
        reason = "is not a size; write 512, 8K or 8KiB, 64M or 64MiB, or 64MB for 64 million"
        raise refuse(option, repr(text.strip()), reason)
    base = 1000.0 if match[3] == "B" else 1024.0
    size: int = round(float(match[1]) * base ** POWERS[(match[2] or "").upper()])
    if size < 1:
        raise refuse(option, repr(text.strip()), "is less than a byte; give at least 1")
    if size > MOST_FLOW_BYTES:
        reason = f"is too large; give at most {MOST_FLOW_BYTES:g} bytes"
        raise refuse(option, repr(text.strip()), reason)
    return size
