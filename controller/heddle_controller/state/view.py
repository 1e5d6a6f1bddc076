"""What is known of one fabric (``View``), and what a rule decides to write (``Change``).

A view holds fields. They are named ``kind/name`` (``job/j1``) or by a single word (``version``).
The meaning of a field is parsed once and kept until the field changes. So reading ten thousand jobs
again after one was submitted parses only one.

A change concerns one fabric, and is made in one step or not at all. It is decided on a view, which
may be slightly out of date. It therefore carries *guards*: fields and their values at that time. A
store compares the guards and writes in one step. If a guard fails, nothing is written, and the
change is decided again. A change is a plain value, so it can be sent again unaltered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from heddle_controller.state.audit import AuditEntry
from heddle_controller.state.codec.container import DamagedError
from heddle_controller.state.errors import deleted_fabric, unknown_fabric
from heddle_controller.state.records import Request, Versions

INTENT, FACTS, NEITHER = "i", "f", "n"
"""Which version a change increases: that of intent, that of facts, or neither."""

ABSENT = None
"""Value in a guard for a field that must not exist."""

Guard = tuple[str, bytes | None]
"""A field and the value that it must have."""


NOBODY = Request()


@dataclass(frozen=True, slots=True)
class Stamp:
    """Time, token and request: what a decision needs besides the view."""

    now: float
    """Unix seconds."""
    token: str
    """A unique word, which no copy of the store contains either. It becomes an etag."""
    request: Request = NOBODY
    """The caller and the id of its request."""


class Blob(NamedTuple):
    """A large value, stored apart from the fields of a fabric, which refer to it by id."""

    id: str
    body: bytes | None
    """None if the store already has it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The request that a change answers."""

    request: Request = NOBODY
    fingerprint: str = ""
    """Digest of everything the request asks for; see the function ``fingerprint``."""

    def remembered(self, answer: bytes) -> bytes:
        """Return what a store keeps under the request id: the fingerprint and the answer."""
        return self.fingerprint.encode() + answer


@dataclass(frozen=True, slots=True)
class Change:
    """What to write for one fabric, in one step."""

    fabric: str
    moves: str
    """``INTENT``, ``FACTS`` or ``NEITHER``."""
    time: float
    guards: tuple[Guard, ...] = ()
    sets: Mapping[str, bytes | None] = field(default_factory=dict)
    """New values of fields. None removes a field."""
    keep: tuple[Blob, ...] = ()
    """Blobs that get one more reference."""
    drop: tuple[str, ...] = ()
    """Ids of blobs that lose one reference. A blob without references is deleted."""
    epoch: int | None = None
    """Epoch of the leader who writes. None for writes that any controller may make."""
    audit: AuditEntry | None = None
    answer: bytes = b""
    """The answer to remember with the id of the request."""
    lasting: bool = True
    """Whether the write must be on the disk before it is acknowledged. Facts that are reported
    again anyway need not."""

    def size(self) -> int:
        """Return the approximate size in bytes."""
        blobs = sum(len(blob.body or b"") for blob in self.keep)
        fields = sum(100 + len(value or b"") for value in self.sets.values())
        return 500 + blobs + len(self.answer) + fields


class Outcome(NamedTuple):
    """The result of applying a change."""

    kind: str
    """``done``, ``replay`` (the request was done before), or why nothing was written: ``guard`` (a
    guard failed), ``epoch`` (another epoch is the newest) or ``blob`` (a blob is gone)."""
    number: int = 0
    """For ``done``, the number of the write, or 0 if no field changed. For ``epoch``, the newest
    epoch."""
    answer: bytes = b""
    """For ``replay``, what is kept under the request id; see ``Ask.remembered``."""


def entry_of(stamp: Stamp, action: str, name: str, sides: tuple[str, str]) -> AuditEntry:
    """Return the audit entry of a change. ``sides`` describe the state before and after it."""
    by = stamp.request.actor, stamp.request.id or stamp.request.call
    return AuditEntry(stamp.now, *by, action, name, *sides)


def fingerprint(*parts: str | bytes) -> str:
    """Return a SHA-256 digest, in hex, of what a request asks for.

    Each part is hashed with its length, so that moving text between parts changes the digest.
    """
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()


FINGERPRINT = 64
"""Number of characters in a fingerprint."""


_Value = TypeVar("_Value")

INTENT_VERSION, FACTS_VERSION, CHANGE_TIME = "version", "facts", "change_time"
"""Fields that stores update with each change according to ``Change.moves``; see ``Versions``."""
META, REVISION, GENERATION = "meta", "revision", "generation"
JOB_KIND, HOST_KIND = "job", "host"
"""Kinds of fields: jobs, and which jobs hold each host (``jobs.Holds``)."""


class View:
    """The fields of one fabric. Only the code that follows a store may change them.

    A fabric that does not exist has a view without fields.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._kinds: dict[str, dict[str, bytes]] = {}
        self._meanings: dict[str, dict[str, Any]] = {}
        self._whole: dict[str, dict[str, Any]] = {}
        self._moved: dict[str, set[str]] = {}
        """Names, by kind, whose meaning in ``_whole`` is out of date."""

    @property
    def known(self) -> bool:
        """Whether the fabric exists. Of one that was deleted, only numbers are left."""
        return self.raw(META) is not None

    def take(self, field: str, value: bytes | None) -> None:
        """Set a field to a value, or remove it if the value is None."""
        kind, _, name = field.partition("/")
        values = self._kinds.setdefault(kind, {})
        if value is None:
            values.pop(name, None)
        elif values.get(name) == value:
            return
        else:
            values[name] = value
        self._meanings.get(kind, {}).pop(name, None)
        if kind in self._whole:
            self._moved.setdefault(kind, set()).add(name)

    def advance(self, change: Change) -> None:
        """Apply a change that was made. All changes before it must be in the view."""
        for name, value in change.sets.items():
            self.take(name, value)
        moved = {INTENT: INTENT_VERSION, FACTS: FACTS_VERSION}.get(change.moves)
        if moved is not None:
            self.take(moved, str(self.number(moved) + 1).encode())
        if change.moves == INTENT:
            self.take(CHANGE_TIME, repr(change.time).encode())

    def replace(self, fields: Iterable[tuple[str, bytes]]) -> None:
        """Replace all fields by these."""
        wanted = dict(fields)
        for gone in [name for name in self.fields() if name not in wanted]:
            self.take(gone, None)
        for name, value in wanted.items():
            self.take(name, value)

    def fields(self) -> dict[str, bytes]:
        """Return all fields, by name."""
        return {
            f"{kind}/{name}" if name else kind: value
            for kind, values in self._kinds.items()
            for name, value in values.items()
        }

    def raw(self, field: str) -> bytes | None:
        """Return the stored value of a field, or None if it does not exist."""
        kind, _, name = field.partition("/")
        return self._kinds.get(kind, {}).get(name)

    def number(self, field: str) -> int:
        """Return the value of a field as an integer, or 0 if it does not exist."""
        return int(self.raw(field) or 0)

    def names(self, kind: str) -> list[str]:
        """Return the names of all fields of a kind, in order."""
        return sorted(self._kinds.get(kind, ()))

    def lacking(self, kind: str, other: str) -> list[str]:
        """Return the names that ``kind`` has and ``other`` has not, in order."""
        return sorted(self._kinds.get(kind, {}).keys() - self._kinds.get(other, {}).keys())

    def get(self, kind: str, name: str, parse: Callable[[bytes], _Value]) -> _Value | None:
        """Return the parsed value of a field, or None if it does not exist.

        Raises:
            DamagedError: ``parse`` cannot read it.
        """
        meanings = self._meanings.setdefault(kind, {})
        if name not in meanings:
            value = self._kinds.get(kind, {}).get(name)
            if value is None:
                return None
            try:
                meanings[name] = parse(value)
            except (KeyError, TypeError, ValueError) as error:
                raise DamagedError(f"{kind}/{name} of fabric {self.name}: {error}") from error
        meaning: _Value = meanings[name]
        return meaning

    def all(self, kind: str, parse: Callable[[bytes], _Value]) -> Mapping[str, _Value]:
        """Return the parsed values of all fields of a kind, by name.

        A mapping that was returned is never changed later. Raises ``DamagedError`` as ``get``.
        """
        whole: dict[str, Any] | None = self._whole.get(kind)
        moved: Iterable[str] = self._moved.pop(kind, ())
        if whole is None or not all(name in whole for name in moved):
            whole, moved = {}, self.names(kind)
        if moved:
            whole = {**whole}
            for name in moved:
                value = self.get(kind, name, parse)
                if value is None:
                    whole.pop(name, None)
                else:
                    whole[name] = value
        self._whole[kind] = whole
        return whole

    def versions(self) -> Versions:
        """Return the versions of intent and facts, and the newest generation."""
        return Versions(*map(self.number, (INTENT_VERSION, FACTS_VERSION, GENERATION)))

    def guard(self, field: str) -> Guard:
        """Return a guard that a field still has its present value."""
        return field, self.raw(field)


def check_known(view: View) -> None:
    """Raise ``NotFound`` if the fabric does not exist, ``FabricDeleted`` if it was deleted."""
    if view.known:
        return
    if view.raw(REVISION) is None:
        raise unknown_fabric(view.name)
    raise deleted_fabric(view.name, view.number(GENERATION), view.number(INTENT_VERSION))
