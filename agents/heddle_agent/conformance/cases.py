"""The cases: each has a name, the capabilities that it needs, and a function that checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from heddle_agent.conformance.bench import ADDRESSES, ROCE, SPINES, Bench, far, uplink
from heddle_agent.conformance.checks import BrokenPromiseError, accepted, among, same, several
from heddle_agent.fib import (
    Batch,
    Capability,
    Choice,
    Count,
    Group,
    Match,
    Metering,
    NextHop,
    Nic,
    Packet,
    Reason,
)

PAIR, PORTS = Capability.MATCH_PAIR, Capability.MATCH_PORTS
BACKUP, COUNTERS, ATOMIC = Capability.BACKUP, Capability.COUNTERS, Capability.ATOMIC_BATCH
UNMATCHED = Capability.UNMATCHED
MANY = 2000
"""Number of packets that is enough even for a backend that samples to notice their pair."""


@dataclass(frozen=True, slots=True)
class Case:
    """One promise that backends must keep."""

    name: str
    needs: frozenset[Capability]
    table_size: int
    run: Callable[[Bench], None]
    """Raises ``BrokenPromiseError`` if the promise is not kept."""


_Function = Callable[[Bench], None]


def case(*needs: Capability, table_size: int = 0) -> Callable[[_Function], Case]:
    """Return a decorator that turns a function into a case; its docstring states the promise."""

    def make(function: _Function) -> Case:
        return Case(function.__name__, frozenset(needs), table_size, function)

    return make


def pair(number: int = 0) -> Match:
    """Return the match from the local NIC to a far NIC, any port."""
    return ("nic0", f"far{number}", 0, 0)


def exact(port: int, number: int = 0) -> Match:
    """Return the match from the local NIC to a far NIC with ports."""
    return ("nic0", f"far{number}", port, ROCE)


def packet(port: int, number: int = 0) -> Packet:
    """Return a packet that ``pair`` and ``exact`` match."""
    return Packet("nic0", f"far{number}", port)


def batch(
    sets: dict[Match, Group] | None = None,
    *deletes: Match,
    diverted: dict[Group, Choice] | None = None,
) -> Batch:
    """Return a batch with the addresses of all NICs."""
    return Batch(sets or {}, deletes, diverted or {}, ADDRESSES)


def underlay(bench: Bench, number: int = 0) -> dict[int, NextHop | None]:
    """Return where packets of some ports go at the moment, by port."""
    return {port: bench.where(packet(port, number)) for port in range(100, 116)}


@case()
def an_empty_table_leaves_all_to_the_underlay(bench: Bench) -> None:
    """Packets spread over the uplinks, and each flow always takes the same one."""
    before = underlay(bench)
    several(before.values(), "next hops of the underlay")
    among(before.values(), SPINES, "next hops")
    same(underlay(bench), before, "next hops")
    same(dict(bench.fib.read_back()), {}, "entries")


@case(PAIR)
def a_pair_entry_takes_every_port(bench: Bench) -> None:
    """All packets of the pair leave by its primary; other pairs are not affected."""
    others = underlay(bench, 1)
    accepted(bench.fib.apply(batch({pair(): Group(SPINES[2])})))
    same(set(underlay(bench).values()), {SPINES[2]}, "next hops")
    same(underlay(bench, 1), others, "next hops")


@case(PORTS)
def a_port_entry_takes_its_port_only(bench: Bench) -> None:
    """The flow with the entry's port follows it; flows with other ports follow the underlay."""
    before = underlay(bench)
    accepted(bench.fib.apply(batch({exact(100): Group(SPINES[3])})))
    same(underlay(bench), {**before, 100: SPINES[3]}, "next hops")


@case(PORTS, PAIR)
def exact_ports_win_over_the_pair(bench: Bench) -> None:
    """A flow that matches both entries follows the one with ports, whichever was set first."""
    for first, second in (({pair(): 0}, {exact(100): 1}), ({exact(101, 1): 1}, {pair(1): 0})):
        for rows in (first, second):
            accepted(bench.fib.apply(batch({m: Group(SPINES[s]) for m, s in rows.items()})))
    same(set(underlay(bench).values()), {SPINES[0], SPINES[1]}, "next hops")
    same((bench.where(packet(100)), bench.where(packet(101))), (SPINES[1], SPINES[0]), "next hops")
    same(
        (bench.where(packet(101, 1)), bench.where(packet(100, 1))),
        (SPINES[1], SPINES[0]),
        "next hops",
    )


@case(PAIR)
def a_set_replaces(bench: Bench) -> None:
    """After a set of an existing match, packets follow the new group."""
    bench.fib.apply(batch({pair(): Group(SPINES[0])}))
    accepted(bench.fib.apply(batch({pair(): Group(SPINES[1])})))
    same(set(underlay(bench).values()), {SPINES[1]}, "next hops")
    same(len(bench.fib.read_back()), 1, "number of entries")


@case(PAIR)
def a_delete_falls_back_to_the_underlay(bench: Bench) -> None:
    """Without its entry, each flow hashes as it did before."""
    before = underlay(bench)
    bench.fib.apply(batch({pair(): Group(SPINES[0])}))
    accepted(bench.fib.apply(batch(None, pair())))
    same(underlay(bench), before, "next hops")


@case(PAIR)
def deletes_are_idempotent(bench: Bench) -> None:
    """Deleting an entry that does not exist succeeds."""
    accepted(bench.fib.apply(batch(None, pair())))
    bench.fib.apply(batch({pair(): Group(SPINES[0])}))
    for _ in range(2):
        accepted(bench.fib.apply(batch(None, pair())))


@case(PAIR)
def an_empty_batch_changes_nothing(bench: Bench) -> None:
    """An empty batch has no failures and leaves forwarding as it was."""
    bench.fib.apply(batch({pair(): Group(SPINES[0])}))
    accepted(bench.fib.apply(batch()))
    same(set(underlay(bench).values()), {SPINES[0]}, "next hops")


@case(PAIR, ATOMIC)
def one_batch_sets_and_deletes(bench: Bench) -> None:
    """All sets and deletes of one batch are in effect afterwards."""
    bench.fib.apply(batch({pair(0): Group(SPINES[0]), pair(1): Group(SPINES[0])}))
    before = underlay(bench, 0)
    same(set(before.values()), {SPINES[0]}, "next hops")
    moved = {pair(1): Group(SPINES[1]), pair(2): Group(SPINES[2])}
    accepted(bench.fib.apply(batch(moved, pair(0))))
    same(set(bench.fib.read_back()), {pair(1), pair(2)}, "entries")
    same(set(underlay(bench, 1).values()), {SPINES[1]}, "next hops")
    same(set(underlay(bench, 2).values()), {SPINES[2]}, "next hops")
    several(underlay(bench, 0).values(), "next hops of the underlay")


@case(PAIR, PORTS)
def read_back_says_what_is_programmed(bench: Bench) -> None:
    """Every entry is read back with its next hops."""
    wanted = {pair(): Group(SPINES[0], SPINES[1]), exact(7, 1): Group(SPINES[2])}
    bench.fib.apply(batch(wanted))
    found = {m: (g.primary, g.backup) for m, g in bench.fib.read_back().items()}
    same(found, {m: (g.primary, g.backup) for m, g in wanted.items()}, "entries")


@case(PAIR)
def an_unknown_next_hop_fails_alone(bench: Bench) -> None:
    """The failed entry is named and forwards as before; the rest of the batch takes effect."""
    bench.fib.apply(batch({pair(0): Group(SPINES[3])}))
    stranger = Group(NextHop("spine77", "0", "10.77.0.1"))
    failures = bench.fib.apply(batch({pair(0): stranger, pair(1): Group(SPINES[1])}))
    same([(f.match, f.reason) for f in failures], [(pair(0), Reason.UNKNOWN_NEXT_HOP)], "refusals")
    if "spine77" not in failures[0].message:
        raise BrokenPromiseError(f"the refusal does not name spine77: {failures[0].message!r}")
    same(set(underlay(bench, 0).values()), {SPINES[3]}, "next hops")
    same(set(underlay(bench, 1).values()), {SPINES[1]}, "next hops")


@case(PAIR, table_size=2)
def a_full_table_refuses_what_is_new(bench: Bench) -> None:
    """New entries beyond the size fail with TABLE_FULL; replacing one does not."""
    group = Group(SPINES[0])
    failures = bench.fib.apply(batch({pair(n): group for n in range(3)}))
    same([f.reason for f in failures], [Reason.TABLE_FULL], "refusals")
    held = set(bench.fib.read_back())
    same(held, {pair(0), pair(1), pair(2)} - {failures[0].match}, "entries")
    accepted(bench.fib.apply(batch(dict.fromkeys(held, Group(SPINES[1])))))
    same({g.primary for g in bench.fib.read_back().values()}, {SPINES[1]}, "primaries of entries")


@case(PAIR, table_size=2)
def deletes_of_a_batch_make_room_for_its_sets(bench: Bench) -> None:
    """A full table can be exchanged in one batch."""
    same(bench.fib.table_size, 2, "table size")
    bench.fib.apply(batch({pair(n): Group(SPINES[0]) for n in range(2)}))
    swap = {pair(n): Group(SPINES[1]) for n in (2, 3)}
    accepted(bench.fib.apply(batch(swap, pair(0), pair(1))))
    same(set(bench.fib.read_back()), {pair(2), pair(3)}, "entries")


@case(PAIR, BACKUP)
def steering_moves_every_entry_of_a_group(bench: Bench) -> None:
    """When the primary is lost, exactly the group's entries use the backup, and later return."""
    group, other = Group(SPINES[0], SPINES[1]), Group(SPINES[2], SPINES[3])
    bench.fib.apply(batch({pair(0): group, pair(1): group, pair(2): other}))
    bench.links(frozenset({uplink(0)}), {group: Choice.BACKUP})
    same({hop for n in (0, 1) for hop in underlay(bench, n).values()}, {SPINES[1]}, "next hops")
    same(set(underlay(bench, 2).values()), {SPINES[2]}, "next hops")
    bench.links(frozenset(), {group: Choice.PRIMARY})
    same({hop for n in (0, 1) for hop in underlay(bench, n).values()}, {SPINES[0]}, "next hops")


@case(PAIR, BACKUP)
def a_loss_far_away_is_steered_around(bench: Bench) -> None:
    """A group moves when its path is lost farther away while the local link is up."""
    group = Group(SPINES[0], SPINES[1], (far(0),))
    bench.fib.apply(batch({pair(0): group}))
    bench.links(frozenset({far(0)}), {group: Choice.BACKUP})
    same(set(underlay(bench).values()), {SPINES[1]}, "next hops")


@case(PAIR)
def a_group_without_next_hops_falls_to_the_underlay(bench: Bench) -> None:
    """A group with no next hop left is hashed over the uplinks that are up."""
    group = Group(SPINES[0])
    bench.fib.apply(batch({pair(0): group}))
    bench.links(frozenset({uplink(0)}), {group: Choice.UNDERLAY})
    among(underlay(bench).values(), {SPINES[1], SPINES[2], SPINES[3]}, "next hops")


@case(PAIR, BACKUP)
def entries_that_arrive_while_their_primary_is_down_use_the_backup(bench: Bench) -> None:
    """A batch says which of its groups are not on their primary."""
    group = Group(SPINES[0], SPINES[1])
    bench.links(frozenset({uplink(0)}), {})
    bench.fib.apply(batch({pair(0): group}, diverted={group: Choice.BACKUP}))
    same(set(underlay(bench).values()), {SPINES[1]}, "next hops")


@case()
def the_underlay_passes_over_links_that_are_down(bench: Bench) -> None:
    """Flows of the dead uplink hash over the others, and none is lost."""
    bench.links(frozenset({uplink(1)}), {})
    among(underlay(bench).values(), {SPINES[0], SPINES[2], SPINES[3]}, "next hops")


@case(PAIR, PORTS, COUNTERS)
def counters_count_their_entry(bench: Bench) -> None:
    """Each entry counts the packets and bytes that it matched, also after it is replaced."""
    bench.fib.apply(batch({pair(): Group(SPINES[0]), exact(100): Group(SPINES[1])}))
    bench.carry(packet(100), 3, 200)
    bench.carry(packet(101), 2, 100)
    bench.fib.apply(batch({exact(100): Group(SPINES[2])}))
    bench.carry(packet(100), 1, 50)
    bench.carry(packet(100, 3), 9, 50)
    same(bench.fib.counters(), {pair(): Count(2, 200), exact(100): Count(4, 650)}, "counters")


def noticed(bench: Bench) -> dict[tuple[str, str], Count]:
    """Return unmatched counts by NIC ids, whether the backend names NICs by id or address."""
    if not isinstance(bench.fib, Metering):
        raise BrokenPromiseError("it claims UNMATCHED and has no method unmatched")
    ids = {address: nic for nic, address in ADDRESSES.items()}
    named = bench.fib.unmatched().items()
    return {(a.id or ids[a.address], b.id or ids[b.address]): c for (a, b), c in named}


def until_noticed(bench: Bench, sent: Packet) -> int:
    """Send packets until their pair is noticed; return how many that took."""
    for number in range(1, MANY + 1):
        bench.carry(sent, 1, 100)
        if (sent.source, sent.destination) in noticed(bench):
            return number
    raise BrokenPromiseError(f"{MANY} packets of one pair were not noticed")


@case(PAIR, PORTS, UNMATCHED)
def what_no_entry_matches_is_counted_by_pair(bench: Bench) -> None:
    """Once a pair with a metered source is noticed, its packets without an entry are counted."""
    if isinstance(bench.fib, Metering):
        bench.fib.meter([Nic("nic0", ADDRESSES["nic0"])])
    bench.fib.apply(batch({exact(100): Group(SPINES[1]), pair(1): Group(SPINES[2])}))
    first = until_noticed(bench, packet(101))
    seen = noticed(bench)["nic0", "far0"]
    if not (0 < seen.packets <= first and seen.bytes == 100 * seen.packets):
        raise BrokenPromiseError(f"{first} packets of 100 bytes are counted as {seen}")
    bench.carry(packet(102), 5, 200)
    bench.carry(packet(100), 5, 200)
    bench.carry(packet(101, 1), 5, 200)
    bench.carry(Packet("nic1", "far0", 101), 5, 200)
    after = Count(seen.packets + 5, seen.bytes + 1000)
    same(noticed(bench), {("nic0", "far0"): after}, "counters of what no entry matches")
    bench.fib.set_overlay(withdrawn=True)
    bench.carry(packet(102), 1, 200)
    bench.fib.set_overlay(withdrawn=False)
    after = Count(after.packets + 1, after.bytes + 200)
    same(noticed(bench)["nic0", "far0"], after, "counters of what no entry matches")


def is_withdrawn(bench: Bench) -> bool:
    """Return ``fib.withdrawn``; a function, because mypy takes a property for a constant."""
    return bench.fib.withdrawn


@case(PAIR, PORTS)
def a_withdrawn_overlay_leaves_all_to_the_underlay(bench: Bench) -> None:
    """Entries stay and may change, but none matches until one step brings all of them back."""
    hashed = underlay(bench)
    bench.fib.apply(batch({pair(): Group(SPINES[0]), exact(100): Group(SPINES[1])}))
    same(bench.fib.set_overlay(withdrawn=True), "", "answer of set_overlay")
    same(is_withdrawn(bench), True, "withdrawn")
    same(underlay(bench), hashed, "next hops")
    bench.fib.apply(batch({exact(101): Group(SPINES[2])}, exact(100)))
    bench.fib.refresh()
    same(underlay(bench), hashed, "next hops")
    same(set(bench.fib.read_back()), {pair(), exact(101)}, "entries")
    same(bench.fib.set_overlay(withdrawn=True), "", "answer of set_overlay")
    same(underlay(bench), hashed, "next hops")
    same(bench.fib.set_overlay(withdrawn=False), "", "answer of set_overlay")
    same(is_withdrawn(bench), False, "withdrawn")
    same(underlay(bench), dict.fromkeys(hashed, SPINES[0]) | {101: SPINES[2]}, "next hops")


@case(PAIR, BACKUP)
def groups_are_steered_while_the_overlay_is_withdrawn(bench: Bench) -> None:
    """Entries that match again do not use links that were lost meanwhile."""
    group = Group(SPINES[0], SPINES[1])
    bench.fib.apply(batch({pair(): group}))
    bench.fib.set_overlay(withdrawn=True)
    bench.links(frozenset({uplink(0)}), {group: Choice.BACKUP})
    among(underlay(bench).values(), {SPINES[1], SPINES[2], SPINES[3]}, "next hops")
    bench.fib.set_overlay(withdrawn=False)
    same(set(underlay(bench).values()), {SPINES[1]}, "next hops")


CASES = tuple(found for found in list(globals().values()) if isinstance(found, Case))
"""All cases, in the order of this file."""
