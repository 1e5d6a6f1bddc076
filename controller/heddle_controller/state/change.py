"""What a rule decides: a change of one fabric, to be made in one step or not at all.

A change is decided on what is known (``View``), which may be a moment old. It therefore
carries *guards*: fields, and what they held when it was decided. A store compares and
writes in one step; where a guard fails, nothing is written and the change is decided
anew. A change is a value, so that it can be offered again, word for word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from heddle_controller.state.audit import AuditEntry
from heddle_controller.state.records import Request

INTENT, FACTS, NEITHER = "i", "f", "n"
"""Which version a change moves."""

ABSENT = None
"""What a guard says of a field that must not be there."""

Guard = tuple[str, bytes | None]
"""A field, and what it holds."""


NOBODY = Request()


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a decision takes from the world."""

    now: float
    """Unix seconds."""
    token: str
    """A word that nothing had before, in no copy of the store either: etags are made of it."""
    request: Request = NOBODY
    """Who asks."""


class Blob(NamedTuple):
    """A large value, kept beside the fabric and pointed at from it."""

    id: str
    body: bytes | None
    """None where the store has it already."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The request that a change answers."""

    request: Request = NOBODY
    fingerprint: str = ""
    """Of all it asks for; see ``fingerprint``."""

    def remembered(self, answer: bytes) -> bytes:
        """What is kept under the id of the request."""
        return self.fingerprint.encode() + answer


@dataclass(frozen=True, slots=True)
class Change:
    """What to write of one fabric, in one step."""

    fabric: str
    moves: str
    """``INTENT``, ``FACTS`` or ``NEITHER``."""
    time: float
    guards: tuple[Guard, ...] = ()
    sets: Mapping[str, bytes | None] = field(default_factory=dict)
    """Fields and what they hold from now on; None: nothing any more."""
    keep: tuple[Blob, ...] = ()
    """Blobs that the fabric points at from now on, once more."""
    drop: tuple[str, ...] = ()
    """Ids of blobs that it points at once less; the last one takes the blob away."""
    epoch: int | None = None
    """Of the leader who writes; None for writes that anybody may make."""
    audit: AuditEntry | None = None
    answer: bytes = b""
    """Remembered with the id of the request."""
    lasting: bool = True
    """Whether it is waited for until it is on the disk: not for what is said again anyway."""

    def size(self) -> int:
        """Bytes, about."""
        blobs = sum(len(blob.body or b"") for blob in self.keep)
        fields = sum(100 + len(value or b"") for value in self.sets.values())
        return 500 + blobs + len(self.answer) + fields


class Outcome(NamedTuple):
    """What became of a change."""

    kind: str
    """``done``; ``replay``: the request was done before; ``guard``; ``epoch``; ``blob``."""
    number: int = 0
    """Of the write, for ``done``, 0 where there was nothing to tell; the newest epoch, for
    ``epoch``."""
    answer: bytes = b""
    """What is remembered of the first request, for ``replay``."""


def entry_of(stamp: Stamp, action: str, name: str, sides: tuple[str, str]) -> AuditEntry:
    """The entry of a change, told by its ``sides``: what was there before, and after."""
    by = stamp.request.actor, stamp.request.id or stamp.request.call
    return AuditEntry(stamp.now, *by, action, name, *sides)


def fingerprint(*parts: str | bytes) -> str:
    """A digest of what a request asks for; parts do not run into each other."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()


FINGERPRINT = 64
"""Characters of one."""
