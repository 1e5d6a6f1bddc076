"""Text from outside: parse it as numbers, and print it safely; counts in words.

Every program of Heddle uses this distribution, so these rules are defined here once.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Any

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_LONGEST = 400
"""Most characters of a number; Python is slow at thousands of digits, and no rate needs them."""


def integer(text: str) -> int:
    """Return the integer that a text means: a sign and the digits 0 to 9, with blanks around them.

    Python's ``int`` also accepts ``1_000`` and the digits of all other scripts, which other
    programs would read differently or refuse.

    Raises:
        ValueError: The text is anything else; the message says what to write.
    """
    plain = text.strip()
    if len(plain) > _LONGEST or not _INTEGER.fullmatch(plain):
        raise ValueError(f"{plain[:40]!r} is not an integer: write it with the digits 0 to 9 alone")
    return int(plain)


def number(text: str) -> float:
    """Return the finite number that a text means, such as 12, 0.5 or 1e-3; see ``integer``.

    Raises:
        ValueError: The text is anything else, also ``nan`` or ``inf``; the message says what to
            write.
    """
    plain = text.strip()
    if len(plain) > _LONGEST or not _NUMBER.fullmatch(plain):
        cure = "write it with the digits 0 to 9, such as 12, 0.5 or 1e-3"
        raise ValueError(f"{plain[:40]!r} is not a number: {cure}")
    return float(plain)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[v6]:port``.

    Raises:
        ValueError: The address has another form; the message says what to write.
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    named = colon and host and "/" not in host
    if not (named and port.isascii() and port.isdecimal() and int(port) < 65536):  # noqa: PLR2004 - ports
        msg = f"{address!r} is not an address: use host:port, such as 127.0.0.1:7400"
        raise ValueError(msg)
    return host, int(port)


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun, such as ``1 flow`` or ``2 flows``."""
    return f"1 {one}" if count == 1 else f"{count:,} {many or one + 's'}"


def some_of(names: Sequence[str], most: int = 5, between: str = ", ") -> str:
    """Return the first names and how many there are more, such as ``a, b and 3 more``."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{between.join(names[:most])}{more}"


def similar(word: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the known words that are most like a word, at most ``most``, the nearest first.

    ``cutoff`` is the least likeness, from 0 to 1.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only faults need it

    return get_close_matches(word, list(known), most, cutoff)


def meant(word: str, known: Iterable[str], similar_to: Iterable[str] = ()) -> str:
    """Return a hint for a word that is not known: the one that it resembles, else all.

    ``similar_to`` are the words to compare with, if they are not those to list.
    """
    words = list(known)
    close = similar(word, list(similar_to) or words)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(words)}"


def clean(text: str) -> str:
    r"""Return one line that is safe on a terminal: unprintable characters are spelled out.

    Names and messages come from strangers. An escape sequence in them could rewrite what the
    operator has read, a line end could forge a line, and a bidirectional mark could reverse words.
    They become ``\x1b``, ``\n`` and ``\u202e``.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _spelled(one) for one in text)


def clean_lines(text: str) -> str:
    """Return several lines, each made safe by ``clean``."""
    return "\n".join(map(clean, text.split("\n")))


def clean_json(text: str) -> str:
    r"""Return a JSON document with the same meaning that is safe on a terminal.

    JSON itself escapes most control characters as ``\u001b``; all other unprintable characters are
    escaped in the same way.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else _escaped(one) for one in text)


def _spelled(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")


def _escaped(one: str) -> str:
    units = one.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


class _PlainNumber:
    """Makes a click number type refuse everything that ``integer`` or ``number`` refuses."""

    refuse: Callable[[str], Exception]

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ANN401 - click's
        """Return the number; fail as click does, also for what only Python accepts as a number."""
        taken = super().convert(value, param, ctx)  # type: ignore[misc] # of click's type
        if isinstance(value, str):
            whole = "integer" in self.name  # type: ignore[attr-defined] # of click's type
            try:
                (integer if whole else number)(value)
            except ValueError as error:
                raise type(self).refuse(f"{max(param.opts, key=len)}: {error}") from None
        return taken


class OutputGuard:
    """Makes a click group that inherits it end with one line and status 1 on a full output."""

    def main(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - click's
        """Run the command line; this includes help texts, which are printed before any command."""
        try:
            return super().main(*args, **kwargs)  # type: ignore[misc] # of click's group
        except OSError as error:
            if error.errno not in {ENOSPC, EDQUOT}:
                raise
            with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())  # what is left is not tried again
            sys.stderr.write(f"error: the output cannot be written: {error.strerror}\n")
            sys.exit(1)


def plain_numbers(
    command: Any,  # noqa: ANN401 - a click command; click is not ours to need
    refuse: Callable[[str], Exception],
) -> None:
    """Make all number options of a click command and of its subcommands accept only plain numbers.

    ``refuse`` makes the program's error from a message of one line. A second call changes nothing.
    """
    for param in command.params:
        kind = type(param.type)
        if not isinstance(param.type, _PlainNumber) and kind.__name__ in {
            "IntParamType",
            "FloatParamType",
            "IntRange",
            "FloatRange",
        }:
            members = {"refuse": staticmethod(refuse)}
            plain: Any = type(kind.__name__, (_PlainNumber, kind), members)
            known, param.type = param.type, plain.__new__(plain)
            vars(param.type).update(vars(known))
    for below in getattr(command, "commands", {}).values():
        plain_numbers(below, refuse)
