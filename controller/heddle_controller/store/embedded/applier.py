"""Applies changes to one SQLite file, with one transaction per batch.

Only one process has the file, so its views are in memory and always current. They are read from the
file when it is opened, and again when the result of a transaction is not known.

Leadership never leaves this process. Its epochs are kept in the file all the same, so that agents
refuse what an earlier process may still be sending. A process whose file is gone no longer leads,
because another one may have started with a copy of it.

The functions read and write the tables, and their callers hold a transaction. A change is made
whole or not at all. The rules of intent are in ``state``, not here.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import orjson

from heddle_controller.state.audit import (
    AuditEntry,
    AuditPage,
    AuditRecord,
    Mark,
    parse_entry,
)
from heddle_controller.state.errors import Unavailable
from heddle_controller.state.view import (
    CHANGE_TIME,
    FACTS,
    FACTS_VERSION,
    INTENT,
    INTENT_VERSION,
    NEITHER,
    Ask,
    Change,
    Guard,
    Outcome,
    View,
)
from heddle_controller.store.applier import (
    Bounds,
    Feed,
    Following,
    Leader,
    Sent,
    WriteBatcher,
    heed_nobody,
)
from heddle_controller.store.embedded.database import Database, Work

DONE = 1
"""Number of every write that watchers are told of. Writes are not counted here, because there is
only one writer and no replica follows it."""


def write(connection: sqlite3.Connection, change: Change, ask: Ask, bounds: Bounds) -> Outcome:
    """Make a change and return its outcome. Unless that is ``done``, nothing is written."""
    before = remembered(connection, ask.request.id)
    if before is not None:
        return Outcome("replay", answer=before)
    epoch = leader_of(connection).epoch
    if change.epoch not in (None, epoch):
        return Outcome("epoch", epoch)
    if not _hold(connection, change.fabric, change.guards):
        return Outcome("guard")
    if not _point(connection, change):
        return Outcome("blob")
    _set(connection, change.fabric, change.sets)
    _move(connection, change)
    if change.audit is not None:
        _record(connection, change.audit, bounds.audit)
    if ask.request.id:
        _remember(connection, ask.request.id, ask.remembered(change.answer), bounds.requests)
    return Outcome("done", DONE if change.sets else 0)


def _hold(connection: sqlite3.Connection, fabric: str, guards: Iterable[Guard]) -> bool:
    """Return whether the guarded fields still have their values."""
    wanted = {_escaped(field): value for field, value in guards}
    found = connection.execute(
        "SELECT field, value FROM fields WHERE fabric = ? AND field IN "
        "(SELECT value FROM json_each(?))",
        (fabric, _listed(wanted)),
    )
    there = dict(found.fetchall())
    return all(there.get(field) == value for field, value in wanted.items())


def _point(connection: sqlite3.Connection, change: Change) -> bool:
    """Update the pointer counts of blobs, add new blobs, and delete those no longer used.

    Returns False, with nothing written, if a blob that should exist does not.
    """
    known = _listed({blob.id for blob in change.keep if blob.body is None})
    (lacking,) = connection.execute(
        "SELECT count(*) FROM json_each(?) WHERE NOT EXISTS (SELECT 1 FROM blobs WHERE id = value)",
        (known,),
    ).fetchone()
    if lacking:
        return False
    for blob in change.keep:
        if blob.body is not None:
            connection.execute(
                "INSERT INTO blobs VALUES (?, ?) ON CONFLICT (id) DO NOTHING", (blob.id, blob.body)
            )
    connection.execute(
        "INSERT INTO pointers SELECT value, 1 FROM json_each(?) WHERE true "
        "ON CONFLICT (blob) DO UPDATE SET count = count + 1",
        (_listed(blob.id for blob in change.keep),),
    )
    if change.drop:
        dropped = (_listed(change.drop),)
        connection.execute(
            "UPDATE pointers SET count = count - times FROM "
            "(SELECT value, count(*) AS times FROM json_each(?) GROUP BY value) "
            "WHERE blob = value",
            dropped,
        )
        gone = connection.execute(
            "DELETE FROM pointers WHERE count <= 0 AND blob IN (SELECT value FROM json_each(?)) "
            "RETURNING blob",
            dropped,
        ).fetchall()
        connection.executemany("DELETE FROM blobs WHERE id = ?", gone)
    return True


def _set(connection: sqlite3.Connection, fabric: str, sets: Mapping[str, bytes | None]) -> None:
    """Write fields, with one statement for all fields that get the same value.

    There may be thousands of them, such as the hosts of a job. SQLite runs a statement without
    the interpreter lock, so other threads go on meanwhile.
    """
    fields: dict[bytes | None, list[str]] = {}
    for field, value in sets.items():
        fields.setdefault(value, []).append(_escaped(field))
    for value, names in fields.items():
        if value is None:
            connection.execute(
                "DELETE FROM fields WHERE fabric = ? AND field IN (SELECT value FROM json_each(?))",
                (fabric, _listed(names)),
            )
        else:
            connection.execute(
                "INSERT INTO fields SELECT ?, value, ? FROM json_each(?) WHERE true "
                "ON CONFLICT (fabric, field) DO UPDATE SET value = excluded.value",
                (fabric, value, _listed(names)),
            )


def _move(connection: sqlite3.Connection, change: Change) -> None:
    """Increase the version of intent or of facts, whichever the change moves."""
    moved = {INTENT: INTENT_VERSION, FACTS: FACTS_VERSION}.get(change.moves)
    if moved is None:
        return
    row = connection.execute(
        "SELECT value FROM fields WHERE fabric = ? AND field = ?", (change.fabric, moved)
    ).fetchone()
    sets: dict[str, bytes | None] = {moved: str(int(row[0] if row else 0) + 1).encode()}
    if change.moves == INTENT:
        sets[CHANGE_TIME] = repr(change.time).encode()
    _set(connection, change.fabric, sets)


def _record(connection: sqlite3.Connection, entry: AuditEntry, kept: int) -> None:
    """Add a record to the audit trail and keep the newest ``kept``.

    The last record that is dropped becomes the anchor.
    """
    head = _head(connection).follow(entry.content())
    connection.execute(
        "INSERT INTO audit VALUES (?, ?, ?)", (head.number, head.hash, orjson.dumps(entry))
    )
    last = head.number - kept
    row = connection.execute("SELECT hash FROM audit WHERE number = ?", (last,)).fetchone()
    if row is not None:
        connection.execute("INSERT OR REPLACE INTO anchor VALUES (1, ?, ?)", (last, row[0]))
        connection.execute("DELETE FROM audit WHERE number <= ?", (last,))


def _head(connection: sqlite3.Connection) -> Mark:
    row = connection.execute(
        "SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1"
    ).fetchone()
    return Mark(*row) if row else _anchor(connection)


def _anchor(connection: sqlite3.Connection) -> Mark:
    row = connection.execute("SELECT number, hash FROM anchor").fetchone()
    return Mark(*row) if row else Mark()


def audit_page(connection: sqlite3.Connection, after: int, limit: int) -> AuditPage:
    """Return a page of the audit trail; see ``Applier.audit``."""
    rows = connection.execute(
        "SELECT number, hash, entry FROM audit WHERE number > ? ORDER BY number LIMIT ?",
        (after, limit or -1),
    )
    records = tuple(AuditRecord(number, hash_, parse_entry(entry)) for number, hash_, entry in rows)
    return AuditPage(_anchor(connection), _head(connection), records)


def remembered(connection: sqlite3.Connection, request: str) -> bytes | None:
    """Return what is kept under a request id. None if the id is new or empty."""
    if not request:
        return None
    row = connection.execute("SELECT answer FROM requests WHERE id = ?", (request,)).fetchone()
    return bytes(row[0]) if row else None


def _remember(connection: sqlite3.Connection, request: str, answer: bytes, kept: int) -> None:
    cursor = connection.execute(
        "INSERT INTO requests (id, answer) VALUES (?, ?)", (request, answer)
    )
    connection.execute("DELETE FROM requests WHERE number <= ?", ((cursor.lastrowid or 0) - kept,))


def all_fields(connection: sqlite3.Connection) -> dict[str, list[tuple[str, bytes]]]:
    """Return the fields of every fabric, as names and values."""
    found: dict[str, list[tuple[str, bytes]]] = {}
    for fabric, field, value in connection.execute("SELECT fabric, field, value FROM fields"):
        found.setdefault(fabric, []).append((_plain(field), value))
    return found


def blob_of(connection: sqlite3.Connection, identity: str) -> bytes | None:
    """Return a large value, or None if it is gone."""
    row = connection.execute("SELECT body FROM blobs WHERE id = ?", (identity,)).fetchone()
    return bytes(row[0]) if row else None


def leader_of(connection: sqlite3.Connection) -> Leader:
    """Return the leader with the newest epoch."""
    return Leader(*connection.execute("SELECT epoch, holder FROM leader").fetchone())


def next_leader(connection: sqlite3.Connection, holder: str, above: int) -> Leader:
    """Begin an epoch that is greater than ``above`` and any before, and return its leader."""
    epoch = max(leader_of(connection).epoch, above) + 1
    connection.execute("UPDATE leader SET epoch = ?, holder = ?", (epoch, holder))
    return Leader(epoch, holder)


def _escaped(field: str) -> str:
    """Return a field's name as it is stored. SQLite's JSON functions end a text at a NUL."""
    return field.replace("\\", "\\\\").replace("\0", "\\0")


def _plain(kept: str) -> str:
    """Return the name that ``_escaped`` was given."""
    if "\\" not in kept:
        return kept
    return "\\".join(part.replace("\\0", "\0") for part in kept.split("\\\\"))


def _listed(names: Iterable[str]) -> str:
    return orjson.dumps([*names]).decode()


def _retrieve(looked: asyncio.Task[None]) -> None:
    """Mark the error of a look as retrieved, in case no reader waits any more."""
    if not looked.cancelled():
        looked.exception()


_Answer = TypeVar("_Answer")


class FileApplier:
    """Implements ``Applier`` on a SQLite file. ``open_embedded`` makes it."""

    def __init__(self, database: Database, bounds: Bounds) -> None:
        self.name = str(database.path)
        self.feed = Feed[str]()
        self._database = database
        self._bounds = bounds
        self._views: dict[str, View] = {}
        self._newest = Leader()
        self._doubtful = True
        """Whether the file may differ from the views."""
        self._looking: asyncio.Task[None] | None = None
        self._turn = asyncio.Condition()
        self._leading = 0
        """Epoch of the leader in this process; 0 if nobody leads."""
        self._closed = False
        self._writes = WriteBatcher(self.name, self._deliver)

    @property
    def epoch(self) -> int:
        """Implement ``Applier.epoch``."""
        return self._newest.epoch

    def check(self) -> None:
        """Implement ``Applier.check``."""
        self._database.check()

    async def fresh(self) -> None:
        """Implement ``Applier.fresh``. Concurrent readers share one look at the file."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
            self._looking.add_done_callback(_retrieve)
        await asyncio.shield(self._looking)

    async def _look(self) -> None:
        self._looking = None
        try:
            self.check()
        except Unavailable:
            await self._lose()
            raise
        if self._doubtful:
            await self._load()

    async def _load(self) -> None:
        fields, self._newest = await self._run(lambda c: (all_fields(c), leader_of(c)))
        for fabric in {*fields, *self._views}:
            view = self._views.setdefault(fabric, View(fabric))
            view.replace(fields.get(fabric, ()))
        self._doubtful = False

    async def _run(self, work: Work[_Answer], *, lasting: bool = True) -> _Answer:
        try:
            return await self._database.run(work, lasting=lasting)
        except Unavailable:
            self._doubtful = True
            if self._database.lost:
                await self._lose()
            raise

    def view(self, fabric: str) -> View:
        """Implement ``Applier.view``."""
        return self._views.get(fabric) or View(fabric)

    def fabrics(self) -> Sequence[str]:
        """Implement ``Applier.fabrics``."""
        return sorted(name for name, view in self._views.items() if view.known)

    async def apply(self, change: Change, ask: Ask) -> Outcome:
        """Implement ``Applier.apply``."""
        return await self._writes.send(change, ask)

    async def _deliver(self, batch: Sequence[Sent]) -> Sequence[Outcome]:
        if self._doubtful:
            await self._load()
        outcomes = await self._run(
            lambda c: [write(c, one.change, one.ask, self._bounds) for one in batch],
            lasting=batch[0].change.lasting,
        )
        for one, outcome in zip(batch, outcomes, strict=True):
            if outcome.kind == "done":
                self._made(one.change)
        return outcomes

    def _made(self, change: Change) -> None:
        self._views.setdefault(change.fabric, View(change.fabric)).advance(change)
        if change.moves != NEITHER:
            self.feed.tell(change.fabric, change.fabric, minor=change.moves == FACTS)

    async def remembered(self, request: str) -> bytes | None:
        """Implement ``Applier.remembered``."""
        return await self._run(lambda c: remembered(c, request))

    async def blob(self, identity: str) -> bytes | None:
        """Implement ``Applier.blob``."""
        return await self._run(lambda c: blob_of(c, identity))

    async def audit(self, *, after: int = 0, limit: int = 0) -> AuditPage:
        """Implement ``Applier.audit``."""
        return await self._run(lambda c: audit_page(c, after, limit))

    async def acquire_leadership(
        self, holder: str, *, above: int = 0, following: Following = heed_nobody
    ) -> int:
        """Implement ``Applier.acquire_leadership``."""
        async with self._turn:
            if self._leading:
                following(self._newest)
            await self._turn.wait_for(lambda: not self._leading or self._closed)
            if self._closed:
                raise Unavailable("the store is closed, the controller is stopping")
            # Not ``_run``: when it fails, it would lock ``_turn`` again.
            self._newest = await self._database.run(lambda c: next_leader(c, holder, above))
            self._leading = self.epoch
            return self._leading

    async def leadership_lost(self, epoch: int) -> None:
        """Implement ``Applier.leadership_lost``."""
        async with self._turn:
            await self._turn.wait_for(lambda: self._leading != epoch or self._closed)

    async def release_leadership(self, epoch: int) -> None:
        """Implement ``Applier.release_leadership``."""
        if self._leading == epoch:
            await self._lose()

    async def _lose(self) -> None:
        """Note that nobody leads any more."""
        async with self._turn:
            self._leading = 0
            self._turn.notify_all()

    def leads(self, epoch: int) -> bool:
        """Implement ``Applier.leads``."""
        return self._leading == epoch and not self._closed

    async def leader(self) -> Leader:
        """Implement ``Applier.leader``."""
        await self.fresh()
        return self._newest if self._leading else Leader(self.epoch)

    def stale_for(self) -> float:
        """Implement ``Applier.stale_for``. Always 0.0, because reads are current or fail."""
        return 0.0

    def write_trouble(self) -> str:
        """Implement ``Applier.write_trouble``."""
        return self._writes.trouble()

    async def close(self) -> None:
        """Implement ``Applier.close``."""
        self.feed.close()
        async with self._turn:
            self._closed = True
            self._turn.notify_all()
        await self._writes.close()
        await self._database.close()
