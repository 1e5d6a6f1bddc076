"""A client that puts traffic of the whole fabric, for the bench of reads.

It is a process of its own, since making so many messages keeps an interpreter busy for longer than
the timed answers take. `python -m tests.bench.reads_demands ADDRESS FABRIC NAME` reads a seed, and
says `ready` once its flows are drawn. At the next line it puts them, and says `taken`. Then it
reads the next seed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from heddle_controller.model.files.fabric_file import load_fabric_file
from heddle_emulator.client import Client
from tests.bench.workloads import zone_traffic


async def run(address: str, file: Path, name: str) -> None:
    """Draw and put flows until standard input ends."""
    fabric = load_fabric_file(file)
    async with Client(address, name) as client:
        while seed := await asyncio.to_thread(sys.stdin.readline):
            flows = zone_traffic(fabric, int(seed))
            _say("ready")
            await asyncio.to_thread(sys.stdin.readline)
            await client.put_demands("all", fabric, flows)
            _say("taken")


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
