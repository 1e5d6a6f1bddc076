"""Text that others wrote, on its way in as numbers and on its way out to a terminal.

Every program of Heddle stands on this distribution, so both rules stand here once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_LONGEST = 400
"""Characters of a number; Python takes a while over thousands, and no rate or count has as many."""


def integer(text: str) -> int:
    """The integer that a text is: a sign and the digits 0 to 9, blanks around them.

    Python's ``int`` also takes ``1_000`` and the digits of every other script, so that one file
    means one thing here and another to the next program.

    Raises:
        ValueError: in words, for anything else.
    """
    plain = text.strip()
    if len(plain) > _LONGEST or not _INTEGER.fullmatch(plain):
        raise ValueError(f"{plain[:40]!r} is not an integer: write it with the digits 0 to 9 alone")
    return int(plain)


def number(text: str) -> float:
    """The finite number that a text is: 12, 0.5, 1e-3; see ``integer``.

    Raises:
        ValueError: in words, for anything else; also for ``nan`` and ``inf``.
    """
    plain = text.strip()
    if len(plain) > _LONGEST or not _NUMBER.fullmatch(plain):
        cure = "write it with the digits 0 to 9, such as 12, 0.5 or 1e-3"
        raise ValueError(f"{plain[:40]!r} is not a number: {cure}")
    return float(plain)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``.

    Raises:
        ValueError: in words, when the address has another form.
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdecimal() and int(port) < 65536):  # noqa: PLR2004 - ports
        msg = f"{address!r} is not an address: use host:port, such as 127.0.0.1:7400"
        raise ValueError(msg)
    return host, int(port)


def clean(text: str) -> str:
    r"""One line that a terminal prints as it stands: what has no sign of its own is spelled out.

    Names and messages come from strangers. An escape sequence among them could rewrite what the
    operator has read, a line end could forge a line, a bidirectional mark could turn words round;
    they become ``\x1b``, ``\n``, ``\u202e``.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _spelled(one) for one in text)


def clean_lines(text: str) -> str:
    """Several lines, each of them clean."""
    return "\n".join(map(clean, text.split("\n")))


def clean_json(text: str) -> str:
    r"""A JSON document that a terminal prints as it stands, and that means the same.

    JSON writes most control characters as ``\u001b`` by itself; the others are written so too.
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
    """What a number on a command line is, beside what click's own type says of it."""

    refuse: Callable[[str], Exception]

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ANN401 - click's
        """The number. Fails as click does where even Python takes it for none."""
        taken = super().convert(value, param, ctx)  # type: ignore[misc] # of click's type
        if isinstance(value, str):
            whole = "integer" in self.name  # type: ignore[attr-defined] # of click's type
            try:
                (integer if whole else number)(value)
            except ValueError as error:
                raise type(self).refuse(f"{max(param.opts, key=len)}: {error}") from None
        return taken


def plain_numbers(
    command: Any,  # noqa: ANN401 - a click command; click is not ours to need
    refuse: Callable[[str], Exception],
) -> None:
    """Have all numbers of a click command, and of those below it, be plain ones; once is enough.

    ``refuse`` makes the error of a program of one line.
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
