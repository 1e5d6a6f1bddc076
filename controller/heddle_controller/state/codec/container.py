"""Columns of numbers and a little JSON in one compressed piece of bytes.

Like npz without the zip file and without pickle: a header in JSON names each
column with its type and length, then the columns follow raw. Integers are kept in
the narrowest type that holds them, and come back as int64: row numbers of a plan
need two bytes in most fabrics, and halving twice is worth more than compressing
harder. zlib's checksum tells of damage.

Small values are JSON, as orjson makes it of dataclasses, and are read back by their types.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import EnumType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
import orjson

MAGIC = b"HDL1"
LEVEL = 1
"""Higher levels take five times as long for a tenth less."""

_INTEGERS = ("int8", "int16", "int32", "int64")
_LIMITS = [(np.dtype(kind), int(np.iinfo(kind).min), int(np.iinfo(kind).max)) for kind in _INTEGERS]
_NAMES = {np.dtype(kind): kind for kind in (*_INTEGERS, "float64")}

_Column = npt.NDArray[np.int64] | npt.NDArray[np.float64]


class DamagedError(ValueError):
    """Bytes that are not what ``pack`` or orjson made."""


_Value = TypeVar("_Value")


def parser(kind: type[_Value], what: str) -> Callable[[bytes], _Value]:
    """Reads values of a dataclass from JSON that has each of its fields; else ``DamagedError``."""
    make = _maker(kind)
    assert make is not None  # of a dataclass

    def parse(content: bytes) -> _Value:
        try:
            value: _Value = make(orjson.loads(content))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise DamagedError(f"{what}: {error}") from error
        return value

    return parse


def _maker(kind: Any) -> Callable[[Any], Any] | None:  # noqa: ANN401 - a type, or what stands for one
    """How a value is made of what JSON has of it; None where that is the value."""
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        makers = [(one.name, _maker(hints[one.name])) for one in fields(kind)]

        def whole(told: Mapping[str, Any]) -> object:
            given = {name: make(told[name]) if make else told[name] for name, make in makers}
            return kind(**given)

        return whole
    if get_origin(kind) is tuple:
        inner = _maker(get_args(kind)[0])
        return (lambda told: tuple(map(inner, told))) if inner else tuple
    return kind if isinstance(kind, EnumType) else None


def pack(meta: Mapping[str, Any], columns: Mapping[str, _Column]) -> bytes:
    """One piece of bytes; columns have one dimension and are int64 or float64."""
    return pack_raw(raw(meta, {name: narrowed(column) for name, column in columns.items()}))


def pack_raw(content: bytes) -> bytes:
    """One piece of bytes of what ``raw`` gave."""
    return MAGIC + zlib.compress(content, LEVEL)


def raw(meta: Mapping[str, Any], narrow: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """What is compressed, of columns that ``narrowed`` gave."""
    header = orjson.dumps(
        {
            "meta": meta,
            "columns": [[name, _NAMES[c.dtype], len(c)] for name, c in narrow.items()],
        },
        option=orjson.OPT_NON_STR_KEYS,
    )
    begin = len(header).to_bytes(4, "big")
    return b"".join([begin, header, *(c.tobytes() for c in narrow.values())])


def unpack(packed: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON part and the columns, as int64 or float64.

    Raises:
        DamagedError: not made by ``pack``, or changed since.
    """
    if packed[: len(MAGIC)] != MAGIC:
        raise DamagedError("does not begin as a record of the store does")
    try:
        content = zlib.decompress(packed[len(MAGIC) :])
        start = 4 + int.from_bytes(content[:4], "big")
        header = orjson.loads(content[4:start])
        meta: dict[str, Any] = header["meta"]
        columns, end = _columns(header["columns"], content, start)
    except (zlib.error, orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise DamagedError(str(error)) from error
    if end != len(content):
        raise DamagedError(f"has {len(content) - end} bytes too many")
    return meta, columns


def _columns(listed: list[Any], content: bytes, start: int) -> tuple[dict[str, Any], int]:
    columns: dict[str, Any] = {}
    for name, kind, length in listed:
        if kind not in _NAMES.values() or length < 0:  # -1 would be "all that is left" to numpy
            raise DamagedError(f"column {name!r} has type {kind!r} and length {length!r}")
        column = np.frombuffer(content, dtype=kind, count=length, offset=start)
        start += column.nbytes
        columns[name] = column.astype(np.float64 if kind == "float64" else np.int64)
    return columns, start


def narrowed(column: _Column) -> npt.NDArray[Any]:
    """The same numbers in the narrowest type that holds them all."""
    if column.dtype.kind == "f":
        return np.ascontiguousarray(column, dtype=np.float64)
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    kind = next(kind for kind, least, most in _LIMITS if least <= low and high <= most)
    return np.ascontiguousarray(column, dtype=kind)
