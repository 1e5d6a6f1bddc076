"""A switch under any order of pushes, failures and repairs, compared with a simple model.

The model knows no groups, no dirty sets and no fence. It has a dictionary of the last content of
each match, the links that are down, and the rules of the protocol.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from heddle_agent.fib import Link, Match, NextHop, Packet
from heddle_agent.table import Forwarding, GroupKey, Mode, Status, table_digest
from tests.support.agent_worlds import (
    SPINES,
    SWITCH,
    FixedUnderlay,
    entry,
    far,
    fib,
    match,
    push,
    take,
    uplink,
)

SIZE = 6
MATCHES = [match(number, port) for number in range(3) for port in (0, 5)] + [
    match(3, 5, 4791),
    match(3),
]
LINKS = [*map(uplink, range(4)), far(0), far(1), far(0, 5)]
PACKETS = [Packet("nic0", f"far{number}", port) for number in range(4) for port in (5, 6)]

spine = st.integers(0, 3)
risks = st.lists(st.sampled_from(LINKS[4:]), max_size=2)
entries = st.builds(
    lambda p, b, r, s: entry(p, b, *r, spare=s), spine, st.none() | spine, risks, risks
)
operations = st.lists(st.tuples(st.sampled_from(MATCHES), st.none() | entries), max_size=6)


def rebuilt(held: dict[Match, GroupKey]) -> Forwarding:
    """A fresh switch that received these entries in one push, in another order."""
    fresh = Forwarding(SWITCH, fib(), [hop.port for hop in SPINES])
    take(fresh, push(sorted(held.items(), reverse=True)))
    return fresh


class Switch(RuleBasedStateMachine):
    """One switch with a small table, and its model."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = fib(table_size=SIZE, underlay=FixedUnderlay())
        self.switch = Forwarding(SWITCH, self.backend, [hop.port for hop in SPINES])
        self.version = (0, 0)
        self.held: dict[Match, GroupKey] = {}
        self.stale: set[Match] = set()
        self.down: set[Link] = set()

    @rule(
        wanted=operations,
        full=st.booleans(),
        sweep=st.booleans(),
        epoch=st.integers(-1, 1),
        generation=st.integers(-1, 1),
        twice=st.booleans(),
    )
    def pushed(
        self,
        *,
        wanted: list[tuple[Match, GroupKey | None]],
        full: bool,
        sweep: bool,
        epoch: int,
        generation: int,
        twice: bool,
    ) -> None:
        """A push arrives. It may be old, and it may come twice."""
        version = (max(0, self.version[0] + epoch), max(0, self.version[1] + generation))
        mode = Mode.FULL_SYNC if full else Mode.INCREMENTAL
        message = push(wanted, mode=mode, version=version, sweep=sweep)
        old = version < self.version
        before = self.backend.read_back()
        receipt = take(self.switch, message)
        assert receipt.status is (Status.STALE_EPOCH if old else Status.APPLIED)
        if old:
            assert self.backend.read_back() == before
            return
        self.version = version
        refused = {message.operations.matches[f.operation] for f in receipt.failures}
        self.believe(dict(wanted), refused, full=full, sweep=sweep)
        if twice and not refused:
            once = self.backend.read_back()
            assert not take(self.switch, message).failures
            assert self.backend.read_back() == once

    def believe(
        self,
        wanted: dict[Match, GroupKey | None],
        refused: set[Match],
        *,
        full: bool,
        sweep: bool,
    ) -> None:
        """Update the model. Only entries that do not fit the table may have been refused."""
        self.stale = (set(self.held) if full else self.stale) - wanted.keys()
        gone = {found for found, key in wanted.items() if key is None}
        gone |= self.stale if sweep else set()
        for found in gone:
            self.held.pop(found, None)
        sets = {found: key for found, key in wanted.items() if key is not None}
        new = sets.keys() - self.held.keys()
        assert refused <= new
        assert len(refused) == max(0, len(self.held) + len(new) - SIZE)
        self.held.update({found: key for found, key in sets.items() if found not in refused})
        self.stale = set() if sweep else self.stale - gone

    @rule(changes=st.dictionaries(st.sampled_from(LINKS), st.booleans(), min_size=1, max_size=3))
    def links_changed(self, changes: dict[Link, bool]) -> None:
        """Links of this switch and beyond it fail and return."""
        self.switch.links_changed(changes)
        for link, state in changes.items():
            (self.down.discard if state else self.down.add)(link)

    @rule()
    def restarted(self) -> None:
        """The agent restarts with the same backend, and knows its fence and the links down."""
        ports = [hop.port for hop in SPINES]
        fence = self.switch.table.fence
        self.switch = Forwarding(SWITCH, self.backend, ports, down=self.down, fence=fence)
        self.stale = set()

    @rule()
    def withdrawn(self) -> None:
        """The agent withdraws its entries, as after too long without a controller."""
        self.switch.withdraw()
        self.held, self.stale = {}, set()

    @invariant()
    def the_backend_holds_what_was_said(self) -> None:
        """The agent's table, the backend and the model agree, and nothing is pending."""
        found = {
            one: (group.primary, group.backup, group.risks, group.backup_risks)
            for one, group in self.backend.read_back().items()
        }
        assert found == self.held
        assert self.switch.table.programmed == self.backend.read_back()
        assert (self.switch.held.dirty, self.switch.held.stale) == (0, len(self.stale))

    @invariant()
    def no_packet_meets_a_dead_link_that_could_be_avoided(self) -> None:
        """Packets take a live primary, else a live backup, else a live uplink of the underlay."""
        for packet in PACKETS:
            assert self.backend.lookup(packet) in self.expected(packet)

    def expected(self, packet: Packet) -> list[NextHop | None]:
        """The next hops that the rules allow for a packet."""
        source, destination, port, roce = packet
        for other in ((port, roce), (port, 0), (0, roce), (0, 0)):
            key = self.held.get((source, destination, *other))
            if key is not None:
                break
        else:
            key = None
        if key is not None:
            primary, backup, links, spare = key
            if not self.down.intersection((Link.between(SWITCH, primary.node), *links)):
                return [primary]
            if backup is not None and not self.down.intersection(
                (Link.between(SWITCH, backup.node), *spare)
            ):
                return [backup]
        alive = [hop for hop in SPINES if Link.between(SWITCH, hop.node) not in self.down]
        return [*alive] or [None]

    @invariant()
    def digests_are_equal_just_when_entries_are(self) -> None:
        """The digest depends on the entries and not on how they came about."""
        assert self.switch.digest() == rebuilt(self.held).digest()
        if self.held:
            other = dict(self.held)
            found, (primary, backup, links, spare) = other.popitem()
            assert self.switch.digest() != rebuilt(other).digest()
            changed = NextHop("spine9") if backup is None else None
            made = type(self.backend.read_back()[found])
            for group in (
                made(primary, changed, links, spare),
                made(primary, backup, links, (*spare, Link("x", "y"))),
                made(primary, backup, (*links, *spare), links),
            ):
                if (group.risks, group.backup_risks, group.backup) != (links, spare, backup):
                    changes = {**self.backend.read_back(), found: group}
                    assert self.switch.digest() != table_digest(changes)


TestSwitch = Switch.TestCase
