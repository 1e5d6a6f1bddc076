from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.v1 import agent_pb2 as pb
from heddle_agent.fib import Link, NextHop
from heddle_agent.session.decode import decode_push
from heddle_agent.session.names import ReceivedNames
from heddle_agent.table import DELETE
from heddle_controller.model.arrays import NONE
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.program import Entries, no_entries
from heddle_controller.reconcile.ports import Push, PushMode
from heddle_controller.serve.codec import entries as codec
from heddle_controller.serve.codec.entries import SentNames, distinct_by_owner
from heddle_emulator.topology import clos
from tests.support.pushes import push_to_pb

FABRIC = clos(leaves=2, spines=4, nics_per_leaf=4, parallel=2)
NICS = FABRIC.rows_of_kind(NodeKind.NIC).tolist()
NIC_IDS = {FABRIC.structure.nodes.ids[row] for row in NICS}
ARCS = np.flatnonzero(FABRIC.structure.tail == FABRIC.structure.index["l0"]).tolist()
"""Arcs that leave l0."""

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
    """Return entries of leaf l0 from plain tuples."""
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


def expected(row: Row) -> tuple[object, ...]:
    """Return an entry in names, by the model."""
    structure = FABRIC.structure
    ids, links = structure.nodes.ids, structure.links

    def hop(arc: int) -> NextHop:
        head = int(structure.head[arc])
        return NextHop(ids[head], str(links.key[arc >> 1]), structure.nodes.address[head])

    risks, spare = (
        tuple(
            sorted(
                Link.between(ids[int(links.a[k])], ids[int(links.b[k])], str(links.key[k]))
                for k in risk
            )
        )
        for risk in row[5:]
    )
    backup = None if row[4] == NONE else hop(row[4])
    return (ids[row[0]], ids[row[1]], row[2], 4791), (hop(row[3]), backup, risks, spare)


def push_of(sets: Entries, deletes: Entries) -> pb.Push:
    """Return the push for an agent that knows no names yet."""
    return push_to_pb(Push(PushMode.INCREMENTAL, 1, 1, FABRIC, sets, deletes), nonce=1)


def unlike(rows: list[Row]) -> list[Row]:
    """Return the rows, keeping one row for each match."""
    return list({row[:3]: row for row in rows}.values())


BATCH = st.lists(ROW, max_size=12).map(unlike)


@given(st.lists(st.tuples(BATCH, st.integers(0, 4)), min_size=1, max_size=4))
def test_an_agent_reads_what_the_entries_say(told: list[tuple[list[Row], int]]) -> None:
    """Each of several pushes encoded together is read with its own sets, then its deletes."""
    parts = [(rows[count:], rows[:count]) for rows, count in told]
    pushes = [
        Push(PushMode.INCREMENTAL, 1, 1, FABRIC, entries_of(sets), entries_of(deletes))
        for sets, deletes in parts
    ]
    for (sets, deletes), made in zip(parts, codec.encoded(pushes), strict=True):
        push = made.named(SentNames()).push
        operations = decode_push(push).operations
        entries = [expected(row) for row in sets]
        assert operations.matches[: len(sets)] == [match for match, _ in entries]
        assert [operations.keys[row] for row in operations.groups[: len(sets)]] == [
            key for _, key in entries
        ]
        assert operations.matches[len(sets) :] == [expected(row)[0] for row in deletes]
        assert operations.groups[len(sets) :] == [DELETE] * len(deletes)
        known = dict(zip(FABRIC.structure.nodes.ids, FABRIC.structure.nodes.address, strict=True))
        nics = {nic for nic in NIC_IDS.intersection(push.operations.names) if known[nic]}
        assert nics >= {nic for match in operations.matches for nic in match[:2] if known[nic]}
        assert operations.addresses == {nic: known[nic] for nic in nics}


@given(BATCH)
def test_what_repeats_is_sent_once(rows: list[Row]) -> None:
    """No name, next hop, link, risk group or way occurs twice in a batch."""
    push = push_of(entries_of(rows), no_entries())
    operations, made = decode_push(push).operations, push.operations
    assert len(set(made.names)) == len(made.names)
    assert len(set(operations.keys)) == len(operations.keys)
    keys = operations.keys
    hops = {hop for key in keys for hop in key[:2] if hop}
    groups = {group for key in keys for group in key[2:] if group}
    counts = [len(column) // 4 for column in (made.hop_nodes, made.risk_ends, made.link_keys)]
    assert counts == [len(hops), len(groups), len({link for group in groups for link in group})]


@pytest.mark.parametrize("dense", [0, 1 << 40])
def test_numbering_is_the_same_either_way(dense: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table and sorting give the same numbers: by owner, ascending, each value once."""
    monkeypatch.setattr("heddle_controller.serve.codec.entries.DENSE", dense)
    owner, value = np.array([0, 0, 2, 2, 0, 2]), np.array([5, 3, 3, 3, 5, 0])
    found = distinct_by_owner(owner, value, 3, 6)
    assert list(zip(found.owner, found.value, strict=True)) == [(0, 3), (0, 5), (2, 0), (2, 3)]
    assert found.first.tolist() == [0, 2, 2, 4]
    assert found.within(owner).tolist() == [1, 0, 1, 1, 1, 0]


def test_a_batch_of_deletes_alone_has_no_ways() -> None:
    """The columns of next hops, risks and ways are empty."""
    row: Row = (NICS[0], NICS[1], 7, 0, NONE, [], [])
    made = push_of(no_entries(), entries_of([row])).operations
    used = {field.name for field, _ in made.ListFields()}
    plain = {
        "names",
        "name_numbers",
        "sources",
        "destinations",
        "source_ports",
        "destination_ports",
        "ways",
    }
    assert used - {"nics", "nic_addresses"} == plain


@pytest.mark.parametrize("mode", list(PushMode))
def test_a_push_carries_who_wrote_it(mode: PushMode) -> None:
    """Epoch, generation, nonce and flags are those of the push."""
    push = Push(mode, 3, 9, FABRIC, no_entries(), no_entries(), sweep_stale=True)
    message = push_to_pb(push, nonce=5)
    assert (message.epoch, message.generation, message.nonce) == (3, 9, 5)
    assert pb.PushMode.Name(message.mode) == f"PUSH_MODE_{mode.name}"
    assert message.sweep_stale
    assert not message.completes_generation


@given(st.lists(st.tuples(BATCH, st.integers(0, 4), st.booleans()), min_size=1, max_size=5))
def test_names_are_told_once_a_session(told: list[tuple[list[Row], int, bool]]) -> None:
    """A push gives only names that no earlier push of the session gave.

    A new epoch starts again.
    """
    sides, received, epoch, given_names = SentNames(), ReceivedNames(), 1, set[str]()
    for rows, count, elected in told:
        if elected:
            epoch, given_names = epoch + 1, set[str]()
        sets, deletes = entries_of(rows[count:]), entries_of(rows[:count])
        (made,) = codec.encoded([Push(PushMode.INCREMENTAL, epoch, 1, FABRIC, sets, deletes)])
        push = made.named(sides).push
        assert given_names.isdisjoint(push.operations.names)
        given_names |= set(push.operations.names)
        operations = decode_push(push, received).operations
        wanted = [*rows[count:], *rows[:count]]
        assert operations.matches == [expected(row)[0] for row in wanted]
        keys = [operations.keys[row] for row in operations.groups if row != DELETE]
        assert keys == [expected(row)[1] for row in rows[count:]]


def test_whoever_forgets_is_told_again() -> None:
    """After a refusal, and for another fabric, all names are sent again, and the push says so."""
    row: Row = (NICS[0], NICS[1], 7, ARCS[0], NONE, [], [])
    other = clos(leaves=2, spines=4, nics_per_leaf=4, parallel=2)
    told, names = SentNames(), []
    for fabric, forget in ((FABRIC, False), (FABRIC, False), (FABRIC, True), (other, False)):
        if forget:
            told.forget()
        push = Push(PushMode.INCREMENTAL, 1, 1, fabric, entries_of([row]), no_entries())
        (made,) = codec.encoded([push])
        sent = made.named(told).push
        names.append((sent.new_names, list(sent.operations.names)))
    first, second, third, last = names
    assert first[0]
    assert first == third == last
    assert second == (False, [])
