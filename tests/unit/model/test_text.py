"""Untrusted text: what counts as a number, and what may reach a terminal."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterator

import click
import pytest

from heddle.text import clean, clean_json, clean_lines, integer, number
from heddle_controller.cli.main import main as heddle
from heddle_emulator.cli import cli as emulator

ODD_NUMBERS = [
    "1_000",
    "٣",
    "\uff11\uff12",
    "",
    "-",
    "1e",
    "nan",
    "inf",
    "-Infinity",
    "0x10",
    "1,5",
    "1 2",
    "²",
]


@pytest.mark.parametrize("text", ["0", "-1", "+7", " 12 ", "007", "9" * 300])
def test_integers_are_read(text: str) -> None:
    """Integers may have a sign, digits, and blanks around them."""
    assert integer(text) == int(text)
    assert number(text) == float(text)


@pytest.mark.parametrize("text", ["0.5", ".5", "5.", "1e3", "-2.5E-3"])
def test_numbers_are_read(text: str) -> None:
    """Numbers are read as in JSON, and may have their point at either end."""
    assert number(text) == float(text)
    with pytest.raises(ValueError, match="is not an integer"):
        integer(text)


@pytest.mark.parametrize("text", [*ODD_NUMBERS, "1" * 100_000])
def test_what_only_python_takes_for_a_number_is_refused(text: str) -> None:
    """Odd numbers that only Python accepts are refused; the short message says how to write one."""
    for read in (integer, number):
        with pytest.raises(ValueError, match="with the digits 0 to 9") as caught:
            read(text)
        assert len(str(caught.value)) < 200


def test_a_clean_line_has_nothing_that_a_terminal_obeys() -> None:
    """A cleaned line has no control or format characters; printable characters stay."""
    shown = clean("".join(map(chr, range(sys.maxunicode + 1))))  # lone surrogates included
    odd = {unicodedata.category(one) for one in set(shown) - {" "}}
    assert not odd & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert clean("leaf-ß 字 é ~") == "leaf-ß 字 é ~"
    assert clean("a\x1b[2J\nb\u202ec\x9b") == r"a\x1b[2J\nb\u202ec\x9b"
    assert clean_lines("a\x1b\nb\r") == "a\\x1b\nb\\r"


def test_clean_json_means_the_same() -> None:
    """Cleaned JSON has the same value, and nothing in it that a terminal obeys."""
    told = {"name": "a\x1b[2J\nb\u202ec\x9b\x7f😀\u2028"}
    text = clean_json(json.dumps(told, ensure_ascii=False))
    assert json.loads(text) == told
    assert clean(text) == text


def _parameters(command: click.Command) -> Iterator[click.Parameter]:
    yield from command.params
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, name
            yield from _parameters(below)


@pytest.mark.parametrize("program", [heddle, emulator], ids=["heddle", "heddle-emulator"])
def test_every_number_of_a_command_line_is_a_plain_one(program: click.Command) -> None:
    """No option of any command accepts what only Python takes for a number."""
    found = [one for one in _parameters(program) if one.type.name.startswith(("integer", "float"))]
    assert len(found) > 5
    for parameter in found:
        for odd in ("1_0", "\u0663", "nan"):
            with pytest.raises(click.ClickException):
                parameter.type.convert(odd, parameter, None)
