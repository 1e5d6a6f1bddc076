"""Checked access to the fields of one record of a YAML file; faults are gathered."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard, TypeVar

from heddle.sizes import size_of
from heddle.text import meant
from heddle_controller.model.errors import Problem
from heddle_controller.model.files.records import short
from heddle_controller.model.files.yaml_text import Record
from heddle_controller.model.job import MAX_BYTES, MAX_NUMBER

_T = TypeVar("_T")


class Fields:
    """The fields of one record. Faults are added to ``problems`` under ``label``.

    After a fault, each method still returns a valid value, so that further faults are found.
    """

    def __init__(self, record: Mapping[Any, Any], label: str, problems: list[Problem]) -> None:
        self.record = record
        self.label = label
        self.problems = problems

    def fault(self, reason: str) -> None:
        """Note a fault of the record."""
        self.problems.append(Problem(self.label, reason))

    def only(self, *known: str) -> None:
        """Note a fault for every key that is not known, with the nearest known one."""
        for key in self.record:
            if key not in known:
                self.fault(f"unknown key {short(key)}; {meant(str(key), known)}")

    def text(self, name: str, what: str) -> str:
        """Return a string that must be there, "" if it is faulty; ``what`` says what to give."""
        value = self.record.get(name)
        if isinstance(value, str) and value:
            return value
        self.fault(f"has no {name}; {what}" if value in (None, "") else _not(name, value, what))
        return ""

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """Return an integer of ``least`` or more, which must be there unless it has a default."""
        value = self.record.get(name, default)
        if type(value) is int and least <= value < MAX_BYTES:
            return value
        below = f", below {MAX_BYTES}" if type(value) is int and value > least else ""
        what = f"give an integer, {least} or more{below}"
        self.fault(f"has no {name}; {what}" if value is None else _not(name, value, what))
        return least

    def positive(self, name: str, default: float) -> float:
        """Return a number above 0 and below ``MAX_NUMBER``; the default if it is absent."""
        value = self.record.get(name)
        if value is None:
            return default
        if _is_number(value) and 0 < value < MAX_NUMBER:
            return float(value)
        self.fault(_not(name, value, f"give a number above 0, below {MAX_NUMBER:g}"))
        return default

    def size(self, name: str) -> int:
        """Return bytes, given as an integer or as a number with a unit, such as 64MiB or 1.5GB."""
        value = self.record.get(name)
        number = size_of(value) if isinstance(value, str) else value
        if _is_number(number) and 1 <= number < MAX_BYTES and number == int(number):
            return int(number)
        below = f", below {MAX_BYTES}" if _is_number(number) and number >= MAX_BYTES else ""
        what = f"give the bytes one rank puts in, such as 1048576 or 64MiB{below}"
        self.fault(f"has no {name}; {what}" if value is None else _not(name, value, what))
        return 1

    def choice(self, name: str, choices: Mapping[str, _T], default: _T | None = None) -> _T:
        """Return the value of one of some words; case, '-', '_' and spaces do not count."""
        value = self.record.get(name)
        plain = {_plain(word): choice for word, choice in choices.items()}
        if value is None and default is not None:
            return default
        if isinstance(value, str) and _plain(value) in plain:
            return plain[_plain(value)]
        what = f"give one of {', '.join(choices)}"
        self.fault(f"has no {name}; {what}" if value is None else _not(name, value, what))
        return next(iter(choices.values()))

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return true or false; the default if it is absent."""
        value = self.record.get(name, default)
        if not isinstance(value, bool):
            self.fault(_not(name, value, "give true or false"))
            return default
        return value

    def entries(self, name: str) -> list[Any]:
        """Return a list; empty if it is absent."""
        value = self.record.get(name)
        if value is None or isinstance(value, list):
            return value or []
        self.fault(_not(name, value, "give a list"))
        return []

    def records(self, name: str, form: str) -> Iterator[Fields]:
        """Yield the records of a list, labelled by place and line; ``form`` shows what to give."""
        for row, record in enumerate(self.entries(name)):
            if isinstance(record, Record):
                yield Fields(record, f"{name}[{row}] (line {record.line})", self.problems)
            else:
                self.fault(f"{name}[{row}] is {short(record)}; give {form}")

    def inner(self, name: str, form: str) -> Fields | None:
        """Return the fields of a nested mapping; None if there is none."""
        value = self.record.get(name)
        if isinstance(value, Record):
            return Fields(value, f"{name} (line {value.line})", self.problems)
        if value is not None:
            self.fault(_not(name, value, f"give a mapping such as {form}"))
        return None

    @property
    def line(self) -> int:
        """The line on which the record starts; 0 if it is not known."""
        return self.record.line if isinstance(self.record, Record) else 0


def _is_number(value: object) -> TypeGuard[float]:
    """Return whether YAML read a number. True and False are none; NaN fails any comparison."""
    return type(value) in (int, float)


def _not(name: str, value: object, what: str) -> str:
    return f"{name} is {short(value)}; {what}"


def _plain(word: str) -> str:
    return re.sub(r"[-_ ]", "", word).lower()
