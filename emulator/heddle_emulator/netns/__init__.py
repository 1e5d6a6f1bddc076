"""The lab: fabrics of real kernels, FRR and packets, on one machine.

Import its modules by name. This package imports nothing itself, because probes start from it and
must be ready at once.
"""

from __future__ import annotations


class LabError(RuntimeError):
    """The lab cannot be built or used in the present state. The message says what is wrong."""
