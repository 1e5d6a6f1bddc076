from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from heddle_agent.fib import Batch, Choice, Failure, Group, Match, MemoryFib, Packet, Reason
from heddle_agent.table import Mode, table_digest
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


class Stubborn(MemoryFib):
    """A backend that cannot program some matches for a while, as can happen with hardware."""

    def __init__(self) -> None:
        super().__init__(SWITCH, HOPS, FixedUnderlay())
        self.broken: set[Match] = set()
        self.batches = 0

    def apply(self, batch: Batch) -> Sequence[Failure]:
        """Fail the broken matches and program the rest."""
        self.batches += 1
        failures = [
            Failure(found, Reason.BACKEND, "the bank is broken")
            for found in (*batch.sets, *batch.deletes)
            if found in self.broken
        ]
        sets = {found: group for found, group in batch.sets.items() if found not in self.broken}
        deletes = [found for found in batch.deletes if found not in self.broken]
        super().apply(Batch(sets, deletes, batch.diverted, batch.addresses))
        return failures


def test_a_backend_failure_is_told_in_band_and_mended_later() -> None:
    """A failed operation stays dirty, and is programmed once the backend can do it."""
    backend = Stubborn()
    backend.broken = {match(1)}
    switch = forwarding(backend)
    wanted = push([(match(0), entry(0)), (match(1), entry(0))], version=(1, 4), completes=True)
    assert not switch.receive(wanted).failures
    assert [(f.operation, f.reason) for f in switch.program(wanted)] == [(1, Reason.BACKEND)]
    assert (switch.held.dirty, switch.held.entries, switch.held.generation) == (1, 1, 0)
    backend.broken = set()
    switch.mend()
    assert (switch.held.dirty, switch.held.entries, switch.held.generation) == (0, 2, 4)
    batches = backend.batches
    switch.mend()
    assert backend.batches == batches, "nothing dirty, nothing to do"


def test_what_failed_before_is_tried_with_the_next_push() -> None:
    """A later push also programs what failed before, but its answer has only its own failures."""
    backend = Stubborn()
    backend.broken = {match(0)}
    switch = forwarding(backend)
    take(switch, push([(match(0), entry(0))]))
    assert not take(switch, push([(match(1), entry(0))])).failures
    backend.broken = set()
    take(switch, push([(match(2), entry(0))]))
    assert set(backend.read_back()) == {match(0), match(1), match(2)}


def test_a_failed_delete_stays_programmed_until_it_is_gone() -> None:
    """``programmed`` says what the backend holds, not what was requested."""
    backend = Stubborn()
    switch = forwarding(backend)
    take(switch, push([(match(0), entry(0)), (match(1), entry(0))]))
    backend.broken = {match(0)}
    receipt = take(switch, push([(match(0), None), (match(1), None)]))
    assert [f.operation for f in receipt.failures] == [0]
    assert set(switch.table.programmed) == {match(0)} == set(backend.read_back())
    assert not switch.table.intended
    backend.broken = set()
    switch.mend()
    assert not switch.table.programmed


def test_withdrawing_leaves_the_underlay_alone_and_the_fence_up() -> None:
    """After withdrawal no entries are held, and older pushes are still refused."""
    switch = forwarding()
    take(switch, push([(match(0), entry(0))], version=(3, 3), completes=True))
    switch.withdraw()
    assert not switch.fib.read_back()
    assert switch.held.generation == 0
    assert switch.digest() == b""
    assert switch.held.epoch == 3


def test_a_new_agent_adopts_what_the_backend_forwards_by() -> None:
    """Entries outlive the agent. The next agent reads, repairs and synchronises them."""
    backend = fib()
    first = forwarding(backend)
    take(first, push([(match(0), entry(0, 1)), (match(1), entry(0, 1, far(0)))]))
    second = forwarding(backend)
    assert second.digest() == first.digest() != b""
    second.links_changed({uplink(0): False})
    packet = Packet("nic0", "far0", 5)
    assert backend.lookup(packet) == HOPS[1]
    take(second, push([(match(1), entry(2))], mode=Mode.FULL_SYNC, sweep=True, version=(2, 1)))
    assert set(backend.read_back()) == {match(1)}


def test_adoption_makes_one_of_groups_that_are_alike() -> None:
    """Two equal groups in the backend become one, and one repair moves it."""
    backend = fib()
    twins = [Group(HOPS[0], HOPS[1]), Group(HOPS[0], HOPS[1])]
    backend.apply(Batch({match(number): group for number, group in enumerate(twins)}))
    switch = forwarding(backend)
    assert len(set(backend.read_back().values())) == 1
    assert switch.links_changed({uplink(0): False}) == 1
    assert [backend.lookup(Packet("nic0", f"far{n}", 5)) for n in range(2)] == [HOPS[1]] * 2


def test_adoption_knows_which_links_are_down_now() -> None:
    """Entries that the last agent left on their backup return if the link is up again."""
    backend = fib()
    first = forwarding(backend)
    take(first, push([(match(0), entry(0, 1))]))
    first.links_changed({uplink(0): False})
    assert backend.lookup(Packet("nic0", "far0", 5)) == HOPS[1]
    second = forwarding(backend)
    assert backend.lookup(Packet("nic0", "far0", 5)) == HOPS[0]
    assert not second.table.diverted


def test_groups_without_entries_are_forgotten() -> None:
    """A switch whose entries keep changing holds a bounded number of groups."""
    switch = forwarding()
    for number in range(400):
        take(switch, push([(match(0), entry(0, 1, far(0, number)))]))
    assert len(switch.table.groups.by_key) < 100
    switch.links_changed({far(0, 399): False})
    assert switch.table.diverted == {switch.table.programmed[match(0)]: Choice.BACKUP}


def test_the_digest_is_that_of_the_protocol() -> None:
    """The digest is SHA-256 of the lines that the protocol describes, written by hand here."""
    switch = forwarding()
    rows = [
        (("nic1", "far0", 0, 0), entry(1, None, far(1, 8), far(0, 9))),
        (("nic0", "far0", 10, 4791), entry(0, 1)),
        (("nic0", "far0", 9, 4791), entry(3)),
    ]
    take(switch, push(rows))
    text = (
        "nic0\tfar0\t9\t4791\tspine3\t0\t\t\n"
        "nic0\tfar0\t10\t4791\tspine0\t0\tspine1\t0\n"
        "nic1\tfar0\t0\t0\tspine1\t0\t\t\tleaf8 spine1 0\tleaf9 spine0 0\n"
    )
    assert switch.digest() == sha256(text.encode()).digest()
    assert table_digest({}) == b""
