from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.v1 import agent_pb2
from heddle_controller.model.fabric import NONE, NodeKind
from heddle_controller.model.program import Entries, no_entries
from heddle_controller.reconcile.southbound import Push, PushMode
from heddle_controller.serve.codec import entries as codec
from heddle_emulator.topology import clos

FABRIC = clos(leaves=2, spines=4, nics_per_leaf=4, parallel=2)
NICS = FABRIC.rows_of_kind(NodeKind.NIC).tolist()
ARCS = np.flatnonzero(FABRIC.structure.tail == FABRIC.structure.index["l0"]).tolist()
"""Those that leave l0."""

RISKS = st.lists(st.integers(0, FABRIC.link_count - 1), unique=True, max_size=4).map(sorted)
Row = tuple[int, int, int, int, int, list[int], list[int]]
ROW = st.tuples(
    st.sampled_from(NICS),
    st.sampled_from(NICS),
    st.integers(0, 65535),
    st.sampled_from(ARCS),
    st.sampled_from([NONE, *ARCS]),
    RISKS,
    RISKS,
)


def entries_of(rows: list[Row]) -> Entries:
    """Entries of leaf l0 from plain tuples."""
    if not rows:
        return no_entries()
    columns = [np.array([row[i] for row in rows], dtype=np.int64) for i in range(5)]
    risks = [[*row[5], *(~link for link in row[6])] for row in rows]
    lengths = [len(links) for links in risks]
    return Entries(
        switch=np.zeros(len(rows), dtype=np.int64),
        source=columns[0],
        destination=columns[1],
        source_port=columns[2],
        destination_port=np.full(len(rows), 4791, dtype=np.int64),
        primary=columns[3],
        backup=columns[4],
        stage=np.zeros(len(rows), dtype=np.int64),
        risk_first=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        risk_links=np.array([link for links in risks for link in links], dtype=np.int64),
    )


def hop(batch: agent_pb2.OperationBatch, index: int) -> tuple[str, str]:
    """A next hop by its index."""
    return batch.next_hops[index].node, batch.next_hops[index].key


def decoded(batch: agent_pb2.OperationBatch, i: int) -> tuple[object, ...]:
    """Operation i in words, as an agent reads it."""
    spare = batch.backup_risks[i] if batch.backup_risks else 0
    return (
        batch.endpoints[batch.sources[i]].nic,
        batch.endpoints[batch.destinations[i]].nic,
        batch.source_ports[i],
        hop(batch, batch.primaries[i]),
        hop(batch, batch.backups[i] - 1) if batch.backups[i] else None,
        risk_group(batch, batch.risks[i]),
        risk_group(batch, spare),
    )


def risk_group(batch: agent_pb2.OperationBatch, number: int) -> list[tuple[str, str, str]]:
    """The links of a risk group by its number."""
    links = [batch.risk_links[r] for r in batch.risk_groups[number - 1].links] if number else []
    return sorted((link.source, link.target, link.key) for link in links)


def expected(row: Row) -> tuple[object, ...]:
    """The same words from the model."""
    structure = FABRIC.structure
    ids, links = structure.nodes.ids, structure.links

    def arc(arc: int) -> tuple[str, str]:
        return ids[int(structure.head[arc])], str(links.key[arc >> 1])

    risks, spare = (
        sorted((ids[int(links.a[k])], ids[int(links.b[k])], str(links.key[k])) for k in risk)
        for risk in row[5:]
    )
    backup = None if row[4] == NONE else arc(row[4])
    return ids[row[0]], ids[row[1]], row[2], arc(row[3]), backup, risks, spare


@given(st.lists(ROW, max_size=12), st.lists(ROW, max_size=4))
def test_a_batch_says_what_the_entries_say(sets: list[Row], deletes: list[Row]) -> None:
    """Each operation, read through the batch's tables, is its entry; deletes come last."""
    batch = codec.batch(FABRIC, entries_of(sets), entries_of(deletes))
    kinds = [agent_pb2.OPERATION_KIND_SET] * len(sets)
    assert list(batch.kinds) == kinds + [agent_pb2.OPERATION_KIND_DELETE] * len(deletes)
    assert [decoded(batch, i) for i in range(len(sets))] == [expected(row) for row in sets]
    for i, row in enumerate(deletes, start=len(sets)):
        ends = (batch.endpoints[batch.sources[i]].nic, batch.endpoints[batch.destinations[i]].nic)
        assert (*ends, batch.source_ports[i]) == expected(row)[:3]


@given(st.lists(ROW, max_size=12))
def test_what_repeats_is_sent_once(rows: list[Row]) -> None:
    """No NIC, next hop, link or risk group stands twice in a batch."""
    batch = codec.batch(FABRIC, entries_of(rows), no_entries())
    for table in (batch.endpoints, batch.next_hops, batch.risk_links, batch.risk_groups):
        words = [item.SerializeToString(deterministic=True) for item in table]
        assert len(words) == len(set(words))


def test_a_batch_of_deletes_alone_has_no_next_hops() -> None:
    """Arrays of next hops and risks are empty, as the contract says."""
    batch = codec.batch(FABRIC, no_entries(), entries_of([(NICS[0], NICS[1], 7, 0, NONE, [], [])]))
    assert not batch.primaries
    assert not batch.backups
    assert not batch.risks
    assert not batch.backup_risks
    assert not batch.next_hops


@pytest.mark.parametrize("mode", list(PushMode))
def test_a_push_carries_who_wrote_it(mode: PushMode) -> None:
    """Epoch, generation, nonce and flags are those of the push."""
    push = Push(mode, 3, 9, FABRIC, no_entries(), no_entries(), sweep_stale=True)
    message = codec.push_to_pb(push, nonce=5)
    assert (message.epoch, message.generation, message.nonce) == (3, 9, 5)
    assert agent_pb2.PushMode.Name(message.mode) == f"PUSH_MODE_{mode.name}"
    assert message.sweep_stale
    assert not message.completes_generation
