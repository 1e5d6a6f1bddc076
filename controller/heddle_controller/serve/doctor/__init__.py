"""Diagnoses: what is wrong with a job or an installation, and what to do about it.

This module has the helpers that put findings into words.
"""

from __future__ import annotations

from heddle.v1 import doctor_pb2 as pb
from heddle_controller.serve.codec import times

TOLD = 20
"""Most findings of one kind."""


def found(severity: pb.Severity.ValueType, about: str, text: str, cure: str = "") -> pb.Finding:
    """Return a finding; ``cure`` says what to do about it."""
    return pb.Finding(severity=severity, about=about, text=text, cure=cure)


def since(time: float) -> str:
    """Return `` since ...`` for a Unix time; empty if the time is 0, which means unknown."""
    return f" since {times.time_text(times.time_to_pb(time))}" if time else ""
