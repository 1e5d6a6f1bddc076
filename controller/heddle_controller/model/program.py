"""What switches must hold: exact-match entries, as arrays over all switches, and how to edit them.

An entry says by which arc a switch forwards packets from one NIC to another with a given UDP source
port (0 for any). If that arc or one of the entry's risk links is down, packets leave by the backup
arc. If the backup is down too, the underlay forwards them.

When a few entries among many are replaced, rows between two changes stay as they are. So new
columns are joined from long stretches of old ones, at the speed of memory. The result records how
it was made, so that nobody has to compare it with the old entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from heddle_controller.model.arrays import NONE, Ints, cut_rows, distinct, ranges, starts

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


class Edit(NamedTuple):
    """The difference between two sets of entries. Entries that are in both keep their order."""

    gone: Ints
    """Rows of the old set whose entries are not in the new set, ascending."""
    came: Ints
    """Rows of the new set whose entries were not in the old set, ascending."""

    def then(self, other: Edit) -> Edit:
        """Return this edit followed by another, as one edit.

        The time depends on the number of rows in both edits, not on the number of entries.
        """
        gone = _moved(other.gone, self.came, self.gone)
        came = _moved(self.came, other.gone, other.came)
        return Edit(
            np.sort(np.concatenate([self.gone, gone])), np.sort(np.concatenate([other.came, came]))
        )


def _moved(rows: Ints, without: Ints, among: Ints) -> Ints:
    """Translate row numbers after some rows are removed and others are inserted.

    Args:
        rows: Row numbers before, ascending.
        without: Rows that are removed, numbered before, ascending. Any of ``rows`` that is among
            them is dropped from the result.
        among: Rows that are inserted, numbered after, ascending.
    """
    at = np.searchsorted(without, rows)
    taken = np.append(without, NONE)[at] == rows
    kept = (rows - at)[~taken]
    before = among - np.arange(len(among))  # how many kept rows precede each inserted one
    found: Ints = kept + np.searchsorted(before, kept, side="right")
    return found


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
    if np.array_equal(edit.gone, edit.came):
        new = _overwritten(old, edit.gone, fresh)
    else:
        new = _spliced(old, edit, fresh)
    return replace(new, made=EntryOrigin(EntryMark.on(old), EntryMark.on(new), edit))


def _overwritten(old: Entries, rows: Ints, fresh: Entries) -> Entries:
    """Return the old entries with some rows overwritten by the fresh ones."""
    columns: dict[str, Any] = {
        name: _with(getattr(old, name), rows, getattr(fresh, name)) for name in COLUMNS
    }
    begins, ends = old.risk_first[rows], old.risk_first[rows + 1]
    first, links, lengths = old.risk_first, old.risk_links, np.diff(fresh.risk_first)
    if (ends - begins == lengths).all():
        links = _with(links, ranges(begins, ends), fresh.risk_links)
    else:
        own = np.diff(first)
        own[rows] = lengths
        first, at, parts = starts(own), 0, []
        bounds = zip(
            begins.tolist(), ends.tolist(), pairwise(fresh.risk_first.tolist()), strict=True
        )
        for begin, end, (low, high) in bounds:
            parts += [links[at:begin], fresh.risk_links[low:high]]
            at = end
        links = np.concatenate([*parts, links[at:]])
    return Entries(**columns, risk_first=first, risk_links=links)


def _with(column: Ints, places: Ints, values: Ints) -> Ints:
    """Return a column with new values in some places; the same array if nothing differs."""
    if (column[places] == values).all():
        return column
    column = column.copy()
    column[places] = values
    return column


class _Stretch(NamedTuple):
    """Adjacent rows, ``begin`` to ``end - 1``, of the old or the fresh entries."""

    fresh: bool
    begin: int
    end: int


def _spliced(old: Entries, edit: Edit, fresh: Entries) -> Entries:
    """Return the edited entries, wherever rows are removed and inserted."""
    stretches = [*_stretches(len(old), edit)]

    columns: dict[str, Any] = {
        name: _joined(stretches, getattr(old, name), getattr(fresh, name)) for name in COLUMNS
    }
    lengths = _joined(stretches, np.diff(old.risk_first), np.diff(fresh.risk_first))
    links = [_risks_of(s, fresh if s.fresh else old) for s in stretches]
    return Entries(
        **columns,
        risk_first=starts(lengths),
        risk_links=_joined(links, old.risk_links, fresh.risk_links),
    )


def _joined(stretches: Sequence[_Stretch], of_old: Ints, of_fresh: Ints) -> Ints:
    """Return a column of the result, joined from stretches of both columns."""
    return np.concatenate([(of_fresh if s.fresh else of_old)[s.begin : s.end] for s in stretches])


def _risks_of(stretch: _Stretch, entries: Entries) -> _Stretch:
    """Return the stretch of risk links that belongs to a stretch of rows."""
    first = entries.risk_first
    return _Stretch(stretch.fresh, int(first[stretch.begin]), int(first[stretch.end]))


def _stretches(count: int, edit: Edit) -> Iterator[_Stretch]:
    """Yield the stretches that make up the result, in order; at least one, perhaps empty."""
    gone, came = edit
    kept = came - np.arange(len(came))  # for each fresh row, how many kept rows come before it
    places = kept + np.searchsorted(gone - np.arange(len(gone)), kept, side="right")
    at = 0
    edges = distinct(np.concatenate([gone, places]))
    first, last = np.searchsorted(places, edges), np.searchsorted(places, edges, side="right")
    leaves = np.isin(edges, gone, assume_unique=True)
    for edge, begin, end, leaves_out in zip(
        edges.tolist(), first.tolist(), last.tolist(), leaves.tolist(), strict=True
    ):
        if edge > at:
            yield _Stretch(fresh=False, begin=at, end=edge)
        if end > begin:
            yield _Stretch(fresh=True, begin=begin, end=end)
        at = edge + leaves_out
    yield _Stretch(fresh=False, begin=at, end=count)
