"""Encoding of pushes to agents: entries become columns, for many pushes at once.

A push is small and each call of numpy has a cost. If pushes were encoded one by one, this would be
most of the time of a rollout. So pushes that wait at the same time are encoded together. Each step
below makes a few numpy calls over the items (operations, hops, links) of all pushes. A column
``owner`` has the index of the push to which each item belongs. At the end each message is cut out
of the columns.

Values that repeat in a push (next hops, links at risk, groups of these, ways) are sent once, and
are referred to by their row. Names are numbers of the structure's string table, so pushes can be
encoded before it is known which names their agents already have. ``SentNames`` adds the new names
when a push is sent, in the order in which the agent reads. It keeps one byte per session for each
node and link key of the fabric.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from weakref import ref

import numpy as np

from heddle.v1 import agent_pb2 as pb
from heddle_controller.model.arrays import NONE, Bools, Ints, distinct, ranges
from heddle_controller.model.fabric import Fabric, StringTable, Structure
from heddle_controller.model.program import Entries
from heddle_controller.reconcile.ports import Push

BYTES = 4
"""Size of one number in a column."""


class Columns:
    """Writes columns of items into the batches of their owners, one batch per push."""

    def __init__(self, into: Sequence[pb.OperationBatch]) -> None:
        self._into = into

    def add(self, first: Ints, **columns: Ints) -> None:
        """Write columns of equal length, sorted by owner, each part into its owner's batch.

        ``first`` is where the items of each owner begin, shape (owners + 1,).
        """
        bounds = (first * BYTES).tolist()
        data = [(name, values.astype("<u4").tobytes()) for name, values in columns.items()]
        for made, low, high in zip(self._into, bounds, bounds[1:], strict=False):
            if low < high:
                for name, content in data:
                    setattr(made, name, content[low:high])


DENSE = 64
"""``distinct_by_owner`` uses a table of all owners and values if it has at most so many cells per
item; otherwise sorting is faster."""


@dataclass(frozen=True, slots=True, eq=False)
class Distinct:
    """The distinct values of each owner, sorted by owner and then by value."""

    owner: Ints
    """Owner of each distinct value."""
    value: Ints
    first: Ints
    """Where the values of each owner begin, shape (owners + 1,)."""
    place: Ints
    """For each item that was given, the index of its value, shape (items,)."""

    def within(self, owner: Ints) -> Ints:
        """Return each item's position among the values of its owner, shape (items,).

        ``owner`` is the owner of each item.
        """
        return self.place - self.first[owner]

    @property
    def rows(self) -> Ints:
        """Position of each value among the values of its owner."""
        return np.arange(len(self.value)) - self.first[self.owner]


def distinct_by_owner(owner: Ints, value: Ints, owners: int, span: int) -> Distinct:
    """Return the distinct values of each owner.

    Args:
        owner: Owner of each item, 0 to ``owners - 1``.
        value: Value of each item, 0 to ``span - 1``.
        owners: Number of owners; ``owners * span`` must be below 2^63.
        span: Number of possible values.
    """
    code = owner * span + value
    if owners * span <= DENSE * len(code):
        there = np.zeros(owners * span, dtype=np.bool_)
        there[code] = True
        codes = np.flatnonzero(there)
        number = np.empty(owners * span, dtype=np.int32)
        number[codes] = np.arange(len(codes), dtype=np.int32)
        place = number[code].astype(np.int64)
    else:
        codes, place = np.unique(code, return_inverse=True)
    of = codes // span
    first = np.searchsorted(of, np.arange(owners + 1))
    return Distinct(of, codes - of * span, first, place)


class SentNames:
    """The names of a structure that one agent knows from the pushes of one epoch."""

    def __init__(self) -> None:
        self._of: ref[Structure] | None = None
        self._epoch = 0
        self._told: Bools = np.zeros(0, dtype=np.bool_)

    def forget(self) -> None:
        """Assume that the agent knows no names, so that the next push sends all that it uses."""
        self._of = None

    def complete(self, push: pb.Push, structure: Structure, used: Ints) -> None:
        """Add to a push the names that its columns use and that its agent does not know yet.

        Args:
            push: Push to send next, after all pushes that were completed before.
            structure: Structure of the push's fabric.
            used: Numbers of the names it uses, in any order, possibly repeated.
        """
        words = structure.strings
        if self._of is None or self._of() is not structure or self._epoch != push.epoch:
            self._of, self._epoch = ref(structure), push.epoch
            self._told = np.zeros(len(words.address), dtype=np.bool_)
            self._told[used] = push.new_names = True
            _give(push.operations, words, np.flatnonzero(self._told))
            return
        new = used[~self._told[used]]
        if len(new):
            self._told[new] = True
            _give(push.operations, words, distinct(new))


def _give(batch: pb.OperationBatch, words: StringTable, new: Ints) -> None:
    """Write new names with their numbers, and the addresses of the names that have one."""
    address = words.address[new]
    has = address != NONE
    numbers = np.append(new, distinct(address[has]))
    batch.names.extend(map(words.texts.__getitem__, numbers.tolist()))
    batch.name_numbers = _column(numbers)
    nics = words.is_nic[new] & has
    batch.nics, batch.nic_addresses = _column(new[nics]), _column(address[nics])


def _column(numbers: Ints) -> bytes:
    return numbers.astype("<u4").tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """An encoded push, still without its nonce and the names that are new to its agent."""

    message: pb.ControllerMessage
    structure: Structure
    used: Ints | None
    """Numbers of all names that it uses; None for a push without operations."""

    def named(self, told: SentNames) -> pb.ControllerMessage:
        """Add the names that the agent does not know, note them as sent, and return the message."""
        if self.used is not None:
            told.complete(self.message.push, self.structure, self.used)
        return self.message


def encoded(pushes: Sequence[Push]) -> list[Encoded]:
    """Encode pushes; the fabrics of all of them must have the same structure."""
    made = [pb.ControllerMessage() for _ in pushes]
    for message, push in zip(made, pushes, strict=True):
        head = message.push
        head.mode = pb.PushMode.ValueType(push.mode)
        head.epoch = push.epoch
        head.generation = push.generation
        head.sweep_stale = push.sweep_stale
        head.completes_generation = push.completes_generation
        head.tell_table = push.tell_table
        head.tell_entries = push.tell_entries
    used: list[Ints | None] = [None] * len(pushes)
    # Most pushes have no operations and only announce the generation.
    full = [row for row, push in enumerate(pushes) if push.operation_count]
    if full:
        into = [made[row].push.operations for row in full]
        some = [pushes[row] for row in full]
        parts = _fill(into, some[0].fabric, [(push.sets, push.deletes) for push in some])
        for row, part in zip(full, parts, strict=True):
            used[row] = part
    return [
        Encoded(message, push.fabric.structure, numbers)
        for message, push, numbers in zip(made, pushes, used, strict=True)
    ]


def _fill(
    into: Sequence[pb.OperationBatch],
    fabric: Fabric,
    operations: Sequence[tuple[Entries, Entries]],
) -> list[Ints]:
    """Write the operations (sets, deletes) of each push; return the names that each push uses."""
    columns = Columns(into)
    both = [entries for pair in operations for entries in pair]
    counts = np.array([len(entries) for entries in both], dtype=np.int64)
    turn = np.repeat(np.arange(len(both)), counts)
    owner, is_set = turn >> 1, turn & 1 == 0
    source = np.concatenate([entries.source for entries in both])
    destination = np.concatenate([entries.destination for entries in both])
    way = np.zeros(len(owner), dtype=np.int64)
    sets = _Sets.of(owner[is_set], [pair[0] for pair in operations])
    hops, primary, backup = _hops(fabric, sets)
    links, risk, backup_risk = _risks(columns, fabric, sets)
    if len(sets.owner):
        way[is_set] = _ways(columns, sets, (primary, backup, risk, backup_risk)) + 1
    columns.add(
        np.append(0, np.cumsum(counts))[::2],
        sources=source,
        destinations=destination,
        source_ports=np.concatenate([e.source_port for e in both]),
        destination_ports=np.concatenate([e.destination_port for e in both]),
        ways=way,
    )
    named = [(owner, source), (owner, destination), *_named(columns, fabric, hops, links)]
    return _parted(named, len(into))


def _named(
    columns: Columns, fabric: Fabric, hops: Distinct, links: Distinct
) -> Iterator[tuple[Ints, Ints]]:
    """Write the names of next hops and links; yield owners and numbers of the names used."""
    words = fabric.structure.strings
    node = fabric.structure.head[hops.value]
    address = words.address[node]
    if (address != NONE).any():
        columns.add(hops.first, hop_addresses=address + 1)
    of_hops = {"hop_nodes": node, "hop_keys": words.key[hops.value >> 1]}
    columns.add(hops.first, **of_hops)
    of_links = {
        "link_sources": words.low[links.value],
        "link_targets": words.high[links.value],
        "link_keys": words.key[links.value],
    }
    columns.add(links.first, **of_links)
    yield from ((hops.owner, numbers) for numbers in of_hops.values())
    yield from ((links.owner, numbers) for numbers in of_links.values())


def _parted(named: Sequence[tuple[Ints, Ints]], owners: int) -> list[Ints]:
    """Return the numbers of each owner."""
    owner, numbers = (np.concatenate(column) for column in zip(*named, strict=True))
    order = np.argsort(owner.astype(np.uint16), kind="stable")  # numpy sorts 16 bits by radix sort
    ends = np.cumsum(np.bincount(owner, minlength=owners)).tolist()
    found = numbers[order]
    return [found[low:high] for low, high in pairwise([0, *ends])]


@dataclass(frozen=True, slots=True, eq=False)
class _Sets:
    """The entries that all pushes set, concatenated, with columns as in ``Entries``."""

    owners: int
    owner: Ints
    primary: Ints
    backup: Ints
    risk_size: Ints
    risk_links: Ints

    @classmethod
    def of(cls, owner: Ints, parts: Sequence[Entries]) -> _Sets:
        """Concatenate the entries of all pushes; ``owner`` is the push of each entry."""
        return cls(
            owners=len(parts),
            owner=owner,
            primary=np.concatenate([part.primary for part in parts]),
            backup=np.concatenate([part.backup for part in parts]),
            risk_size=np.concatenate([part.risk_first[1:] for part in parts])
            - np.concatenate([part.risk_first[:-1] for part in parts]),
            risk_links=np.concatenate([part.risk_links for part in parts]),
        )


def _hops(fabric: Fabric, sets: _Sets) -> tuple[Distinct, Ints, Ints]:
    """Return the next hops (values are arcs), each entry's row of its primary, and of its backup.

    The row of a backup is plus 1, and 0 means no backup.
    """
    structure = fabric.structure
    begin, arcs = structure.out
    has = np.flatnonzero(sets.backup != NONE)
    owner = np.append(sets.owner, sets.owner[has])
    arc = np.append(sets.primary, sets.backup[has])
    base = begin[structure.tail[arc]]
    place = structure.place_out[arc] - base  # a small range, so that no sort is needed
    ways_out = distinct_by_owner(owner, place, sets.owners, int(place.max(initial=0)) + 1)
    first_out = np.zeros(sets.owners, dtype=np.int64)
    first_out[owner] = base
    hops = replace(ways_out, value=arcs[first_out[ways_out.owner] + ways_out.value])
    rows = hops.within(owner)
    backup = np.zeros(len(sets.owner), dtype=np.int64)
    backup[has] = rows[len(sets.owner) :] + 1
    return hops, rows[: len(sets.owner)], backup


def _risks(columns: Columns, fabric: Fabric, sets: _Sets) -> tuple[Distinct, Ints, Ints]:
    """Write the groups of links at risk.

    Return the links, and for each entry the group of its primary and of its backup: row plus 1, or
    0 for none.
    """
    count, spare = len(sets.owner), sets.risk_links < 0
    entry = np.repeat(np.arange(count), sets.risk_size)
    owner = np.append(sets.owner, sets.owner)
    # A slot is the risk of an entry's primary or backup; the slots of all backups come last.
    slot = np.append(entry[~spare], entry[spare] + count)
    link = np.append(sets.risk_links[~spare], ~sets.risk_links[spare])
    links = distinct_by_owner(owner[slot], link, sets.owners, fabric.link_count)
    size = np.bincount(slot, minlength=2 * count)
    row = np.zeros(2 * count, dtype=np.int64)
    if size.max(initial=0) <= 1:  # as in two tiers: each link is a group of its own
        columns.add(links.first, risk_ends=links.rows + 1, risk_links=links.rows)
        row[slot] = links.within(owner[slot]) + 1
        return links, row[:count], row[count:]
    begin = np.cumsum(size) - size
    some, group = _alike(links, size, begin)
    groups = distinct_by_owner(owner[some], group, sets.owners, int(group.max(initial=0)) + 1)
    slots = np.empty(len(groups.value), dtype=np.int64)
    slots[groups.place] = some  # any slot with this group
    _write_groups(columns, links, groups, (begin[slots], size[slots]))
    row[some] = groups.within(owner[some]) + 1
    return links, row[:count], row[count:]


def _alike(links: Distinct, size: Ints, begin: Ints) -> tuple[Ints, Ints]:
    """Return the slots that have links, and a number for each; equal links give equal numbers.

    The links of slot ``s`` are ``size[s]`` elements of ``links.place`` from ``begin[s]`` on.
    """
    some = np.flatnonzero(size)
    number = np.zeros(len(size), dtype=np.int64)
    number[some] = links.place[begin[some]]  # places differ between pushes
    taken, depth, longer = len(links.value), 1, some[size[some] > 1]
    while len(longer):
        code = number[longer] * len(links.value) + links.place[begin[longer] + depth]
        kinds, kind = np.unique(code, return_inverse=True)
        number[longer] = taken + kind
        taken, depth = taken + len(kinds), depth + 1
        longer = longer[size[longer] > depth]
    return some, number[some]


def _write_groups(
    columns: Columns, links: Distinct, groups: Distinct, spans: tuple[Ints, Ints]
) -> None:
    """Write the links of each group.

    ``spans`` says where they begin in ``links.place`` and how many there are.
    """
    begin, sizes = spans
    ends = np.cumsum(sizes)
    owner = np.repeat(groups.owner, sizes)
    place = links.place[ranges(begin, begin + sizes)]
    begins = np.append(0, ends)[groups.first]
    columns.add(groups.first, risk_ends=ends - begins[groups.owner])
    columns.add(begins, risk_links=place - links.first[owner])


def _ways(columns: Columns, sets: _Sets, rows: tuple[Ints, Ints, Ints, Ints]) -> Ints:
    """Write the distinct ways, and return the row of each entry's way.

    A way is the row of a primary, of a backup, and of the risk groups of both.
    """
    spans = [int(column.max()) + 1 for column in rows]
    code = np.zeros(len(sets.owner), dtype=np.int64)
    for column, span in zip(rows, spans, strict=True):
        code = code * span + column
    ways = distinct_by_owner(sets.owner, code, sets.owners, int(np.prod(spans)))
    rest, parts = ways.value, {}
    names = ("way_primaries", "way_backups", "way_risks", "way_backup_risks")
    for name, span in zip(reversed(names), reversed(spans), strict=True):
        rest, parts[name] = np.divmod(rest, span)
    columns.add(ways.first, **parts)
    return ways.within(sets.owner)
