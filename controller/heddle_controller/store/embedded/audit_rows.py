"""Rows of the audit trail in the embedded store: how a change adds one.

``note`` is called inside the transaction of a change, so that neither is there without
the other. The oldest records go when there are more than the store keeps; their last
mark stays, for the rest to be verified against.
"""

from __future__ import annotations

import sqlite3

from heddle_controller.state.audit import Mark
from heddle_controller.state.audit_texts import Change
from heddle_controller.state.records import Request

KEPT = 100_000
"""Records kept unless the operator says otherwise."""
COLUMNS = "number, hash, time, actor, request, action, name, before, after"


def note(
    connection: sqlite3.Connection, request: Request, change: Change, now: float, kept: int
) -> None:
    """Add a record, and drop the oldest beyond ``kept``."""
    entry = change.entry(request, now)
    head = mark_of(connection, "head").follow(entry.content())
    texts = (entry.actor, entry.request, entry.action, entry.name, entry.before, entry.after)
    connection.execute(
        f"INSERT INTO audit ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (head.number, head.hash, entry.time, *texts),
    )
    _set_mark(connection, "head", head)
    _trim(connection, head.number - kept)


def _trim(connection: sqlite3.Connection, last: int) -> None:
    """Drop the records up to ``last``, whose mark becomes the anchor."""
    row = connection.execute("SELECT hash FROM audit WHERE number = ?", (last,)).fetchone()
    if row is not None:
        _set_mark(connection, "anchor", Mark(last, row[0]))
        connection.execute("DELETE FROM audit WHERE number <= ?", (last,))


def mark_of(connection: sqlite3.Connection, which: str) -> Mark:
    """The head or the anchor; that before the first record where there is none."""
    row = connection.execute(
        "SELECT number, hash FROM audit_marks WHERE which = ?", (which,)
    ).fetchone()
    return Mark(*row) if row else Mark()


def _set_mark(connection: sqlite3.Connection, which: str, mark: Mark) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO audit_marks VALUES (?, ?, ?)", (which, mark.number, mark.hash)
    )
