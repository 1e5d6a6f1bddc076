"""One fabric as it is known: its fields, and what they mean.

Fields are named ``kind/name`` (``job/j1``) or by a word (``version``). What a field
means is worked out once and kept until the field changes, so that reading ten
thousand jobs again after one was submitted costs one.

What a rule decides: a change of one fabric, to be made in one step or not at all.

A change is decided on what is known (``View``), which may be a moment old. It therefore
carries *guards*: fields, and what they held when it was decided. A store compares and
writes in one step; where a guard fails, nothing is written and the change is decided
anew. A change is a value, so that it can be offered again, word for word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from heddle_controller.state.audit import AuditEntry
from heddle_controller.state.codec.container import DamagedError
from heddle_controller.state.errors import NotFound
from heddle_controller.state.records import Request, Versions

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


_Value = TypeVar("_Value")

INTENT_VERSION, FACTS_VERSION, CHANGE_TIME = "version", "facts", "change_time"
"""Fields that a store moves with each change: see ``Versions``."""
REVISION, GENERATION = "revision", "generation"
JOB_KIND, HOST_KIND = "job", "host"
"""Kinds of the fields that are jobs, and of those that say which jobs have a host (``holds``)."""


class View:
    """The fields of one fabric; changed only by who keeps it in step with a store.

    One without fields is of a fabric that is not there.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._kinds: dict[str, dict[str, bytes]] = {}
        self._meanings: dict[str, dict[str, Any]] = {}
        self._whole: dict[str, dict[str, Any]] = {}
        self._moved: dict[str, set[str]] = {}
        """Names whose meaning in ``_whole`` is of before."""

    @property
    def known(self) -> bool:
        """Whether there is such a fabric."""
        return self.raw(REVISION) is not None

    def take(self, field: str, value: bytes | None) -> None:
        """A field has this value now; None: it is gone."""
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
        """A change was made, and nothing else since the view was of now."""
        for name, value in change.sets.items():
            self.take(name, value)
        moved = {INTENT: INTENT_VERSION, FACTS: FACTS_VERSION}.get(change.moves)
        if moved is not None:
            self.take(moved, str(self.number(moved) + 1).encode())
        if change.moves == INTENT:
            self.take(CHANGE_TIME, repr(change.time).encode())

    def replace(self, fields: Iterable[tuple[str, bytes]]) -> None:
        """These are all fields now."""
        wanted = dict(fields)
        for gone in [name for name in self.fields() if name not in wanted]:
            self.take(gone, None)
        for name, value in wanted.items():
            self.take(name, value)

    def fields(self) -> dict[str, bytes]:
        """All of them."""
        return {
            f"{kind}/{name}" if name else kind: value
            for kind, values in self._kinds.items()
            for name, value in values.items()
        }

    def raw(self, field: str) -> bytes | None:
        """A field as it is stored; None if it is not there."""
        kind, _, name = field.partition("/")
        return self._kinds.get(kind, {}).get(name)

    def number(self, field: str) -> int:
        """A field that is a number; 0 if it is not there."""
        return int(self.raw(field) or 0)

    def names(self, kind: str) -> list[str]:
        """The names of a kind, in order."""
        return sorted(self._kinds.get(kind, ()))

    def lacking(self, kind: str, other: str) -> list[str]:
        """Names of a kind that another kind does not have."""
        return sorted(self._kinds.get(kind, {}).keys() - self._kinds.get(other, {}).keys())

    def get(self, kind: str, name: str, parse: Callable[[bytes], _Value]) -> _Value | None:
        """What a field means; None if it is not there.

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
        """What all fields of a kind mean, by name, in order; never changed once given out."""
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
        """How far things have come."""
        return Versions(*map(self.number, (INTENT_VERSION, FACTS_VERSION, GENERATION)))

    def guard(self, field: str) -> Guard:
        """A guard that a field still holds what it does now."""
        return field, self.raw(field)


def check_known(view: View) -> None:
    """Nothing where there is such a fabric. Raises ``NotFound``."""
    if not view.known:
        raise NotFound(f"fabrics/{view.name}")
