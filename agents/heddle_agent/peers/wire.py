"""The wire format of peer notices, version 1. All numbers are big-endian; text is UTF-8.

A datagram is a head, a body by its kind, and a tag::

    offset  bytes  head
    0       2      "Hb"
    2       1      version: 1
    3       1      kind: 1 HELLO, 2 NOTICE, 3 DIGEST, 4 VERSIONS
    4       4      key id: the first bytes of SHA-256("heddle peer notice key" + key)
    8       8      fabric: the first bytes of SHA-256(name, "fabrics/f1")
    16      8      token of the sender: random, new at each start, not 0
    24      8      token of the receiver as the sender knows it; 0 if unknown (HELLO only)
    32      8      counter: grows with every datagram of this sender's token
    40      1 + n  switch of the sender: length, text
            16     (after the body) tag: the first bytes of HMAC-SHA256(key, all before it)

    HELLO     1 byte: 1 asks for a HELLO in return, 0 does not
    NOTICE    one record: origin (1 + n), boot (8), sequence (8), number of links (2), and for each
              link that the origin sees down: source, target and key (1 + n each), source < target
    DIGEST    number of records (4), XOR over them of the first 8 bytes of
              SHA-256(origin, NUL, boot as 8 bytes, sequence as 8 bytes) (8)
    VERSIONS  first and last origin id of the range that it covers (8 each, both included), then
              for each origin in it that the sender knows: origin id (8: the first bytes of
              SHA-256(origin)), boot (8), sequence (8); ascending

A record lists all links that its origin sees down, so a later one makes up for lost ones.
Decoding is strict: a datagram that differs in any way from this format is malformed.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Collection, Iterable
from enum import IntEnum
from hashlib import sha256
from typing import NamedTuple

from heddle_agent.fib import Link

TAG_BYTES = 16
MOST_BYTES = 65_000
"""Size of one datagram, in bytes; UDP carries little more."""
MOST_TEXT = 255
MOST_NUMBER = 2**63 - 1

_MAGIC = b"Hb"
_FORMAT = 1
_HEAD = struct.Struct("!2sBB4s8sQQQ")
_VERSION = struct.Struct("!QQ")
_COUNT = struct.Struct("!H")
_DIGEST = struct.Struct("!IQ")
_RANGE = struct.Struct("!QQ")
_VERSION_ROW = struct.Struct("!QQQ")
ROWS_A_DATAGRAM = 48
"""Rows in a VERSIONS datagram. With so few, it passes any network in one piece."""


class NoticeKind(IntEnum):
    """The purpose of a datagram."""

    HELLO = 1
    NOTICE = 2
    DIGEST = 3
    VERSIONS = 4


class MalformedError(Exception):
    """A datagram that is not of this format."""


class Head(NamedTuple):
    """Who sends a datagram, and to whom."""

    kind: NoticeKind
    key_id: bytes
    fabric: bytes
    token: int
    receiver: int
    counter: int
    sender: str


class Datagram(NamedTuple):
    """A datagram taken apart, before its tag is checked."""

    head: Head
    body: bytes
    signed: bytes
    tag: bytes


class Record(NamedTuple):
    """All links of one switch that are down; the record with the highest version is valid."""

    origin: str
    boot: int
    """Grows with every start of the origin's agent."""
    sequence: int
    """Grows with every record of one boot."""
    down: tuple[Link, ...] = ()
    """The origin's links that are down, sorted."""

    @property
    def version(self) -> tuple[int, int]:
        """Boot and sequence, by which records are compared; the greater one is newer."""
        return (self.boot, self.sequence)


class Versions(NamedTuple):
    """The versions of all records that a switch has in a range of origin ids."""

    first: int
    last: int
    rows: dict[int, tuple[int, int]]


def key_id(key: bytes) -> bytes:
    """Return an id of a key that does not reveal the key."""
    return sha256(b"heddle peer notice key" + key).digest()[:4]


def fabric_id(name: str) -> bytes:
    """Return the id of a fabric in datagrams."""
    return sha256(name.encode()).digest()[:8]


def origin_id(origin: str) -> int:
    """Return the id of a switch in VERSIONS."""
    return int.from_bytes(sha256(origin.encode()).digest()[:8])


def seal(head: Head, body: bytes, key: bytes) -> bytes:
    """Return a signed datagram."""
    fields = (head.key_id, head.fabric, head.token, head.receiver, head.counter)
    signed = _HEAD.pack(_MAGIC, _FORMAT, head.kind, *fields) + _text(head.sender) + body
    return signed + tag(signed, key)


def tag(signed: bytes, key: bytes) -> bytes:
    """Return the signature, which only a holder of the key can make."""
    return hmac.digest(key, signed, "sha256")[:TAG_BYTES]


def unseal(datagram: bytes) -> Datagram:
    """Take a datagram apart; MalformedError if it is not of this format and version."""
    if len(datagram) < _HEAD.size + 1 + TAG_BYTES:
        raise MalformedError("too short")
    signed, seen = datagram[:-TAG_BYTES], datagram[-TAG_BYTES:]
    magic, version, kind, named, fabric, token, receiver, counter = _HEAD.unpack_from(signed)
    if magic != _MAGIC or version != _FORMAT:
        raise MalformedError("not of this version")
    try:
        head_kind = NoticeKind(kind)
    except ValueError:
        raise MalformedError("of no known kind") from None
    sender, end = _read_text(signed, _HEAD.size)
    if not sender or not token or counter > MOST_NUMBER:
        raise MalformedError("without a sender, token or counter")
    head = Head(head_kind, named, fabric, token, receiver, counter, sender)
    return Datagram(head, signed[end:], signed, seen)


def encode_hello(*, answer: bool) -> bytes:
    """Return the body of a HELLO."""
    return bytes([answer])


def decode_hello(body: bytes) -> bool:
    """Whether a HELLO wants an answer; MalformedError if it has another form."""
    if body not in (b"\0", b"\1"):
        raise MalformedError("HELLO of another form")
    return body == b"\1"


def encode_notice(record: Record) -> bytes:
    """Return the body of a NOTICE; the record's links must come from ``fitting``."""
    parts = [_text(record.origin), _VERSION.pack(*record.version), _COUNT.pack(len(record.down))]
    parts += [_text(name) for link in record.down for name in link]
    return b"".join(parts)


def fitting(origin: str, down: Collection[Link]) -> tuple[Link, ...]:
    """Return the links in the order of a record, as many as one datagram holds (hundreds)."""
    room = MOST_BYTES - _HEAD.size - TAG_BYTES - 2 * len(_text(origin)) - 18
    kept = []
    for link in sorted(set(down)):
        room -= sum(len(_text(name)) for name in link)
        if room < 0:
            break
        kept.append(link)
    return tuple(kept)


def decode_notice(body: bytes) -> Record:
    """Return the record; MalformedError also if it contains links that are not its origin's."""
    origin, at = _read_text(body, 0)
    boot, sequence = _numbers(_VERSION, body, at)
    at += _VERSION.size
    (count,) = _numbers(_COUNT, body, at)
    at += _COUNT.size
    down = []
    for _ in range(count):
        source, at = _read_text(body, at)
        target, at = _read_text(body, at)
        key, at = _read_text(body, at)
        if source >= target or origin not in (source, target):
            raise MalformedError("a link that is not the origin's")
        down.append(Link(source, target, key))
    if at != len(body) or not origin:
        raise MalformedError("NOTICE of another form")
    if down != sorted(set(down)):
        raise MalformedError("links twice or out of order")
    return Record(origin, boot, sequence, tuple(down))


def encode_digest(count: int, summary: int) -> bytes:
    """Return the body of a DIGEST."""
    return _DIGEST.pack(count, summary)


def decode_digest(body: bytes) -> tuple[int, int]:
    """Return the number of records and their summary; MalformedError if the size is wrong."""
    if len(body) != _DIGEST.size:
        raise MalformedError("DIGEST of another form")
    count, summary = _DIGEST.unpack(body)
    return count, summary


def digest_of(record: Record) -> int:
    """Return what a record contributes to the summary."""
    text = record.origin.encode() + b"\0" + _VERSION.pack(*record.version)
    return int.from_bytes(sha256(text).digest()[:8])


def encode_versions(first: int, last: int, rows: Iterable[tuple[int, int, int]]) -> bytes:
    """Return the body of a VERSIONS; rows are (origin id, boot, sequence), ascending."""
    return _RANGE.pack(first, last) + b"".join(_VERSION_ROW.pack(*row) for row in rows)


def decode_versions(body: bytes) -> Versions:
    """Return the versions in a range; MalformedError if the body has another form."""
    if len(body) < _RANGE.size or (len(body) - _RANGE.size) % _VERSION_ROW.size:
        raise MalformedError("VERSIONS of another form")
    first, last = _RANGE.unpack_from(body)
    rows = list(_VERSION_ROW.iter_unpack(body[_RANGE.size :]))
    ids = [row[0] for row in rows]
    if ids != sorted(set(ids)) or (ids and not first <= ids[0] <= ids[-1] <= last):
        raise MalformedError("origins out of order or range")
    if any(max(boot, sequence) > MOST_NUMBER for _, boot, sequence in rows):
        raise MalformedError("a version beyond 2^63 - 1")
    return Versions(first, last, {row: (boot, sequence) for row, boot, sequence in rows})


def _text(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > MOST_TEXT:
        raise ValueError(f"{text[:40]!r}... has more than {MOST_TEXT} bytes")
    return bytes([len(encoded)]) + encoded


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    if at >= len(data):
        raise MalformedError("ends in the middle")
    end = at + 1 + data[at]
    if end > len(data):
        raise MalformedError("ends in the middle")
    try:
        return data[at + 1 : end].decode(), end
    except UnicodeDecodeError:
        raise MalformedError("text that is not UTF-8") from None


def _numbers(form: struct.Struct, data: bytes, at: int) -> tuple[int, ...]:
    if at + form.size > len(data):
        raise MalformedError("ends in the middle")
    numbers = form.unpack_from(data, at)
    if max(numbers) > MOST_NUMBER:
        raise MalformedError("a version beyond 2^63 - 1")
    return numbers
