"""What goes wrong with input, said once and well.

Every refusal of input in Heddle is an ``InputError``: which source, which record
in it, what is wrong and what would cure it. The command line prints it as one
line and exits 2; the server turns it into INVALID_ARGUMENT with a BadRequest
field for each problem. Nothing is applied when one is raised.

Limits on what files and calls may say: how long names are, and which rates make sense.

Loads are sums of rates over capacities. The bounds of a rate are far above any link or flow, and
far within what floats hold. So no sum over any fabric overflows, and no rate is lost beside
another: a plan's certificate stays a number.
"""

from __future__ import annotations

from dataclasses import dataclass

from heddle_controller.model.arrays import Bools, Floats

MAX_PROBLEMS = 20
"""Problems told of one input; the rest is most often the same mistake again."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One faulty record: ``record`` names it, ``reason`` says what and how to cure."""

    record: str
    reason: str

    def __str__(self) -> str:
        return f"{self.record}: {self.reason}" if self.record else self.reason


class InputError(ValueError):
    """Input that was refused whole.

    ``source`` is the file or request it came in, ``problems`` holds at least one
    problem; ``str()`` is a single line with the first problem and how many more
    there are.
    """

    def __init__(self, source: str, *problems: Problem) -> None:
        if not problems:
            msg = "an InputError needs at least one problem"
            raise ValueError(msg)
        self.source = source
        self.problems = problems
        super().__init__(source, *problems)

    def __str__(self) -> str:
        more = len(self.problems) - 1
        tail = f" (and {more} more)" if more else ""
        return f"{self.source}: {self.problems[0]}{tail}"


def refuse(source: str, record: str, reason: str) -> InputError:
    """An ``InputError`` with a single problem."""
    return InputError(source, Problem(record, reason))


MAX_NAME = 256
"""Characters of the id of a node, of a host, a zone, a link's key, a demand's job or phase."""
MAX_FLOW = 1024
"""Characters of a flow's id; a job's flows are named by job, phase and two NICs."""
MAX_TITLE = 1024
"""Characters of what a fabric is called for people."""


def too_long(what: str, length: int, most: int) -> str:
    """What to say of a name that is too long."""
    return f"{what} has {length:,} characters; give at most {most:,}"


LEAST, MOST = 1e-6, 1e9
"""In Gbit/s: a kilobit and an exabit a second."""
KIBI = 1024
CURE = "give a finite number above 0, from 1e-06 to 1e+09"


def sensible(gbps: Floats) -> Bools:
    """Whether each rate is one that a link or a flow may have; nan is none."""
    result: Bools = (gbps >= LEAST) & (gbps <= MOST)
    return result


def size_words(size: float) -> str:
    """Bytes in words: "1 KiB", "1.5 GiB"."""
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= KIBI and len(units) > 1:
        size /= KIBI
        units.pop(0)
    return f"{size:.3g} {units[0]}" if size < KIBI else f"{size:,.0f} {units[0]}"
