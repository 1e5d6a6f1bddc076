"""Host lists in the short form of cluster schedulers: ``n[001-128]``, ``host[0-3,8],login1``.

The module imports little on purpose: programs that start with every job of a cluster use it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from heddle.names import natural

MAX_HOSTS = 1 << 20

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_PART = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,15})", re.DOTALL)
_COMMA = re.compile(r",(?![^\[\]]*\])")
"""A comma outside brackets."""


def expand_list(text: str) -> list[str]:
    """Return the names in a host list, in order. See ``expand`` for its parts.

    Raises:
        ValueError: a part cannot be read, or there are too many names; the message says which.
    """
    if not text.strip():
        raise ValueError("it names no host")
    names: list[str] = []
    for pattern in _COMMA.split(text.strip()):
        if not pattern.strip():
            raise ValueError(f"{text[:80]!r} has a comma without a name")
        names += expand(pattern.strip())
        if len(names) > MAX_HOSTS:
            raise ValueError(f"{text[:80]!r} names more than {MAX_HOSTS:,} hosts")
    return names


def fold(names: Iterable[str]) -> str:
    """Return the host list of some names, each once, in natural order.

    Only numbers at the end go into brackets, because Slurm reads no others. No name may contain a
    comma or a bracket.
    """
    runs: dict[str, list[tuple[str, str]]] = {}
    """First and last number of each run, by the part of the names before the number."""
    for name in sorted(set(names), key=natural):
        numbered = _NUMBERED.fullmatch(name)
        head, number = numbered.groups() if numbered else (name, "")
        known = runs.setdefault(head, [])
        if number and known and _follows(*known[-1], number):
            known[-1] = known[-1][0], number
        else:
            known.append((number, number))
    return ",".join(text for head, known in runs.items() for text in _texts(head, known))


def _follows(first: str, last: str, number: str) -> bool:
    """Return whether ``number`` extends the run ``first`` to ``last``, with equal digits."""
    return bool(last) and number == str(int(last) + 1).zfill(len(first))


def _texts(head: str, runs: list[tuple[str, str]]) -> Iterator[str]:
    if ("", "") in runs:
        yield head
    parts = [first if first == last else f"{first}-{last}" for first, last in runs if first]
    if len(parts) == 1 and "-" not in parts[0]:
        yield head + parts[0]
    elif parts:
        yield f"{head}[{','.join(parts)}]"


def expand(pattern: str) -> list[str]:
    """Return the names that a pattern stands for, in order; the pattern itself without brackets.

    Several pairs of brackets give all combinations, and the last pair changes fastest. The first
    number of a range sets the number of digits: ``[08-10]`` is 08, 09, 10.

    Raises:
        ValueError: the pattern cannot be read, or there are too many names; the message says which.
    """
    names = [""]
    end = 0
    for match in _BRACKETS.finditer(pattern):
        head = pattern[end : match.start()]
        numbers = list(_numbers(match[1]))
        if len(names) * len(numbers) > MAX_HOSTS:
            raise ValueError(f"{pattern!r} names more than {MAX_HOSTS:,} hosts")
        names = [f"{name}{head}{number}" for name in names for number in numbers]
        end = match.end()
    tail = pattern[end:]
    if "[" in tail or "]" in tail:
        raise ValueError(f"{pattern!r} has a bracket without its other half")
    return [name + tail for name in names]


def _numbers(inside: str) -> Iterator[str]:
    count = 0
    for part in inside.split(","):
        match = _PART.fullmatch(part.strip())
        if not match:
            raise ValueError(f"[{inside}] is not a list of numbers; write [0-15] or [0,2,8-11]")
        first, last = match[1], match[2] or match[1]
        if int(first) > int(last):
            raise ValueError(f"[{inside}] runs backwards at {part.strip()}; put the lesser first")
        count += int(last) - int(first) + 1
        if count > MAX_HOSTS:
            raise ValueError(f"[{inside}] names more than {MAX_HOSTS:,} hosts")
        yield from (str(n).zfill(len(first)) for n in range(int(first), int(last) + 1))
