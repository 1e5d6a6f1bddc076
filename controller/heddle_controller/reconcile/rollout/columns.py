"""Small operations on entries as columns that the ledger is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.program import COLUMNS, Entries, no_entries
from heddle_controller.plan.columns import distinct
from heddle_controller.plan.diff import match_codes, partners

__all__ = [
    "Groups",
    "appended",
    "cut",
    "dead",
    "distinct",
    "joined_entries",
    "partners",
    "with_stage",
]

_NONE = no_entries()


def appended(parts: Sequence[Entries]) -> Entries:
    """All entries of several sets, one set after the other."""
    parts = [part for part in parts if len(part)]
    if len(parts) < 2:  # noqa: PLR2004 - one is whole already, and most pushes have none
        return parts[0] if parts else no_entries()
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS
    }
    lengths = np.concatenate([np.diff(part.risk_first) for part in parts])
    return Entries(
        **columns,
        risk_first=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        risk_links=np.concatenate([part.risk_links for part in parts]),
    )


def joined_entries(parts: Sequence[Entries]) -> Entries:
    """All entries of several sets, sorted by switch and match."""
    together = appended(parts)
    (codes,) = match_codes([together])
    if (codes[1:] >= codes[:-1]).all():  # as where nothing is held but what is wanted
        return together
    return together.take(np.argsort(codes, kind="stable"))


def cut(entries: Entries, lengths: Ints) -> list[Entries]:
    """The entries in consecutive parts of these lengths, without copying any."""
    parts, end = [], 0
    for length in lengths.tolist():
        begin, end = end, end + length
        if not length:
            parts.append(_NONE)
            continue
        risks = entries.risk_first[begin : end + 1]
        columns = {name: getattr(entries, name)[begin:end] for name in COLUMNS}
        links = entries.risk_links[risks[0] : risks[-1]]
        parts.append(Entries(**columns, risk_first=risks - risks[0], risk_links=links))
    return parts


def with_stage(entries: Entries, stage: Ints) -> Entries:
    """The same entries with another stage."""
    return replace(entries, stage=stage)


def dead(entries: Entries, fabric: Fabric) -> Bools:
    """Whether each entry sends packets over a link that is down, here or further on."""
    down = fabric.effective == State.DOWN
    if not down.any():
        return np.zeros(len(entries), dtype=np.bool_)
    lost: Bools = down[entries.primary >> 1]
    owner = np.repeat(np.arange(len(entries)), np.diff(entries.risk_first))
    mine = entries.risk_links >= 0  # a dead backup alone loses no packet
    lost[owner[mine][down[entries.risk_links[mine]]]] = True
    return lost


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """A few keys out of many, to gather values by; keys are ascending, each once."""

    keys: Ints

    def index(self, key: Ints) -> tuple[Ints, Bools]:
        """Row in ``keys`` of each key, and whether it is there at all."""
        if not len(self.keys):
            return np.zeros(len(key), dtype=np.int64), np.zeros(len(key), dtype=np.bool_)
        row = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        return row, self.keys[row] == key

    def least(self, key: Ints, values: Ints, start: int) -> Ints:
        """The least value of each of ``keys``, at most ``start``."""
        row, known = self.index(key)
        result = np.full(len(self.keys), start, dtype=np.int64)
        np.minimum.at(result, row[known], values[known])
        return result

    def greatest(self, key: Ints, values: Ints) -> Ints:
        """The greatest value of each of ``keys``, at least ``NONE``."""
        row, known = self.index(key)
        result = np.full(len(self.keys), NONE, dtype=np.int64)
        np.maximum.at(result, row[known], values[known])
        return result

    def marked(self, key: Ints) -> Bools:
        """Which of ``keys`` are named."""
        row, known = self.index(key)
        result = np.zeros(len(self.keys), dtype=np.bool_)
        result[row[known]] = True
        return result

    def of(self, values: Ints, key: Ints, other: int) -> Ints:
        """The value that each key's group has, ``other`` for keys without a group."""
        if not len(self.keys):
            return np.full(len(key), other, dtype=np.int64)
        row, known = self.index(key)
        return np.where(known, values[row], other)
