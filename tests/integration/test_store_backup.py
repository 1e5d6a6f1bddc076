"""A SQLite store is backed up while the controller runs, and restored, as the page says."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path

from heddle.client import AsyncClient
from heddle_emulator.client import Client
from heddle_emulator.topology import clos
from tests.support.operating import controlling

PAGE = Path(__file__).parents[2] / "deploy" / "systemd" / "README.md"
FABRIC = clos(leaves=2, spines=2, nics_per_leaf=2)


async def test_a_backup_has_all_that_was_written_before(tmp_path: Path) -> None:
    """A controller that starts from the copy knows what was acknowledged before, and no more."""
    page = await asyncio.to_thread(PAGE.read_text)
    (line,) = [line for line in page.splitlines() if ".backup(" in line]
    store, copy = tmp_path / "heddle.sqlite3", tmp_path / "copy.sqlite3"
    words = shlex.split(line)
    assert words[-2:] == ["/var/lib/heddle-controller/heddle.sqlite3", "heddle-backup.sqlite3"]
    async with controlling(tmp_path, "--store", f"sqlite:///{store}") as controller:
        async with Client(controller.address, "fabrics/one") as client:
            await client.put_fabric(FABRIC)
        done = await asyncio.create_subprocess_exec(
            sys.executable, *words[1:-2], str(store), str(copy)
        )
        assert await done.wait() == 0
        async with Client(controller.address, "fabrics/two") as client:
            await client.put_fabric(FABRIC)
    async with (
        controlling(tmp_path, "--store", f"sqlite:///{copy}") as controller,
        AsyncClient(controller.address) as client,
    ):
        assert [one.name for one in await client.list_fabrics()] == ["fabrics/one"]
