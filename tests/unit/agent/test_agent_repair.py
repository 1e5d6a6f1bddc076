from __future__ import annotations

import pytest

from heddle_agent.fib import Choice, Link, MemoryFib, Packet, Steering
from heddle_agent.table import Forwarding
from tests.support.agent_worlds import (
    HOPS,
    SWITCH,
    FixedUnderlay,
    entry,
    far,
    fib,
    forwarding,
    match,
    push,
    take,
    uplink,
)


def leaves(backend: MemoryFib, number: int = 0) -> str | None:
    """Return the neighbour to which packets of an entry leave, or None if they are dropped."""
    hop = backend.lookup(Packet("nic0", f"far{number}", 77))
    return None if hop is None else hop.node


@pytest.fixture
def backend() -> MemoryFib:
    """Return the switch's backend."""
    return fib()


@pytest.fixture
def switch(backend: MemoryFib) -> Forwarding:
    """Return a switch with entries over spine 0 with a backup, and one over spine 3 without.

    One entry over spine 0 also depends on links further away.
    """
    switch = forwarding(backend)
    rows = [
        (match(0), entry(0, 1)),
        (match(1), entry(0, 1, far(0), far(0, 5))),
        (match(2), entry(3, None, far(3))),
    ]
    take(switch, push(rows))
    return switch


@pytest.mark.parametrize("lost", [uplink(0), far(0), far(0, 5)])
def test_a_lost_link_moves_what_depends_on_it_and_back(
    switch: Forwarding, backend: MemoryFib, lost: Link
) -> None:
    """Entries that depend on a lost local or remote link use their backup until it is back."""
    switch.links_changed({lost: False})
    assert leaves(backend, 1) == "spine1"
    assert leaves(backend, 0) == ("spine1" if lost == uplink(0) else "spine0")
    assert leaves(backend, 2) == "spine3"
    switch.links_changed({lost: True})
    assert [leaves(backend, number) for number in range(3)] == ["spine0", "spine0", "spine3"]
    assert not switch.table.diverted


def test_two_failures_and_one_repair(switch: Forwarding, backend: MemoryFib) -> None:
    """An entry that depends on two lost links returns only when both are back."""
    switch.links_changed({far(0): False, far(0, 5): False})
    switch.links_changed({far(0): True})
    assert leaves(backend, 1) == "spine1"
    switch.links_changed({far(0, 5): True})
    assert leaves(backend, 1) == "spine0"


def test_without_a_live_backup_the_underlay_takes_over(
    switch: Forwarding, backend: MemoryFib
) -> None:
    """If the backup is lost or missing, the underlay hashes over the next hops that are left."""
    switch.links_changed({uplink(0): False, uplink(1): False})
    assert leaves(backend, 0) in {"spine2", "spine3"}
    switch.links_changed({far(3): False, uplink(3): False})
    assert {leaves(backend, number) for number in range(3)} == {"spine2"}


def test_a_backup_with_a_dead_link_further_on_is_none(backend: MemoryFib) -> None:
    """If both paths are lost far away, the underlay is used until one of them is back.

    The primary is preferred.
    """
    switch = forwarding(backend)
    take(switch, push([(match(0), entry(0, 1, far(0), spare=[far(1)]))]))
    seen = []
    for changes in ({far(1): False}, {far(0): False}, {far(1): True}, {far(0): True}):
        switch.links_changed(changes)
        seen.append((leaves(backend), [*switch.table.diverted.values()]))
    assert seen[0] == ("spine0", [])
    assert seen[1][1] == [Choice.UNDERLAY]
    assert seen[2] == ("spine1", [Choice.BACKUP])
    assert seen[3] == ("spine0", [])


def test_a_backup_that_returns_is_used_again(switch: Forwarding, backend: MemoryFib) -> None:
    """While the primary is down, a backup that failed is used again once it returns."""
    switch.links_changed({uplink(0): False, uplink(1): False})
    switch.links_changed({uplink(1): True})
    assert leaves(backend, 0) == "spine1"


def test_a_push_during_a_failure_avoids_the_dead_link(
    switch: Forwarding, backend: MemoryFib
) -> None:
    """Entries that arrive while their primary is down use their backup first and return later."""
    switch.links_changed({uplink(2): False, far(0): False})
    take(switch, push([(match(3), entry(2, 3)), (match(4), entry(0, 3, far(0)))]))
    assert (leaves(backend, 3), leaves(backend, 4)) == ("spine3", "spine3")
    switch.links_changed({uplink(2): True})
    assert (leaves(backend, 3), leaves(backend, 4)) == ("spine2", "spine3")


def test_news_that_is_none_moves_nothing(switch: Forwarding) -> None:
    """A link reported twice, or one that no entry depends on, moves no group."""
    assert switch.links_changed({uplink(0): True}) == 0
    assert switch.links_changed({uplink(0): False}) == 2
    assert switch.links_changed({uplink(0): False}) == 0
    assert switch.links_changed({far(2, 77): False}) == 0
    assert switch.flips == 2


def test_work_grows_with_groups_not_with_entries(backend: MemoryFib) -> None:
    """For a thousand entries behind one group, one group is moved."""
    switch = forwarding(backend)
    take(switch, push([(match(number), entry(0, 1)) for number in range(1000)]))
    assert switch.links_changed({uplink(0): False}) == 1
    assert {leaves(backend, number) for number in range(1000)} == {"spine1"}
    assert list(switch.table.diverted.values()) == [Choice.BACKUP]


class Recording(MemoryFib):
    """A backend that records how it was steered."""

    def __init__(self) -> None:
        super().__init__(SWITCH, HOPS, FixedUnderlay())
        self.steered: list[Steering] = []

    def steer(self, steering: Steering) -> None:
        """Record the steering, then do what the parent does."""
        self.steered.append(steering)
        super().steer(steering)


def test_a_lost_link_of_the_switch_is_left_before_groups_are_looked_at() -> None:
    """The first steering has only the lost link, and nothing that came back.

    The second has the groups.
    """
    backend = Recording()
    switch = forwarding(backend)
    take(switch, push([(match(0), entry(0, 1)), (match(1), entry(2, 3, far(2)))]))
    switch.links_changed({far(2): False})
    backend.steered.clear()
    switch.links_changed({uplink(0): False, far(2): True})
    first, second = backend.steered
    assert (dict(first.choices), first.down) == ({}, frozenset({uplink(0), far(2)}))
    assert (len(second.choices), second.down) == (2, frozenset({uplink(0)}))
    backend.steered.clear()
    switch.links_changed({uplink(0): False, far(1): False})
    assert [steering.down for steering in backend.steered] == [{uplink(0), far(1)}]
