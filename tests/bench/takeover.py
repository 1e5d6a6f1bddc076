"""From SIGKILL of the leader until its successor has asked every switch what it holds.

Two controllers share one Redis. Agents of 2,048 switches have connections of their own to both over
mTLS. The clock runs from the signal until the last agent has accepted the new leader's first push,
which asks what the switch holds and fences it. From then on the switch refuses whatever the old
leader may still have under way. The agents share a few processes, and everything shares this
machine.
The lease of the killed leader is part of the time, since no one may lead before it is over.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import structlog
from cryptography import x509

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_controller.store.redis.store import open_redis
from heddle_emulator.topology import clos
from tests.bench.rows import Row, Scale
from tests.bench.screen import Screen
from tests.integration.certifying import Authority, Pair
from tests.support.operating import Controller, controlling
from tests.support.redis_server import EVERY_SECOND, RedisServer
from tests.support.store_samples import demands

ROOT = Path(__file__).resolve().parents[2]
SPINES = 16
MOST_SECONDS = 2.0
RUNS = 3
CROWDS = 2
"""Processes that share the agents."""

Crowd = subprocess.Popen[str]


@dataclass(frozen=True, slots=True)
class Run:
    """One leader that was killed; times are seconds from the signal."""

    led: float
    """Until another controller led."""
    first: float
    """Until the first agent was asked."""
    last: float
    """Until the last agent was asked."""
    begun: int
    """Sessions that agents began anew meanwhile."""
    controller: float
    """Processor seconds of the new leader, until the last agent was asked."""
    agents: float
    """Processor seconds of all agents. In a fabric each has a processor of its own."""


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return one row."""
    switches = scale.push_leaves
    runs = 1 if scale.name == "quick" else RUNS
    with screen.progress(f"take-over with {switches:,} sessions over mTLS", runs) as advance:
        told = asyncio.run(_taken_over(switches, runs, advance))
    last = statistics.median(run.last for run in told)
    begun = sum(run.begun for run in told)
    whole = scale.name != "quick"
    led, controller, crowd = (
        statistics.median(getattr(run, name) for run in told)
        for name in ("led", "controller", "agents")
    )
    return [
        Row(
            f"SIGKILL of the leader to every switch asked, {switches:,} mTLS sessions",
            "Heddle",
            f"median {last:.2f} s, most {max(run.last for run in told):.2f} s;"
            f" {begun} sessions begun anew",
            f"<= {MOST_SECONDS:g} s, none anew" if whole else "",
            last <= MOST_SECONDS and not begun if whole else None,
            f"of these {led:.2f} s until another leads, of which the lease is 1.5 s at most;"
            f" processor of the controller {controller:.2f} s, of all agents {crowd:.2f} s, in"
            f" {CROWDS} processes on {os.cpu_count()} processors",
            {"runs": [asdict(run) for run in told]},
        )
    ]


async def _taken_over(switches: int, runs: int, advance: Any) -> list[Run]:
    spines = min(SPINES, switches // 4)
    fabric = clos(leaves=switches - spines, spines=spines, nics_per_leaf=1, nics_per_host=1)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="heddle-takeover-")))
        redis = stack.enter_context(RedisServer(folder / "redis", *EVERY_SECOND))
        await _furnish(redis, fabric)
        authority, server = _certify(folder / "tls", fabric)
        pair = House(folder, redis, authority, server, stack)
        for name in ("one", "two"):
            await pair.start(name)
        file = folder / "fabric.json"
        save_fabric_file(fabric, file)
        addresses = ",".join(one.address for one in pair.controllers.values())
        words = [str(file), str(folder / "tls"), addresses]
        crowds = [
            stack.enter_context(agents(*words, str(first), str(CROWDS))) for first in range(CROWDS)
        ]
        told = []
        for _ in range(runs):
            told.append(await _killed(pair, crowds))
            advance(1)
        return told


class House:
    """Two controllers; each may be killed and started again."""

    def __init__(
        self,
        folder: Path,
        redis: RedisServer,
        authority: Authority,
        server: Pair,
        stack: AsyncExitStack,
    ) -> None:
        self.controllers: dict[str, Controller] = {}
        self._folder, self._stack, self._url = folder, stack, redis.url
        self._tls = (
            *("--tls-cert", str(server.cert), "--tls-key", str(server.key)),
            *("--tls-client-ca", str(authority.ca)),
        )

    async def start(self, name: str) -> None:
        """Start a controller. One that ran before gets the same address again."""
        folder = self._folder / name
        await asyncio.to_thread(folder.mkdir, exist_ok=True)
        words = ["--store", self._url, "--controller-id", name, "--log-format", "json", *self._tls]
        if name in self.controllers:
            words += ["--listen", self.controllers[name].address]
        started = controlling(folder, *words)
        self.controllers[name] = await self._stack.enter_async_context(started)

    def led(self) -> tuple[str, int, float]:
        """Return the last leader, its epoch, and the Unix time from which it led, from the logs."""
        found = []
        for name, controller in self.controllers.items():
            for line in controller.log.read_text().splitlines():
                record = json.loads(line) if line.startswith("{") else {}
                if record.get("event") == "leading":
                    found.append((int(record["epoch"]), name, _seconds(record["timestamp"])))
        epoch, name, at = max(found)
        return name, epoch, at


async def _killed(pair: House, crowds: Sequence[Crowd]) -> Run:
    before = await _asked(crowds, "up")
    name, epoch, _ = pair.led()
    await _asked(crowds, f"over {epoch - 1}")  # the current leader has asked every switch
    process = pair.controllers[name].process
    (other,) = (one for key, one in pair.controllers.items() if key != name)
    leads = psutil.Process(other.process.pid)
    follow = [psutil.Process(crowd.pid) for crowd in crowds]
    spent = [_processor_seconds([leads]), _processor_seconds(follow)]
    at = time.time()
    process.send_signal(signal.SIGKILL)
    after = await _asked(crowds, f"over {epoch}")
    took = _processor_seconds([leads]) - spent[0], _processor_seconds(follow) - spent[1]
    _, _, led = pair.led()
    await process.wait()
    await pair.start(name)
    times = [at for one in after for at in one["times"]]
    begun = sum(one["sessions"] for one in after) - sum(one["sessions"] for one in before)
    return Run(led - at, min(times) - at, max(times) - at, begun, *took)


def _processor_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return the processor seconds of some processes so far."""
    times = [process.cpu_times() for process in processes]
    return float(sum(one.user + one.system for one in times))


async def _asked(crowds: Sequence[Crowd], question: str) -> list[dict[str, Any]]:
    """Ask all agents, and return the answer of each process."""
    for crowd in crowds:
        assert crowd.stdin is not None
        crowd.stdin.write(question + "\n")
        crowd.stdin.flush()
    return [json.loads(await asyncio.to_thread(_line, crowd)) for crowd in crowds]


def _line(crowd: Crowd) -> str:
    assert crowd.stdout is not None
    return crowd.stdout.readline()


async def _furnish(redis: RedisServer, fabric: Fabric) -> None:
    """Put a fabric into the store, and a few demands to plan."""
    store = await open_redis(redis.url)
    await store.put_fabric("f1", fabric)
    nics = [fabric.structure.nodes.ids[row] for row in fabric.rows_of_kind(NodeKind.NIC)]
    await store.put_demands("f1", "d", demands((nics[0], nics[1]), (nics[2], nics[3])))
    await store.close()


def _certify(folder: Path, fabric: Fabric) -> tuple[Authority, Pair]:
    """Make an authority, the controllers' certificate, and one for each switch."""
    authority = Authority(folder)
    server = authority.issue("server", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    nodes = fabric.structure.nodes
    for row, switch in enumerate(nodes.ids):
        if nodes.kind[row] != NodeKind.NIC:
            authority.role(f"agent/f1/{switch}")
    return authority, server


@contextmanager
def agents(*words: str) -> Iterator[Crowd]:
    """Run a process with some of the agents; for ``words`` see ``takeover_agents``."""
    command = [sys.executable, "-m", "tests.bench.takeover_agents", *words]
    env = {**os.environ, "GRPC_VERBOSITY": "ERROR"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT, env=env, text=True) as run:
        try:
            yield run
        finally:
            run.kill()


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
