"""From a plan's entries to the last acknowledgement: every leaf of a large fabric at once.

131,072 entries for 2,048 agents over loopback: each agent has a session of its own, as it would
from its switch, and its table in memory; all of them share one process, and the controller's
services another. The clock runs from the first batch handed to the gateway until the last agent has
said that its table forwards by it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import structlog

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_controller.model.program import Entries, no_entries
from heddle_controller.reconcile.southbound import Push, PushMode, PushReport
from heddle_emulator.topology import clos
from tests.bench.rows import Row, Scale, spread
from tests.bench.screen import Screen
from tests.integration.serving import Serving, serving
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SPINES = 16
EACH = 64
"""Entries of a leaf."""
MOST_SECONDS = 0.5
MOST_BYTES = 1 << 30
FIRST_PORT = 49152


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """One row of time, one of memory."""
    leaves = scale.push_leaves
    with screen.progress(f"{leaves * EACH:,} entries to {leaves:,} agents", 1) as advance:
        seconds, peak = asyncio.run(_pushed(leaves, scale.plan_runs))
        advance(1)
    title = f"{leaves * EACH:,} entries pushed to {leaves:,} agents and acknowledged"
    told = spread(seconds)
    whole = scale.name != "quick"
    return [
        Row(
            title,
            "Heddle",
            f"median {told['median']:.2f} s, p99 {told['p99']:.2f} s",
            f"< {MOST_SECONDS:g} s" if whole else "",
            told["median"] < MOST_SECONDS if whole else None,
            "all agents in one process over loopback",
            {"seconds": told},
        ),
        Row(
            title,
            "Heddle",
            f"{peak / 2**20:.0f} MiB at most in the controller's process",
            f"< {MOST_BYTES / 2**30:g} GiB" if whole else "",
            peak < MOST_BYTES if whole else None,
            data={"bytes": peak},
        ),
    ]


async def _pushed(leaves: int, runs: int) -> tuple[list[float], int]:
    """Seconds of each run, and the most memory that this process ever had."""
    fabric = clos(leaves=leaves, spines=SPINES, nics_per_leaf=1, nics_per_host=1)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder)) as s:
            await s.put_fabric(fabric)
            file = Path(folder, "fabric.json")
            save_fabric_file(fabric, file)
            with agents(s.api.port, file):
                await until(lambda: len(s.gateway.sessions("f1")) == leaves, seconds=120.0)
                gc.collect()
                gc.freeze()
                seconds = [await _run(s, fabric, run) for run in range(1, runs + 1)]
    return seconds, _peak()


async def _run(s: Serving, fabric: Fabric, generation: int) -> float:
    """Move every entry of every leaf to another uplink, and wait for all acknowledgements."""
    sessions = s.gateway.sessions("f1")
    batches = {
        switch: Push(
            mode=PushMode.INCREMENTAL,
            epoch=1,
            generation=generation,
            fabric=fabric,
            sets=entries(fabric, switch, generation),
            deletes=no_entries(),
            completes_generation=True,
        )
        for switch in sessions
    }
    begin = time.perf_counter()
    pushes = (s.gateway.push(sessions[switch], push) for switch, push in batches.items())
    reports: list[PushReport] = await asyncio.gather(*pushes)
    took = time.perf_counter() - begin
    failed = [r for r in reports if r.fib is None or r.failures]
    assert not failed, failed[0]
    return took


def entries(fabric: Fabric, switch: str, shift: int) -> Entries:
    """Entries of a leaf: from its NIC to those of the next leaves, spread over its uplinks."""
    structure = fabric.structure
    row = structure.index[switch]
    first, arcs = structure.out
    own = arcs[first[row] : first[row + 1]]
    at_nic = structure.nodes.kind[structure.head[own]] == NodeKind.NIC
    nic, ways, count = int(structure.head[own[at_nic]][0]), own[~at_nic], np.arange(EACH)
    nics = fabric.rows_of_kind(NodeKind.NIC)
    steps = 1 + count % (len(nics) - 1)
    others = nics[(np.searchsorted(nics, nic) + steps) % len(nics)]
    primary, backup = (ways[(count + shift + n) % len(ways)] for n in range(2))
    risks = [_link(fabric, arc, nic) for arc, nic in zip(primary, others, strict=True)]
    spare = [~_link(fabric, arc, nic) for arc, nic in zip(backup, others, strict=True)]
    zeros = np.zeros(EACH, dtype=np.int64)
    return Entries(
        switch=zeros + row,
        source=zeros + nic,
        destination=others,
        source_port=FIRST_PORT + count,
        destination_port=zeros,
        primary=primary,
        backup=backup,
        stage=zeros,
        risk_first=np.arange(0, 2 * EACH + 1, 2),
        risk_links=np.stack([risks, spare], axis=1).ravel(),
    )


def _link(fabric: Fabric, uplink: int, nic: int) -> int:
    """The link by which the spine at the end of an uplink reaches a NIC's leaf."""
    structure = fabric.structure
    first, arcs = structure.out
    leaf, spine = int(structure.head[arcs[first[nic]]]), int(structure.head[uplink])
    return structure.links_between[min(leaf, spine), max(leaf, spine)][0]


@contextmanager
def agents(port: int, file: Path) -> Iterator[None]:
    """The agents of all leaves, in a process of their own."""
    words = [sys.executable, "-m", "tests.bench.push_agents", f"127.0.0.1:{port}", str(file)]
    env = {**os.environ, "GRPC_VERBOSITY": "ERROR"}
    with subprocess.Popen(words, stdin=subprocess.PIPE, cwd=ROOT, env=env) as run:
        try:
            yield
        finally:
            run.kill()


def _peak() -> int:
    """The most memory that this process ever had, bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024
