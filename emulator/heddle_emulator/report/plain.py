"""Convert dataclasses to JSON and back, as their annotations say.

Fields become keys, enums their values, tuples lists, and numbers that are not finite null. When
read again, null becomes None if the field allows it, otherwise infinity. Unknown keys are ignored,
so that files of a newer version can be read. A field without default that is missing, or a value of
another type, is refused; the error says where it is.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

_T = TypeVar("_T")
Json = Any


class PlainError(ValueError):
    """A value does not have the right form; ``place`` says where, as in ``stories[0].title``."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place or 'the whole'}: {reason}")
        self.place, self.reason = place, reason


def to_plain(value: object) -> Json:
    """Convert a value to what ``json.dumps`` accepts."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def from_plain(form: type[_T], value: Json) -> _T:
    """Convert what ``json.loads`` returned to a dataclass.

    Raises:
        PlainError: The value does not have the form of the class.
    """
    return cast("_T", _Reader().read(form, value, ""))


class _Reader:
    """Reads one value; looks up the annotations of each class once."""

    def __init__(self) -> None:
        self._hints: dict[type, dict[str, Any]] = {}

    def read(self, form: Any, value: Json, place: str) -> Any:  # noqa: ANN401 - any annotation
        origin = get_origin(form)
        if origin in {Union, types.UnionType}:
            return self._either(get_args(form), value, place)
        if origin is tuple:
            inner = get_args(form)[0]
            items = _expect(list, value, place)
            return tuple(self.read(inner, item, f"{place}[{i}]") for i, item in enumerate(items))
        if origin is dict:
            inner = get_args(form)[1]
            items = _expect(dict, value, place)
            return {
                str(key): self.read(inner, item, f"{place}.{key}") for key, item in items.items()
            }
        if isinstance(form, type) and issubclass(form, Enum):
            return _word(form, value, place)
        if dataclasses.is_dataclass(form):
            return self._record(cast("type", form), value, place)
        return _scalar(form, value, place)

    def _either(self, forms: tuple[Any, ...], value: Json, place: str) -> Json:
        if value is None and types.NoneType in forms:
            return None
        (form,) = (one for one in forms if one is not types.NoneType)
        return self.read(form, value, place)

    def _record(self, form: type, value: Json, place: str) -> object:
        items, hints = _expect(dict, value, place), self._hints_of(form)
        told: dict[str, Any] = {}
        for field in dataclasses.fields(form):
            inner = f"{place}.{field.name}" if place else field.name
            if field.name in items:
                told[field.name] = self.read(hints[field.name], items[field.name], inner)
            elif field.default is dataclasses.MISSING:
                raise PlainError(inner, "is missing")
        return form(**told)

    def _hints_of(self, form: type) -> dict[str, Any]:
        if form not in self._hints:
            self._hints[form] = get_type_hints(form)
        return self._hints[form]


def _word(form: type[Enum], value: Json, place: str) -> Enum:
    words = [str(one.value) for one in form]
    if value not in words:
        raise PlainError(place, f"{value!r} is not one of {', '.join(words)}")
    return form(value)


def _scalar(form: type, value: Json, place: str) -> Json:
    if form is float and (value is None or type(value) is int):
        return math.inf if value is None else float(value)
    return _expect(form, value, place)


def _expect(form: type, value: Json, place: str) -> Any:  # noqa: ANN401 - as it came
    if type(value) is not form:
        raise PlainError(place, f"is {_named(type(value))}, not {_named(form)}")
    return value


def _named(form: type) -> str:
    words = {dict: "an object", list: "a list", str: "text", float: "a number", int: "a number"}
    words |= {bool: "true or false", types.NoneType: "null"}
    return words.get(form, form.__name__)
