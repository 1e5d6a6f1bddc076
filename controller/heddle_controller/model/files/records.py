"""Columns of JSON records, checked while they are extracted.

A fabric has tens of thousands of records, and they are almost always correct. So each field is
extracted as one column, and its types are checked as a set. Only a column that fails this check is
examined record by record, to name the faulty ones.
"""

from __future__ import annotations

import math
import reprlib
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints
from heddle_controller.model.errors import (
    CURE,
    MAX_NAME,
    MAX_PROBLEMS,
    InputError,
    Problem,
    sensible,
    too_long,
)

LARGEST = 2**62
"""Integers from this one up are refused, because no count or index is as large."""


class Records:
    """Records of one kind, and the problems found in them so far."""

    def __init__(
        self,
        records: Sequence[Mapping[str, Any]],
        origin: str,
        label: Callable[[int], str],
        *,
        kept: bool = False,
    ) -> None:
        """Take records to check.

        Args:
            records: JSON objects of one kind.
            origin: The file or request that they came in.
            label: Returns the name of a record, given its row, for messages.
            kept: Whether they were accepted earlier and stored; long names are allowed then.
        """
        self.records = records
        self.origin = origin
        self.label = label
        self.kept = kept
        self.problems: list[Problem] = []

    def fault(self, row: int, reason: str) -> None:
        """Note a problem of one record, unless ``MAX_PROBLEMS`` are noted already."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(self.label(row), reason))

    def faults(self, rows: Iterable[int], reason: Callable[[int], str]) -> None:
        """Note the same kind of problem for several records, up to ``MAX_PROBLEMS`` in all."""
        for row in list(rows)[: MAX_PROBLEMS - len(self.problems)]:
            self.fault(row, reason(row))

    def finish(self) -> None:
        """Raise an ``InputError`` if any problem was noted."""
        if self.problems:
            raise InputError(self.origin, *self.problems)

    def column(self, field: str) -> list[Any]:
        """Return the values of one field unchecked. None where a record lacks it or has null."""
        return [record.get(field) for record in self.records]

    def strings(self, field: str, *, required: bool = False) -> list[str]:
        """Return a field of strings. Integers become their digits; "" where absent."""
        column = self.column(field)
        types = set(map(type, column))
        if types <= {str}:
            self.bound(field, column)
            return column
        if not types <= {str, int, type(None)}:
            bad = (row for row, v in enumerate(column) if type(v) not in (str, int, type(None)))
            self.faults(bad, lambda row: f"{field} is {short(column[row])}; give a string")
        if required and type(None) in types:
            missing = (row for row, value in enumerate(column) if value is None)
            self.faults(missing, lambda _: f"has no {field}; give one")
        names = ["" if value is None else str(value) for value in column]
        self.bound(field, names)
        return names

    def bound(self, field: str, names: Sequence[str]) -> None:
        """Note names with more than ``MAX_NAME`` characters, unless the records are ``kept``."""
        if not self.kept and max(map(len, names), default=0) > MAX_NAME:
            long = (row for row, name in enumerate(names) if len(name) > MAX_NAME)
            self.faults(long, lambda row: too_long(field, len(names[row]), MAX_NAME))

    def integers(self, field: str) -> Ints:
        """Return a field of integers, which must be 0 or more. ``NONE`` where absent."""
        column = self.column(field)
        if set(map(type, column)) == {type(None)}:
            return np.full(len(column), NONE, dtype=np.int64)
        bad = [
            row
            for row, value in enumerate(column)
            if value is not None and not (type(value) is int and 0 <= value < LARGEST)
        ]
        self.faults(bad, lambda row: f"{field} is {short(column[row])}; give an integer, 0 or more")
        if bad:
            return np.full(len(column), NONE, dtype=np.int64)
        return np.array([NONE if value is None else value for value in column], dtype=np.int64)

    def addresses(self, field: str) -> list[str]:
        """Return a field of IP addresses, each of which may occur once. "" where absent."""
        column = self.strings(field)
        row_of = {address: row for row, address in enumerate(column)}
        row_of.pop("", None)
        bad = {address for address in row_of if not _is_address(address)}
        if bad:
            rows = (row for row, address in enumerate(column) if address in bad)
            cure = "give an IP address such as 10.0.0.1 or 2001:db8::1, or none"
            self.faults(rows, lambda row: f"{field} is {short(column[row])}; {cure}")
        if len(row_of) < len(column) - column.count(""):
            twice = (r for r, address in enumerate(column) if address and row_of[address] != r)
            self.faults(
                twice,
                lambda row: (
                    f"{field} {column[row]} is also that of "
                    f"{self.label(row_of[column[row]])}; give each its own"
                ),
            )
        return column

    def rates(self, field: str) -> Floats:
        """Return a field of rates in Gbit/s. Every record must have one that is ``sensible``."""
        column = self.column(field)
        if not set(map(type, column)) <= {int, float}:
            self.faults(
                (row for row, value in enumerate(column) if type(value) not in (int, float)),
                lambda row: _no_number(field, column[row]),
            )
            return np.ones(len(column))
        rates = np.array([_float(value) for value in column])
        self.faults(
            np.flatnonzero(~sensible(rates)).tolist(),
            lambda row: f"{field} is {short(column[row])}; {CURE}",
        )
        return rates

    def choices(self, field: str, names: Mapping[str, int], default: str | None) -> Ints:
        """Return the number of the name that each record has in a field.

        Args:
            field: The field.
            names: The allowed names and their numbers.
            default: The name that a record without the field has; None if it is required.
        """
        column = self.column(field)
        codes: dict[str | None, int] = {None: names[default] if default else NONE}
        codes.update(names)
        try:
            found = np.array([codes.get(value, NONE) for value in column], dtype=np.int64)
        except TypeError:  # a list or an object, which is not hashable
            known = [value if isinstance(value, str) else "" for value in column]
            found = np.array([names.get(value, NONE) for value in known], dtype=np.int64)
        self.faults(
            np.flatnonzero(found == NONE).tolist(),
            lambda row: (
                f"has no {field}; give one of {', '.join(names)}"
                if column[row] is None
                else f"unknown {field} {short(column[row])}; use one of {', '.join(names)}"
            ),
        )
        return found


def short(value: object) -> str:
    """Return a short representation of a value for messages, on one line."""
    return reprlib.repr(value)


def _is_address(text: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text)
        except (OSError, ValueError):
            continue
        return True
    return False


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond the range of floats
        return math.inf


def _no_number(field: str, value: object) -> str:
    if value is None:
        return f"has no {field}; give a number above 0"
    return f"{field} is {short(value)}, no number; give a number above 0"
