"""What is read and written in the tables: a change is made whole, or not at all.

No rule of intent is here: see ``state``. Whoever calls holds a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

import orjson

from heddle_controller.reconcile.replicas import Leader
from heddle_controller.state.audit import (
    AuditEntry,
    AuditPage,
    AuditRecord,
    Mark,
    entry_json,
    parse_entry,
)
from heddle_controller.state.change import FACTS, INTENT, Ask, Change, Guard, Outcome
from heddle_controller.state.view import CHANGE_TIME, FACTS_VERSION, INTENT_VERSION
from heddle_controller.store.applier import Bounds

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
    known = [blob.id for blob in change.keep if blob.body is None]
    for one in known:
        if connection.execute("SELECT 1 FROM blobs WHERE id = ?", (one,)).fetchone() is None:
            return False
    for blob in change.keep:
        connection.execute(
            "INSERT INTO blobs VALUES (?, ?, 1) "
            "ON CONFLICT (id) DO UPDATE SET pointers = pointers + 1",
            (blob.id, blob.body or b""),
        )
    for identity in change.drop:
        connection.execute("UPDATE blobs SET pointers = pointers - 1 WHERE id = ?", (identity,))
    if change.drop:
        connection.execute(
            "DELETE FROM blobs WHERE pointers <= 0 AND id IN (SELECT value FROM json_each(?))",
            (_listed(change.drop),),
        )
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
        "INSERT INTO audit VALUES (?, ?, ?)", (head.number, head.hash, entry_json(entry))
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
    """See ``AuditStore``."""
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
