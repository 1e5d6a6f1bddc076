"""How people expect names to be sorted; names of resources, links, paths and values of enums."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.descriptor import EnumDescriptor

NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")
"""What names of fabrics, jobs, demand sets and reservations match as a whole."""
_NUMBER = re.compile(r"([0-9]+)")


def natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a sort key in which numbers count as numbers: ``mlx5_10`` comes after ``mlx5_9``."""
    parts = _NUMBER.split(name)
    for place in range(1, len(parts), 2):  # only the numbers, which may be too long for int()
        parts[place] = parts[place].lstrip("0")
    sized = [(len(part) if place % 2 else 0, part) for place, part in enumerate(parts)]
    return sized, name  # the name itself separates "n1" from "n01"


def link_name(source: str, target: str, key: object) -> str:
    """Return a link as all commands accept and print it: ``A,B,KEY``."""
    return f"{source},{target},{key}"


def path_name(nodes: Sequence[str], keys: Iterable[object]) -> str:
    """Return the nodes of a path in order of travel; a key other than 0 precedes its next node.

    ``keys`` are those of the links between the nodes: ``n0 leaf0 [1]spine0``.
    """
    hops = zip(keys, nodes[1:], strict=True)
    named = (node if str(key) in ("", "0") else f"[{key}]{node}" for key, node in hops)
    return " ".join([*nodes[:1], *named])


def value_name(enum: EnumDescriptor, number: int, prefix: str = "") -> str:
    """Return the name of an enum's value without a prefix: ``PLANNED`` for ``JOB_STATE_PLANNED``.

    A value that a newer controller sent is told as such: ``UNKNOWN_99``.
    """
    known = enum.values_by_number.get(number)
    return known.name.removeprefix(prefix) if known else f"UNKNOWN_{number}"
