"""The lab: the same fabrics with real kernels, FRR and packets, on one machine.

Import its rooms by name; this one imports nothing, as probes are started from it and must be
there at once.
"""

from __future__ import annotations


class LabError(RuntimeError):
    """The lab cannot be built or used as things are; the message says what would cure it."""
