"""Host names in the short form of cluster schedulers: ``host[0-3,8]`` and ``n[001-128]``."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_HOSTS = 1 << 20

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_PART = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def expand(pattern: str) -> list[str]:
    """The names a pattern stands for, in order; itself if it has no brackets.

    Several pairs of brackets multiply, the last runs fastest. The first number of a
    range gives the digits: ``[08-10]`` is 08, 09, 10.

    Raises:
        ValueError: in words, where the pattern cannot be read or names too many.
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
            raise ValueError(f"[{inside}] is no list of numbers; write [0-15] or [0,2,8-11]")
        first, last = match[1], match[2] or match[1]
        if int(first) > int(last):
            raise ValueError(f"[{inside}] runs backwards at {part.strip()}; put the lesser first")
        count += int(last) - int(first) + 1
        if count > MAX_HOSTS:
            raise ValueError(f"[{inside}] names more than {MAX_HOSTS:,} hosts")
        yield from (str(n).zfill(len(first)) for n in range(int(first), int(last) + 1))
