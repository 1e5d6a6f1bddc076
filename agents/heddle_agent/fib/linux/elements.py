"""Elements of our maps as arrays of bytes: tens of thousands at a time, without an object for each.

All elements of one map have the same size, both in our messages and in the kernel's. So they form
the rows of a matrix, and the first row shows the layout of all. A full key has ten words: source
and destination address in four words each (see ``addresses``), then the two ports in a word each,
in its first two bytes. The layout of a map says which of these words its keys hold. The others
follow from the map's shape.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from heddle_agent.fib.linux.addresses import MAPPED, Family
from heddle_agent.fib.linux.schema import DESTINATION_PORT, SOURCE_PORT, Layout
from heddle_agent.netlink import attribute, attributes, each_attribute, nest

Bytes: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint32]

KEY_BYTES = 40
_NAME, _ELEMENTS, _ELEMENT = 2, 3, 1
_KEY, _DATA, _EXPRESSION = 1, 2, 7
_MAPPED_WORDS = np.frombuffer(MAPPED, np.uint32)
_HEADER_BYTES = 16 + 4  # headers of netlink and of nfnetlink
_LENGTH = struct.Struct("=I")
_LIST = struct.Struct("=HH")


class MapElements(NamedTuple):
    """Elements of one map as the kernel gives them, one row each."""

    keys: Bytes
    """Full keys: n × 40."""
    values: Words
    packets: NDArray[np.int64]
    bytes: NDArray[np.int64]


def full_keys(
    sources: Sequence[bytes],
    destinations: Sequence[bytes],
    source_ports: Sequence[int],
    destination_ports: Sequence[int],
) -> Bytes:
    """Return the full keys of n entries, n × 40."""
    keys = np.zeros(
        len(sources),
        dtype=[("s", "V16"), ("d", "V16"), ("sp", ">u2"), ("x", "V2"), ("dp", ">u2"), ("y", "V2")],
    )
    keys["s"] = np.frombuffer(b"".join(sources), dtype="V16")
    keys["d"] = np.frombuffer(b"".join(destinations), dtype="V16")
    keys["sp"] = source_ports
    keys["dp"] = destination_ports
    return keys.view(np.uint8).reshape(len(sources), KEY_BYTES)


def of_layout(layout: Layout, keys: Bytes) -> NDArray[np.bool_]:
    """Whether each key belongs into the map of this layout."""
    words: Words = keys.view(np.uint32)
    shape = layout.shape
    mapped = (words[:, :3] == _MAPPED_WORDS).all(1)
    found: NDArray[np.bool_] = mapped == (shape.family is Family.IPV4)
    found &= (words[:, SOURCE_PORT] != 0) == shape.source_port
    found &= (words[:, DESTINATION_PORT] != 0) == shape.destination_port
    return found


def packed_elements(layout: Layout, keys: Bytes, values: Words | None = None) -> tuple[bytes, int]:
    """Return elements in wire format, and the size of one; without values, elements to delete."""
    width = 4 * len(layout.words)
    parts = [nest(_KEY, attribute(1, bytes(width)))]
    if values is not None:
        parts.append(nest(_DATA, attribute(1, bytes(4))))
    form = np.frombuffer(nest(_ELEMENT, *parts), dtype=np.uint8)
    rows = np.tile(form, (len(keys), 1))
    columns = np.ravel([range(4 * word, 4 * word + 4) for word in layout.words])
    rows[:, 12 : 12 + width] = keys[:, columns]
    if values is not None:
        rows[:, -4:] = np.ascontiguousarray(values, dtype=np.uint32).view(np.uint8).reshape(-1, 4)
    return rows.tobytes(), len(form)


def plain(key: bytes, value: bytes = b"", note: bytes = b"") -> bytes:
    """Return one element of a set or map that is not a map of entries."""
    parts = [nest(_KEY, attribute(1, key))]
    if value:
        parts.append(nest(_DATA, attribute(1, value)))
    if note:
        words = note + b"\0"
        parts.append(attribute(6, bytes((0, len(words))) + words))
    return nest(_ELEMENT, *parts)


def parse_map_elements(layout: Layout, datagrams: Iterable[bytes]) -> MapElements:
    """Return the elements of a map from a dump or an echo."""
    lists = [chunk for chunk in _lists(b"".join(datagrams), layout.name) if chunk]
    nothing = np.empty(0, dtype=np.int64)
    none = MapElements(np.empty((0, KEY_BYTES), np.uint8), np.empty(0, np.uint32), nothing, nothing)
    return _joined([none, *(_matrix(layout, chunk) for chunk in lists)])


def parse_plain_elements(
    name: str, datagrams: Iterable[bytes]
) -> Iterator[tuple[bytes, dict[int, bytes]]]:
    """Yield key and attributes of each element of any other set."""
    for data in datagrams:
        for chunk in _lists(data, name):
            for _, element in each_attribute(chunk):
                found = attributes(element)
                yield attributes(found[_KEY])[1], found


def _lists(data: bytes, name: str) -> Iterator[bytes]:
    """Yield element lists of a set; consecutive messages of equal size and form give one."""
    start, wanted = 0, name.encode() + b"\0"
    while start + _HEADER_BYTES < len(data):
        (length,) = _LENGTH.unpack_from(data, start)
        found, place = _place(data[start : start + length])
        step = length + (-length % 4)
        run = _run(data, start, step, place)
        if place and found == wanted:
            yield run[:, place:length].tobytes()
        start += step * len(run)


def _place(message: bytes) -> tuple[bytes, int]:
    """Return the set that a message is about, and where its elements start; 0 if it has none."""
    at, found = _HEADER_BYTES, b""
    while at + _LIST.size <= len(message):
        length, kind = _LIST.unpack_from(message, at)
        if kind & 0x3FFF == _ELEMENTS:
            return found, at + _LIST.size
        if kind & 0x3FFF == _NAME:
            found = message[at + _LIST.size : at + length]
        at += max(length, _LIST.size) + (-length % 4)
    return found, 0


def _run(data: bytes, start: int, step: int, place: int) -> Bytes:
    """Return the messages from here on that have the form of the first, one per row."""
    place = place or step
    rows = np.frombuffer(data, np.uint8, (len(data) - start) // step * step, start)
    rows = rows.reshape(-1, step)
    alike = (rows[:, :6] == rows[0, :6]).all(1) & (rows[:, 16:place] == rows[0, 16:place]).all(1)
    return rows[: len(rows) if alike.all() else int(alike.argmin())]


class _Places(NamedTuple):
    """The positions of the parts of an element that we read, in bytes from its start."""

    key: slice
    value: slice
    packets: slice
    bytes: slice

    def form(self, size: int) -> NDArray[np.intp]:
        """Return the positions of all other bytes, which are the same in elements of one form."""
        free = np.ones(size, dtype=bool)
        for place in self:
            free[place] = False
        return np.flatnonzero(free)


def _places(element: bytes) -> _Places:
    nowhere = slice(0, 0)
    top = dict(_walk(element, slice(4, len(element))))
    counter = nowhere
    if _EXPRESSION in top:
        counter = dict(_walk(element, top[_EXPRESSION])).get(2, nowhere)
    counts = dict(_walk(element, counter))
    value = top.get(_DATA, nowhere)
    return _Places(
        dict(_walk(element, top[_KEY]))[1],
        dict(_walk(element, value)).get(1, nowhere),
        counts.get(2, nowhere),
        counts.get(1, nowhere),
    )


def _walk(data: bytes, within: slice) -> Iterator[tuple[int, slice]]:
    """Yield kind and position of each attribute."""
    at = within.start
    while at + _LIST.size <= within.stop:
        length, kind = _LIST.unpack_from(data, at)
        yield kind & 0x3FFF, slice(at + _LIST.size, at + length)
        at += max(length, _LIST.size) + (-length % 4)


def _matrix(layout: Layout, chunk: bytes) -> MapElements:
    """Parse elements of one size as a matrix; if their forms differ, parse them one by one."""
    size = _LIST.unpack_from(chunk)[0]
    size += -size % 4
    places = _places(chunk[:size])
    rows = np.frombuffer(chunk, np.uint8, len(chunk) // size * size).reshape(-1, size)
    form = places.form(size)
    if len(chunk) % size or not (rows[:, form] == rows[0, form]).all():
        return _joined(_matrix(layout, chunk[part]) for part in _apart(chunk))
    return MapElements(
        _widened(layout, rows[:, places.key]),
        _column(rows, places.value, "=u4").astype(np.uint32),
        _column(rows, places.packets, ">i8").astype(np.int64),
        _column(rows, places.bytes, ">i8").astype(np.int64),
    )


def _apart(chunk: bytes) -> Iterator[slice]:
    at = 0
    while at + _LIST.size <= len(chunk):
        length = max(_LIST.unpack_from(chunk, at)[0], _LIST.size)
        length += -length % 4
        yield slice(at, at + length)
        at += length


def _column(rows: Bytes, place: slice, kind: str) -> NDArray[Any]:
    """Return numbers from a matrix of elements; zeros if the elements do not hold them."""
    if place.start == place.stop:
        return np.zeros(len(rows), dtype=kind)
    return np.ascontiguousarray(rows[:, place]).view(kind).reshape(len(rows))


def _widened(layout: Layout, keys: Bytes) -> Bytes:
    """Return full keys, made from the words that a map's keys hold."""
    wide = np.zeros((len(keys), KEY_BYTES), dtype=np.uint8)
    if layout.shape.family is Family.IPV4:
        for address in (0, 16):
            wide[:, address : address + len(MAPPED)] = np.frombuffer(MAPPED, np.uint8)
    for row, word in enumerate(layout.words):
        wide[:, 4 * word : 4 * word + 4] = keys[:, 4 * row : 4 * row + 4]
    return wide


def _joined(parts: Iterable[MapElements]) -> MapElements:
    return MapElements(*(np.concatenate(column) for column in zip(*parts, strict=True)))
