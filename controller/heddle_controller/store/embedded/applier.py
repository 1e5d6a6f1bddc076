"""Applies changes to one SQLite file, in one transaction a batch.

One process has the file, so its views are in memory and always of now: they are read from
the file when it is opened, and again where it is not known what became of a transaction.
Leadership is of this process; its epochs live in the file all the same, as agents refuse
what an earlier process may still have under way. Whose file is gone leads no more: another
may have begun with a copy of it.

What is read and written in the tables: a change is made whole, or not at all.

No rule of intent is here: see ``state``. Whoever calls holds a transaction.
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
"""Number of every write that watchers are told of: there is one writer, and nobody follows it."""


def write(connection: sqlite3.Connection, change: Change, ask: Ask, bounds: Bounds) -> Outcome:
    """Make a change, unless something stands against it: then nothing is written."""
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
    """Whether fields still hold what they are guarded for."""
    wanted = {_escaped(field): value for field, value in guards}
    found = connection.execute(
        "SELECT field, value FROM fields WHERE fabric = ? AND field IN "
        "(SELECT value FROM json_each(?))",
        (fabric, _listed(wanted)),
    )
    there = dict(found.fetchall())
    return all(there.get(field) == value for field, value in wanted.items())


def _point(connection: sqlite3.Connection, change: Change) -> bool:
    """Point at blobs once more, and at others once less; False where one is not there."""
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
    """One statement for all fields of one value, in which nobody waits for the interpreter.

    They may be thousands: what switches hold, hosts of a job.
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
    """Count a change of intent or of facts."""
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
    """Add to the audit trail; the last of the records dropped beyond ``kept`` is the anchor."""
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
    """See ``Applier``."""
    rows = connection.execute(
        "SELECT number, hash, entry FROM audit WHERE number > ? ORDER BY number LIMIT ?",
        (after, limit or -1),
    )
    records = tuple(AuditRecord(number, hash_, parse_entry(entry)) for number, hash_, entry in rows)
    return AuditPage(_anchor(connection), _head(connection), records)


def remembered(connection: sqlite3.Connection, request: str) -> bytes | None:
    """What is kept under the id of a request; None if it is new, or has none."""
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
    """Those of every fabric."""
    found: dict[str, list[tuple[str, bytes]]] = {}
    for fabric, field, value in connection.execute("SELECT fabric, field, value FROM fields"):
        found.setdefault(fabric, []).append((_plain(field), value))
    return found


def blob_of(connection: sqlite3.Connection, identity: str) -> bytes | None:
    """A large value; None if it is there no more."""
    row = connection.execute("SELECT body FROM blobs WHERE id = ?", (identity,)).fetchone()
    return bytes(row[0]) if row else None


def leader_of(connection: sqlite3.Connection) -> Leader:
    """The holder of the newest epoch."""
    return Leader(*connection.execute("SELECT epoch, holder FROM leader").fetchone())


def next_leader(connection: sqlite3.Connection, holder: str, above: int) -> Leader:
    """Begin the next epoch, greater than ``above``."""
    epoch = max(leader_of(connection).epoch, above) + 1
    connection.execute("UPDATE leader SET epoch = ?, holder = ?", (epoch, holder))
    return Leader(epoch, holder)


def _escaped(field: str) -> str:
    """A field's name as it is kept: SQLite's lists end a text at a zero."""
    return field.replace("\\", "\\\\").replace("\0", "\\0")


def _plain(kept: str) -> str:
    """The name that ``_escaped`` was given."""
    if "\\" not in kept:
        return kept
    return "\\".join(part.replace("\\0", "\0") for part in kept.split("\\\\"))


def _listed(names: Iterable[str]) -> str:
    return orjson.dumps([*names]).decode()


_Answer = TypeVar("_Answer")


class FileApplier:
    """Implements ``Applier``; made by ``open_applier``."""

    def __init__(self, database: Database, bounds: Bounds) -> None:
        self.name = str(database.path)
        self.feed = Feed[str]()
        self._database = database
        self._bounds = bounds
        self._views: dict[str, View] = {}
        self._newest = Leader()
        self._doubtful = True
        """Whether the file may have other fields than the views."""
        self._looking: asyncio.Task[None] | None = None
        self._turn = asyncio.Condition()
        self._leading = 0
        """Epoch of whoever leads in this process; 0 for nobody."""
        self._closed = False
        self._writes = WriteBatcher(self.name, self._deliver)

    @property
    def epoch(self) -> int:
        """See ``Applier``."""
        return self._newest.epoch

    def check(self) -> None:
        """See ``Applier``."""
        self._database.check()

    async def fresh(self) -> None:
        """See ``Applier``. Readers that come together look at the file once."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
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
        """See ``Applier``."""
        return self._views.get(fabric) or View(fabric)

    def fabrics(self) -> Sequence[str]:
        """See ``Applier``."""
        return sorted(name for name, view in self._views.items() if view.known)

    async def apply(self, change: Change, ask: Ask) -> Outcome:
        """See ``Applier``."""
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
        """See ``Applier``."""
        return await self._run(lambda c: remembered(c, request))

    async def blob(self, identity: str) -> bytes | None:
        """See ``Applier``."""
        return await self._run(lambda c: blob_of(c, identity))

    async def audit(self, *, after: int = 0, limit: int = 0) -> AuditPage:
        """See ``Applier``."""
        return await self._run(lambda c: audit_page(c, after, limit))

    async def acquire_leadership(
        self, holder: str, *, above: int = 0, following: Following = heed_nobody
    ) -> int:
        """See ``Applier``."""
        async with self._turn:
            if self._leading:
                following(self._newest)
            await self._turn.wait_for(lambda: not self._leading or self._closed)
            if self._closed:
                raise Unavailable("the store is closed, the controller is stopping")
            # Not ``_run``, which would take the turn again.
            self._newest = await self._database.run(lambda c: next_leader(c, holder, above))
            self._leading = self.epoch
            return self._leading

    async def leadership_lost(self, epoch: int) -> None:
        """See ``Applier``."""
        async with self._turn:
            await self._turn.wait_for(lambda: self._leading != epoch or self._closed)

    async def release_leadership(self, epoch: int) -> None:
        """See ``Applier``."""
        if self._leading == epoch:
            await self._lose()

    async def _lose(self) -> None:
        """Nobody leads any more."""
        async with self._turn:
            self._leading = 0
            self._turn.notify_all()

    def leads(self, epoch: int) -> bool:
        """See ``Applier``."""
        return self._leading == epoch and not self._closed

    async def leader(self) -> Leader:
        """See ``Applier``."""
        await self.fresh()
        return self._newest

    def stale_for(self) -> float:
        """See ``Applier``: the file is here, or nothing is."""
        return 0.0

    async def close(self) -> None:
        """See ``Applier``."""
        self.feed.close()
        async with self._turn:
            self._closed = True
            self._turn.notify_all()
        await self._writes.close()
        await self._database.close()
