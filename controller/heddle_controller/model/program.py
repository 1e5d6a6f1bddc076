"""What switches must hold: exact-match entries, as arrays over all switches.

An entry says: packets from this NIC to that NIC with this UDP source port (0 for
any) leave by this arc; if the arc or anything at risk behind it is down, by the
backup arc; if that is down too, the underlay takes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import ref

import numpy as np

from heddle_controller.model.arrays import NONE, Ints

ANY_PORT = 0

COLUMNS = (
    "switch",
    "source",
    "destination",
    "source_port",
    "destination_port",
    "primary",
    "backup",
    "stage",
)
"""Columns of ``Entries`` with a number for each row."""


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Entries of all switches, one row each, sorted by switch, then match."""

    switch: Ints
    """Node row of the switch that holds it."""
    source: Ints
    """Node row of the source NIC."""
    destination: Ints
    """Node row of the destination NIC."""
    source_port: Ints
    """UDP source port, or ``ANY_PORT``, which loses to an exact port."""
    destination_port: Ints
    """UDP destination port, or ``ANY_PORT``."""
    primary: Ints
    """Arc to leave by."""
    backup: Ints
    """Arc to leave by when the primary is lost; ``NONE`` for the underlay."""
    stage: Ints
    """Switches with entries of the same path that come after this one: entries of
    stage 0 are programmed first, so that no packet meets a half-made path."""
    risk_first: Ints
    """Where each entry's risk links begin, shape (entries + 1,)."""
    risk_links: Ints
    """Link rows further down the path whose loss makes the primary useless, ascending;
    then, as ``~row``, those whose loss makes the backup useless, likewise."""
    made: EntryOrigin | None = field(default=None, repr=False, compare=False)
    """How they were made of others, where that is known; no part of what they are."""

    def __len__(self) -> int:
        return len(self.switch)

    def risks(self, row: int) -> Ints:
        """Risk links of one entry's primary."""
        links = self.risk_links[self.risk_first[row] : self.risk_first[row + 1]]
        return links[links >= 0]

    def backup_risks(self, row: int) -> Ints:
        """Risk links of one entry's backup."""
        links = self.risk_links[self.risk_first[row] : self.risk_first[row + 1]]
        return ~links[links < 0]

    def take(self, rows: Ints) -> Entries:
        """Some of the entries, in the order of ``rows``, in time for those and not for all."""
        if not len(rows):
            return no_entries()
        if len(rows) == len(self) and rows[0] == 0 and (np.diff(rows) == 1).all():
            return self
        begin = self.risk_first[rows]
        lengths = self.risk_first[rows + 1] - begin
        first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        within = np.arange(first[-1], dtype=np.int64) - np.repeat(first[:-1], lengths)
        return Entries(
            switch=self.switch[rows],
            source=self.source[rows],
            destination=self.destination[rows],
            source_port=self.source_port[rows],
            destination_port=self.destination_port[rows],
            primary=self.primary[rows],
            backup=self.backup[rows],
            stage=self.stage[rows],
            risk_first=first,
            risk_links=self.risk_links[np.repeat(begin, lengths) + within],
        )

    def of_switch(self, switch: int) -> Entries:
        """The entries of one switch."""
        low, high = np.searchsorted(self.switch, [switch, switch + 1])
        return self.take(np.arange(low, high, dtype=np.int64))


class Edit(NamedTuple):
    """What makes one set of entries into another; all that stays keeps its order."""

    gone: Ints
    """Rows of the old ones that are not among the new ones, ascending."""
    came: Ints
    """Rows of the new ones that were not among the old ones, ascending."""

    def then(self, other: Edit) -> Edit:
        """This one and then another, as one; in time for what they name."""
        gone = _moved(other.gone, self.came, self.gone)
        came = _moved(self.came, other.gone, other.came)
        return Edit(
            np.sort(np.concatenate([self.gone, gone])), np.sort(np.concatenate([other.came, came]))
        )


def _moved(rows: Ints, without: Ints, among: Ints) -> Ints:
    """Where rows stand once some are taken out and others stand among them (all ascending).

    Those of them that are taken out are left out.
    """
    at = np.searchsorted(without, rows)
    taken = np.append(without, NONE)[at] == rows
    kept = (rows - at)[~taken]
    before = among - np.arange(len(among))  # rows that stay and stand before each of these
    found: Ints = kept + np.searchsorted(before, kept, side="right")
    return found


class EntryMark(NamedTuple):
    """Which entries are meant, by their very columns: copies share those that do not change.

    It keeps no column alive: entries that know what they were made of do not hold all before them.
    """

    columns: tuple[ref[Ints], ...]
    stage: ref[Ints]

    @classmethod
    def on(cls, entries: Entries) -> EntryMark:
        """The mark of some entries."""
        return cls(tuple(ref(column) for column in _but_stage(entries)), ref(entries.stage))

    def is_of(self, entries: Entries, *, stages: bool) -> bool:
        """Whether it is theirs, or, unless ``stages`` matter, that of a copy with others."""
        pairs = zip(self.columns, _but_stage(entries), strict=True)
        same = all(marked() is column for marked, column in pairs)
        return same and (not stages or self.stage() is entries.stage)


def _but_stage(entries: Entries) -> list[Ints]:
    names = (*(name for name in COLUMNS if name != "stage"), "risk_first", "risk_links")
    return [getattr(entries, name) for name in names]


class EntryOrigin(NamedTuple):
    """How entries were made of others. Both are marked: a copy with other columns is not meant."""

    of: EntryMark
    to: EntryMark
    edit: Edit


def no_entries() -> Entries:
    """An empty set of entries."""
    empty = np.empty(0, dtype=np.int64)
    first = np.zeros(1, dtype=np.int64)
    return Entries(empty, empty, empty, empty, empty, empty, empty, empty, first, empty)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A committed plan's entries: who wrote them and which plan they are."""

    epoch: int
    generation: int
    intent_version: int
    entries: Entries


__all__ = [
    "ANY_PORT",
    "COLUMNS",
    "NONE",
    "Edit",
    "Entries",
    "EntryMark",
    "EntryOrigin",
    "Program",
    "no_entries",
]
