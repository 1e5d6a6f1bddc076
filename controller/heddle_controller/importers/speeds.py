"""Link speeds as people write them: 400, "400G", "100 Gb/s", "1.6T", "50GB/s"."""

from __future__ import annotations

import math
import re
from typing import TypeGuard

UNITS = {"bps": 1e-9, "K": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3}
"""Gbit/s in one of each unit."""

SUSPICIOUS = 1e6
"""Gbit/s above which a bare number was most likely in another unit."""

_CURE = "write one above 0 such as 400, '400G' or '1.6T'"
_TEXT = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*(?P<prefix>[kKmMgGtT])?(?P<bit>b|B|bits?|bE)?(?:ps|/s)?"
)


def gbps_of(value: object, unit: str) -> float:
    """A speed in Gbit/s; a number without a unit is in ``unit`` (a key of ``UNITS``).

    Raises:
        ValueError: in words, for what is no finite speed above 0.
    """
    if isinstance(value, str):
        number, scale = _parsed(value)
    else:
        number, scale = float(value) if _is_number(value) else math.nan, None
    gbps = number * (UNITS[unit] if scale is None else scale)
    if not (math.isfinite(gbps) and gbps > 0):
        raise ValueError(f"{str(value)[:40]!r} is not a speed; {_CURE}")
    if scale is None and gbps > SUSPICIOUS:
        raise ValueError(
            f"{value} would be {gbps:g} Gbit/s; tell the unit of bare numbers (speed_unit=bps?)"
        )
    return gbps


def _parsed(text: str) -> tuple[float, float | None]:
    """Number and Gbit/s of its unit, None where it has none; NaN for what is no speed."""
    match = _TEXT.fullmatch(text.strip())
    if not match:
        return math.nan, None
    number = float(match["number"])
    if not (match["prefix"] or match["bit"]):
        return number, None
    prefix = match["prefix"].upper() if match["prefix"] else "bps"
    return number, UNITS[prefix] * (8 if match["bit"] == "B" else 1)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
