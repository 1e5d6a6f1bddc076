"""HTTP/2 (RFC 9113) from a client, cut into frames and checked before gRPC sees it.

Headers are checked for the size to which they would expand (HPACK, RFC 7541), without expanding
them. Only the sizes of the entries of the dynamic table are kept. A Huffman string counts with the
largest size that it may have, so this table may evict an entry earlier than gRPC does. A reference
to an unknown entry counts as the largest possible entry. So a block is never larger than computed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from heddle_controller.serve.bucket import TokenBucket

MOST_FIELDS, MOST_BYTES = 128, 16 << 10
"""Most header fields, and most bytes after expansion, of one block."""
TABLE = 4096
"""Most bytes of the dynamic table; gRPC does not ask for more."""
OVERHEAD = 32
"""Bytes that each header field counts for beyond its name and value (RFC 7541, section 4.1)."""
STATIC, STATIC_MOST = 61, (28, 14)
"""Entries of the static table (RFC 7541, Appendix A), and the most bytes of a name and of a value
in it."""
_SIZE_MASK, _SIZE = 0xE0, 0x20
_INDEXED, _KEPT = 0x80, 0x40
_MOST_DIGITS = 4
_HUFFMAN = 0x80


class Unbearable(Exception):  # noqa: N818 - it tells of a client; nothing failed
    """A client sent something malformed or too large, and its connection must be closed."""


class Headers:
    """Checks the header blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._table: deque[tuple[int, int]] = deque()
        """Sizes of name and value of each entry in bytes, the newest first."""
        self._held = 0
        self._most = TABLE

    def weigh(self, block: bytes) -> None:
        """Check that a header block may be passed on.

        Raises:
            Unbearable: it is malformed, or would expand to more than the limits.
        """
        at, fields, total = 0, 0, 0
        while at < len(block):
            kind = block[at]
            if kind & _SIZE_MASK == _SIZE:  # a new size of the dynamic table
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
    """Return an integer with a prefix of ``bits`` bits, and the position after it."""
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
    """Return the most bytes that a string may have when decoded, and the position after it."""
    coded = at < len(block) and block[at] & _HUFFMAN
    size, at = _number(block, at, 7)
    if at + size > len(block):
        raise Unbearable("headers end in the middle")
    return (size * 8 // 5 if coded else size), at + size


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = 9
"""Bytes of a frame's header."""
MOST_BLOCK = 16 << 10
"""Most bytes of a call's headers as they are sent, and of any frame without data."""
FRAMES, FRAMES_A_SECOND = 4000.0, 2000.0
"""Frames without data that one connection may send in a burst, and per second in the long run; more
are read later. Pings, settings and window updates take time however short they are."""
TAKEN_BACK = 1000.0
"""Frames for which a call counts that the client resets before an answer. It costs as much as other
calls, and such a client is not slowed down by waiting for answers."""
_DATA, _HEADERS, _RESET, _CONTINUATION = 0, 1, 3, 9
_END_HEADERS, _PADDED, _PRIORITY = 0x4, 0x8, 0x20


@dataclass(slots=True)
class Part:
    """Bytes from the client to pass on together."""

    data: bytearray
    began: int = 0
    """The stream id of the call that begins with it; 0 if none does."""
    reset: int = 0
    """The stream id of the call that the client resets with it; 0 if none."""


class Frames:
    """Cuts and checks what the client of one connection sends."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._headers = Headers()
        self._buffer = bytearray()
        self._begun = False
        self._data = 0
        """Bytes of the current data frame that are still to come; they are passed on at once."""
        self._block: bytearray | None = None
        """The header block so far, while it is incomplete; otherwise None."""
        self._held = bytearray()
        """The frames of this block, which are held back until it is complete."""
        self._now = now
        self._bucket = TokenBucket(FRAMES, FRAMES_A_SECOND, now())
        self._used = 0.0
        """What counts since the last call of ``rest``."""
        self._ended = False
        """Whether the last frame of headers ended its block."""
        self._last = 0
        """Stream id of the newest call."""

    def take(self, data: bytes) -> list[Part]:
        """Take in more bytes; return what may be passed on now.

        Raises:
            Unbearable: the connection has to be closed.
        """
        self._buffer += data
        parts: list[Part] = []
        out = bytearray()
        while self._step(out, parts):
            pass
        return [*parts, Part(out)] if out else parts

    def took_back(self) -> None:
        """Count a call that the client reset before an answer."""
        self._used += TAKEN_BACK

    def rest(self) -> float:
        """Return the seconds to wait before more is read."""
        used, self._used = self._used, 0.0
        return self._bucket.spend(used, self._now())

    def _step(self, out: bytearray, parts: list[Part]) -> bool:
        """Take the next piece from the buffer; return whether it was complete."""
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
        """Return the held frames of headers once their block is complete; None before."""
        if not self._ended or self._block is None:
            return None
        self._headers.weigh(bytes(self._block))
        part = Part(self._held, began=stream if stream > self._last else 0)
        self._last = max(self._last, stream)
        self._block, self._held = None, bytearray()
        return part


class Answers:
    """Follows what gRPC sends on one connection; only the headers of frames are read."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._left = 0

    def take(self, data: bytes) -> list[int]:
        """Return the stream ids of calls for which headers or a reset are sent."""
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
    """Return the part of a HEADERS frame that is HPACK: without padding and priority."""
    first = (1 if flags & _PADDED else 0) + (5 if flags & _PRIORITY else 0)
    last = len(payload) - (payload[0] if flags & _PADDED and payload else 0)
    if last < first:
        raise Unbearable("a frame of headers is padded beyond its end")
    return payload[first:last]
