"""Pushes to agents: entries to columns, for many switches at once.

A push is small and numpy's calls are not free, so that pushes encoded one by one cost most
of what a rollout takes. Those that wait together are encoded together: each step below is a
few calls over the operations of all of them, in which the push that an item is of, its
*owner*, is one more column; at the end each message is cut out of the whole.

What repeats in a push (next hops, links at risk, sets of them, ways) is sent once and named
by its row. Names are numbers of the fabric's string table; which of them an agent has yet to be
told is known only when its push is sent (``told``), and each message comes with those it uses.

Columns of many pushes at once, cut into messages.

Numbering, by arrays, what each of many owners has.

The names that an agent has been told in one session: a push gives only those that it has not.

Numbers are those of the structure's string table. So pushes can be encoded together before anybody
knows which of them an agent meets for the first time. That is seen when a push is on its way, in
the order in which the agent reads. A byte for each node and link key of the fabric is kept for each
session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from weakref import ref

import numpy as np

from heddle.v1 import agent_pb2 as pb
from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.fabric import Fabric, StringTable, Structure
from heddle_controller.model.program import Entries
from heddle_controller.reconcile.ports import Push

BYTES = 4
"""Of one number in a column."""


class Columns:
    """What is to be written into the batches of many pushes, the *owners* of all items."""

    def __init__(self, into: Sequence[pb.OperationBatch]) -> None:
        self._into = into

    def add(self, first: Ints, **columns: Ints) -> None:
        """Write columns of numbers of one length; ``first`` is where those of each owner begin."""
        bounds = (first * BYTES).tolist()
        data = [(name, values.astype("<u4").tobytes()) for name, values in columns.items()]
        for made, low, high in zip(self._into, bounds, bounds[1:], strict=False):
            if low < high:
                for name, content in data:
                    setattr(made, name, content[low:high])


DENSE = 64
"""A table of all owners and values is filled where it has at most so many cells for each item;
beyond that sorting is quicker."""


@dataclass(frozen=True, slots=True, eq=False)
class Distinct:
    """The distinct values of each owner: owner by owner, ascending."""

    owner: Ints
    value: Ints
    first: Ints
    """Where those of each owner begin, shape (owners + 1,)."""
    place: Ints
    """Of each item that was given: where its value is."""

    def within(self, owner: Ints) -> Ints:
        """Each item's number among its owner's values; ``owner`` is that of each item."""
        return self.place - self.first[owner]

    @property
    def rows(self) -> Ints:
        """Each value's number among those of its owner."""
        return np.arange(len(self.value)) - self.first[self.owner]


def distinct_by_owner(owner: Ints, value: Ints, owners: int, span: int) -> Distinct:
    """The distinct values of each of ``owners``.

    Args:
        owner: Of each item, below ``owners``.
        value: Likewise, 0 to ``span - 1``.
        owners: How many there are; the product with ``span`` is below 2^63.
        span: How many values there could be.
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
    """Which names of a structure an agent knows, by pushes of one epoch."""

    def __init__(self) -> None:
        self._of: ref[Structure] | None = None
        self._epoch = 0
        self._told: Bools = np.zeros(0, dtype=np.bool_)

    def forget(self) -> None:
        """Nobody knows what it knows: the next push begins anew."""
        self._of = None

    def complete(self, push: pb.Push, structure: Structure, used: Ints) -> None:
        """Give in a push the names that its columns use and that the agent has not been told.

        Args:
            push: About to be sent, behind all that were completed before.
            structure: Of the fabric that it speaks of.
            used: Numbers of nodes and keys, in any order and number.
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
            _give(push.operations, words, np.unique(new))


def _give(batch: pb.OperationBatch, words: StringTable, new: Ints) -> None:
    """Write names, none twice, each with its number, and the addresses of those that have one."""
    address = words.address[new]
    has = address != NONE
    numbers = np.append(new, np.unique(address[has]))
    batch.names.extend(map(words.texts.__getitem__, numbers.tolist()))
    batch.name_numbers = _column(numbers)
    nics = words.is_nic[new] & has
    batch.nics, batch.nic_addresses = _column(new[nics]), _column(address[nics])


def _column(numbers: Ints) -> bytes:
    return numbers.astype("<u4").tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A push for the wire, but for its nonce and the names that are new to the agent."""

    message: pb.ControllerMessage
    structure: Structure
    used: Ints | None
    """Numbers of all names that it speaks of; None for a push without operations."""

    def named(self, told: SentNames) -> pb.ControllerMessage:
        """The columns with the names that an agent is yet to be told, and is told now."""
        if self.used is not None:
            told.complete(self.message.push, self.structure, self.used)
        return self.message


def encoded(pushes: Sequence[Push]) -> list[Encoded]:
    """Pushes for the wire, all of fabrics of one structure."""
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
    # Most pushes only tell a switch that the plan holds.
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
    """Write the operations of each push (sets, deletes) into its batch; the names that it uses."""
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
    """Write what next hops and links are called; of each name used its owner and number."""
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
    """The numbers of each owner."""
    owner, numbers = (np.concatenate(column) for column in zip(*named, strict=True))
    order = np.argsort(owner.astype(np.uint16), kind="stable")  # so narrow, it is a radix sort
    ends = np.cumsum(np.bincount(owner, minlength=owners)).tolist()
    found = numbers[order]
    return [found[low:high] for low, high in pairwise([0, *ends])]


@dataclass(frozen=True, slots=True, eq=False)
class _Sets:
    """Entries to set of all pushes, one behind the other, as ``Entries`` has them."""

    owners: int
    owner: Ints
    primary: Ints
    backup: Ints
    risk_size: Ints
    risk_links: Ints

    @classmethod
    def of(cls, owner: Ints, parts: Sequence[Entries]) -> _Sets:
        """Those of all pushes; ``owner`` is the push of each entry."""
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
    """Next hops, by arc; the row of each primary, and of each backup plus 1."""
    structure = fabric.structure
    begin, arcs = structure.out
    has = np.flatnonzero(sets.backup != NONE)
    owner = np.append(sets.owner, sets.owner[has])
    arc = np.append(sets.primary, sets.backup[has])
    base = begin[structure.tail[arc]]
    place = structure.place_out[arc] - base  # few: sorting all arcs would take longer
    ways_out = distinct_by_owner(owner, place, sets.owners, int(place.max(initial=0)) + 1)
    first_out = np.zeros(sets.owners, dtype=np.int64)
    first_out[owner] = base
    hops = replace(ways_out, value=arcs[first_out[ways_out.owner] + ways_out.value])
    rows = hops.within(owner)
    backup = np.zeros(len(sets.owner), dtype=np.int64)
    backup[has] = rows[len(sets.owner) :] + 1
    return hops, rows[: len(sets.owner)], backup


def _risks(columns: Columns, fabric: Fabric, sets: _Sets) -> tuple[Distinct, Ints, Ints]:
    """Links; write groups of them; the row of each primary's and each backup's, plus 1."""
    count, spare = len(sets.owner), sets.risk_links < 0
    entry = np.repeat(np.arange(count), sets.risk_size)
    owner = np.append(sets.owner, sets.owner)
    # A slot is the primary's risk of an entry, or its backup's: those of all backups are last.
    slot = np.append(entry[~spare], entry[spare] + count)
    link = np.append(sets.risk_links[~spare], ~sets.risk_links[spare])
    links = distinct_by_owner(owner[slot], link, sets.owners, fabric.link_count)
    size = np.bincount(slot, minlength=2 * count)
    row = np.zeros(2 * count, dtype=np.int64)
    if size.max(initial=0) <= 1:  # two tiers: one link is ahead of each, and is its group
        columns.add(links.first, risk_ends=links.rows + 1, risk_links=links.rows)
        row[slot] = links.within(owner[slot]) + 1
        return links, row[:count], row[count:]
    begin = np.cumsum(size) - size
    some, group = _alike(links, size, begin)
    groups = distinct_by_owner(owner[some], group, sets.owners, int(group.max(initial=0)) + 1)
    slots = np.empty(len(groups.value), dtype=np.int64)
    slots[groups.place] = some  # any of those that have the group
    _write_groups(columns, links, groups, (begin[slots], size[slots]))
    row[some] = groups.within(owner[some]) + 1
    return links, row[:count], row[count:]


def _alike(links: Distinct, size: Ints, begin: Ints) -> tuple[Ints, Ints]:
    """Slots that have links, and a number of each: those with the same links have the same.

    ``links.place`` has the links of slot ``s`` from ``begin[s]`` on, ``size[s]`` of them.
    """
    some = np.flatnonzero(size)
    number = np.zeros(len(size), dtype=np.int64)
    number[some] = links.place[begin[some]]  # of other pushes no slot has the same place
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
    """Write the links of each group: ``spans`` says where in ``links.place``, and how many."""
    begin, sizes = spans
    ends = np.cumsum(sizes)
    owner = np.repeat(groups.owner, sizes)
    within = np.arange(len(owner)) - np.repeat(ends - sizes, sizes)
    place = links.place[np.repeat(begin, sizes) + within]
    begins = np.append(0, ends)[groups.first]
    columns.add(groups.first, risk_ends=ends - begins[groups.owner])
    columns.add(begins, risk_links=place - links.first[owner])


def _ways(columns: Columns, sets: _Sets, rows: tuple[Ints, Ints, Ints, Ints]) -> Ints:
    """Write the distinct ways, of primary, backup and both risks; the row of each entry's."""
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
