"""The tables of the embedded store, and what is checked before they are trusted.

The schema has a number in the file. A file of an older number would be brought up
step by step; one of a newer number is refused, because guessing at what a newer
Heddle meant loses data.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from heddle_controller.state.errors import Unusable

APPLICATION_ID = 0x4844_4C31
"""Tells a file of Heddle from any other SQLite file."""

VERSION = 4

_TABLES = """
CREATE TABLE leadership (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    epoch INTEGER NOT NULL,
    holder TEXT NOT NULL
) STRICT;
INSERT INTO leadership VALUES (1, 0, '');
CREATE TABLE structures (digest TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE fabrics (
    name TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    structure TEXT NOT NULL REFERENCES structures (digest),
    states BLOB NOT NULL,         -- administrative and observed, and their times
    etag TEXT NOT NULL,
    update_time REAL NOT NULL,
    revision INTEGER NOT NULL,
    version INTEGER NOT NULL,     -- of the intent
    change_time REAL NOT NULL,    -- of the intent
    facts INTEGER NOT NULL        -- version of the facts
) STRICT;
CREATE TABLE observations (
    fabric TEXT NOT NULL REFERENCES fabrics (name),
    switch TEXT NOT NULL,
    instance TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (fabric, switch)
) STRICT, WITHOUT ROWID;
CREATE TABLE jobs (
    fabric TEXT NOT NULL REFERENCES fabrics (name),
    name TEXT NOT NULL,
    spec BLOB NOT NULL,
    etag TEXT NOT NULL,
    create_time REAL NOT NULL,
    state INTEGER NOT NULL,       -- from here on: facts
    reason TEXT NOT NULL,
    flow_count INTEGER NOT NULL,
    unrouted_count INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    state_time REAL NOT NULL,
    PRIMARY KEY (fabric, name)
) STRICT;
CREATE TABLE hosts (
    fabric TEXT NOT NULL,
    host TEXT NOT NULL,
    job TEXT NOT NULL,
    PRIMARY KEY (fabric, host),
    FOREIGN KEY (fabric, job) REFERENCES jobs (fabric, name) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX hosts_of_job ON hosts (fabric, job);
CREATE TABLE demands (
    fabric TEXT NOT NULL REFERENCES fabrics (name),
    name TEXT NOT NULL,
    body BLOB NOT NULL,
    etag TEXT NOT NULL,
    update_time REAL NOT NULL,
    PRIMARY KEY (fabric, name)
) STRICT;
CREATE TABLE plans (
    fabric TEXT NOT NULL REFERENCES fabrics (name),
    generation INTEGER NOT NULL,
    structure TEXT NOT NULL REFERENCES structures (digest),
    body BLOB NOT NULL,
    changed_count INTEGER NOT NULL,
    solve_seconds REAL NOT NULL,
    commit_time REAL NOT NULL,
    PRIMARY KEY (fabric, generation)
) STRICT;
CREATE TABLE programmed (
    fabric TEXT NOT NULL REFERENCES fabrics (name),
    switch TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    time REAL NOT NULL,
    PRIMARY KEY (fabric, switch)
) STRICT, WITHOUT ROWID;
CREATE TABLE requests (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    fingerprint TEXT NOT NULL,
    answer BLOB NOT NULL
) STRICT;
"""


_STEPS = {
    2: """
ALTER TABLE fabrics ADD COLUMN overlay_withdrawn INTEGER NOT NULL DEFAULT 0;
ALTER TABLE fabrics ADD COLUMN overlay_time REAL NOT NULL DEFAULT 0.0;
CREATE TABLE audit (
    number INTEGER PRIMARY KEY,
    hash BLOB NOT NULL,
    time REAL NOT NULL,
    actor TEXT NOT NULL,
    request TEXT NOT NULL,
    action TEXT NOT NULL,
    name TEXT NOT NULL,
    before TEXT NOT NULL,
    after TEXT NOT NULL
) STRICT;
CREATE TABLE audit_marks (
    which TEXT PRIMARY KEY,       -- head, anchor
    number INTEGER NOT NULL,
    hash BLOB NOT NULL
) STRICT, WITHOUT ROWID;
""",
    3: """
CREATE TABLE plan_bases (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    body BLOB NOT NULL
) STRICT;
ALTER TABLE plans ADD COLUMN base INTEGER REFERENCES plan_bases (id);
""",
    4: """
ALTER TABLE fabrics ADD COLUMN kept_for INTEGER NOT NULL DEFAULT 0;
""",
}
"""What brings a file to each number from the one before."""


def create_database(path: Path) -> None:
    """A new store in an empty file.

    Raises:
        OSError: it cannot be written.
    """
    try:
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            _create(connection)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise OSError(0, str(error)) from error


def open_database(path: Path, told: Path) -> sqlite3.Connection:
    """A connection to a sound file of this schema, brought up to it where it is of an older one.

    ``told`` is how people know the path. Commits are in the write-ahead log and on the disk when
    they return.

    Raises:
        Unusable: not a file of Heddle's, damaged, newer, or not writable.
    """
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise Unusable(f"store {told}: {error}; give a path that can be written") from None
    try:
        _check(connection, told)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        _create(connection)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise Unusable(_cure(told, error)) from None
    except Unusable:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    number = _pragma(connection, "application_id")
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and number != APPLICATION_ID:
        raise Unusable(f"store {path}: belongs to another program; give a file of its own")
    version = _pragma(connection, "user_version")
    if version > VERSION:
        raise Unusable(
            f"store {path}: written by a newer Heddle (schema {version}, this one knows "
            f"{VERSION}); run that one, or start with a new file"
        )
    report = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if report != "ok":
        raise Unusable(_cure(path, report))


def _create(connection: sqlite3.Connection) -> None:
    version = _pragma(connection, "user_version")
    if version == VERSION:
        return
    steps = "".join(text for number, text in sorted(_STEPS.items()) if number > version)
    connection.executescript(
        f"BEGIN IMMEDIATE;{_TABLES if version == 0 else ''}{steps}"
        f"PRAGMA application_id = {APPLICATION_ID};PRAGMA user_version = {VERSION};COMMIT;"
    )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _cure(path: Path, trouble: object) -> str:
    reason = " ".join(str(trouble).split())
    return (
        f"store {path}: cannot be read ({reason}); restore it from a backup,"
        " or move it aside to start with an empty one"
    )
