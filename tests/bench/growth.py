"""How time and memory grow from 3,072 to 98,304 NICs, with ever more zones of one shape.

Each size runs in a process of its own, since the peak memory of a process never falls. The peak is
of the whole process, including Python, libraries, fabric and flows.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from heddle_controller.model.fabric import NodeKind
from tests.bench.full_plan import timed
from tests.bench.rows import DEFAULT, Row, Scale
from tests.bench.screen import Screen
from tests.bench.workloads import published_zones, zone_traffic

MOST_EXPONENT = 1.1
MOST_MEBIBYTES = 1024
ROUNDS = 5
CHILD_SECONDS = 600
KIBIBYTES = 1024
"""Kibibytes in a mebibyte."""


@dataclass(frozen=True, slots=True)
class Size:
    """What planning one size took."""

    nics: int
    flows: int
    seconds: float
    """Seconds of the fastest run, so that other work on the machine does not count."""
    mebibytes: float
    """Peak memory of the process, planning included."""
    before: float
    """Peak memory of the process before planning, with fabric and flows in it."""


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return a row for time, whose note lists every size, and one for memory."""
    sizes: list[Size] = []
    with screen.progress("growth", len(scale.growth_zones)) as advance:
        for zones in scale.growth_zones:
            sizes.append(in_child(zones, scale.zone))
            advance(len(sizes))
    title = f"growth, {sizes[0].nics:,} to {sizes[-1].nics:,} NICs"
    power = exponent(sizes)
    at = next((one for one in sizes if one.nics >= _judged(scale)), sizes[-1])
    told = ", ".join(f"{one.nics:,}: {one.seconds:.2f} s {one.mebibytes:.0f} MiB" for one in sizes)
    return [
        Row(
            title,
            "Heddle, time",
            f"n^{power:.2f}",
            f"<= n^{MOST_EXPONENT}",
            power <= MOST_EXPONENT,
            told,
            {"exponent": power, "sizes": {one.nics: one.seconds for one in sizes}},
        ),
        Row(
            title,
            f"  memory at {at.nics:,} NICs",
            f"{at.mebibytes:.0f} MiB",
            f"< {MOST_MEBIBYTES} MiB",
            at.mebibytes < MOST_MEBIBYTES,
            f"whole process; {at.before:.0f} MiB of it before planning",
            {"mebibytes": {one.nics: one.mebibytes for one in sizes}},
        ),
    ]


def _judged(scale: Scale) -> int:
    """Return the number of NICs at which memory has a target, as in the other measurements."""
    leaves, _, nics = scale.zone
    return scale.zones * leaves * nics


def exponent(sizes: list[Size]) -> float:
    """Return the power of the number of NICs by which time grows.

    It is the slope of a line through all sizes, with both axes logarithmic.
    """
    x, y = np.log([one.nics for one in sizes]), np.log([one.seconds for one in sizes])
    return float(np.polyfit(x, y, 1)[0])


def in_child(zones: int, zone: tuple[int, int, int]) -> Size:
    """Measure one size in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.growth", str(zones), *map(str, zone)]
    done = subprocess.run(
        command,
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        check=False,
        text=True,
        timeout=CHILD_SECONDS,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise RuntimeError(f"planning {zones} zones failed: {''.join(last)}")
    return Size(**json.loads(done.stdout))


def here(zones: int, zone: tuple[int, int, int]) -> Size:
    """Measure one size in this process."""
    fabric = published_zones(replace(DEFAULT, zone=zone), zones)
    flows = zone_traffic(fabric, 0)
    before = _peak()
    seconds = [timed(fabric, flows)[0] for _ in range(ROUNDS)]
    nics = len(fabric.rows_of_kind(NodeKind.NIC))
    return Size(nics, len(flows), min(seconds), _peak(), before)


def _peak() -> float:
    """Return the peak memory of this process in MiB. That of its parent does not count."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / KIBIBYTES
    raise RuntimeError("this system does not tell the peak memory of a process")


if __name__ == "__main__":
    count, leaves, spines, nics_per_leaf = map(int, sys.argv[1:])
    measured = here(count, (leaves, spines, nics_per_leaf))
    sys.stdout.write(json.dumps({name: getattr(measured, name) for name in Size.__slots__}))
