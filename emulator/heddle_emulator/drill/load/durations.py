"""Times and quantities as files write them."""

from __future__ import annotations

import re

_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|min|h)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
CURE = "give a number and its unit, such as 10ms or 1.5s"


def seconds(value: object) -> float | None:
    """Seconds of "10ms" or "1.5 s"; 0 may stand without a unit; None if it is neither."""
    if value == 0 and type(value) in {int, float}:
        return 0.0
    match = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    return float(match[1]) * _SECONDS[match[2]] if match else None
