"""The file of an embedded store, and what may happen to it behind the controller's back."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heddle_controller.state.errors import Unavailable, Unusable
from heddle_controller.store.embedded import EmbeddedStore, open_embedded
from tests.support.store_samples import clos, job
from tests.support.waiting import until
from tests.unit.store.test_store_opening import HOLD


async def store_with_a_fabric(path: Path) -> EmbeddedStore:
    """Return an open store with a fabric that jobs can be submitted to."""
    store = await open_embedded(path)
    if not await store.list_fabrics():
        await store.put_fabric("f1", clos())
    return store


def names_in(folder: Path) -> list[str]:
    """Return the names of the files in a folder."""
    return sorted(file.name for file in folder.iterdir())


def unlinked(path: Path) -> None:
    """Remove the file."""
    path.unlink()


def moved(path: Path) -> None:
    """Rename the file."""
    path.rename(path.with_name("elsewhere.db"))


def folder_moved(path: Path) -> None:
    """Rename the folder."""
    path.parent.rename(path.parent.with_name("elsewhere"))


def restored(path: Path) -> None:
    """Put a copy of the file in its place, as restoring a backup does."""
    shutil.copy(path, path.with_name("copy.db"))
    path.with_name("copy.db").replace(path)


def cut(path: Path) -> None:
    """Empty the file."""
    os.truncate(path, 0)


def without_log(path: Path) -> None:
    """Remove the log, which contains the newest writes."""
    path.with_name(f"{path.name}-wal").unlink()


def other_log(path: Path) -> None:
    """Put another log in the log's place."""
    log = path.with_name(f"{path.name}-wal")
    log.unlink()
    log.write_bytes(b"")


MISHAPS = (unlinked, moved, folder_moved, restored, cut, without_log, other_log)


@pytest.mark.parametrize("mishap", MISHAPS)
async def test_nothing_is_acknowledged_that_a_restart_would_not_find(
    tmp_path: Path, mishap: Callable[[Path], None]
) -> None:
    """After the mishap, reads and writes are refused with the reason, and nobody leads any more."""
    path = tmp_path / "folder" / "store.db"
    path.parent.mkdir()
    store = await store_with_a_fabric(path)
    epoch = await store.acquire_leadership("c1")
    lost = asyncio.create_task(store.leadership_lost(epoch))
    await store.submit_job("f1", job("before", ("h0.0",)))
    mishap(path)
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"store\.db"):
            await store.submit_job("f1", job("after", ("h1.0",)))
        with pytest.raises(Unavailable, match=r"store\.db"):
            await store.get_job("f1", "before")
    await lost
    assert not store.leads(epoch)
    with pytest.raises(Unavailable):
        await store.acquire_leadership("c1")
    await store.close()


async def test_a_read_that_fails_when_nobody_waits_leaves_no_error_behind(tmp_path: Path) -> None:
    """The reader is cancelled while the file is looked at, and the file is gone then."""
    path = tmp_path / "heddle.db"
    store = await store_with_a_fabric(path)
    applier: Any = store.applier
    applier._doubtful = True  # as after a write that failed: the next reader reads the file again
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: unheard.append(about))
    both = threading.Barrier(2)

    def occupy() -> None:
        both.wait()
        both.wait()

    applier._database._thread.submit(occupy)
    await asyncio.to_thread(both.wait)
    reader = asyncio.create_task(store.list_fabrics())
    await until(applier._database._thread._work_queue.qsize, "the look")
    reader.cancel()
    await asyncio.wait([reader])
    path.unlink()
    await asyncio.to_thread(both.wait)
    with pytest.raises(Unavailable):
        await store.list_fabrics()
    await store.close()
    gc.collect()
    assert unheard == []


async def test_a_file_that_is_brought_back_is_used_again(tmp_path: Path) -> None:
    """All acknowledged writes are there, refused ones are not, and a new leader is accepted."""
    path = tmp_path / "store.db"
    store = await store_with_a_fabric(path)
    epoch = await store.acquire_leadership("c1")
    await store.submit_job("f1", job("before", ("h0.0",)))
    moved(path)
    with pytest.raises(Unavailable, match="is not there any more"):
        await store.submit_job("f1", job("refused", ("h1.0",)))
    path.with_name("elsewhere.db").rename(path)
    await store.submit_job("f1", job("after", ("h1.0",)))
    assert await store.acquire_leadership("c1") > epoch
    await store.close()
    again = await open_embedded(path)
    assert [record.job.name for record in await again.list_jobs("f1")] == ["after", "before"]
    await again.close()


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_another_name_is_the_same_file(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    """No second controller can lead with the same data under another name."""
    path, other = tmp_path / "store.db", tmp_path / "other.db"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        link(path, other)
        with pytest.raises(Unusable, match=r"other\.db: (in use by another|has 2 names)"):
            asyncio.run(open_embedded(other))
        holder.kill()
        holder.wait()


async def test_a_hard_link_whose_log_is_elsewhere_is_refused(tmp_path: Path) -> None:
    """The log under the other name would be missing. With one name, everything is there."""
    path, other = tmp_path / "store.db", tmp_path / "other.db"
    await (await store_with_a_fabric(path)).close()
    other.hardlink_to(path)
    for name in (path, other):
        with pytest.raises(Unusable, match=r"has 2 names .hard links.*remove the others"):
            await open_embedded(name)
    other.unlink()
    store = await open_embedded(path)
    assert (await store.get_fabric("f1")).name == "f1"
    await store.close()


async def test_a_symbolic_link_leads_to_the_file(tmp_path: Path) -> None:
    """The store may be opened by the link, and by its own name afterwards."""
    (tmp_path / "disk").mkdir()
    path, other = tmp_path / "disk" / "store.db", tmp_path / "link.db"
    other.symlink_to(path)
    store = await store_with_a_fabric(other)
    assert other.is_symlink()
    with pytest.raises(Unusable, match="in use"):
        await open_embedded(path)
    await store.close()
    again = await open_embedded(path)
    assert (await again.get_fabric("f1")).name == "f1"
    await again.close()


async def test_an_empty_file_is_no_new_store(tmp_path: Path) -> None:
    """Something emptied the file, so no new store begins in it."""
    path = tmp_path / "store.db"
    path.touch()
    with pytest.raises(Unusable, match="is empty, and a store never is: restore it"):
        await open_embedded(path)
    assert path.read_bytes() == b""
    assert names_in(tmp_path) == ["store.db"]


async def test_no_new_store_beside_the_log_of_another(tmp_path: Path) -> None:
    """The old log would be taken for the new store's, and its controller may still run."""
    path = tmp_path / "store.db"
    store = await store_with_a_fabric(path)
    path.unlink()
    with pytest.raises(Unusable, match=r"is gone, but its log store\.db-wal is there"):
        await open_embedded(path)
    assert not path.exists()
    await store.close()


async def test_a_copy_beside_a_log_in_use_is_refused(tmp_path: Path) -> None:
    """The file was restored while its controller runs, and the log belongs to that controller."""
    path = tmp_path / "store.db"
    store = await store_with_a_fabric(path)
    restored(path)
    with pytest.raises(Unusable, match="in use by another controller"):
        await open_embedded(path)
    await store.close()


@pytest.mark.parametrize("name", [":memory:", ":other:", "", ".", ".."])
async def test_names_that_are_no_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """SQLite would keep such a store in memory. Nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Unusable, match="does not name a file"):
        await open_embedded(Path(name))
    assert names_in(tmp_path) == []


async def test_a_pipe_is_no_store(tmp_path: Path) -> None:
    """A pipe is refused at once, and nobody waits for its other end."""
    os.mkfifo(tmp_path / "store.db")
    with pytest.raises(Unusable, match="is not a file"):
        await open_embedded(tmp_path / "store.db")


async def test_two_that_make_one_store_agree_who_has_it(tmp_path: Path) -> None:
    """One caller gets the store, the others are refused, and no other file is left."""
    path = tmp_path / "store.db"
    found = await asyncio.gather(*(open_embedded(path) for _ in range(4)), return_exceptions=True)
    stores = [one for one in found if isinstance(one, EmbeddedStore)]
    refused = [one for one in found if isinstance(one, Unusable)]
    assert (len(stores), len(refused)) == (1, 3)
    assert all("in use by another controller" in str(one) for one in refused)
    await stores[0].close()
    assert names_in(tmp_path) == ["store.db"]
