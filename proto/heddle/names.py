"""How names are sorted, and how a link is named, for people."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"([0-9]+)")


def natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """A key to sort names by in which numbers count as numbers: ``mlx5_10`` after ``mlx5_9``."""
    parts = _NUMBER.split(name)
    for place in range(1, len(parts), 2):  # the numbers; of any length, which int() would refuse
        parts[place] = parts[place].lstrip("0")
    sized = [(len(part) if place % 2 else 0, part) for place, part in enumerate(parts)]
    return sized, name  # the name itself tells "n1" from "n01"


def link_name(source: str, target: str, key: object = "") -> str:
    """A link as all commands take and show it: ``A,B``, or ``A,B,KEY`` with a key."""
    return f"{source},{target}" + (f",{key}" if key != "" else "")
