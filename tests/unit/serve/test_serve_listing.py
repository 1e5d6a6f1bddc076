"""The entries that agents report are read as they are held, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.v1 import agent_pb2 as pb
from heddle_agent.fib import Group, Link, Match, NextHop
from heddle_agent.session.listing import listing
from heddle_agent.table import table_digest
from heddle_controller.model.errors import InputError
from heddle_controller.plan.diff import difference
from heddle_controller.reconcile.rollout.answers import table_digest as digest_of
from heddle_controller.serve.codec.agent import MOST_ENTRIES, MOST_RISKS, entries_from_pb
from tests.support.agent_controllers import numbers
from tests.support.reconcile_switches import match_of, way_of
from tests.unit.serve.test_serve_entries import FABRIC, ROW, Row, entries_of

UP, SPARE = NextHop("s0", "0", "10.0.0.1"), NextHop("s1", "1")
BEYOND = Link("l1", "s0", "1")
HELD: dict[Match, Group] = {
    ("l0-h0-n0", "l1-h0-n0", 49152, 4791): Group(UP, SPARE, (BEYOND,), ()),
    ("l0-h0-n0", "l1-h0-n0", 0, 0): Group(UP),
}


@given(st.lists(ROW, unique_by=lambda row: row[:3]))
def test_what_is_told_is_what_is_held(rows: list[Row]) -> None:
    """Exactly the held entries are read, so their digest is the agent's."""
    entries = entries_of(rows)
    held = {
        match_of(FABRIC, entries, row): Group(*way_of(FABRIC, entries, row))
        for row in range(len(entries))
    }
    told = entries_from_pb(listing(held), FABRIC, "l0")
    assert told is not None
    differs, gone = difference(entries, told)
    assert not len(differs)
    assert not len(gone)
    assert digest_of(FABRIC, told) == table_digest(held)


def test_what_repeats_is_told_once() -> None:
    """Ten thousand entries over a few next hops take at most 22 bytes each."""
    groups = [Group(UP, SPARE, (BEYOND,), ()) for _ in range(16)]
    held = {(f"n{row % 100}", f"m{row // 100}", row, 4791): groups[row % 16] for row in range(9999)}
    told = listing(held)
    assert (len(told.way_primaries), len(told.hop_nodes), len(told.risk_ends)) == (4, 8, 4)
    assert told.ByteSize() < 22 * len(held)


def test_the_fabric_lacks_what_is_told() -> None:
    """If a link or NIC of the entries is gone, the result is None."""
    for match, group in (
        (("gone", "l1-h0-n0", 0, 0), Group(UP)),
        (("l0-h0-n0", "l1-h0-n0", 0, 0), Group(NextHop("s0", "9"))),
        (("l0-h0-n0", "l1-h0-n0", 0, 0), Group(UP, NextHop("s9"))),
        (("l0-h0-n0", "l1-h0-n0", 0, 0), Group(UP, None, (Link("l1", "s9", "0"),))),
        (("l0-h0-n0", "l1-h0-n0", 0, 0), Group(UP, SPARE, (), (Link("l1", "s9", "0"),))),
    ):
        assert entries_from_pb(listing({match: group}), FABRIC, "l0") is None
    assert entries_from_pb(listing(HELD), FABRIC, "l9") is None


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"ways": numbers(1)}, "do not fit"),
        ({"ways": numbers(1, 0)}, "do not fit"),
        ({"ways": numbers(1, 9)}, "not an index"),
        ({"ways": b"abc"}, "3 bytes"),
        ({"sources": numbers(0)}, "differ in length"),
        ({"source_ports": numbers(1, 65536)}, "do not fit"),
        ({"source_ports": numbers(0, 0), "destination_ports": numbers(0, 0)}, "stands twice"),
        ({"hop_keys": numbers(99, 0)}, "not an index"),
        ({"way_backups": numbers(3, 0)}, "not an index"),
        ({"way_risks": numbers(2, 0)}, "not an index"),
        ({"way_backup_risks": numbers(0)}, "differ in length"),
        ({"risk_ends": numbers(2)}, "has to rise"),
        ({"link_keys": b""}, "differ in length"),
        ({"ways": numbers(*[1] * (MOST_ENTRIES + 1))}, "tell none"),
    ],
)
def test_malformed_entries_are_refused(change: dict[str, bytes], fault: str) -> None:
    """The error says what is wrong with which column."""
    told = listing(HELD)
    assert entries_from_pb(told, FABRIC, "l0") is not None
    for name, column in change.items():
        setattr(told, name, column)
    with pytest.raises(InputError, match=fault):
        entries_from_pb(told, FABRIC, "l0")


def test_few_bytes_do_not_stand_for_very_many_links() -> None:
    """A group of many links that many ways use is refused before it is expanded."""
    links = FABRIC.structure.links
    ids, ends = FABRIC.structure.nodes.ids, zip(links.a, links.b, links.key, strict=True)
    every = tuple(Link.between(ids[a], ids[b], str(key)) for a, b, key in ends)
    told = listing({("l0-h0-n0", "l1-h0-n0", 0, 0): Group(UP, None, every)})
    assert entries_from_pb(told, FABRIC, "l0") is not None
    ways = MOST_RISKS // len(every) + 1
    told.way_primaries, told.way_risks = numbers(*[0] * ways), numbers(*[1] * ways)
    told.way_backups = told.way_backup_risks = numbers(*[0] * ways)
    with pytest.raises(InputError, match="links at risk"):
        entries_from_pb(told, FABRIC, "l0")


def test_nothing_is_told_as_nothing() -> None:
    """An empty table is an empty batch."""
    assert listing({}) == pb.OperationBatch()
    none = entries_from_pb(pb.OperationBatch(), FABRIC, "l0")
    assert none is not None
    assert len(none) == 0
