"""Good inputs, spoilt: in bytes, in numbers of the text, and by pieces of other inputs."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

ODD_BYTES = (0, 1, 9, 10, 13, 32, 34, 39, 44, 45, 58, 0x7F, 0x80, 0xC0, 0xE2, 0xFE, 0xFF)
ODD_WORDS: tuple[bytes, ...] = (
    b"",
    b"0",
    b"-1",
    b"1e309",
    b"-0.0",
    b"1e-320",
    b"NaN",
    b"Infinity",
    b"9223372036854775808",
    b"18446744073709551616",
    b"99999999999999999999999999999999999999",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b'"\\ud800"',
    b"\xef\xbb\xbf",
    b"\xf0\x9f\xa7\xb5",
    b"../../etc/passwd",
    b"a" * 300,
    b"[" * 200,
    b"\r\n",
    b"!!python/object:os.system",
    b"&a [*a,*a]",
    b"%s%n",
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
MOST_BYTES = 1 << 16

Change = Callable[[bytearray, random.Random, Sequence[bytes], Sequence[bytes]], bytearray]


def spoilt(chance: random.Random, corpus: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """Return one input of the corpus with a few changes, possibly none."""
    content = bytearray(chance.choice(corpus))
    for _ in range(chance.choice((0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 5, 9))):
        content = chance.choice(CHANGES)(content, chance, corpus, words)
    return bytes(content[:MOST_BYTES])


def _flip(content: bytearray, chance: random.Random, *_: object) -> bytearray:
    if content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return content


def _odd_byte(content: bytearray, chance: random.Random, *_: object) -> bytearray:
    if content:
        content[chance.randrange(len(content))] = chance.choice(ODD_BYTES)
    return content


def _stretch(content: bytearray, chance: random.Random) -> tuple[int, int]:
    start = chance.randint(0, len(content))
    return start, min(len(content), start + chance.choice((1, 2, 4, 8, 16, 64, 256)))


def _cut(content: bytearray, chance: random.Random, *_: object) -> bytearray:
    start, end = _stretch(content, chance)
    return content[:start] + content[end:]


def _repeat(content: bytearray, chance: random.Random, *_: object) -> bytearray:
    start, end = _stretch(content, chance)
    return content[:end] + content[start:end] * chance.choice((1, 1, 2, 9)) + content[end:]


def _end(content: bytearray, chance: random.Random, *_: object) -> bytearray:
    return content[: chance.randint(0, len(content))]


def _word(
    content: bytearray, chance: random.Random, _: Sequence[bytes], words: Sequence[bytes]
) -> bytearray:
    start, end = _stretch(content, chance)
    end = chance.choice((start, end))
    return content[:start] + chance.choice((*ODD_WORDS, *words)) + content[end:]


def _number(content: bytearray, chance: random.Random, *_: object) -> bytearray:
    """Replace a number of the text by an odd word, since most checks concern numbers."""
    found = list(_NUMBER.finditer(content))
    if not found:
        return content
    place = chance.choice(found)
    return content[: place.start()] + chance.choice(ODD_WORDS[1:11]) + content[place.end() :]


def _splice(
    content: bytearray, chance: random.Random, corpus: Sequence[bytes], _: Sequence[bytes]
) -> bytearray:
    other = chance.choice(corpus)
    start, end = _stretch(content, chance)
    at = chance.randint(0, len(other))
    return content[:start] + other[at : at + chance.choice((4, 32, 256))] + content[end:]


def _swap_lines(content: bytearray, chance: random.Random, *_: object) -> bytearray:
    lines = content.split(b"\n")
    chance.shuffle(lines)
    return bytearray(b"\n".join(lines))


CHANGES: tuple[Change, ...] = (
    _flip, _flip, _odd_byte, _cut, _cut, _repeat, _end, _word, _word, _number, _number, _splice,
    _swap_lines,
)  # fmt: skip
