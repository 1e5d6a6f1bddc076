"""One fabric as this replica knows it: the fields of its hash, and what they mean.

Fields are named ``kind/name`` (``job/j1``) or by a word (``version``). What a field
means is worked out once and kept until the field changes, so that reading ten
thousand jobs again after one was submitted costs one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from heddle_controller.state.codec.container import DamagedError
from heddle_controller.state.records import Versions

Value = TypeVar("Value")


class View:
    """The fields of one fabric; changed by ``Mirror`` only."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._kinds: dict[str, dict[str, bytes]] = {}
        self._meanings: dict[str, dict[str, Any]] = {}
        self._whole: dict[str, Mapping[str, Any]] = {}

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
        self._whole.pop(kind, None)

    def replace(self, fields: Iterable[tuple[str, bytes]]) -> None:
        """These are all fields now."""
        wanted = dict(fields)
        for gone in [field for field in self.fields() if field not in wanted]:
            self.take(gone, None)
        for field, value in wanted.items():
            self.take(field, value)

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

    def get(self, kind: str, name: str, parse: Callable[[bytes], Value]) -> Value | None:
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
        meaning: Value = meanings[name]
        return meaning

    def all(self, kind: str, parse: Callable[[bytes], Value]) -> Mapping[str, Value]:
        """What all fields of a kind mean, by name; never changed once given out."""
        if kind not in self._whole:
            found = ((name, self.get(kind, name, parse)) for name in self.names(kind))
            self._whole[kind] = {name: value for name, value in found if value is not None}
        return self._whole[kind]

    def versions(self) -> Versions:
        """How far things have come."""
        return Versions(*(self.number(field) for field in ("version", "facts", "generation")))
