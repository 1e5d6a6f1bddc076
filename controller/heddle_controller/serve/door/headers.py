"""How much a block of HPACK headers (RFC 7541) would take once expanded, without expanding it.

The table is kept as sizes alone. A Huffman string counts for the most that it may hold, so an entry
may be taken for larger than it is, and for gone when it is not: a reference to one that is not
known here counts as the largest there can be. So what is let pass is never more than it seems.
"""

from __future__ import annotations

from collections import deque

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
