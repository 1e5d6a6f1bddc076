"""Containers: columns of numbers and some JSON as one compressed string of bytes.

The form is like npz without the zip file and without pickle. A header in JSON names each column
with its type and length, and the raw columns follow. Integers are stored in the narrowest type that
holds them, and read back as int64. Row numbers of a plan need two bytes in most fabrics, and a
quarter of the size is worth more than a higher compression level. zlib's checksum reveals damage.

Small values are stored as JSON, as orjson writes dataclasses, and ``parser`` reads them back.
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
"""Level of zlib. Higher levels take five times as long to save a tenth of the size."""

_INTEGERS = ("int8", "int16", "int32", "int64")
_LIMITS = [(np.dtype(kind), int(np.iinfo(kind).min), int(np.iinfo(kind).max)) for kind in _INTEGERS]
_NAMES = {np.dtype(kind): kind for kind in (*_INTEGERS, "float64")}

_Column = npt.NDArray[np.int64] | npt.NDArray[np.float64]


class DamagedError(ValueError):
    """Stored bytes are damaged: they are not what ``pack`` or orjson made."""


_Value = TypeVar("_Value")


def parser(kind: type[_Value], what: str) -> Callable[[bytes], _Value]:
    """Return a function that reads a value of a dataclass from its JSON.

    It raises ``DamagedError``, which begins with ``what``, for anything else. The JSON must have
    each field.
    """
    make = _maker(kind)
    assert make is not None  # never None for a dataclass

    def parse(content: bytes) -> _Value:
        try:
            value: _Value = make(orjson.loads(content))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise DamagedError(f"{what}: {error}") from error
        return value

    return parse


def _maker(kind: Any) -> Callable[[Any], Any] | None:  # noqa: ANN401 - a type, or what stands for one
    """Return a function that makes a value of this type from JSON; None if JSON has it as it is."""
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
    """Pack JSON and columns. Columns have one dimension and are int64 or float64."""
    return pack_raw(raw(meta, {name: narrowed(column) for name, column in columns.items()}))


def pack_raw(content: bytes) -> bytes:
    """Compress what ``raw`` returned, as ``pack`` does."""
    return MAGIC + zlib.compress(content, LEVEL)


def raw(meta: Mapping[str, Any], narrow: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return the uncompressed content of a container. ``narrowed`` must have made the columns."""
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
    """Return the JSON part and the columns, as int64 or float64.

    Raises:
        DamagedError: the bytes were not made by ``pack``, or were changed since.
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
        if kind not in _NAMES.values() or length < 0:  # numpy takes -1 as "the rest"
            raise DamagedError(f"column {name!r} has type {kind!r} and length {length!r}")
        column = np.frombuffer(content, dtype=kind, count=length, offset=start)
        start += column.nbytes
        columns[name] = column.astype(np.float64 if kind == "float64" else np.int64)
    return columns, start


def narrowed(column: _Column) -> npt.NDArray[Any]:
    """Return the same numbers in the narrowest integer type that holds them, or as float64."""
    if column.dtype.kind == "f":
        return np.ascontiguousarray(column, dtype=np.float64)
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    kind = next(kind for kind, least, most in _LIMITS if least <= low and high <= most)
    return np.ascontiguousarray(column, dtype=kind)
