"""What a client says over HTTP/2 (RFC 9113), cut into frames and looked at first."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from heddle_controller.serve.door.headers import Headers, Unbearable

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
