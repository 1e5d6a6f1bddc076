"""The error for refused input, and the limits on what files and calls may contain.

Heddle refuses input with an ``InputError``. It names the source, the faulty record, what is wrong
and how to correct it. The command line prints it as one line and exits with status 2. The server
turns it into INVALID_ARGUMENT with a BadRequest field for each problem. When one is raised,
nothing of the input is applied.

The limits say how long names may be and which rates make sense. Loads are sums of rates divided by
capacities. The largest allowed rate is far above any real link or flow, and far below what a float
can hold. So no sum over any fabric overflows, no rate is lost to rounding next to another, and the
figures of a plan's certificate stay finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # commands that only refuse input start without numpy
    from heddle_controller.model.arrays import Bools, Floats

MAX_PROBLEMS = 20
"""The most problems reported for one input. Further ones are usually the same mistake again."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A faulty record: ``record`` names it, ``reason`` says what is wrong and how to correct it."""

    record: str
    reason: str

    def __str__(self) -> str:
        return f"{self.record}: {self.reason}" if self.record else self.reason


class InputError(ValueError):
    """Input was refused as a whole.

    ``source`` names the file or request that it came in. ``problems`` holds at least one
    problem. ``str()`` gives a single line: the first problem, and how many more there are.
    """

    def __init__(self, source: str, *problems: Problem) -> None:
        if not problems:
            msg = "an InputError needs at least one problem"
            raise ValueError(msg)
        self.source = source
        self.problems = problems
        super().__init__(source, *problems)

    def __str__(self) -> str:
        return f"{self.source}: {first_of(self.problems)}"


def first_of(problems: Sequence[Problem | str]) -> str:
    """Return the first problem as text, and how many more there are, if all were collected."""
    more = len(problems) - 1
    tail = f" (and {more} more problem{'s' if more > 1 else ''})" if more else ""
    if len(problems) >= MAX_PROBLEMS:  # nobody looked for further ones
        tail = " (and more problems)"
    return f"{problems[0]}{tail}"


def refuse(source: str, record: str, reason: str) -> InputError:
    """Return (not raise) an ``InputError`` with a single problem."""
    return InputError(source, Problem(record, reason))


MAX_NAME = 256
"""Most characters in a node id, host, zone or link key, or in the job or phase of a demand."""
MAX_FLOW = 1024
"""Most characters in a flow's id. It can contain names of a job, a phase and two NICs."""
MAX_TITLE = 1024
"""Most characters in the name of a fabric, which only people read."""


def too_long(what: str, length: int, most: int) -> str:
    """Return the message for a name that is too long.

    Args:
        what: What the name is, for example "the id".
        length: Its number of characters.
        most: The number of characters that is allowed.
    """
    return f"{what} has {length:,} characters; give at most {most:,}"


LEAST, MOST = 1e-6, 1e9
"""The least and the greatest rate allowed, in Gbit/s: a kilobit and an exabit per second."""
KIBI = 1024
CURE = "give a finite number above 0, from 1e-06 to 1e+09"


def sensible(gbps: Floats) -> Bools:
    """Return whether each rate (Gbit/s) is allowed for a link or a flow. nan is not."""
    result: Bools = (gbps >= LEAST) & (gbps <= MOST)
    return result


def size_words(size: float) -> str:
    """Format a number of bytes for people, for example "1 KiB" or "1.5 GiB"."""
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= KIBI and len(units) > 1:
        size /= KIBI
        units.pop(0)
    return f"{size:.3g} {units[0]}" if size < KIBI else f"{size:,.0f} {units[0]}"
