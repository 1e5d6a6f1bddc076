"""What goes wrong with the lab, in one line that names the cure."""

from __future__ import annotations


class LabError(RuntimeError):
    """The lab cannot be built or used as things are; the message says what would cure it."""
