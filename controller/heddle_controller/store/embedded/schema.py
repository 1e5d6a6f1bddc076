"""The tables of the embedded store, and what is checked before they are trusted.

The file has the number of its form. One of another number is refused: guessing at what
another Heddle meant loses data.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from heddle_controller.state.errors import Unusable

APPLICATION_ID = 0x4844_4C31
"""Tells a file of Heddle from any other SQLite file."""

SCHEMA_VERSION = 9

_TABLES = """
CREATE TABLE leader (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    epoch INTEGER NOT NULL,
    holder TEXT NOT NULL
) STRICT;
INSERT INTO leader VALUES (1, 0, '');
CREATE TABLE fields (
    fabric TEXT NOT NULL,
    field TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (fabric, field)
) STRICT, WITHOUT ROWID;
CREATE TABLE blobs (
    id TEXT PRIMARY KEY,
    body BLOB NOT NULL,
    pointers INTEGER NOT NULL     -- how often fabrics point at it
) STRICT;
CREATE TABLE requests (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    answer BLOB NOT NULL
) STRICT;
CREATE TABLE audit (
    number INTEGER PRIMARY KEY,
    hash BLOB NOT NULL,
    entry BLOB NOT NULL
) STRICT;
CREATE TABLE anchor (             -- of the audit trail: the newest record that was dropped
    only INTEGER PRIMARY KEY CHECK (only = 1),
    number INTEGER NOT NULL,
    hash BLOB NOT NULL
) STRICT;
"""


def create_database(path: Path) -> None:
    """A new store in an empty file.

    Raises:
        OSError: it cannot be written.
    """
    try:
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(
                f"BEGIN IMMEDIATE;{_TABLES}PRAGMA application_id = {APPLICATION_ID};"
                f"PRAGMA user_version = {SCHEMA_VERSION};COMMIT;"
            )
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise OSError(0, str(error)) from error


def open_database(path: Path, told: Path) -> sqlite3.Connection:
    """A connection to a sound file of this form; ``told`` is how people know the path.

    Commits are in the write-ahead log and on the disk when they return.

    Raises:
        Unusable: not a file of Heddle's, damaged, of another form, or not writable.
    """
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise Unusable(f"store {told}: {error}; give a path that can be written") from None
    try:
        _check(connection, told)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        _pragma(connection, "user_version")  # opens the log, which is then locked
    except sqlite3.DatabaseError as error:
        connection.close()
        raise Unusable(_cure(told, error)) from None
    except Unusable:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise Unusable(f"store {path}: belongs to another program; give a file of its own")
    version = _pragma(connection, "user_version")
    if version != SCHEMA_VERSION:
        age = "a newer" if version > SCHEMA_VERSION else "an older"
        raise Unusable(
            f"store {path}: written by {age} Heddle (schema {version}, this one knows only "
            f"{SCHEMA_VERSION}); run that one, or move the file aside to start with a new one"
        )
    report = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if report != "ok":
        raise Unusable(_cure(path, report))


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _cure(path: Path, trouble: object) -> str:
    reason = " ".join(str(trouble).split())
    return (
        f"store {path}: cannot be read ({reason}); restore it from a backup,"
        " or move it aside to start with an empty one"
    )
