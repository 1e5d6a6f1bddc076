"""What a write asks of Redis: what must hold, and what to set if it does.

A change is decided in Python on what this replica knows (``view``), which may be a
moment old. It therefore carries *guards*: fields, and what they held when it was
decided. One script compares and writes in one step; where a guard fails, nothing is
written and the change is decided anew. A change is a value, so that it can be offered
again, word for word, to a server that has lost it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from heddle_controller.state.audit import AuditEntry
from heddle_controller.state.records import Request

Raw = str | bytes | int | float

INTENT, FACTS, NEITHER = "i", "f", "n"
"""Which version a change moves."""

ABSENT = None
"""What a guard says of a field that must not be there."""


class Op(NamedTuple):
    """One field of a fabric to set or to drop."""

    kind: str
    """``set``, ``drop``; ``needs``: set where the field ``extra`` is; ``above``: set where
    the number that the field begins with is below ``extra``."""
    field: str
    value: bytes = b""
    extra: str = ""


class Blob(NamedTuple):
    """A large value, kept beside the fabric and pointed at from it."""

    id: str
    body: bytes | None
    """None where the server has it already."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The request that a change answers."""

    request: Request
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Change:
    """What to write of one fabric, in one step."""

    fabric: str
    kind: str
    guards: tuple[tuple[str, bytes | None], ...] = ()
    ops: tuple[Op, ...] = ()
    keep: tuple[Blob, ...] = ()
    """Blobs that the fabric points at from now on, once more."""
    drop: tuple[str, ...] = ()
    """Ids of blobs that it points at once less; the last one takes the blob away."""
    epoch: int | None = None
    """Of the leader who writes; None for writes that anybody may make."""
    audit: AuditEntry | None = None
    answer: bytes = b""
    """Remembered with the id of the request."""
    time: float = 0.0

    def size(self) -> int:
        """Bytes, about."""
        blobs = sum(len(blob.body or b"") for blob in self.keep)
        return 500 + blobs + len(self.answer) + sum(100 + len(op.value) for op in self.ops)


class Outcome(NamedTuple):
    """What became of a change."""

    kind: str
    """``done``; ``replay``: the request was done before; ``guard``; ``epoch``; ``blob``."""
    number: int = 0
    """Of the write, for ``done``; the newest epoch, for ``epoch``."""
    answer: bytes = b""
    """Fingerprint and answer of the first request, for ``replay``."""


def new_token() -> str:
    """One that nothing had before, in no copy of the store either."""
    return secrets.token_hex(8)


def put(field: str, value: bytes | str | float) -> Op:
    """Set a field."""
    return Op("set", field, value if isinstance(value, bytes) else str(value).encode())


def drop(field: str) -> Op:
    """Take a field away."""
    return Op("drop", field)


def flat(rows: Iterable[Iterable[Raw]]) -> list[Raw]:
    """How many rows, and then what is in them, as the script reads lists."""
    listed = [list(row) for row in rows]
    return [len(listed), *(item for row in listed for item in row)]
