"""Where the soak takes place: a house on either store, and what it looks like at a moment.

A house is a set of controllers with their store and the agents of all switches.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import signal
import sqlite3
import statistics
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import redis

from heddle_controller.state.plans import REMEMBERED
from heddle_emulator.fleet import Fleet
from tests.support.redis_server import RedisServer
from tests.support.replicating import NAME, SECONDS, House, Replica, replicated, small_fabric

LOGS = ("log", "requests", "order", "audit")
"""Logs of the store, which it limits to a number of records. Its own tests check that."""
LOOKING = 0.5
"""Seconds within which a controller collects its garbage."""
COLUMNS = ("memory", "files", "tasks", "rows", "stored", "own", "own_files", "own_tasks")
SLACK = {
    "memory": 12.0,
    "files": 6,
    "tasks": 12,
    "rows": 60,
    "stored": 4.0,
    "own": 16.0,
    "own_files": 12,
    "own_tasks": 16,
}
"""By how much a column may be higher in the end than in the middle, beside a tenth of it."""
_GAUGE = re.compile(r"^(\w+) ([0-9.e+]+)$", re.MULTILINE)
_SIZES = {
    b"hash": "HLEN",
    b"stream": "XLEN",
    b"zset": "ZCARD",
    b"list": "LLEN",
    b"set": "SCARD",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of one moment."""

    seconds: float
    events: int
    generation: int
    memory: float
    """MiB of the controller that stays. The next two are also of that controller."""
    files: int
    tasks: int
    rows: int
    """Things in the store: keys and what is in them, or rows of all tables.

    ``LOGS`` and the kept summaries of plans do not count.
    """
    stored: float
    """MiB of the store, in memory for Redis or on disk for the file."""
    own: float
    """MiB of this process, with all agents, clients and links. The next two are also of it."""
    own_files: int
    own_tasks: int


class Alone(House):
    """One controller on the embedded store; its Redis is never started."""

    @property
    def file(self) -> Path:
        """The store's file."""
        return self.folder / "heddle.sqlite3"

    async def another(self, *options: str) -> Replica:
        """Start the controller. There may be only one at a time."""
        return await super().another(*options, "--store", f"sqlite:///{self.file}")


@asynccontextmanager
async def alone(folder: Path) -> AsyncIterator[Alone]:
    """Run one controller on the embedded store, and agents of all switches."""
    async with AsyncExitStack() as stack:
        house = Alone(folder, RedisServer(folder / "redis"), small_fabric(), stack)
        stack.callback(house.redis.close)
        replica = await house.another()
        client = await house.client(replica)
        await client.put_fabric(house.fabric)
        house.fleet = await stack.enter_async_context(
            Fleet(house.fabric, [replica.address], name=NAME)
        )
        await house.fleet.connected(SECONDS)
        yield house


@asynccontextmanager
async def housed(folder: Path, store: str) -> AsyncIterator[House]:
    """Run a house on a store: ``redis`` with two controllers, or ``sqlite`` with one."""
    async with replicated(folder) if store == "redis" else alone(folder) as house:
        yield house


def gauges(replica: Replica) -> dict[str, float]:
    """Return the metrics of a controller that have no labels, and the plan's generation."""
    port = replica.controller.metrics_port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    plan = re.search(r"^heddle_plan_generation\{[^}]*\} ([0-9.e+]+)$", text, re.MULTILINE)
    found = {name: float(value) for name, value in _GAUGE.findall(text)}
    return found | ({"generation": float(plan[1])} if plan else {})


def stored(house: House) -> tuple[int, float]:
    """Return how many things are in the store, and how many MiB they take."""
    if isinstance(house, Alone):
        return _rows(house.file), sum(
            path.stat().st_size for path in house.folder.glob("heddle.sqlite3*")
        ) / 2**20
    with closing(redis.Redis(unix_socket_path=str(house.redis.socket))) as client:
        info: Any = client.info("memory")
        return sum(_size(client, key) for key in client.scan_iter()), info["used_memory"] / 2**20


def _size(client: Any, key: bytes) -> int:
    """Return one for a key, plus the number of things in it."""
    if key.decode().rpartition(":")[2] in LOGS:
        return 1
    command = _SIZES.get(client.type(key))
    return 1 + (int(client.execute_command(command, key)) if command else 0)


def _rows(file: Path) -> int:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        told = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        names = [name for (name,) in told if name not in LOGS]
        return sum(
            connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names
        )


async def measure(house: House, replica: Replica, seconds: float, events: int) -> Sample:
    """Take a sample, once the controller has collected its garbage."""
    replica.signal(signal.SIGUSR2)
    await asyncio.sleep(LOOKING)
    gc.collect()
    told = await asyncio.to_thread(gauges, replica)
    rows, size = await asyncio.to_thread(stored, house)
    process, generation = psutil.Process(), int(told.get("generation", 0))
    return Sample(
        seconds=seconds,
        events=events,
        generation=generation,
        memory=told["process_resident_memory_bytes"] / 2**20,
        files=int(told["process_open_fds"]),
        tasks=int(told["heddle_event_loop_tasks"]),
        rows=rows - min(generation, REMEMBERED),
        stored=size,
        own=process.memory_info().rss / 2**20,
        own_files=process.num_fds(),
        own_tasks=len(asyncio.all_tasks()),
    )


def growth(samples: Sequence[Sample]) -> list[str]:
    """Return columns that are higher in the last quarter than in the second, beyond their slack."""
    quarter = max(1, len(samples) // 4)
    found = []
    for column in COLUMNS:
        middle, last = (
            statistics.median(float(getattr(sample, column)) for sample in part)
            for part in (samples[quarter : 2 * quarter], samples[-quarter:])
        )
        if last > 1.1 * middle + SLACK[column]:
            found.append(f"{column} grew from {middle:.1f} to {last:.1f}")
    return found


def faults(logs: Iterable[Path]) -> Counter[str]:
    """Count the faults of their own that controllers logged.

    The loss of a store or an agent is logged too, but is caused on purpose and does not count.
    """
    found: Counter[str] = Counter()
    for path in logs:
        for line in path.read_text().splitlines():
            record = json.loads(line) if line.startswith("{") else {"event": line, "exception": ""}
            if "exception" in record:
                why = str(record["exception"]).strip().splitlines()[-1:]
                found[": ".join([str(record["event"]), *why])] += 1
    return found
