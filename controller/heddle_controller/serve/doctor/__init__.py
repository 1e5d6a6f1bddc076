"""What is wrong, and what to do about it.

How findings are put into words.
"""

from __future__ import annotations

from collections.abc import Sequence

from heddle.v1 import doctor_pb2 as pb
from heddle_controller.serve.codec import common

NAMES_PER_FINDING = 5
"""Things that one finding names."""
TOLD = 20
"""Findings of one kind, at most."""


def found(severity: pb.Severity.ValueType, about: str, text: str, cure: str = "") -> pb.Finding:
    """A finding, and what to do about it."""
    return pb.Finding(severity=severity, about=about, text=text, cure=cure)


def many(count: int, one: str, several: str) -> str:
    """``1 flow``, ``2 flows``."""
    return f"1 {one}" if count == 1 else f"{count:,} {several}"


def some(names: Sequence[str], between: str = ", ") -> str:
    """``a, b and 3 more``."""
    more = f" and {len(names) - NAMES_PER_FINDING} more" if len(names) > NAMES_PER_FINDING else ""
    return f"{between.join(names[:NAMES_PER_FINDING])}{more}"


def since(time: float) -> str:
    """`` since ...``; empty where that is not known."""
    return f" since {common.time_text(common.time_to_pb(time))}" if time else ""
