from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import MutableMapping
from contextlib import closing
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from heddle_controller.serve.audit import log_marks
from tests.support.operating import Operator, Outcome, operating
from tests.support.store_samples import clos
from tests.support.waiting import until


async def changed(o: Operator) -> None:
    """Put a fabric, and make two changes through the API."""
    await o.s.store.put_fabric("f1", clos())
    for words in (("l0,s0", "drained"), ("l0,s0", "up")):
        done = await o.does("fabric", "link", *words)
        assert done.code == 0, done.err


def broken(outcome: Outcome, *words: str) -> None:
    """Assert that the command says that the trail does not hold, and why."""
    assert outcome.code == 1, outcome
    assert "does not hold" in outcome.err
    for word in words:
        assert word in outcome.err, outcome.err


async def test_who_did_what(tmp_path: Path) -> None:
    """An operator sees who changed what, from what to what, and gets a mark to note."""
    async with operating(tmp_path) as o:
        await changed(o)
        listed = await o.does("audit", "list")
        assert listed.code == 0, listed.err
        last = listed.lines[-1]
        assert last[0] == "3"
        assert {"local", "127.0.0.1", "set_link_state", "fabrics/f1/links/l0,s0,0"} <= set(last)
        assert '{"admin_state":"DRAINED"}' in last
        mark = listed.err.split()[1]
        assert mark.startswith("3:")
        assert len((await o.does("audit", "list", "--last", "1")).lines) == 2
        verified = await o.does("audit", "verify", "--head", mark)
        assert verified.out.strip() == mark


async def test_exports_make_one_chain(tmp_path: Path) -> None:
    """Exports of several parts verify together without a server, but not reordered or altered."""
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    async with operating(tmp_path / "store") as o:
        await changed(o)
        assert (await o.does("audit", "export", "--out", one)).code == 0
        done = await o.does("fabric", "link", "l0,s1", "down")
        assert done.code == 0, done.err
        assert (await o.does("audit", "export", "--after", "3", "--out", two)).code == 0
        head = (await o.does("audit", "verify")).out.strip()
        assert (await o.does("audit", "export", "--after", "9")).code == 2
        again = await o.does("audit", "export", "--out", one)
        assert again.code == 2  # an export overwrites no file
        whole = await o.does("audit", "verify", "--file", one, "--file", two)
        assert whole.out.strip() == head
        broken(await o.does("audit", "verify", "--file", two, "--file", one))
        broken(await o.does("audit", "verify", "--file", one, "--head", head), "record 4")
        lines = one.read_bytes().splitlines(keepends=True)
        bad = tmp_path / "bad.jsonl"
        for forged, number in (
            ([*lines[:2], *lines[3:]], "record 2"),
            ([*lines[:2], lines[2].replace(b"local", b"other"), lines[3]], "record 2"),
            ([lines[0], lines[2], lines[1], lines[3]], "record 1"),
        ):
            bad.write_bytes(b"".join(forged))
            broken(await o.does("audit", "verify", "--file", bad), number)
        bad.write_bytes(b"".join(lines[:-1]))  # only a mark shows that the end is cut off
        assert (await o.does("audit", "verify", "--file", bad)).code == 0
        mark = head.replace("4:", "3:")
        broken(await o.does("audit", "verify", "--file", bad, "--head", mark), "record 3")
        bad.write_text("{}\n")
        refused = await o.does("audit", "verify", "--file", bad)
        assert (refused.code, "line 1" in refused.err) == (2, True)


async def test_a_store_that_was_edited(tmp_path: Path) -> None:
    """An edited row breaks the trail; a new chain from there does not match a mark noted before."""
    async with operating(tmp_path) as o:
        await changed(o)
        mark = (await o.does("audit", "verify")).out.strip()
        with closing(sqlite3.connect(tmp_path / "store.sqlite3")) as connection:
            connection.execute(
                "UPDATE audit SET entry = CAST(json_set(CAST(entry AS TEXT), '$.actor', 'nobody') "
                "AS BLOB) WHERE number = 2"
            )
            connection.commit()
        broken(await o.does("audit", "verify"), "record 2")
        with closing(sqlite3.connect(tmp_path / "store.sqlite3")) as connection:
            connection.execute("DELETE FROM audit")
            connection.commit()
        await o.does("fabric", "link", "l0,s1", "down")
        assert (await o.does("audit", "verify")).code == 0  # a valid chain, but another one
        broken(await o.does("audit", "verify", "--head", mark), "record 3 is not in it")


async def test_the_log_notes_marks_that_the_trail_is_held_to(tmp_path: Path) -> None:
    """The log notes each new end of the trail once, in the form that ``audit verify`` takes."""
    async with operating(tmp_path) as o:
        with capture_logs() as logged:
            logging = asyncio.create_task(log_marks(o.s.store, 0.01))
            await changed(o)
            await until(lambda: any(line["mark"].startswith("3:") for line in _marks(logged)))
            await asyncio.sleep(0.05)
            logging.cancel()
        marks = [line["mark"] for line in _marks(logged)]
        assert len(set(marks)) == len(marks)
        for mark in marks:
            verified = await o.does("audit", "verify", "--head", mark)
            assert verified.code == 0, verified.err
        broken(await o.does("audit", "verify", "--head", f"2:{'0' * 64}"), "record 2")


def _marks(logged: list[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    return [line for line in logged if line["event"] == "audit mark"]
