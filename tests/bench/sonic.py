"""Rules into a SONiC switch's Redis, acknowledged by a simulated orchagent; repair of a next hop.

A lost next hop is a port that is down in APPL_DB. Redis tells the agent, and then the rules are
repaired. The Redis is real, and orchagent is a process of its own. Both share this machine with the
agent, so wall time includes their work. The agent's own work is the processor time of its thread.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from heddle_agent.conformance import SPINES, uplink
from heddle_agent.fib import Batch, Choice, Group, Match, Steering
from heddle_agent.fib.sonic import SonicFib, schema, socket_of
from heddle_agent.watch.sonic import SonicPortReports
from tests.bench.rows import Row, Scale, spread
from tests.bench.screen import Screen
from tests.support.orchagent import EXITS
from tests.support.redis_server import NEVER, RedisServer

TITLE = "SONiC: {rules:,} rules into Redis"
RULES, QUICK_RULES, RUNS = 10_000, 500, 5
RATE, REPAIR_SECONDS = 5_000, 0.020


@contextmanager
def switch() -> Iterator[tuple[SonicFib, Path]]:
    """Yield the backend on a Redis with an orchagent, and the socket of that Redis."""
    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder), *NEVER) as server:
        command = [sys.executable, "-m", "tests.support.orchagent", str(server.socket)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as played:
            assert played.stdout is not None
            assert played.stdout.readline() == "ready\n"
            ports = [one.interface for one in EXITS.values()]
            fib = SonicFib(EXITS, socket_of(server.socket), ports=ports, patience=120.0)
            yield fib, server.socket
            fib.close()
            played.communicate()


def batch(rules: int, groups: list[Group]) -> Batch:
    """Return so many entries of QPs, spread over the groups in turn."""
    sets: dict[Match, Group] = {
        ("nic0", f"far{row // 16384}", 49152 + row % 16384, 4791): groups[row % len(groups)]
        for row in range(rules)
    }
    addresses = {"nic0": "10.0.0.1"} | {f"far{n}": f"10.9.0.{n}" for n in range(rules // 16384 + 1)}
    return Batch(sets, addresses=addresses)


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Measure rules per second, and the repair of a next hop that a quarter of the rules use."""
    rules = QUICK_RULES if scale.name == "quick" else RULES
    groups = [Group(hop, SPINES[(at + 1) % 4]) for at, hop in enumerate(SPINES)]
    with switch() as (fib, path), screen.progress(TITLE.format(rules=rules), 1 + 2 * RUNS) as step:
        begin, own = time.perf_counter(), time.thread_time()
        failures = fib.apply(batch(rules, groups))
        wall, own = time.perf_counter() - begin, time.thread_time() - own
        assert not failures, failures[:3]
        step(1)
        repairs = asyncio.run(_repairs(fib, path, groups[0], lambda run: step(2 + run)))
    told, found, paid = (spread(values) for values in zip(*repairs, strict=True))
    title = TITLE.format(rules=rules)
    return [
        Row(
            title,
            "Heddle",
            f"{rules / wall:,.0f} a second acknowledged, {own * 1e6 / rules:.0f} us of ours each",
            f">= {RATE:,} a second",
            rules / wall >= RATE,
            "a real Redis and a played orchagent, both on this machine",
            {"rules": rules, "seconds": wall, "thread_seconds": own},
        ),
        Row(
            f"SONiC: repair of a next hop of {rules // 4:,} rules",
            "Heddle",
            f"{paid['median'] * 1e3:.1f} ms of ours, {found['median'] * 1e3:.1f} until in Redis,"
            f" the loss told after {told['median'] * 1e3:.1f}",
            f"<= {REPAIR_SECONDS * 1e3:.0f} ms of ours",
            paid["median"] <= REPAIR_SECONDS,
            "from the write of oper_status; one write for each rule of the groups that move",
            {"seconds": found, "thread_seconds": paid, "told_seconds": told},
        ),
    ]


async def _repairs(
    fib: SonicFib, path: Path, group: Group, done: Callable[[int], None]
) -> list[tuple[float, float, float]]:
    """Return three times in seconds for each change of the port's state.

    They are the wall time until the state is reported, the wall time until the rules are changed,
    and the processor time of the agent's thread.
    """
    port, database = EXITS[SPINES[0].port].interface, socket_of(path)(schema.APPL_DB)
    heard = asyncio.Queue[tuple[bool, float]]()
    watching = asyncio.create_task(
        SonicPortReports(path).watch(
            [one.interface for one in EXITS.values()],
            lambda name, up: heard.put_nowait((up, time.perf_counter())) if name == port else None,
        )
    )
    measured = []
    await heard.get()
    for run in range(2 * RUNS):
        wanted = bool(run % 2)
        begin, spent = time.perf_counter(), time.thread_time()
        database.hset(schema.port_key(port), "oper_status", schema.UP if wanted else "down")
        while (state := await heard.get())[0] != wanted:
            pass
        choice = Choice.PRIMARY if wanted else Choice.BACKUP
        down = frozenset() if wanted else frozenset({uplink(0)})
        fib.steer(Steering({group: choice}, down))
        end = time.perf_counter()
        measured.append((state[1] - begin, end - begin, time.thread_time() - spent))
        done(run)
    watching.cancel()
    database.close()
    return measured
