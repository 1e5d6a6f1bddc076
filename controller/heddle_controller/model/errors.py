"""What goes wrong with input, said once and well.

Every refusal of input in Heddle is an ``InputError``: which source, which record
in it, what is wrong and what would cure it. The command line prints it as one
line and exits 2; the server turns it into INVALID_ARGUMENT with a BadRequest
field for each problem. Nothing is applied when one is raised.
"""

from __future__ import annotations

from dataclasses import dataclass

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
