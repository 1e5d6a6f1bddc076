"""The command line of the bench: measure, print the table, write bench.json.

A missed target is shown in the table but is not an error: the exit code is 0 if everything could be
measured.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from heddle.client import HeddleError
from heddle_emulator.netns import LabError
from tests.bench.admission import measure as admission
from tests.bench.after_loss import measure as after_loss
from tests.bench.arrival import measure as arrival
from tests.bench.campaign import measure as campaign
from tests.bench.collectives import measure as collectives
from tests.bench.dataplane import measure as dataplane
from tests.bench.dual_tor import measure as dual_tor
from tests.bench.event import measure as event
from tests.bench.few_moves import measure as few_moves
from tests.bench.flat_graphs import measure as flat_graphs
from tests.bench.fluid import measure as fluid
from tests.bench.full_plan import measure as full_plan
from tests.bench.gaps import measure as gaps
from tests.bench.growth import measure as growth
from tests.bench.hash_seeds import measure as hash_seeds
from tests.bench.hash_shapes import measure as hash_shapes
from tests.bench.hashing import measure as hashing
from tests.bench.health import measure as health
from tests.bench.healthy import measure as healthy
from tests.bench.hostile import measure as hostile
from tests.bench.loading import measure as loading
from tests.bench.many_jobs import measure as many_jobs
from tests.bench.nic_ports import measure as nic_ports
from tests.bench.nic_repair import measure as nic_repair
from tests.bench.opensm import OpensmError
from tests.bench.page import measure as page
from tests.bench.placing import measure as placing
from tests.bench.prolog import measure as prolog
from tests.bench.published import measure as published
from tests.bench.push import measure as push
from tests.bench.queues import measure as queues
from tests.bench.race import measure as race
from tests.bench.reads import measure as reads
from tests.bench.recommend import measure as recommend
from tests.bench.repair import measure as repair
from tests.bench.rows import DEFAULT, FULL, QUICK, Row, Scale
from tests.bench.same_world import measure as same_world
from tests.bench.screen import Screen
from tests.bench.sonic import measure as sonic
from tests.bench.submits import measure as submits
from tests.bench.takeover import measure as takeover
from tests.bench.turns import measure as turns
from tests.bench.viewers import measure as viewers

FAILED, INTERRUPTED = 1, 130
MEASURES: Mapping[str, Callable[[Scale, Screen], list[Row]]] = {
    "healthy": healthy,
    "dual-tor": dual_tor,
    "gaps": gaps,
    "flat-graphs": flat_graphs,
    "hashing": hashing,
    "hash-seeds": hash_seeds,
    "hash-shapes": hash_shapes,
    "nic-ports": nic_ports,
    "plan": full_plan,
    "repair": repair,
    "after-loss": after_loss,
    "arrival": arrival,
    "growth": growth,
    "loading": loading,
    "many-jobs": many_jobs,
    "placing": placing,
    "few-moves": few_moves,
    "recommend": recommend,
    "health": health,
    "push": push,
    "take-over": takeover,
    "event": event,
    "submits": submits,
    "prolog": prolog,
    "admission": admission,
    "hostile": hostile,
    "reads": reads,
    "viewers": viewers,
    "page": page,
    "fluid": fluid,
    "queues": queues,
    "published": published,
    "collectives": collectives,
    "turns": turns,
    "campaign": campaign,
    "race": race,
    "dataplane": dataplane,
    "same-world": same_world,
    "nic-repair": nic_repair,
    "sonic": sonic,
}
"""The measurements by name, in the order of the table."""


def main(out: Path, arguments: Sequence[str]) -> int:
    """Run one command line and return the exit code."""
    options = _parser(out).parse_args(arguments)
    scale = QUICK if options.quick else FULL if options.full else DEFAULT
    screen = Screen()
    gc.freeze()  # imported objects live on; scanning them takes time
    try:
        rows, seconds = _measured(options.only or MEASURES, scale, screen)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (HeddleError, LabError, OpensmError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return FAILED
    screen.table(rows)
    screen.verdict(rows)
    _write(options.out, scale, rows, seconds)
    return 0


def _measured(
    names: Iterable[str], scale: Scale, screen: Screen
) -> tuple[list[Row], dict[str, float]]:
    """Return all rows, and how many seconds each measurement took."""
    rows: list[Row] = []
    seconds: dict[str, float] = {}
    for name in names:
        begin = time.perf_counter()
        rows += MEASURES[name](scale, screen)
        seconds[name] = time.perf_counter() - begin
    return rows, seconds


def _parser(out: Path) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tests/bench/run.py", description="Heddle and its peers side by side."
    )
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--quick", action="store_true", help="a little of everything, tiny fabrics")
    amount.add_argument("--full", action="store_true", help="more seeds, OpenSM at 24,576 hosts")
    parser.add_argument("--only", action="append", choices=[*MEASURES], help="may be repeated")
    parser.add_argument("--out", type=Path, default=out, help="where to write the figures as JSON")
    return parser


def _write(out: Path, scale: Scale, rows: Sequence[Row], seconds: Mapping[str, float]) -> None:
    document: dict[str, Any] = {
        "scale": scale.name,
        "seconds": seconds,
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load_average": os.getloadavg(),
        "rows": [row.record() for row in rows],
    }
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
    out.write_bytes(orjson.dumps(document, option=options))
