"""GPU numbers of a host as people and schedulers write them: ``0-3,6``."""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_GPUS = 1024
"""Most GPUs of one host; a greater number must be a mistake."""
_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def parse_gpus(text: str) -> tuple[int, ...]:
    """Return the GPUs that a list of numbers and ranges names, in the order of the list.

    Raises:
        ValueError: The text is no such list; the message names the cure.
    """
    found: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if not match:
            raise ValueError(f"{text[:80]!r} is no list of GPUs; write 0-3 or 0,2,4-7")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise ValueError(f"{text[:80]!r} runs backwards; put the lesser number first")
        if last >= MAX_GPUS:
            raise ValueError(f"GPU {last} is none; GPUs are numbered 0 to {MAX_GPUS - 1}")
        found += range(first, last + 1)
        if len(found) > MAX_GPUS:
            raise ValueError(f"{text[:80]!r} names a GPU twice; name each once")
    return tuple(found)


def gpu_ranges(gpus: Sequence[int]) -> str:
    """Write GPUs, in their order, as a list of numbers and ranges: ``0-3,6``."""
    runs: list[list[int]] = []
    for gpu in gpus:
        if runs and gpu == runs[-1][-1] + 1:
            runs[-1].append(gpu)
        else:
            runs.append([gpu])
    return ",".join(f"{run[0]}-{run[-1]}" if run[1:] else str(run[0]) for run in runs)
