"""How people expect names to be sorted and links to be named."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"([0-9]+)")


def natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a sort key in which numbers count as numbers: ``mlx5_10`` comes after ``mlx5_9``."""
    parts = _NUMBER.split(name)
    for place in range(1, len(parts), 2):  # only the numbers, which may be too long for int()
        parts[place] = parts[place].lstrip("0")
    sized = [(len(part) if place % 2 else 0, part) for place, part in enumerate(parts)]
    return sized, name  # the name itself separates "n1" from "n01"


def link_name(source: str, target: str, key: object = "") -> str:
    """Return a link as all commands accept and print it: ``A,B``, or ``A,B,KEY`` with a key."""
    return f"{source},{target}" + (f",{key}" if key != "" else "")
