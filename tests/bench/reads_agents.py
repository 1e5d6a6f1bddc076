"""The agents of all switches in one process, for the bench of reads: tables in memory.

`python -m tests.bench.reads_agents ADDRESS FABRIC NAME` runs them until standard input ends, and
prints `connected` once all of them have a session.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path

import structlog

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import load_fabric_file
from heddle_emulator.fleet import Fleet

CONNECT_SECONDS = 120.0


async def run(address: str, fabric: Fabric, name: str) -> None:
    """Run the agents until standard input ends."""
    async with Fleet(fabric, [address], name=name) as fleet:
        await fleet.connected(CONNECT_SECONDS)
        gc.collect()
        gc.freeze()
        sys.stdout.write("connected\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    asyncio.run(run(sys.argv[1], load_fabric_file(Path(sys.argv[2])), sys.argv[3]))
