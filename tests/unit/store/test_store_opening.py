from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from heddle_controller.state.audit import verify
from heddle_controller.state.errors import Unavailable, Unusable
from heddle_controller.store.embedded import open_embedded
from heddle_controller.store.embedded.database import SCHEMA_VERSION
from tests.support.store_samples import clos, demands, job

HOLD = """
import asyncio, sys
from pathlib import Path
from typing import Any
from heddle_controller.store.embedded import open_embedded
async def main():
    store = await open_embedded(Path(sys.argv[1]))
    print("open", flush=True)
    sys.stdin.read()
asyncio.run(main())
"""


async def open_and_close(path: Path) -> None:
    """Open and close the store, as a controller with nothing to do."""
    await (await open_embedded(path)).close()


def newer(path: Path) -> None:
    """Make the file one of a newer Heddle."""
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()


def older(path: Path) -> None:
    """Make the file one of an older Heddle."""
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION - 1}")
    connection.close()


def foreign(path: Path) -> None:
    """Make the file one of another program."""
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE browser_history (url TEXT)")
    connection.commit()
    connection.close()


def garbage(path: Path) -> None:
    """Make the file something that is not a database."""
    path.write_bytes(b"not a database at all " * 400)


def torn(path: Path) -> None:
    """Overwrite pages of the database."""
    content = bytearray(path.read_bytes())
    content[4096 : 4096 * 6] = os.urandom(4096 * 5)
    path.write_bytes(content)


def cut(path: Path) -> None:
    """Cut the database off in the middle."""
    path.write_bytes(path.read_bytes()[: 4096 * 3 + 100])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (newer, "written by a newer Heddle .schema 11, this one knows only 10.; run that one"),
        (older, "written by an older Heddle .schema 9, .* 10.; .* move the file aside"),
        (foreign, "belongs to another program; give a file of its own"),
        (garbage, "cannot be read .* restore it from a backup"),
        (torn, "cannot be read .* restore it from a backup"),
        (cut, "cannot be read .* restore it from a backup"),
    ],
)
async def test_unusable_files(tmp_path: Path, spoil: Callable[[Path], None], says: str) -> None:
    """One line names the file and what to do, and the file is left as it was."""
    path = tmp_path / "store.db"
    await open_and_close(path)
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(Unusable, match=says) as caught:
        await open_embedded(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    path.unlink()
    await open_and_close(path)


async def test_a_file_that_cannot_be_used_now_is_not_called_damaged(tmp_path: Path) -> None:
    """If SQLite's files beside it find no room, as on a full disk, the store itself is whole."""
    path = tmp_path / "store.db"
    await open_and_close(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(Unusable, match=r"cannot be used now .*: is its disk full") as caught:
            await open_embedded(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "restore" not in str(caught.value)
    await open_and_close(path)


async def test_no_folder(tmp_path: Path) -> None:
    """The error says to give a path in a folder that exists."""
    with pytest.raises(Unusable, match="give a path in a folder that exists"):
        await open_embedded(tmp_path / "none" / "store.db")


async def test_a_path_that_cannot_be_looked_at_is_refused(tmp_path: Path) -> None:
    """The error says why, such as a folder that this user may not search, or a name too long."""
    with pytest.raises(
        Unusable, match=r"cannot be created \(File name too long\); give a path in a"
    ):
        await open_embedded(tmp_path / ("x" * 300) / "store.db")


async def test_a_path_without_its_first_slash_is_told_as_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After sqlite:/// comes a path below the working folder; the error says so."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Unusable, match=f"below {tmp_path}: sqlite://// begins an absolute path"):
        await open_embedded(Path("none/store.db"))


async def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """A path that is a folder is refused, and the lock is released."""
    (tmp_path / "store.db").mkdir()
    with pytest.raises(Unusable, match=r"store\.db"):
        await open_embedded(tmp_path / "store.db")
    (tmp_path / "store.db").rmdir()
    await open_and_close(tmp_path / "store.db")


def test_one_process_has_the_file(tmp_path: Path) -> None:
    """A second controller is refused while the first is alive, and accepted after it was killed."""
    path = tmp_path / "store.db"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(Unusable, match=rf"process {holder.pid}\); stop that one"):
            asyncio.run(open_embedded(path))
        holder.kill()
        holder.wait()
    asyncio.run(open_and_close(path))


async def test_twice_in_one_process(tmp_path: Path) -> None:
    """The lock holds within a process, too."""
    store = await open_embedded(tmp_path / "store.db")
    with pytest.raises(Unusable, match="in use"):
        await open_embedded(tmp_path / "store.db")
    await store.close()


async def test_damaged_record_is_told(tmp_path: Path) -> None:
    """A record that was changed in the file gives an error."""
    path = tmp_path / "store.db"
    store = await open_embedded(path)
    await store.put_fabric("f1", clos())
    await store.submit_job("f1", job())
    await store.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE fields SET value = x'00' WHERE field = 'job/j1'")
    connection.commit()
    connection.close()
    again = await open_embedded(path)
    with pytest.raises(Unusable, match="a record is damaged"):
        await again.get_job("f1", "j1")
    await again.close()


async def test_a_full_disk_is_unavailable_and_passes(tmp_path: Path) -> None:
    """A write that finds no room fails alone. Reads go on, and with more room writes do."""
    store = await open_embedded(tmp_path / "store.db")
    await store.put_fabric("f1", clos())
    database: Any = store.applier
    connection = database._database._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(Unavailable, match="full"):
        await store.put_demands("f1", "big", demands(*[("n0.0", "n1.0")] * 10_000))
    assert (await store.get_fabric("f1")).name == "f1"
    connection.execute("PRAGMA max_page_count = 100000")
    await store.submit_job("f1", job("after"))
    await store.close()


async def test_bounded_growth(tmp_path: Path) -> None:
    """Structures that no fabric and no kept plan uses are dropped."""
    store = await open_embedded(tmp_path / "store.db")
    for spines in range(2, 8):
        await store.put_fabric("f1", clos(spines=spines))
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        assert connection.execute("SELECT count(*) FROM blobs").fetchone()[0] == 1
    await store.close()


async def test_the_oldest_records_go(tmp_path: Path) -> None:
    """The audit trail keeps as many records as set, and these verify against the anchor."""
    store = await open_embedded(tmp_path / "store.db", audit_kept=3)
    await store.put_fabric("f1", clos())
    for withdrawn in (True, False) * 4:
        await store.set_overlay("f1", withdrawn=withdrawn)
    page = await store.audit()
    assert (page.anchor.number, page.head.number) == (6, 9)
    assert [record.number for record in page.records] == [7, 8, 9]
    assert verify(page.anchor, page.records) == page.head
    await store.close()
