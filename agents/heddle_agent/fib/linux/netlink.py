"""Netlink by hand: attributes, messages, and a socket that sends many at once.

Nothing here knows routes or nftables. The kernel answers a request while it is being sent, so
replies are there as soon as ``send`` returns; only dumps are produced bit by bit while they are
read. Errors carry the kernel's own words where it has some (extended acknowledgements), and the
byte of the message at fault, from which a caller can tell which of its elements that was.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

Opener: TypeAlias = Callable[[int], socket.socket]
"""Opens a netlink socket of a protocol, in the network namespace that it is meant for."""

ROUTE, NETFILTER = 0, 12  # netlink protocols
REQUEST, ACK, ECHO, DUMP = 0x1, 0x4, 0x8, 0x300
REPLACE, EXCL, CREATE, APPEND = 0x100, 0x200, 0x400, 0x800
NESTED = 0x8000

_ERROR, _DONE, _OVERRUN = 2, 3, 4
_MAX_ERRNO = 4095  # of the kernel; whatever is above is not for the C library to name
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_TYPE_MASK = 0x3FFF
_SOL_NETLINK, _CAP_ACK, _EXT_ACK, _GET_STRICT_CHK = 270, 10, 11, 12
_CAPPED, _ACK_TLVS = 0x100, 0x200
_ERROR_MESSAGE, _ERROR_OFFSET = 1, 2
_SNDBUFFORCE, _RCVBUFFORCE = 32, 33
_BUFFER = 1 << 26  # a limit, not an allocation: a batch of 10^6 entries and its answers
_READ = 1 << 20


class KernelError(OSError):
    """The kernel refused a message, in its words."""

    def __init__(self, number: int, words: str = "", sequence: int = 0, offset: int = 0) -> None:
        named = os.strerror(number) if number <= _MAX_ERRNO else f"error {number}"
        super().__init__(number, words or named)
        self.sequence = sequence
        """Of the message refused."""
        self.offset = offset
        """Of the attribute at fault, in bytes from the start of the message; 0 if not told."""


class Message(NamedTuple):
    """One message without its header."""

    kind: int
    body: bytes


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded."""
    return _ATTRIBUTE.pack(4 + len(value), kind) + value + bytes(-len(value) % 4)


def nest(kind: int, *values: bytes) -> bytes:
    """An attribute made of attributes."""
    return attribute(kind | NESTED, b"".join(values))


def text(kind: int, value: str) -> bytes:
    """A string as an attribute."""
    return attribute(kind, value.encode() + b"\0")


def big(kind: int, value: int) -> bytes:
    """A 32-bit number in network order, as nftables has them."""
    return attribute(kind, value.to_bytes(4, "big"))


def native(kind: int, value: int) -> bytes:
    """A 32-bit number in the machine's order, as routes have them."""
    return attribute(kind, struct.pack("=I", value))


def attributes(body: bytes) -> dict[int, bytes]:
    """Attributes by kind; of several of one kind, the last."""
    return dict(each_attribute(body))


def each_attribute(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Attributes in their order."""
    start = 0
    while start + 4 <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, start)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, body[start + 4 : start + length]
        start += length + (-length % 4)


def string(value: bytes) -> str:
    """What ``text`` has made."""
    return value.rstrip(b"\0").decode(errors="replace")


def number(value: bytes) -> int:
    """What ``native`` has made."""
    return int(struct.unpack("=I", value[:4])[0])


def framed(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    """A message with its header; bodies are padded already."""
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


class Netlink:
    """One socket; belongs to the network namespace in which it was opened, for all its life."""

    def __init__(self, protocol: int, opener: Opener) -> None:
        self._socket = opener(protocol)
        self._sequence = 0
        for option in (_SNDBUFFORCE, _RCVBUFFORCE):
            with suppress(PermissionError):  # what follows will say so in better words
                self._socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
        for option in (_CAP_ACK, _EXT_ACK, _GET_STRICT_CHK):
            self._socket.setsockopt(_SOL_NETLINK, option, 1)

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()

    def number(self) -> int:
        """The next sequence number."""
        self._sequence = self._sequence % 0xFFFFFFFF + 1
        return self._sequence

    def send(self, messages: Sequence[bytes]) -> tuple[list[bytes], list[KernelError]]:
        """Send framed messages as one datagram; return the datagrams and errors that come back."""
        self._drain()
        self._socket.sendmsg(messages)
        answers: list[bytes] = []
        errors: list[KernelError] = []
        for data in self._waiting():
            errors += _errors(data)
            answers.append(data)
        return answers, errors

    def requests(self, bodies: Sequence[tuple[int, int, bytes]]) -> list[KernelError | None]:
        """Send (kind, flags, body) each, in this order; what the kernel said to each."""
        sequences = [self.number() for _ in bodies]
        _, errors = self.send(
            [
                framed(kind, flags | REQUEST | ACK, sequence, body)
                for sequence, (kind, flags, body) in zip(sequences, bodies, strict=True)
            ]
        )
        failed = {error.sequence: error for error in errors}
        return [failed.get(sequence) for sequence in sequences]

    def dump(self, kind: int, body: bytes) -> Iterator[bytes]:
        """Every datagram of a dump; KernelError if the kernel has none."""
        sequence = self.number()
        self._drain()
        self._socket.sendmsg([framed(kind, REQUEST | DUMP, sequence, body)])
        while True:
            data = self._socket.recv(_READ)
            for error in _errors(data):
                raise error
            yield data
            if any(message.kind == _DONE for message in messages(data)):
                return

    def get(self, kind: int, body: bytes) -> list[Message]:
        """The answers to a request for single objects; KernelError if there are none."""
        answers, errors = self.send([framed(kind, REQUEST, self.number(), body)])
        for error in errors:
            raise error
        return [message for data in answers for message in messages(data)]

    def _waiting(self) -> Iterator[bytes]:
        """Datagrams that are there already. What did not fit into the buffer is lost."""
        while True:
            try:
                yield self._socket.recv(_READ, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise

    def _drain(self) -> None:
        """Forget what an interrupted reader has left."""
        for _ in self._waiting():
            pass


def messages(data: bytes) -> Iterator[Message]:
    """The messages of a datagram, without errors and acknowledgements."""
    for kind, start, end in _frames(data):
        if kind not in {_ERROR, _OVERRUN}:
            yield Message(kind, data[start:end])


def _frames(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Kind, first byte after the header and end of each message."""
    start = 0
    while start + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, start)
        if length < _HEADER.size:
            return
        yield kind, start + _HEADER.size, start + length
        start += length + (-length % 4)


def _errors(data: bytes) -> Iterator[KernelError]:
    """Errors in a datagram, of which they are the first; acknowledgements are left out."""
    if _HEADER.unpack_from(data)[1] != _ERROR:
        return
    for kind, start, end in _frames(data):
        code = struct.unpack_from("=i", data, start)[0] if kind == _ERROR else 0
        if code:
            yield _error(-code, data, start, end)


def _error(code: int, data: bytes, start: int, end: int) -> KernelError:
    flags = _HEADER.unpack_from(data, start - _HEADER.size)[2]
    length, _, _, sequence, _ = _HEADER.unpack_from(data, start + 4)
    told: dict[int, bytes] = {}
    if flags & _ACK_TLVS:
        quoted = _HEADER.size if flags & _CAPPED else length
        told = attributes(data[start + 4 + quoted : end])
    words = string(told.get(_ERROR_MESSAGE, b""))
    offset = number(told[_ERROR_OFFSET]) if _ERROR_OFFSET in told else 0
    return KernelError(code, words, sequence, offset)
