"""HTTP/2 (RFC 9113) from a client, cut into frames and checked before gRPC sees it.

Headers are checked for the size that they would expand to, without expanding them (HPACK, RFC
7541). The table is kept as sizes alone. A Huffman string counts for the most that it may hold, so
an entry may be taken for larger than it is, and for evicted when it is not. A reference to an
unknown entry counts as the largest possible one. So a block is never larger than it was taken for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

MOST_FIELDS, MOST_BYTES = 128, 16 << 10
"""Of one block, expanded, as gRPC's own limit is meant."""
TABLE = 4096
"""Bytes of the table; gRPC asks for no more."""
OVERHEAD = 32
STATIC, STATIC_MOST = 61, (28, 14)
"""Entries of the static table (Appendix A); the most bytes of a name there, and of a value."""
_SIZE_MASK, _SIZE = 0xE0, 0x20
_INDEXED, _KEPT = 0x80, 0x40
_MOST_DIGITS = 4
_HUFFMAN = 0x80


class Unbearable(Exception):  # noqa: N818 - it tells of a client; nothing failed
    """What a connection says is malformed or too much: it is closed."""


class Headers:
    """The headers of one connection, one block after another."""

    def __init__(self) -> None:
        self._table: deque[tuple[int, int]] = deque()
        """Bytes of name and value, the newest first."""
        self._held = 0
        self._most = TABLE

    def weigh(self, block: bytes) -> None:
        """Nothing, if the block is one that may be passed on.

        Raises:
            Unbearable: it is malformed, or would expand to more than it may.
        """
        at, fields, total = 0, 0, 0
        while at < len(block):
            kind = block[at]
            if kind & _SIZE_MASK == _SIZE:  # of the table
                most, at = _number(block, at, 5)
                self._resize(min(most, TABLE))
                continue
            if kind & _INDEXED:
                row, at = _number(block, at, 7)
                name, value = self._entry(row)
            else:
                kept = bool(kind & _KEPT)
                row, at = _number(block, at, 6 if kept else 4)
                name = self._entry(row)[0] if row else -1
                if name < 0:
                    name, at = _string(block, at)
                value, at = _string(block, at)
                if kept:
                    self._add(name, value)
            fields, total = fields + 1, total + name + value + OVERHEAD
            if fields > MOST_FIELDS or total > MOST_BYTES:
                raise Unbearable("headers of a call are more than 128, or more than 16 KiB")

    def _entry(self, row: int) -> tuple[int, int]:
        if row == 0:
            raise Unbearable("headers name entry 0 of the table")
        if row <= STATIC:
            return STATIC_MOST
        row -= STATIC + 1
        return self._table[row] if row < len(self._table) else (TABLE, 0)

    def _add(self, name: int, value: int) -> None:
        self._table.appendleft((name, value))
        self._held += name + value + OVERHEAD
        self._evict()

    def _resize(self, most: int) -> None:
        self._most = most
        self._evict()

    def _evict(self) -> None:
        while self._held > self._most:
            name, value = self._table.pop()
            self._held -= name + value + OVERHEAD


def _number(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """An integer whose first byte has so many bits of it; where the next thing is."""
    if at >= len(block):
        raise Unbearable("headers end in the middle")
    most = (1 << bits) - 1
    number, at = block[at] & most, at + 1
    if number < most:
        return number, at
    for digit in range(_MOST_DIGITS):
        if at >= len(block):
            raise Unbearable("headers end in the middle")
        byte, at = block[at], at + 1
        number += (byte & 0x7F) << (7 * digit)
        if not byte & 0x80:
            return number, at
    raise Unbearable("a number in headers is too large")


def _string(block: bytes, at: int) -> tuple[int, int]:
    """The most bytes that a string may have; where the next thing is."""
    coded = at < len(block) and block[at] & _HUFFMAN
    size, at = _number(block, at, 7)
    if at + size > len(block):
        raise Unbearable("headers end in the middle")
    return (size * 8 // 5 if coded else size), at + size


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = 9
"""Bytes of a frame's head."""
MOST_BLOCK = 16 << 10
"""Bytes of a call's headers, as they are sent."""
FRAMES, FRAMES_A_SECOND = 4000.0, 2000.0
"""Frames that carry no data, of one connection: at once, and as time goes by; more are read later.
They take time however short they are: pings, settings, windows."""
TAKEN_BACK = 1000.0
"""Frames that a call counts for which is taken back before it was answered: it has cost as much as
one that was not, and who does so does not wait for answers."""
_DATA, _HEADERS, _RESET, _CONTINUATION = 0, 1, 3, 9
_END_HEADERS, _PADDED, _PRIORITY = 0x4, 0x8, 0x20


@dataclass(slots=True)
class Part:
    """Some of what is said, to be passed on."""

    data: bytearray
    began: int = 0
    """The call that begins with it, if one does."""
    reset: int = 0
    """The call that ends with it, unanswered perhaps."""


class Frames:
    """One connection's way in."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._headers = Headers()
        self._buffer = bytearray()
        self._begun = False
        self._data = 0
        """Bytes of a frame of data that are yet to come, and are passed on as they do."""
        self._block: bytearray | None = None
        """Of headers that are not whole yet."""
        self._held = bytearray()
        """Frames of such headers, which are not passed on before."""
        self._now = now
        self._used, self._at = 0.0, now()
        self._ended = False
        """Whether the headers that came last are whole."""
        self._last = 0
        """The newest call."""

    def take(self, data: bytes) -> list[Part]:
        """What may be passed on, after more has come.

        Raises:
            Unbearable: nothing more is, and the connection has to be closed.
        """
        self._buffer += data
        parts: list[Part] = []
        out = bytearray()
        while self._step(out, parts):
            pass
        return [*parts, Part(out)] if out else parts

    def took_back(self) -> None:
        """A call was taken back unanswered."""
        self._used += TAKEN_BACK

    def rest(self) -> float:
        """Seconds until more is to be read."""
        now = self._now()
        self._used = max(0.0, self._used - FRAMES_A_SECOND * (now - self._at))
        self._at = now
        return max(0.0, self._used - FRAMES) / FRAMES_A_SECOND

    def _step(self, out: bytearray, parts: list[Part]) -> bool:
        """Take in the next thing; whether it was there."""
        if self._data:
            part = self._cut(min(self._data, len(self._buffer)))
            self._data -= len(part)
            out += part
            return bool(part)
        if not self._begun:
            return self._begin(out)
        return len(self._buffer) >= HEAD and self._frame(out, parts)

    def _begin(self, out: bytearray) -> bool:
        if len(self._buffer) < len(PREFACE):
            return False
        self._begun = True
        out += self._cut(len(PREFACE))
        if not out.endswith(PREFACE):
            raise Unbearable("it does not speak HTTP/2")
        return True

    def _frame(self, out: bytearray, parts: list[Part]) -> bool:
        size, kind = int.from_bytes(self._buffer[:3], "big"), self._buffer[3]
        if self._block is not None and kind != _CONTINUATION:
            raise Unbearable("headers are broken off")
        if kind == _DATA and size:
            out += self._cut(HEAD)
            self._data = size
            return True
        if size > MOST_BLOCK:
            raise Unbearable("a frame without data is larger than 16 KiB")
        if len(self._buffer) < HEAD + size:
            return False
        frame = self._cut(HEAD + size)
        self._used += 1.0
        if kind in (_HEADERS, _CONTINUATION):
            self._take_headers(frame)
            whole = self._whole(_stream(frame))
        else:
            whole = Part(bytearray(frame), reset=_stream(frame) if kind == _RESET else 0)
        if whole is not None and (whole.began or whole.reset):
            parts += [Part(out[:]), whole]
            out.clear()
        elif whole is not None:
            out += whole.data
        return True

    def _cut(self, size: int) -> bytes:
        part = bytes(self._buffer[:size])
        del self._buffer[:size]
        return part

    def _take_headers(self, frame: bytes) -> None:
        kind, flags = frame[3], frame[4]
        if kind == _HEADERS:
            self._block = bytearray(_fragment(frame[HEAD:], flags))
        elif self._block is None:
            raise Unbearable("headers go on that never began")
        else:
            self._block += frame[HEAD:]
        self._held += frame
        if len(self._held) > MOST_BLOCK:
            raise Unbearable("headers of a call are larger than 16 KiB")
        self._ended = bool(flags & _END_HEADERS)

    def _whole(self, stream: int) -> Part | None:
        """The headers that were held, once they have ended."""
        if not self._ended or self._block is None:
            return None
        self._headers.weigh(bytes(self._block))
        part = Part(self._held, began=stream if stream > self._last else 0)
        self._last = max(self._last, stream)
        self._block, self._held = None, bytearray()
        return part


class Answers:
    """One connection's way out; only the heads of frames are looked at."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._left = 0

    def take(self, data: bytes) -> list[int]:
        """The calls that something is told of: headers, or their end."""
        told, at = [], 0
        while at < len(data):
            if self._left:
                passed = min(self._left, len(data) - at)
                self._left -= passed
                at += passed
                continue
            part = data[at : at + HEAD - len(self._head)]
            self._head += part
            at += len(part)
            if len(self._head) == HEAD:
                self._left = int.from_bytes(self._head[:3], "big")
                if self._head[3] in (_HEADERS, _RESET):
                    told.append(_stream(self._head))
                self._head.clear()
        return told


def _stream(frame: bytes | bytearray) -> int:
    return int.from_bytes(frame[5:HEAD], "big") & 0x7FFFFFFF


def _fragment(payload: bytes, flags: int) -> bytes:
    """The part of HPACK in a frame of headers."""
    first = (1 if flags & _PADDED else 0) + (5 if flags & _PRIORITY else 0)
    last = len(payload) - (payload[0] if flags & _PADDED and payload else 0)
    if last < first:
        raise Unbearable("a frame of headers is padded beyond its end")
    return payload[first:last]
