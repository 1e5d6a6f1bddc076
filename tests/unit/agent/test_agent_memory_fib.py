from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from heddle_agent.fib import (
    Batch,
    Capability,
    Choice,
    Count,
    DirectUnderlay,
    Fib,
    Group,
    MemoryFib,
    NextHop,
    Packet,
    Packets,
    Steering,
)
from tests.support.agent_worlds import HOPS, SPINES, SWITCH, FixedUnderlay, far, fib, match, uplink

PORTS = range(1000, 1064)


def flows(backend: MemoryFib, destination: str = "far0") -> Packets:
    """Return packets of one pair of NICs that differ in their source port."""
    many = len(PORTS)
    return Packets(
        backend.names.ids(["nic0"] * many),
        backend.names.ids([destination] * many),
        np.array(PORTS),
        np.full(many, 4791),
    )


def hops(backend: MemoryFib, packets: Packets) -> Counter[str]:
    """Return how many packets leave to each neighbour."""
    return Counter(backend.next_hops[row].node for row in backend.lookup_batch(packets).tolist())


def test_it_is_a_fib_and_can_do_everything() -> None:
    """The memory backend implements ``Fib`` and has every capability."""
    backend: Fib = fib()
    assert backend.capabilities == set(Capability)


def test_without_entries_the_underlay_spreads() -> None:
    """Every equal next hop carries a share, and no other does."""
    backend = fib()
    seen = hops(backend, flows(backend))
    assert set(seen) == {hop.node for hop in SPINES}


def test_the_underlay_leaves_out_local_links_that_are_down() -> None:
    """With two uplinks down, the other two carry all packets.

    With all down, packets are dropped.
    """
    backend = fib()
    backend.steer(Steering({}, frozenset({uplink(0), uplink(2), far(1)})))
    assert set(hops(backend, flows(backend))) == {"spine1", "spine3"}
    backend.steer(Steering({}, frozenset(map(uplink, range(4)))))
    assert set(backend.lookup_batch(flows(backend)).tolist()) == {-1}
    assert backend.lookup(Packet("nic0", "far0", 1000)) is None


def test_parallel_links_fail_one_by_one() -> None:
    """The key distinguishes the link that is down from its parallel link."""
    twins = (NextHop("spine0", "0"), NextHop("spine0", "1"))
    backend = MemoryFib(SWITCH, twins, FixedUnderlay(twins))
    backend.steer(Steering({}, frozenset({uplink(0)})))
    assert set(backend.lookup_batch(flows(backend)).tolist()) == {1}


def test_no_route_drops() -> None:
    """Packets to a destination without next hops are dropped, one by one and in batches."""
    underlay = FixedUnderlay()
    underlay.routes["nowhere"] = ()
    backend = fib(underlay=underlay)
    assert backend.lookup(Packet("nic0", "nowhere", 1)) is None
    assert set(backend.lookup_batch(flows(backend, "nowhere")).tolist()) == {-1}


def test_an_underlay_over_a_strange_link_is_refused() -> None:
    """An underlay that names a link which the switch does not have raises an error."""
    backend = fib(underlay=FixedUnderlay((NextHop("spine77"),)))
    with pytest.raises(ValueError, match="spine77 key 0, to which this switch has no link"):
        backend.lookup(Packet("nic0", "far0", 1))


def test_direct_underlay_knows_neighbours_only() -> None:
    """Without a fabric around it, a switch reaches only its neighbours."""
    backend = MemoryFib(SWITCH, HOPS)
    assert backend.lookup(Packet("nic0", "nic1", 1)) == NextHop("nic1")
    assert backend.lookup(Packet("nic0", "far0", 1)) is None
    assert DirectUnderlay(HOPS).next_hops("spine0") == (NextHop("spine0"),)


def test_a_batch_answers_even_where_nothing_is_asked() -> None:
    """A batch without packets has an empty answer."""
    backend = fib()
    none = np.empty(0, dtype=np.int64)
    assert len(backend.lookup_batch(Packets(none, none, none, none))) == 0


def test_a_group_that_is_diverted_is_so_for_new_entries() -> None:
    """An entry whose group has lost its primary forwards by the backup from its first packet."""
    backend = fib()
    group = Group(SPINES[0], SPINES[1])
    backend.apply(Batch({match(0): group}, diverted={group: Choice.BACKUP}))
    assert set(hops(backend, flows(backend))) == {"spine1"}


def test_entry_hits_tell_overlay_from_underlay() -> None:
    """Packets whose entry has lost both next hops do not count as hits."""
    backend = fib()
    group = Group(SPINES[0], SPINES[1])
    assert not backend.entry_hits(flows(backend)).any()
    backend.apply(Batch({match(0): group}))
    assert backend.entry_hits(flows(backend)).all()
    backend.steer(Steering({group: Choice.UNDERLAY}, frozenset({uplink(0), uplink(1)})))
    assert not backend.entry_hits(flows(backend)).any()
    assert set(hops(backend, flows(backend))) == {"spine2", "spine3"}


def test_counters_add_up_and_die_with_their_entry() -> None:
    """Packets and bytes count for the entry that matched, and start at 0 after a delete."""
    backend = fib()
    exact, pair = match(0, PORTS[0], 4791), match(0)
    backend.apply(Batch({exact: Group(SPINES[0]), pair: Group(SPINES[1])}))
    backend.count(flows(backend), 100)
    backend.count(flows(backend, "far1"), 100)
    backend.count(flows(backend), np.arange(len(PORTS)))
    rest = len(PORTS) - 1
    assert backend.counters() == {
        exact: Count(2, 100),
        pair: Count(2 * rest, 100 * rest + sum(range(len(PORTS)))),
    }
    backend.apply(Batch(deletes=[exact]))
    backend.apply(Batch({exact: Group(SPINES[0])}))
    assert set(backend.counters()) == {pair}


def test_groups_that_nothing_uses_are_forgotten() -> None:
    """Replacing entries again and again does not fill the memory."""
    backend = fib()
    groups = [Group(SPINES[number % 4]) for number in range(500)]
    for group in groups:
        backend.apply(Batch({match(0): group}, diverted={group: Choice.UNDERLAY}))
    assert len(backend._moved) < 100
    backend.steer(Steering({groups[-1]: Choice.PRIMARY}, frozenset()))
    assert set(hops(backend, flows(backend))) == {"spine3"}
