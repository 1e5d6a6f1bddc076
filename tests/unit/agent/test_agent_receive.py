from __future__ import annotations

import pytest

from heddle_agent.fib import Capability, Group, Match, Reason
from heddle_agent.table import Fence, Forwarding, Mode, Status
from tests.support.agent_worlds import SPINES, SWITCH, entry, fib, forwarding, match, push, take


def held(switch: Forwarding) -> dict[Match, str]:
    """Return the primary of each entry that the backend forwards by."""
    return {found: group.primary.node for found, group in switch.fib.read_back().items()}


def test_incremental_pushes_add_replace_and_delete() -> None:
    """Each operation takes effect, and entries that a push does not name stay."""
    switch = forwarding()
    take(switch, push([(match(0), entry(0)), (match(1), entry(1))]))
    receipt = take(switch, push([(match(1), entry(2)), (match(0), None), (match(2), entry(3))]))
    assert receipt.status is Status.APPLIED
    assert not receipt.failures
    assert held(switch) == {match(1): "spine2", match(2): "spine3"}


@pytest.mark.parametrize("older", [(4, 9), (5, 1)])
def test_older_epochs_and_generations_are_refused_whole(older: tuple[int, int]) -> None:
    """Nothing of an older push is applied, and the answer names both versions."""
    switch = forwarding()
    take(switch, push([(match(0), entry(0))], version=(5, 2)))
    before = switch.table
    receipt = take(switch, push([(match(0), entry(1)), (match(1), entry(1))], version=older))
    assert receipt.status is Status.STALE_EPOCH
    assert f"epoch {older[0]} generation {older[1]} is older" in receipt.message
    assert "epoch 5 generation 2" in receipt.message
    assert switch.table.intended is before.intended
    assert held(switch) == {match(0): "spine0"}


def test_a_newer_epoch_may_begin_with_a_lower_generation() -> None:
    """Generations are compared within one epoch only."""
    switch = forwarding()
    take(switch, push([(match(0), entry(0))], version=(5, 900)))
    assert take(switch, push([(match(0), entry(1))], version=(6, 1))).status is Status.APPLIED
    assert switch.held.epoch == 6
    assert take(switch, push(version=(5, 901))).status is Status.STALE_EPOCH


def test_the_fence_of_an_earlier_run_holds() -> None:
    """An agent that starts with a fence refuses what its predecessor would have refused."""
    switch = forwarding(fence=Fence(5, 2))
    assert take(switch, push(version=(5, 1))).status is Status.STALE_EPOCH
    assert take(switch, push(version=(5, 2))).status is Status.APPLIED


def test_the_fence_is_remembered_before_anything_is_answered() -> None:
    """Every newer fence is saved once, in order."""
    told: list[Fence] = []
    switch = Forwarding(SWITCH, fib(), [hop.port for hop in SPINES], remember=told.append)
    for version in [(1, 1), (1, 1), (1, 3), (1, 2), (2, 1)]:
        switch.receive(push(version=version))
    assert told == [(1, 1), (1, 3), (2, 1)]


def test_full_sync_makes_the_unnamed_stale_and_a_sweep_removes_them() -> None:
    """Stale entries forward until a push sweeps. A push that names one again keeps it."""
    switch = forwarding()
    take(switch, push([(match(number), entry(0)) for number in range(4)]))
    take(switch, push([(match(0), entry(1))], mode=Mode.FULL_SYNC))
    assert switch.held.stale == 3
    assert len(held(switch)) == 4
    take(switch, push([(match(1), entry(1))]))
    assert switch.held.stale == 2
    take(switch, push([(match(2), entry(2))], sweep=True))
    assert held(switch) == {match(0): "spine1", match(1): "spine1", match(2): "spine2"}
    assert switch.held.stale == 0


def test_an_empty_full_sync_that_sweeps_clears_the_switch() -> None:
    """The switch holds no entries afterwards."""
    switch = forwarding()
    take(switch, push([(match(0), entry(0))]))
    take(switch, push(mode=Mode.FULL_SYNC, sweep=True))
    assert held(switch) == {}


def test_a_repeated_push_changes_nothing() -> None:
    """The second time nothing is dirty, and the backend is not touched."""
    switch = forwarding()
    same = push([(match(0), entry(0, 1)), (match(1), None)], mode=Mode.FULL_SYNC, sweep=True)
    take(switch, same)
    entries = switch.table.programmed
    assert take(switch, same).status is Status.APPLIED
    assert not switch.receive(same).failures
    assert not switch.table.dirty
    assert switch.table.programmed == entries


def test_the_last_word_on_a_match_in_a_batch_wins() -> None:
    """After set, delete and set of the same match in one push, the last operation counts."""
    switch = forwarding()
    take(switch, push([(match(0), entry(0)), (match(0), None), (match(0), entry(2))]))
    take(switch, push([(match(1), entry(0)), (match(1), None)]))
    assert held(switch) == {match(0): "spine2"}


def test_a_full_table_refuses_only_what_finds_no_room() -> None:
    """Sets beyond the table's size fail one by one with TABLE_FULL. Replacing still works."""
    switch = forwarding(fib(table_size=2))
    receipt = take(
        switch,
        push([(match(0), entry(0)), (match(1), entry(0)), (match(2), entry(0))], completes=True),
    )
    assert [(f.operation, f.reason) for f in receipt.failures] == [(2, Reason.TABLE_FULL)]
    assert switch.held.generation == 0
    assert not take(switch, push([(match(0), entry(1))])).failures
    assert held(switch) == {match(0): "spine1", match(1): "spine0"}


def test_deletes_and_sweeps_of_a_push_make_room_for_its_sets() -> None:
    """A push may replace all entries of a full table, in whatever order the deletes come."""
    switch = forwarding(fib(table_size=2))
    take(switch, push([(match(0), entry(0)), (match(1), entry(0))]))
    assert not take(switch, push([(match(2), entry(2)), (match(0), None)])).failures
    assert held(switch) == {match(1): "spine0", match(2): "spine2"}
    swap = [(match(3), entry(3)), (match(4), entry(3))]
    assert not take(switch, push(swap, mode=Mode.FULL_SYNC, sweep=True)).failures
    assert held(switch) == {match(3): "spine3", match(4): "spine3"}


def test_a_next_hop_without_a_link_fails_alone() -> None:
    """An operation whose primary or backup has no link fails, and the rest is applied."""
    switch = forwarding()
    stranger = SPINES[0]._replace(key="7")
    receipt = take(
        switch,
        push(
            [
                (match(0), (stranger, None, (), ())),
                (match(1), entry(1)),
                (match(2), (SPINES[0], stranger, (), ())),
            ]
        ),
    )
    assert [(f.operation, f.reason) for f in receipt.failures] == [
        (0, Reason.UNKNOWN_NEXT_HOP),
        (2, Reason.UNKNOWN_NEXT_HOP),
    ]
    assert "no link to spine0 key 7" in receipt.failures[0].message
    assert held(switch) == {match(1): "spine1"}


def test_a_failed_replacement_leaves_the_old_entry() -> None:
    """An entry whose replacement fails forwards as before.

    A sweep keeps it, because it was named.
    """
    switch = forwarding()
    take(switch, push([(match(0), entry(0))]))
    stranger = SPINES[0]._replace(node="elsewhere")
    take(switch, push([(match(0), (stranger, None, (), ()))], mode=Mode.FULL_SYNC, sweep=True))
    assert held(switch) == {match(0): "spine0"}


@pytest.mark.parametrize(
    ("lacking", "failing"), [(Capability.MATCH_PORTS, 0), (Capability.MATCH_PAIR, 1)]
)
def test_matches_that_the_backend_has_not_fail_alone(lacking: Capability, failing: int) -> None:
    """UNSUPPORTED_MATCH names the missing capability. Deletes of such matches succeed."""
    switch = forwarding()
    switch.table = switch.table._replace(capabilities=frozenset(Capability) - {lacking})
    rows = [(match(0, 5), entry(0)), (match(0), entry(0)), (match(1, 5), None), (match(1), None)]
    receipt = switch.receive(push(rows))
    assert [(f.operation, f.reason) for f in receipt.failures] == [
        (failing, Reason.UNSUPPORTED_MATCH)
    ]
    assert lacking.name in receipt.failures[0].message


def test_a_generation_is_whole_only_when_all_of_it_is_in() -> None:
    """A generation needs its completing push and no failure. Retrying a failure completes it."""
    switch = forwarding(fib(table_size=1))
    take(switch, push([(match(0), entry(0))], version=(1, 1), completes=True))
    assert switch.held.generation == 1
    take(switch, push([(match(0), entry(1))], version=(1, 2)))
    assert switch.held.generation == 0
    take(switch, push([(match(1), entry(1))], version=(1, 2), completes=True))
    assert switch.held.generation == 0
    take(switch, push([(match(0), None), (match(1), entry(1))], version=(1, 2)))
    assert switch.held.generation == 2


def test_a_push_that_changes_nothing_keeps_the_generation() -> None:
    """A generation that changes nothing on this switch is complete with its completing push."""
    switch = forwarding()
    take(switch, push([(match(0), entry(0))], version=(1, 1), completes=True))
    take(switch, push(version=(1, 2)))
    assert switch.held.generation == 1
    take(switch, push(version=(1, 3), completes=True))
    assert switch.held.generation == 3


def test_a_nic_that_moves_to_another_address_is_programmed_anew() -> None:
    """All entries of the NIC become dirty, including those that the push does not name."""
    switch = forwarding()
    rows = [(match(0), entry(0)), (match(1), entry(0)), (match(2), entry(0))]
    first = {"nic0": "10.0.0.1", "far0": "10.9.0.1", "far1": "10.9.0.2"}
    take(switch, push(rows, addresses=first))
    switch.receive(push([rows[0]], addresses={"far1": "10.9.0.22", "far0": "10.9.0.1"}))
    assert switch.table.dirty.keys() == {match(1)}
    assert switch.table.addresses["far1"] == "10.9.0.22"


def test_equal_next_hops_share_one_group() -> None:
    """Entries of different pushes with equal next hops share a group."""
    switch = forwarding()
    take(switch, push([(match(0), entry(0, 1)), (match(1), entry(0, 1))]))
    take(switch, push([(match(2), entry(0, 1)), (match(3), entry(1))]))
    groups: set[Group] = set(switch.table.programmed.values())
    assert len(groups) == 2
