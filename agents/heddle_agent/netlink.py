"""Netlink encoding: attributes, messages, and a socket that sends many messages at once.

Nothing here knows of routes or nftables. The kernel answers a request while it is being sent, so
answers are there as soon as ``send`` returns. Only dumps are produced piece by piece while they are
read. Errors carry the kernel's own text if there is one (extended acknowledgements), and the offset
of the byte at fault in the message, from which a caller can find the element at fault.
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
"""Opens a netlink socket for a protocol, in the intended network namespace."""

ROUTE, NETFILTER = 0, 12  # netlink protocols
REQUEST, ACK, ECHO, DUMP = 0x1, 0x4, 0x8, 0x300
REPLACE, EXCL, CREATE, APPEND = 0x100, 0x200, 0x400, 0x800
NESTED = 0x8000

_ERROR, _DONE, _OVERRUN = 2, 3, 4
_MAX_ERRNO = 4095  # the C library has no names for higher numbers
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_TYPE_MASK = 0x3FFF
_SOL_NETLINK, _CAP_ACK, _EXT_ACK, _GET_STRICT_CHK = 270, 10, 11, 12
_CAPPED, _ACK_TLVS = 0x100, 0x200
_ERROR_MESSAGE, _ERROR_OFFSET = 1, 2
_SNDBUFFORCE, _RCVBUFFORCE = 32, 33
_BUFFER = 1 << 26  # a limit, not an allocation: a batch of 10^6 entries and its answers
_READ = 1 << 20


class KernelError(OSError):
    """The kernel refused a message; ``strerror`` is its own text if it gave one."""

    def __init__(self, number: int, words: str = "", sequence: int = 0, offset: int = 0) -> None:
        named = os.strerror(number) if number <= _MAX_ERRNO else f"error {number}"
        super().__init__(number, words or named)
        self.sequence = sequence
        """Sequence number of the refused message."""
        self.offset = offset
        """Position of the attribute at fault, in bytes from the start of the message; 0 if
        unknown."""


class Message(NamedTuple):
    """One message without its header."""

    kind: int
    body: bytes


def attribute(kind: int, value: bytes) -> bytes:
    """Encode one attribute, padded."""
    return _ATTRIBUTE.pack(4 + len(value), kind) + value + bytes(-len(value) % 4)


def nest(kind: int, *values: bytes) -> bytes:
    """Encode an attribute that contains attributes."""
    return attribute(kind | NESTED, b"".join(values))


def text(kind: int, value: str) -> bytes:
    """Encode a string as an attribute."""
    return attribute(kind, value.encode() + b"\0")


def big(kind: int, value: int) -> bytes:
    """Encode a 32-bit number in network order, as nftables uses it."""
    return attribute(kind, value.to_bytes(4, "big"))


def native(kind: int, value: int) -> bytes:
    """Encode a 32-bit number in the machine's order, as routes use it."""
    return attribute(kind, struct.pack("=I", value))


def attributes(body: bytes) -> dict[int, bytes]:
    """Return attributes by kind; of several with one kind, the last."""
    return dict(each_attribute(body))


def each_attribute(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and value of each attribute, in order."""
    start = 0
    while start + 4 <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, start)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, body[start + 4 : start + length]
        start += length + (-length % 4)


def string(value: bytes) -> str:
    """Decode what ``text`` encodes, given its value."""
    return value.rstrip(b"\0").decode(errors="replace")


def number(value: bytes) -> int:
    """Decode what ``native`` encodes, given its value."""
    return int(struct.unpack("=I", value[:4])[0])


def framed(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    """Return a message with its header; the body must be padded."""
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


def open_socket(protocol: int) -> socket.socket:
    """Open a netlink socket in the network namespace of the calling thread."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)


class Netlink:
    """One socket, which always belongs to the network namespace in which it was opened."""

    def __init__(self, protocol: int, opener: Opener = open_socket) -> None:
        self._socket = opener(protocol)
        self._sequence = 0
        for option in (_SNDBUFFORCE, _RCVBUFFORCE):
            with suppress(PermissionError):  # later requests fail with a better message
                self._socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
        for option in (_CAP_ACK, _EXT_ACK, _GET_STRICT_CHK):
            self._socket.setsockopt(_SOL_NETLINK, option, 1)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def number(self) -> int:
        """Return the next sequence number."""
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
        """Send (kind, flags, body) messages in order; return each one's error or None."""
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
        """Yield every datagram of a dump; KernelError if the kernel refuses it."""
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

    def objects(self, kind: int, body: bytes) -> Iterator[bytes]:
        """Yield the body of every object of a dump by ROUTE; KernelError as ``dump``."""
        new = kind - 2  # the kinds of an object are numbered: new, deleted, get
        for data in self.dump(kind, body):
            yield from (message.body for message in messages(data) if message.kind == new)

    def get(self, kind: int, body: bytes) -> list[Message]:
        """Return the answers to a request for single objects; KernelError if it is refused."""
        answers, errors = self.send([framed(kind, REQUEST, self.number(), body)])
        for error in errors:
            raise error
        return [message for data in answers for message in messages(data)]

    def _waiting(self) -> Iterator[bytes]:
        """Yield datagrams that have arrived. What did not fit into the buffer is lost."""
        while True:
            try:
                yield self._socket.recv(_READ, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise

    def _drain(self) -> None:
        """Discard what an interrupted reader has left."""
        for _ in self._waiting():
            pass


def messages(data: bytes) -> Iterator[Message]:
    """Yield the messages of a datagram, without errors and acknowledgements."""
    for kind, start, end in _frames(data):
        if kind not in {_ERROR, _OVERRUN}:
            yield Message(kind, data[start:end])


def _frames(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield kind, first byte after the header, and end of each message."""
    start = 0
    while start + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, start)
        if length < _HEADER.size:
            return
        yield kind, start + _HEADER.size, start + length
        start += length + (-length % 4)


def _errors(data: bytes) -> Iterator[KernelError]:
    """Yield the errors of a datagram that starts with one; acknowledgements are left out."""
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
