"""Byte counts as people write them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:[eE]\+?[0-9]+)?)\s*([kKMGT]i?)?B?")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


def size_of(text: str) -> float | None:
    """Return the bytes that a text such as 1048576, 64MiB or 1.5GB means; None if it is no size."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        return None
    base = 1024 if (match[2] or "").endswith("i") else 1000
    return float(match[1]) * float(base) ** _POWERS.get((match[2] or "")[:1].lower(), 0)
