"""Pushes to agents: entries to columns, for many switches at once.

A push is small and numpy's calls are not free, so that pushes encoded one by one cost most
of what a rollout takes. Those that wait together are encoded together: each step below is a
few calls over the operations of all of them, in which the push that an item is of, its
*owner*, is one more column; at the end each message is cut out of the whole.

What repeats in a push (names, next hops, links at risk, sets of them, ways) is sent once
and named by its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heddle.v1 import agent_pb2 as pb
from heddle_controller.model.fabric import NONE, Fabric, Ints
from heddle_controller.model.program import Entries
from heddle_controller.reconcile.southbound import Push
from heddle_controller.serve.codec.columns import Columns
from heddle_controller.serve.codec.distinct import Distinct, distinct
from heddle_controller.serve.codec.lexicon import Lexicon, lexicon


def messages(pushes: Sequence[Push]) -> list[pb.ControllerMessage]:
    """Pushes for the wire, all of fabrics of one structure; nonces are yet to be given."""
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
    # Most pushes only tell a switch that the plan holds.
    full = [row for row, push in enumerate(pushes) if push.operation_count]
    if full:
        into = [made[row].push.operations for row in full]
        some = [pushes[row] for row in full]
        _fill(into, some[0].fabric, [(push.sets, push.deletes) for push in some])
    return made


def push_to_pb(push: Push, nonce: int) -> pb.Push:
    """One push for the wire."""
    (message,) = messages([push])
    message.push.nonce = nonce
    return message.push


def batch(fabric: Fabric, sets: Entries, deletes: Entries) -> pb.OperationBatch:
    """The operations of one push: first the entries to set, then those to delete."""
    made = pb.OperationBatch()
    if len(sets) or len(deletes):
        _fill([made], fabric, [(sets, deletes)])
    return made


def _fill(
    into: Sequence[pb.OperationBatch],
    fabric: Fabric,
    operations: Sequence[tuple[Entries, Entries]],
) -> None:
    """Write the operations of each push (sets, deletes) into its batch."""
    words, columns = lexicon(fabric.structure), Columns(into)
    both = [entries for pair in operations for entries in pair]
    counts = np.array([len(entries) for entries in both], dtype=np.int64)
    turn = np.repeat(np.arange(len(both)), counts)
    owner, is_set = turn >> 1, turn & 1 == 0
    columns.add("source_ports", owner, np.concatenate([e.source_port for e in both]))
    columns.add("destination_ports", owner, np.concatenate([e.destination_port for e in both]))
    way = np.zeros(len(owner), dtype=np.int64)
    sets = _Sets.of(owner[is_set], [pair[0] for pair in operations])
    hops, primary, backup = _hops(fabric, sets)
    links, risk, backup_risk = _risks(columns, words, sets)
    if len(sets.owner):
        way[is_set] = _ways(columns, sets, (primary, backup, risk, backup_risk)) + 1
    columns.add("ways", owner, way)
    source = np.concatenate([entries.source for entries in both])
    destination = np.concatenate([entries.destination for entries in both])
    names = _Names(columns, words, len(into))
    names.nodes(fabric, (owner, source, destination), hops, links)
    names.keys(hops, links)
    columns.write_names(words.texts)


@dataclass(frozen=True, slots=True)
class _Names:
    """Writes what is called by a name: NICs, next hops, ends of links, and keys."""

    columns: Columns
    words: Lexicon
    owners: int

    def nodes(
        self, fabric: Fabric, matches: tuple[Ints, Ints, Ints], hops: Distinct, links: Distinct
    ) -> None:
        """Ids and addresses; of matches owner, source and destination."""
        (owner, source, destination), words, columns = matches, self.words, self.columns
        head = fabric.structure.head[hops.value]
        parts = {
            "sources": (owner, source),
            "destinations": (owner, destination),
            "hop_nodes": (hops.owner, head),
            "link_sources": (links.owner, words.low[links.value]),
            "link_targets": (links.owner, words.high[links.value]),
        }
        owners, nodes = (np.concatenate(column) for column in zip(*parts.values(), strict=True))
        found = distinct(owners, nodes, self.owners, len(words.address))
        named = columns.name(found.owner, found.value)
        index = named[found.place]
        ends = np.cumsum([len(of) for of, _ in parts.values()]).tolist()
        for (name, (of, _)), end in zip(parts.items(), ends, strict=True):
            columns.add(name, of, index[end - len(of) : end])
        self._addresses(found, named, (ends[1], ends[2]), hops)

    def _addresses(
        self, nodes: Distinct, named: Ints, ends: tuple[int, int], hops: Distinct
    ) -> None:
        """Addresses: up to where ``ends`` say, items of ``nodes`` are NICs and then next hops."""
        columns, address = self.columns, self.words.address[nodes.value]
        is_nic, used = np.zeros((2, len(address)), dtype=np.bool_)
        is_nic[nodes.place[: ends[0]]] = True
        used[nodes.place[: ends[1]]] = True
        used &= address != NONE
        if not used.any():
            return
        index = np.full(len(address), NONE, dtype=np.int64)
        index[used] = columns.name(nodes.owner[used], address[used])
        nics = np.flatnonzero(is_nic & used)
        columns.add("nics", nodes.owner[nics], named[nics])
        columns.add("nic_addresses", nodes.owner[nics], index[nics])
        of_hops = index[nodes.place[ends[0] : ends[1]]]
        if (of_hops != NONE).any():
            columns.add("hop_addresses", hops.owner, of_hops + 1)

    def keys(self, hops: Distinct, links: Distinct) -> None:
        """Link keys."""
        key, columns = self.words.key, self.columns
        owner = np.append(hops.owner, links.owner)
        keys = np.append(key[hops.value >> 1], key[links.value])
        found = distinct(owner, keys, self.owners, len(self.words.keys))
        index = columns.name(found.owner, self.words.keys[found.value])[found.place]
        columns.add("hop_keys", hops.owner, index[: len(hops.value)])
        columns.add("link_keys", links.owner, index[len(hops.value) :])


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
            risk_size=np.concatenate([np.diff(part.risk_first) for part in parts]),
            risk_links=np.concatenate([part.risk_links for part in parts]),
        )


def _hops(fabric: Fabric, sets: _Sets) -> tuple[Distinct, Ints, Ints]:
    """Next hops, by arc; the row of each primary, and of each backup plus 1."""
    has = np.flatnonzero(sets.backup != NONE)
    owner = np.append(sets.owner, sets.owner[has])
    arc = np.append(sets.primary, sets.backup[has])
    hops = distinct(owner, arc, sets.owners, len(fabric.structure.head))
    rows = hops.within(owner)
    backup = np.zeros(len(sets.owner), dtype=np.int64)
    backup[has] = rows[len(sets.owner) :] + 1
    return hops, rows[: len(sets.owner)], backup


def _risks(columns: Columns, words: Lexicon, sets: _Sets) -> tuple[Distinct, Ints, Ints]:
    """Links; write groups of them; the row of each primary's and each backup's, plus 1."""
    count, spare = len(sets.owner), sets.risk_links < 0
    entry = np.repeat(np.arange(count), sets.risk_size)
    owner = np.append(sets.owner, sets.owner)
    # A slot is the primary's risk of an entry, or its backup's: those of all backups are last.
    slot = np.append(entry[~spare], entry[spare] + count)
    link = np.append(sets.risk_links[~spare], ~sets.risk_links[spare])
    links = distinct(owner[slot], link, sets.owners, len(words.key))
    size = np.bincount(slot, minlength=2 * count)
    row = np.zeros(2 * count, dtype=np.int64)
    if size.max(initial=0) <= 1:  # two tiers: one link is ahead of each, and is its group
        columns.add("risk_ends", links.owner, links.rows + 1)
        columns.add("risk_links", links.owner, links.rows)
        row[slot] = links.within(owner[slot]) + 1
        return links, row[:count], row[count:]
    begin = np.cumsum(size) - size
    some, group = _alike(links, size, begin)
    groups = distinct(owner[some], group, sets.owners, int(group.max(initial=0)) + 1)
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
    before = np.append(0, ends)[groups.first[groups.owner]]
    columns.add("risk_ends", groups.owner, ends - before)
    columns.add("risk_links", owner, place - links.first[owner])


def _ways(columns: Columns, sets: _Sets, rows: tuple[Ints, Ints, Ints, Ints]) -> Ints:
    """Write the distinct ways, of primary, backup and both risks; the row of each entry's."""
    spans = [int(column.max()) + 1 for column in rows]
    code = np.zeros(len(sets.owner), dtype=np.int64)
    for column, span in zip(rows, spans, strict=True):
        code = code * span + column
    ways = distinct(sets.owner, code, sets.owners, int(np.prod(spans)))
    rest = ways.value
    names = ("way_primaries", "way_backups", "way_risks", "way_backup_risks")
    for name, span in zip(reversed(names), reversed(spans), strict=True):
        columns.add(name, ways.owner, rest % span)
        rest = rest // span
    return ways.within(sets.owner)
