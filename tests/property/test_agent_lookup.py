"""The lookup of one packet and the lookup of many are separate code and must agree."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heddle_agent.fib import (
    Batch,
    Choice,
    Group,
    Match,
    MemoryFib,
    NextHop,
    Packet,
    Packets,
    Steering,
)
from tests.support.agent_worlds import HOPS, SPINES, FixedUnderlay, uplink

NICS = ["nic0", "nic1", "far0", "far1", "far2"]
PORTS = [0, 1, 2, 65535]

nics, ports = st.sampled_from(NICS), st.sampled_from(PORTS)
matches = st.tuples(nics, nics, ports, ports)
packets = st.lists(st.tuples(nics, nics, ports, ports), max_size=30)
hops = st.sampled_from(SPINES)
groups = st.builds(Group, hops, st.none() | hops)
routes = st.dictionaries(nics, st.lists(st.sampled_from(HOPS), max_size=4, unique=True))


def columns(backend: MemoryFib, rows: list[tuple[str, str, int, int]]) -> Packets:
    """Packets as arrays."""
    return Packets(
        backend.names.ids(row[0] for row in rows),
        backend.names.ids(row[1] for row in rows),
        np.array([row[2] for row in rows], dtype=np.int64),
        np.array([row[3] for row in rows], dtype=np.int64),
    )


def expected(entries: dict[Match, Group], packet: tuple[str, str, int, int]) -> Group | None:
    """The group of a packet's entry, by a plain reading of the rule; None without an entry."""
    source, destination, source_port, destination_port = packet
    for wanted in (
        packet,
        (source, destination, source_port, 0),
        (source, destination, 0, destination_port),
        (source, destination, 0, 0),
    ):
        if wanted in entries:
            return entries[wanted]
    return None


@given(
    entries=st.dictionaries(matches, groups, max_size=12),
    choices=st.lists(st.sampled_from(Choice), min_size=12, max_size=12),
    wanted=packets,
    underlay=routes,
    down=st.sets(st.integers(0, 3)),
    seed=st.integers(0, 2**64 - 1),
)
def test_one_by_one_and_all_at_once_agree(
    *,
    entries: dict[Match, Group],
    choices: list[Choice],
    wanted: list[tuple[str, str, int, int]],
    underlay: dict[str, list[NextHop]],
    down: set[int],
    seed: int,
) -> None:
    """Both lookups give the same next hop: that of the most exact entry if it forwards."""
    world = FixedUnderlay()
    world.routes = dict(underlay)
    backend = MemoryFib("leaf0", HOPS, world, seed=seed)
    assert not backend.apply(Batch(entries))
    steering = dict(zip(entries.values(), choices, strict=False))
    backend.steer(Steering(steering, frozenset(map(uplink, down))))
    many = backend.lookup_batch(columns(backend, wanted)).tolist()
    for packet, row in zip(wanted, many, strict=True):
        one = backend.lookup(Packet(*packet))
        assert one == (None if row < 0 else backend.next_hops[row])
        group = expected(entries, packet)
        if group is None:
            assert one is None or one in world.next_hops(packet[1])
        elif steering[group] is Choice.PRIMARY:
            assert one == group.primary
        elif steering[group] is Choice.BACKUP and group.backup is not None:
            assert one == group.backup
