"""Pushes to agents: entries to a batch of parallel arrays, without an object for each entry.

What repeats (NICs, next hops, links at risk, sets of them) is sent once and named
by its index. A push of a few entries is as common as one of ten thousand, so the
tables are made per push, and their rows in place: protobuf copies what is handed to
it in lists, which costs as much as making it.
"""

from __future__ import annotations

import numpy as np

from heddle.v1 import agent_pb2 as pb
from heddle_controller.model.fabric import NONE, Fabric, Ints
from heddle_controller.model.program import Entries
from heddle_controller.reconcile.southbound import Push


def push_to_pb(push: Push, nonce: int) -> pb.Push:
    """A push for the wire: first the entries to set, then those to delete."""
    return pb.Push(
        mode=pb.PushMode.ValueType(push.mode),
        epoch=push.epoch,
        generation=push.generation,
        nonce=nonce,
        operations=batch(push.fabric, push.sets, push.deletes),
        sweep_stale=push.sweep_stale,
        completes_generation=push.completes_generation,
        tell_table=push.tell_table,
    )


def batch(fabric: Fabric, sets: Entries, deletes: Entries) -> pb.OperationBatch:
    """The operations of a push; element i of each array is operation i."""
    count = len(sets) + len(deletes)
    if not count:  # most pushes only tell a switch that the plan holds
        return pb.OperationBatch()
    both = (sets, deletes)
    nics, ends = _table(np.concatenate([e.source for e in both] + [e.destination for e in both]))
    ids, addresses = fabric.structure.nodes.ids, fabric.structure.nodes.address
    message = pb.OperationBatch(
        kinds=[pb.OPERATION_KIND_SET] * len(sets) + [pb.OPERATION_KIND_DELETE] * len(deletes),
        sources=ends[:count].tolist(),
        destinations=ends[count:].tolist(),
        source_ports=np.concatenate([e.source_port for e in both]).tolist(),
        destination_ports=np.concatenate([e.destination_port for e in both]).tolist(),
    )
    add = message.endpoints.add
    for nic in nics.tolist():
        add(nic=ids[nic], address=addresses[nic])
    if len(sets):
        _add_next_hops(message, fabric, sets, len(deletes))
        _add_risks(message, fabric, sets, len(deletes))
    return message


def _table(rows: Ints) -> tuple[Ints, Ints]:
    """The distinct rows, and the index of each into them."""
    distinct, index = np.unique(rows, return_inverse=True)
    return distinct, index


def _add_next_hops(message: pb.OperationBatch, fabric: Fabric, sets: Entries, blank: int) -> None:
    """Fill next hops, primaries and backups; deletes have zeros."""
    arcs, index = _table(np.concatenate([sets.primary, sets.backup]))
    none = len(arcs) > 0 and arcs[0] == NONE
    arcs, index = (arcs[1:], index - 1) if none else (arcs, index)
    _name_next_hops(message, fabric, arcs)
    message.primaries.extend(index[: len(sets)].tolist() + [0] * blank)
    message.backups.extend((index[len(sets) :] + 1).tolist() + [0] * blank)


def _name_next_hops(message: pb.OperationBatch, fabric: Fabric, arcs: Ints) -> None:
    structure, add = fabric.structure, message.next_hops.add
    nodes, keys = structure.nodes, structure.links.key
    heads, links = structure.head[arcs].tolist(), (arcs >> 1).tolist()
    for head, link in zip(heads, links, strict=True):
        add(node=nodes.ids[head], key=str(keys[link]), address=nodes.address[head])


def _add_risks(message: pb.OperationBatch, fabric: Fabric, sets: Entries, blank: int) -> None:
    """Fill risk links, their groups, and the group of each entry; deletes have zeros."""
    groups, sizes, group_of = _risk_groups(sets)
    group_of, spare_of = np.split(group_of, 2)
    links = np.unique(groups)
    links = links[links != NONE]
    _name_links(message, fabric, links)
    members, width = np.searchsorted(links, groups).tolist(), groups.shape[1]
    add = message.risk_groups.add
    for row, size in zip(members, sizes.tolist(), strict=True):
        if size:
            add().links.extend(row[width - size :])
    # Sorted first, if there is one: the empty group, which the wire writes as 0.
    none = int(sizes[0] == 0)
    message.risks.extend((group_of + 1 - none).tolist() + [0] * blank)
    if (spare_of + 1 - none).any():
        message.backup_risks.extend((spare_of + 1 - none).tolist() + [0] * blank)


def _name_links(message: pb.OperationBatch, fabric: Fabric, rows: Ints) -> None:
    links, ids, add = fabric.structure.links, fabric.structure.nodes.ids, message.risk_links.add
    for a, b, row in zip(
        links.a[rows].tolist(), links.b[rows].tolist(), rows.tolist(), strict=True
    ):
        add(source=ids[a], target=ids[b], key=str(links.key[row]))


def _risk_groups(sets: Entries) -> tuple[Ints, Ints, Ints]:
    """The distinct sets of risk links, their sizes, and the set of each primary, then backup.

    A set is a row that ends with its links, ascending, after as many ``NONE`` as
    the longest has more.
    """
    owner = np.repeat(np.arange(len(sets)), np.diff(sets.risk_first))
    spare = sets.risk_links < 0
    owner = np.append(owner[~spare], owner[spare] + len(sets))
    lengths = np.bincount(owner, minlength=2 * len(sets))
    width = max(int(lengths.max()), 1)
    padded = np.full((2 * len(sets), width), NONE, dtype=np.int64)
    links = np.append(sets.risk_links[~spare], ~sets.risk_links[spare])
    padded[np.arange(width) < lengths[:, None]] = links
    padded.sort(axis=1)
    groups, group_of = np.unique(padded, axis=0, return_inverse=True)
    return groups, (groups != NONE).sum(axis=1), group_of.reshape(-1)
