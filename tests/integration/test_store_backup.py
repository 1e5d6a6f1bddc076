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
FOLDER, COPY = "/var/lib/heddle-controller", "/root/heddle-backup.sqlite3"
FABRIC = clos(leaves=2, spines=2, nics_per_leaf=2)


async def test_a_backup_has_all_that_was_written_before(tmp_path: Path) -> None:
    """A controller on the restored file knows what was acknowledged before the copy, and no more.

    Only the owner can read the restored file.
    """
    page = await asyncio.to_thread(PAGE.read_text)
    (line,) = [line for line in page.splitlines() if ".backup(" in line]
    store, copy = tmp_path / "heddle.sqlite3", tmp_path / "copy.sqlite3"
    words = shlex.split(line)
    assert words[-2:] == [f"{FOLDER}/{store.name}", COPY]
    options = ("--store", f"sqlite:///{store}")
    async with controlling(tmp_path, *options) as controller:
        async with Client(controller.address, "fabrics/one") as client:
            await client.put_fabric(FABRIC)
        await _done(sys.executable, *words[1:-2], str(store), str(copy))
        async with Client(controller.address, "fabrics/two") as client:
            await client.put_fabric(FABRIC)
    stop, *commands, start = page.partition("To restore it")[2].split("```")[1].split("\n")[1:-1]
    assert [stop, start] == [f"systemctl {verb} heddle-controller" for verb in ("stop", "start")]
    typed = "\n".join(commands).replace(FOLDER, str(tmp_path)).replace(COPY, str(copy))
    await _done("bash", "-euc", typed)
    assert store.stat().st_mode & 0o777 == 0o600
    async with (
        controlling(tmp_path, *options) as controller,
        AsyncClient(controller.address) as client,
    ):
        assert [one.name for one in await client.list_fabrics()] == ["fabrics/one"]


async def _done(*words: str) -> None:
    """Run a command and wait until it has succeeded."""
    process = await asyncio.create_subprocess_exec(*words)
    assert await process.wait() == 0
