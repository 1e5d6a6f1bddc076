"""From a plan's entries to the last acknowledgement, for every leaf of a large fabric at once.

131,072 entries go to 2,048 agents over loopback. Each agent has a session of its own, as agents on
separate switches would. The clock runs from the first batch given to the gateway until the last
agent has confirmed that its table forwards by the entries. The first push of a session carries the
names that later ones refer to by number. It is among the runs, and also shown separately. The
processor time of each side tells which of the two is the limit. The same push to agents that have
no table and only acknowledge tells what the controller needs, since real switches have processors
of their own.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_controller.model.program import Entries, no_entries
from heddle_controller.reconcile.ports import Push, PushMode, PushReport
from heddle_emulator.topology import clos
from tests.bench.rows import Row, Scale, spread
from tests.bench.screen import Screen
from tests.support.serving import Serving, serving
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SPINES = 16
EACH = 64
"""Entries of a leaf."""
MOST_SECONDS = 0.5
MOST_BYTES = 1 << 30
FIRST_PORT = 49152


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return a row of time, one of time with agents that have no tables, and one of memory."""
    leaves = scale.push_leaves
    with screen.progress(f"{leaves * EACH:,} entries to {leaves:,} agents", 2) as advance:
        runs, peak = asyncio.run(_pushed(leaves, scale.plan_runs, bare=False))
        advance(1)
        alone, _ = asyncio.run(_pushed(leaves, scale.plan_runs, bare=True))
        advance(1)
    title = f"{leaves * EACH:,} entries pushed to {leaves:,} agents and acknowledged"
    told = spread([run.seconds for run in runs])
    whole = scale.name != "quick"
    return [
        Row(
            title,
            "Heddle",
            f"median {told['median']:.2f} s, p99 {told['p99']:.2f} s",
            f"< {MOST_SECONDS:g} s" if whole else "",
            told["median"] < MOST_SECONDS if whole else None,
            f"all agents in one process over loopback; the first, with all names, "
            f"{runs[0].seconds:.2f} s; {_processors(runs)}",
            {"seconds": told, "first_seconds": runs[0].seconds, **_data(runs)},
        ),
        Row(
            title,
            "Heddle, agents without tables",
            f"median {spread([run.seconds for run in alone])['median']:.2f} s",
            note=f"they only acknowledge; {_processors(alone)}",
            data={"seconds": spread([run.seconds for run in alone]), **_data(alone)},
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


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds of one push."""

    seconds: float
    """From the first batch to the last answer."""
    controller: float
    """Processor seconds of the controller's process."""
    agents: float
    """Processor seconds of the agents' process."""


def _processors(runs: list[Run]) -> str:
    """Describe the processor time of each side."""
    controller, agents = (statistics.median(column) for column in _columns(runs).values())
    return f"processors: controller {controller:.2f} s, agents {agents:.2f} s"


def _columns(runs: list[Run]) -> dict[str, list[float]]:
    return {
        "controller_processor_seconds": [run.controller for run in runs],
        "agents_processor_seconds": [run.agents for run in runs],
    }


def _data(runs: list[Run]) -> dict[str, Any]:
    return {name: spread(column) for name, column in _columns(runs).items()}


async def _pushed(leaves: int, runs: int, *, bare: bool) -> tuple[list[Run], int]:
    """Return each run, and the peak memory of this process in bytes."""
    fabric = clos(leaves=leaves, spines=SPINES, nics_per_leaf=1, nics_per_host=1)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder)) as s:
            await s.put_fabric(fabric)
            file = Path(folder, "fabric.json")
            save_fabric_file(fabric, file)
            with agents(s.api.port, file, bare=bare) as process:
                await until(lambda: len(s.gateway.sessions("f1")) == leaves, seconds=120.0)
                gc.collect()
                gc.freeze()
                told = [await _run(s, fabric, run, process) for run in range(1, runs + 1)]
    return told, _peak()


async def _run(s: Serving, fabric: Fabric, generation: int, process: int) -> Run:
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
    before = _processor_seconds(process)
    begin, own = time.perf_counter(), time.process_time()
    pushes = (s.gateway.push(sessions[switch], push) for switch, push in batches.items())
    reports: list[PushReport] = await asyncio.gather(*pushes)
    took = Run(
        time.perf_counter() - begin,
        time.process_time() - own,
        _processor_seconds(process) - before,
    )
    failed = [r for r in reports if r.fib is None or r.failures]
    assert not failed, failed[0]
    return took


def entries(fabric: Fabric, switch: str, shift: int) -> Entries:
    """Return entries of a leaf from its NIC to those of the next leaves, spread over its uplinks.

    ``shift`` moves each entry to another uplink.
    """
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
    """Return the link from the spine at the end of an uplink to the leaf of a NIC."""
    structure = fabric.structure
    first, arcs = structure.out
    leaf, spine = int(structure.head[arcs[first[nic]]]), int(structure.head[uplink])
    return structure.links_between[min(leaf, spine), max(leaf, spine)][0]


@contextmanager
def agents(port: int, file: Path, *, bare: bool) -> Iterator[int]:
    """Run the agents of all leaves in a process of their own, and yield its id.

    Bare agents have no tables.
    """
    words = [sys.executable, "-m", "tests.bench.push_agents", f"127.0.0.1:{port}", str(file)]
    words += ["--bare"] if bare else []
    env = {**os.environ, "GRPC_VERBOSITY": "ERROR"}
    with subprocess.Popen(words, stdin=subprocess.PIPE, cwd=ROOT, env=env) as run:
        try:
            yield run.pid
        finally:
            run.kill()


def _processor_seconds(process: int) -> float:
    """Return the processor seconds of all threads of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak() -> int:
    """Return the peak memory of this process in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024
