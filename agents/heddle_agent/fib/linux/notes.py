"""Names kept in the kernel beside the numbers that stand for them.

Maps hold addresses and numbers. A restarted agent must find out which NICs, next hops and risk
links these mean, so each number has a note: text in the comments of elements of the set ``notes``.
It is cut into pieces, because a comment holds 250 bytes. Notes are added and removed in the
transaction that they belong to, so they are never wrong, and they vanish with the table.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import IntEnum

from heddle_agent.fib.linux.elements import parse_plain_elements, plain
from heddle_agent.fib.linux.nft import Transaction
from heddle_agent.fib.linux.schema import NOTES

_KEY = struct.Struct("=II")
_PIECE = 240
_USER_DATA = 6
_NUMBER_BITS = 24
_NUMBERS = (1 << _NUMBER_BITS) - 1


class NoteKind(IntEnum):
    """What a number stands for."""

    GROUP = 1
    NIC = 2
    HOP = 3
    INTERFACE = 4
    OVERLAY = 5
    """A single note, which exists while the overlay is withdrawn."""


class Notes:
    """All notes, as they will be in the kernel after the current transaction."""

    def __init__(self) -> None:
        self._texts: dict[NoteKind, dict[int, str]] = {kind: {} for kind in NoteKind}

    def of(self, kind: NoteKind) -> Mapping[int, str]:
        """Return the texts of a kind by number."""
        return self._texts[kind]

    def load(self, datagrams: Iterable[bytes]) -> None:
        """Take over what the kernel holds; notes of unknown kinds are ignored."""
        pieces: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
        for key, found in parse_plain_elements(NOTES, datagrams):
            name, piece = _KEY.unpack(key)
            comment = found.get(_USER_DATA, b"")
            pieces[name][piece] = comment[2:-1]
        kinds = {int(kind): kind for kind in NoteKind}
        self._texts = {kind: {} for kind in NoteKind}
        for name, parts in pieces.items():
            known = kinds.get(name >> _NUMBER_BITS)
            if known is not None:
                words = b"".join(part for _, part in sorted(parts.items()))
                self._texts[known][name & _NUMBERS] = words.decode(errors="replace")

    def put(self, transaction: Transaction, kind: NoteKind, texts: dict[int, str]) -> None:
        """Write notes, replacing those with the same numbers."""
        self.drop(transaction, kind, [n for n in texts if n in self._texts[kind]])
        packed = [
            plain(key, note=piece)
            for number, text in texts.items()
            for key, piece in _pieces(kind, number, text)
        ]
        transaction.various(NOTES, packed)
        self._texts[kind].update(texts)

    def drop(self, transaction: Transaction, kind: NoteKind, numbers: Iterable[int]) -> None:
        """Remove the notes with these numbers."""
        packed = [
            plain(key)
            for number in numbers
            for key, _ in _pieces(kind, number, self._texts[kind].pop(number, ""))
        ]
        transaction.various(NOTES, packed, delete=True)


def _pieces(kind: NoteKind, number: int, text: str) -> list[tuple[bytes, bytes]]:
    """Return the keys and comments that hold a text."""
    words = text.encode()
    name = kind << _NUMBER_BITS | number
    return [
        (_KEY.pack(name, piece), words[start : start + _PIECE])
        for piece, start in enumerate(range(0, len(words), _PIECE))
    ]
