"""What a backend is asked to avoid when a flow has lost its primary and its backup."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from heddle_agent.fib import Group, Link, MemoryFib, NextHop
from heddle_agent.table import Forwarding
from tests.support.agent_worlds import HOPS, SPINES, SWITCH, entry, far, match, push, take, uplink

Ports = frozenset[tuple[str, str]]


class Asked(MemoryFib):
    """A backend that records the detours it was asked for."""

    def __init__(self) -> None:
        super().__init__(SWITCH, HOPS)
        self.asked: list[dict[NextHop, Ports]] = []

    def detour(self, groups: Mapping[Group, Collection[tuple[str, str]]]) -> None:
        """Record the hops to avoid, by the primary of each group."""
        self.asked.append({group.primary: frozenset(hops) for group, hops in groups.items()})


def switch() -> tuple[Asked, Forwarding]:
    """Return a switch with two entries to leaf 9 by spines 0, 1 and one to leaf 8 by 2, 3."""
    backend = Asked()
    forwarding = Forwarding(SWITCH, backend, [hop.port for hop in HOPS])
    rows = [
        (match(0), entry(0, 1, far(0), spare=[far(1)])),
        (match(1), entry(0, 1, far(0), spare=[far(1)])),
        (match(2), entry(2, 3, far(2, 8), spare=[far(3, 8)])),
    ]
    take(forwarding, push(rows))
    return backend, forwarding


def ports(*spines: int) -> Ports:
    """Return the ports of the links to these spines."""
    return frozenset(SPINES[spine].port for spine in spines)


def lose(forwarding: Forwarding, *links: Link) -> None:
    """Report that links are lost, all at once."""
    forwarding.links_changed(dict.fromkeys(links, False))


def test_nothing_is_asked_while_a_backup_lives() -> None:
    """While the backup works, no detour is needed."""
    backend, forwarding = switch()
    lose(forwarding, far(0))
    assert backend.asked == []


def test_both_lost_ways_are_kept_off_and_others_to_the_same_leaf() -> None:
    """After spine 2 loses leaf 9 too, it is avoided, although no entry names that link."""
    backend, forwarding = switch()
    lose(forwarding, far(0), far(1))
    assert backend.asked == [{SPINES[0]: ports(0, 1)}]
    lose(forwarding, far(2))
    assert backend.asked[1:] == [{SPINES[0]: ports(0, 1, 2)}]


def test_what_is_lost_elsewhere_is_no_reason() -> None:
    """Spine 3 loses leaf 5, but still leads to leaf 9, so the backend is not asked again."""
    backend, forwarding = switch()
    lose(forwarding, far(0), far(1))
    lose(forwarding, far(3, 5))
    assert backend.asked == [{SPINES[0]: ports(0, 1)}]


def test_own_links_that_are_lost_are_kept_off() -> None:
    """A lost link of the switch is avoided, because routing may still use it."""
    backend, forwarding = switch()
    lose(forwarding, uplink(0), far(1))
    lose(forwarding, uplink(3))
    assert backend.asked == [{SPINES[0]: ports(0, 1)}, {SPINES[0]: ports(0, 1, 3)}]


def test_what_is_lost_during_a_batch_is_kept_off_after_it() -> None:
    """While another thread uses the backend it is asked nothing, and once it is back all that."""
    backend, forwarding = switch()
    table = forwarding.lend()
    lose(forwarding, far(0))
    lose(forwarding, far(1))
    assert backend.asked == []
    forwarding.take_back(table)
    assert backend.asked == [{SPINES[0]: ports(0, 1)}]


def test_groups_are_asked_for_each_with_its_own() -> None:
    """A group is no longer asked for once one of its links is back."""
    backend, forwarding = switch()
    lose(forwarding, far(0), far(1), far(2, 8), far(3, 8))
    assert backend.asked == [{SPINES[0]: ports(0, 1), SPINES[2]: ports(2, 3)}]
    forwarding.links_changed({far(1): True})
    assert backend.asked[1:] == [{SPINES[2]: ports(2, 3)}]
    forwarding.links_changed({far(2, 8): True, far(0): True, far(3, 8): True})
    assert backend.asked[2:] == [{}]
