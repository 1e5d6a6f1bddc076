"""What switches must hold: exact-match entries, as arrays over all switches.

An entry says by which arc a switch forwards packets from one NIC to another with a given UDP source
port (0 for any). If that arc or one of the entry's risk links is down, packets leave by the backup
arc. If the backup is down too, the underlay forwards them.

Entries made from others record how, so that nobody has to compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from heddle_controller.model.arrays import Ints, cut_rows
from heddle_controller.model.edits import CompressedRows, Edit

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
"""Names of the columns of ``Entries`` that have one number for each row."""


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Entries of all switches, one row each, sorted by switch and then by match."""

    switch: Ints
    """Node row of the switch that holds the entry."""
    source: Ints
    """Node row of the source NIC."""
    destination: Ints
    """Node row of the destination NIC."""
    source_port: Ints
    """UDP source port, or ``ANY_PORT``. An entry with an exact port takes precedence."""
    destination_port: Ints
    """UDP destination port, or ``ANY_PORT``."""
    primary: Ints
    """Arc to leave by."""
    backup: Ints
    """Arc to leave by when the primary is lost; ``NONE`` to use the underlay then."""
    stage: Ints
    """How many switches further down the path have entries for it. Entries of stage 0 are
    programmed first, so that no packet meets a path that is only half programmed."""
    risk_first: Ints
    """Where each entry's links begin in ``risk_links``, shape (entries + 1,)."""
    risk_links: Ints
    """For each entry, first the rows of links further down the path whose loss makes the primary
    useless. Then, as ``~row``, those whose loss makes the backup useless. Both in ascending order
    of rows."""
    made: EntryOrigin | None = field(default=None, repr=False, compare=False)
    """How these entries were made from others, or None if that is not known. Not part of their
    value."""

    def __len__(self) -> int:
        return len(self.switch)

    def risks(self, row: int) -> Ints:
        """Return the link rows that the primary of one entry depends on."""
        links = self.risk_links[self.risk_first[row] : self.risk_first[row + 1]]
        return links[links >= 0]

    def backup_risks(self, row: int) -> Ints:
        """Return the link rows that the backup of one entry depends on."""
        links = self.risk_links[self.risk_first[row] : self.risk_first[row + 1]]
        return ~links[links < 0]

    def take(self, rows: Ints) -> Entries:
        """Return some of the entries, in the order of ``rows``.

        The time depends on the number of entries taken, not on the number of all entries.
        """
        if not len(rows):
            return no_entries()
        if len(rows) == len(self) and rows[0] == 0 and (np.diff(rows) == 1).all():
            return self
        first, places = cut_rows(self.risk_first, rows)
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
            risk_links=self.risk_links[places],
        )

    def of_switch(self, switch: int) -> Entries:
        """Return the entries of one switch, given by node row."""
        low, high = np.searchsorted(self.switch, [switch, switch + 1])
        return self.take(np.arange(low, high, dtype=np.int64))


class EntryMark(NamedTuple):
    """Identifies a set of entries by its column arrays, which copies share unless they change.

    Holds weak references, so that entries do not keep alive all the entries they were made from.
    """

    columns: tuple[ref[Ints], ...]
    stage: ref[Ints]

    @classmethod
    def on(cls, entries: Entries) -> EntryMark:
        """Return the mark of some entries."""
        return cls(tuple(ref(column) for column in _but_stage(entries)), ref(entries.stage))

    def is_of(self, entries: Entries, *, stages: bool) -> bool:
        """Return whether this is the mark of these entries.

        Without ``stages``, it may also be that of a copy with a different ``stage`` column.
        """
        pairs = zip(self.columns, _but_stage(entries), strict=True)
        same = all(marked() is column for marked, column in pairs)
        return same and (not stages or self.stage() is entries.stage)


def _but_stage(entries: Entries) -> list[Ints]:
    names = (*(name for name in COLUMNS if name != "stage"), "risk_first", "risk_links")
    return [getattr(entries, name) for name in names]


class EntryOrigin(NamedTuple):
    """How a set of entries was made from another one.

    Both are marked, because the edit does not hold for a copy with other columns.
    """

    of: EntryMark
    to: EntryMark
    edit: Edit


def no_entries() -> Entries:
    """Return an empty set of entries."""
    empty = np.empty(0, dtype=np.int64)
    first = np.zeros(1, dtype=np.int64)
    return Entries(empty, empty, empty, empty, empty, empty, empty, empty, first, empty)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The entries of a committed plan, with the epoch and generation that agents get."""

    epoch: int
    generation: int
    intent_version: int
    entries: Entries


def known_edit(old: Entries, new: Entries, *, stages: bool = False) -> Edit | None:
    """Return how the new entries were made from the old ones; None if that is not known.

    Unless ``stages`` is set, either side may also be a copy with other stages.
    """
    if EntryMark.on(old).is_of(new, stages=stages):
        none = np.empty(0, dtype=np.int64)
        return Edit(none, none)
    made = new.made
    if made is None or not made.to.is_of(new, stages=stages):
        return None
    return made.edit if made.of.is_of(old, stages=stages) else None


def splice_entries(old: Entries, gone: Ints, places: Ints, fresh: Entries) -> Entries:
    """Return the old entries without some rows, and with fresh ones inserted.

    Columns in which nothing changes are the same arrays as before.

    Args:
        old: Any entries.
        gone: Rows of ``old`` to leave out, ascending.
        places: For each fresh entry, the row of ``old`` before which to insert it, ascending.
        fresh: The entries to insert.
    """
    came = places + np.arange(len(fresh)) - np.searchsorted(gone, places)
    return edited_entries(old, Edit(gone, came), fresh)


def edited_entries(old: Entries, edit: Edit, fresh: Entries) -> Entries:
    """Do the same as ``splice_entries``, given the rows that fresh entries have in the result."""
    flat, first, links = _rows_of(old).edited(edit, _rows_of(fresh))
    columns: dict[str, Any] = dict(zip(COLUMNS, flat, strict=True))
    new = Entries(**columns, risk_first=first, risk_links=links)
    return replace(new, made=EntryOrigin(EntryMark.on(old), EntryMark.on(new), edit))


def _rows_of(entries: Entries) -> CompressedRows:
    flat = tuple(getattr(entries, name) for name in COLUMNS)
    return CompressedRows(flat, entries.risk_first, entries.risk_links)
