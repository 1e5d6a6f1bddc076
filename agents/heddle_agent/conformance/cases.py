"""The cases: a name, what a backend must be able to do for it, and what it must do then."""

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
"""So many packets that even a backend that notices few pairs all but surely notices one."""


@dataclass(frozen=True, slots=True)
class Case:
    """One promise of backends."""

    name: str
    promise: str
    needs: frozenset[Capability]
    table_size: int
    run: Callable[[Bench], None]
    """Raises ``BrokenPromiseError``."""


_Function = Callable[[Bench], None]


def case(*needs: Capability, table_size: int = 0) -> Callable[[_Function], Case]:
    """Make a case of a function, with what it needs."""

    def make(function: _Function) -> Case:
        promise = " ".join((function.__doc__ or "").split())
        return Case(function.__name__, promise, frozenset(needs), table_size, function)

    return make


def pair(number: int = 0) -> Match:
    """From the local NIC to a far NIC, any port."""
    return ("nic0", f"far{number}", 0, 0)


def exact(port: int, number: int = 0) -> Match:
    """The same with ports."""
    return ("nic0", f"far{number}", port, ROCE)


def packet(port: int, number: int = 0) -> Packet:
    """A packet that such entries match."""
    return Packet("nic0", f"far{number}", port)


def batch(
    sets: dict[Match, Group] | None = None,
    *deletes: Match,
    diverted: dict[Group, Choice] | None = None,
) -> Batch:
    """A batch with the addresses that a kernel needs."""
    return Batch(sets or {}, deletes, diverted or {}, ADDRESSES)


def underlay(bench: Bench, number: int = 0) -> dict[int, NextHop | None]:
    """Where packets of some ports go at the moment."""
    return {port: bench.where(packet(port, number)) for port in range(100, 116)}


@case()
def an_empty_table_leaves_all_to_the_underlay(bench: Bench) -> None:
    """Packets spread over the uplinks, each flow always by the same."""
    before = underlay(bench)
    several(before.values(), "next hops of the underlay")
    among(before.values(), SPINES, "next hops")
    same(underlay(bench), before, "next hops")
    same(dict(bench.fib.read_back()), {}, "entries")


@case(PAIR)
def a_pair_entry_takes_every_port(bench: Bench) -> None:
    """All packets of the pair leave by its primary; those of other pairs do not care."""
    others = underlay(bench, 1)
    accepted(bench.fib.apply(batch({pair(): Group(SPINES[2])})))
    same(set(underlay(bench).values()), {SPINES[2]}, "next hops")
    same(underlay(bench, 1), others, "next hops")


@case(PORTS)
def a_port_entry_takes_its_port_only(bench: Bench) -> None:
    """One flow is placed; its neighbours by port number go by the underlay."""
    before = underlay(bench)
    accepted(bench.fib.apply(batch({exact(100): Group(SPINES[3])})))
    same(underlay(bench), {**before, 100: SPINES[3]}, "next hops")


@case(PORTS, PAIR)
def exact_ports_win_over_the_pair(bench: Bench) -> None:
    """Both entries are there; the flow with the port goes its own way, whatever came first."""
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
    """The same match again, with another group: packets follow the new one."""
    bench.fib.apply(batch({pair(): Group(SPINES[0])}))
    accepted(bench.fib.apply(batch({pair(): Group(SPINES[1])})))
    same(set(underlay(bench).values()), {SPINES[1]}, "next hops")
    same(len(bench.fib.read_back()), 1, "number of entries")


@case(PAIR)
def a_delete_falls_back_to_the_underlay(bench: Bench) -> None:
    """Without its entry each flow hashes as it did before."""
    before = underlay(bench)
    bench.fib.apply(batch({pair(): Group(SPINES[0])}))
    accepted(bench.fib.apply(batch(None, pair())))
    same(underlay(bench), before, "next hops")


@case(PAIR)
def deletes_are_idempotent(bench: Bench) -> None:
    """Removing what is not there succeeds."""
    accepted(bench.fib.apply(batch(None, pair())))
    bench.fib.apply(batch({pair(): Group(SPINES[0])}))
    for _ in range(2):
        accepted(bench.fib.apply(batch(None, pair())))


@case(PAIR)
def an_empty_batch_changes_nothing(bench: Bench) -> None:
    """No operations, no failures, the same forwarding."""
    bench.fib.apply(batch({pair(): Group(SPINES[0])}))
    accepted(bench.fib.apply(batch()))
    same(set(underlay(bench).values()), {SPINES[0]}, "next hops")


@case(PAIR, ATOMIC)
def one_batch_sets_and_deletes(bench: Bench) -> None:
    """Sets and deletes of one batch are all there afterwards."""
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
    """Every entry with its next hops."""
    wanted = {pair(): Group(SPINES[0], SPINES[1]), exact(7, 1): Group(SPINES[2])}
    bench.fib.apply(batch(wanted))
    found = {m: (g.primary, g.backup) for m, g in bench.fib.read_back().items()}
    same(found, {m: (g.primary, g.backup) for m, g in wanted.items()}, "entries")


@case(PAIR)
def an_unknown_next_hop_fails_alone(bench: Bench) -> None:
    """That entry is refused by name and forwards as before; the rest of the batch is in."""
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
    """Primary lost: all its entries use the backup, no other moves; and back."""
    group, other = Group(SPINES[0], SPINES[1]), Group(SPINES[2], SPINES[3])
    bench.fib.apply(batch({pair(0): group, pair(1): group, pair(2): other}))
    bench.links(frozenset({uplink(0)}), {group: Choice.BACKUP})
    same({hop for n in (0, 1) for hop in underlay(bench, n).values()}, {SPINES[1]}, "next hops")
    same(set(underlay(bench, 2).values()), {SPINES[2]}, "next hops")
    bench.links(frozenset(), {group: Choice.PRIMARY})
    same({hop for n in (0, 1) for hop in underlay(bench, n).values()}, {SPINES[0]}, "next hops")


@case(PAIR, BACKUP)
def a_loss_far_away_is_steered_around(bench: Bench) -> None:
    """The local link is up, the path behind it is not: the group is told, and moves."""
    group = Group(SPINES[0], SPINES[1], (far(0),))
    bench.fib.apply(batch({pair(0): group}))
    bench.links(frozenset({far(0)}), {group: Choice.BACKUP})
    same(set(underlay(bench).values()), {SPINES[1]}, "next hops")


@case(PAIR)
def a_group_without_next_hops_falls_to_the_underlay(bench: Bench) -> None:
    """Nothing of its own is left: the hash over uplinks that are up."""
    group = Group(SPINES[0])
    bench.fib.apply(batch({pair(0): group}))
    bench.links(frozenset({uplink(0)}), {group: Choice.UNDERLAY})
    among(underlay(bench).values(), {SPINES[1], SPINES[2], SPINES[3]}, "next hops")


@case(PAIR, BACKUP)
def entries_that_arrive_while_their_primary_is_down_use_the_backup(bench: Bench) -> None:
    """A batch says which of its groups are diverted."""
    group = Group(SPINES[0], SPINES[1])
    bench.links(frozenset({uplink(0)}), {})
    bench.fib.apply(batch({pair(0): group}, diverted={group: Choice.BACKUP}))
    same(set(underlay(bench).values()), {SPINES[1]}, "next hops")


@case()
def the_underlay_passes_over_links_that_are_down(bench: Bench) -> None:
    """Flows of the dead uplink hash over the rest; none is lost."""
    bench.links(frozenset({uplink(1)}), {})
    among(underlay(bench).values(), {SPINES[0], SPINES[2], SPINES[3]}, "next hops")


@case(PAIR, PORTS, COUNTERS)
def counters_count_their_entry(bench: Bench) -> None:
    """Packets and bytes of what each entry answered, kept when the entry is replaced."""
    bench.fib.apply(batch({pair(): Group(SPINES[0]), exact(100): Group(SPINES[1])}))
    bench.carry(packet(100), 3, 200)
    bench.carry(packet(101), 2, 100)
    bench.fib.apply(batch({exact(100): Group(SPINES[2])}))
    bench.carry(packet(100), 1, 50)
    bench.carry(packet(100, 3), 9, 50)
    same(bench.fib.counters(), {pair(): Count(2, 200), exact(100): Count(4, 650)}, "counters")


def noticed(bench: Bench) -> dict[tuple[str, str], Count]:
    """What no entry matched, by NICs, whether the backend names them by id or by address."""
    if not isinstance(bench.fib, Metering):
        raise BrokenPromiseError("it claims UNMATCHED and has no method unmatched")
    ids = {address: nic for nic, address in ADDRESSES.items()}
    named = bench.fib.unmatched().items()
    return {(a.id or ids[a.address], b.id or ids[b.address]): c for (a, b), c in named}


def until_noticed(bench: Bench, sent: Packet) -> int:
    """Send packets until their pair is noticed; how many that took."""
    for number in range(1, MANY + 1):
        bench.carry(sent, 1, 100)
        if (sent.source, sent.destination) in noticed(bench):
            return number
    raise BrokenPromiseError(f"{MANY} packets of one pair were not noticed")


@case(PAIR, PORTS, UNMATCHED)
def what_no_entry_matches_is_counted_by_pair(bench: Bench) -> None:
    """Of metered NICs alone; once a pair is noticed, each of its packets that has no entry."""
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
    """Asked anew each time: mypy takes a property for a constant."""
    return bench.fib.withdrawn


@case(PAIR, PORTS)
def a_withdrawn_overlay_leaves_all_to_the_underlay(bench: Bench) -> None:
    """Entries stay, and may change; none answers, until one step brings all of them back."""
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
    """What is lost meanwhile is not met when entries answer again."""
    group = Group(SPINES[0], SPINES[1])
    bench.fib.apply(batch({pair(): group}))
    bench.fib.set_overlay(withdrawn=True)
    bench.links(frozenset({uplink(0)}), {group: Choice.BACKUP})
    among(underlay(bench).values(), {SPINES[1], SPINES[2], SPINES[3]}, "next hops")
    bench.fib.set_overlay(withdrawn=False)
    same(set(underlay(bench).values()), {SPINES[1]}, "next hops")


CASES = tuple(found for found in list(globals().values()) if isinstance(found, Case))
"""All of them, in the order in which they stand here."""
