"""Diagnoses: what is wrong with a job or an installation, and what to do about it.

This module has the helpers that put findings into words.
"""

from __future__ import annotations

from collections.abc import Sequence

from heddle.v1 import doctor_pb2 as pb
from heddle_controller.serve.codec import common

NAMES_PER_FINDING = 5
"""Most things that one finding names."""
TOLD = 20
"""Most findings of one kind."""


def found(severity: pb.Severity.ValueType, about: str, text: str, cure: str = "") -> pb.Finding:
    """Return a finding; ``cure`` says what to do about it."""
    return pb.Finding(severity=severity, about=about, text=text, cure=cure)


def many(count: int, one: str, several: str) -> str:
    """Return a count with its noun, such as ``1 flow`` or ``2 flows``."""
    return f"1 {one}" if count == 1 else f"{count:,} {several}"


def some(names: Sequence[str], between: str = ", ") -> str:
    """Return the first names and how many there are more, such as ``a, b and 3 more``."""
    more = f" and {len(names) - NAMES_PER_FINDING} more" if len(names) > NAMES_PER_FINDING else ""
    return f"{between.join(names[:NAMES_PER_FINDING])}{more}"


def since(time: float) -> str:
    """Return `` since ...`` for a Unix time; empty if the time is 0, which means unknown."""
    return f" since {common.time_text(common.time_to_pb(time))}" if time else ""
