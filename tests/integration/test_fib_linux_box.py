"""The linux backend beside foreign rules, other programs' changes, and its own remains."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from heddle_agent.conformance import ADDRESSES
from heddle_agent.fib import Batch, Choice, Count, Group, Match, Nic, Packet, Steering
from heddle_agent.fib.linux import Cable, LinuxFib, clean_kernel
from heddle_agent.table import Forwarding, Mode
from heddle_agent.table.groups import key_of
from tests.support import fib_linux
from tests.support.agent_worlds import ROCE, SPINES, SWITCH, entry, far, push, take, uplink
from tests.support.fib_linux import CABLES, LinuxBench, World

FOREIGN = """
table ip theirs {
  map heddle { type ipv4_addr : mark; elements = { 10.0.0.1 : 7 } }
  chain c { type filter hook prerouting priority -150; ip saddr 10.0.0.77 meta mark set 0x7; }
}
"""
LEFT = (
    ("ip", "-j", "route", "show", "table", "all"),
    ("ip", "-j", "rule"),
    ("nft", "list", "ruleset"),
)


def pair(number: int = 0, port: int = 0) -> Match:
    """Return a match from the local NIC to a far NIC, for all ports or for one source port."""
    return ("nic0", f"far{number}", port, ROCE if port else 0)


def packet(number: int = 0, port: int = 100) -> Packet:
    """Return a packet from the local NIC to a far NIC."""
    return Packet("nic0", f"far{number}", port)


@pytest.fixture
def bench() -> Iterator[LinuxBench]:
    """A switch with the backend."""
    with fib_linux.world() as world:
        bench = LinuxBench(world)
        yield bench
        bench.fib.close()


def program(bench: LinuxBench, entries: dict[Match, Group], *deletes: Match) -> None:
    """Program entries; fail unless all are accepted."""
    assert not bench.fib.apply(Batch(entries, deletes, addresses=ADDRESSES))


def all_of_it(world: World) -> list[str]:
    """Return all routes, rules, nftables and settings on which forwarding could depend."""
    sysctls = "cat /proc/sys/net/ipv4/conf/*/ignore_routes_with_linkdown"
    return [*(world.switch.run(*words) for words in LEFT), world.switch.run("sh", "-c", sysctls)]


def settle(world: World) -> None:
    """Install rules, routes and a setting of somebody else, some of them much like ours."""
    world.switch.run("nft", "-f", "-", text=FOREIGN)
    world.switch.ip(
        "rule add fwmark 7 table 7 pref 17199",
        "rule add fwmark 0x48000009 table 9 pref 17201",
        "route add default via 10.1.3.1 dev up3 table 7",
        "route add 10.77.0.0/16 via 10.1.2.1 table 1207959553",
    )
    world.switch.run("sysctl", "-qw", "net.ipv4.conf.up1.ignore_routes_with_linkdown=0")


def test_cleaning_leaves_a_box_as_it_was(bench: LinuxBench) -> None:
    """Cleaning removes all that is ours and nothing that is foreign; cleaning twice is fine."""
    bench.fib.close()
    clean_kernel(bench.world.switch.netlink)
    settle(bench.world)
    before = all_of_it(bench.world)
    bench.fib = LinuxFib(SWITCH, CABLES, opener=bench.world.switch.netlink)
    program(bench, {pair(n): Group(SPINES[n], SPINES[(n + 1) % 4]) for n in range(4)})
    program(bench, {pair(0, port): Group(SPINES[port]) for port in range(1, 4)})
    assert all_of_it(bench.world) != before
    removed = clean_kernel(bench.world.switch.netlink)
    assert removed == (7, 10, 4, 1, ())
    assert all_of_it(bench.world) == before
    assert clean_kernel(bench.world.switch.netlink) == (0, 0, 0, 0, ())


def test_cleaning_names_the_settings_of_which_no_note_is_left(bench: LinuxBench) -> None:
    """Without notes a setting may be an administrator's: it stays, and its interfaces are named."""
    program(bench, {pair(n): Group(SPINES[n]) for n in range(2)})
    bench.world.switch.run("sysctl", "-qw", "net.ipv4.conf.up1.ignore_routes_with_linkdown=0")
    bench.fib.close()
    bench.world.switch.run("nft", "delete table inet heddle")
    removed = clean_kernel(bench.world.switch.netlink)
    assert (removed.routes, removed.interfaces, removed.unclear) == (2, 0, ("up0",))
    assert clean_kernel(bench.world.switch.netlink) == (0, 0, 0, 0, ())


def test_foreign_rules_go_on_working(bench: LinuxBench) -> None:
    """A packet that somebody else has marked keeps that mark, whatever entry it matches."""
    settle(bench.world)
    program(bench, {pair(): Group(SPINES[1])})
    bench.world.switch.run(
        "nft", "add chain ip theirs early { type filter hook prerouting priority -200; }"
    )
    bench.world.switch.run("nft", "add rule ip theirs early udp sport 200 meta mark set 7")
    assert bench.where(packet(port=100)) == SPINES[1]
    assert bench.where(packet(port=200)) == SPINES[3]


def test_a_restarted_agent_takes_over_and_sweeps_what_nobody_names(bench: LinuxBench) -> None:
    """A restarted agent finds all entries, with the same digest, and forwarding goes on.

    A sweep then removes an entry that no push names.
    """
    links = [hop.port for hop in SPINES]
    first = Forwarding(SWITCH, bench.fib, links)
    wanted = {pair(n, port): entry(n, (n + 1) % 4, far(n)) for n in range(4) for port in (0, 7)}
    assert not take(first, push(wanted.items(), addresses=ADDRESSES)).failures
    bench.fib.close()
    assert bench.where(packet(2)) == SPINES[2]
    stranger = "add element inet heddle pairs { 10.0.0.9 . 10.9.0.9 : 1 }"
    bench.world.switch.run("nft", stranger)
    bench.fib = LinuxFib(SWITCH, CABLES, opener=bench.world.switch.netlink)
    second = Forwarding(SWITCH, bench.fib, links)
    assert second.table.programmed.keys() == {*wanted, ("10.0.0.9", "10.9.0.9", 0, 0)}
    assert bench.where(packet(2)) == SPINES[2]
    again = push(wanted.items(), mode=Mode.FULL_SYNC, version=(2, 1), addresses=ADDRESSES)
    assert not take(second, again).failures
    assert second.held.stale == 1
    again = push(
        wanted.items(), mode=Mode.FULL_SYNC, version=(2, 2), sweep=True, addresses=ADDRESSES
    )
    assert not take(second, again).failures
    assert second.digest() == first.digest()
    assert bench.fib.read_back().keys() == wanted.keys()


def test_an_entry_takes_the_place_of_an_unknown_one(bench: LinuxBench) -> None:
    """An entry replaces one with the same addresses, of which no NIC was known."""
    program(bench, {pair(): Group(SPINES[1])})
    bench.world.switch.run("nft", "add element inet heddle pairs { 10.0.0.2 . 10.9.0.2 : 1 }")
    assert bench.fib.read_back().keys() == {pair(), ("10.0.0.2", "10.9.0.2", 0, 0)}
    known = ("nic1", "far1", 0, 0)
    program(bench, {known: Group(SPINES[2])})
    assert bench.fib.read_back().keys() == {pair(), known}
    assert bench.where(Packet("nic1", "far1", 1)) == SPINES[2]


def test_a_restarted_agent_does_not_wake_a_dead_path(bench: LinuxBench) -> None:
    """After a restart groups stay on their backups until their links are back."""
    links = [hop.port for hop in SPINES]
    first = Forwarding(SWITCH, bench.fib, links)
    take(first, push([(pair(), entry(0, 1, far(0))), (pair(1), entry(2, 3))], addresses=ADDRESSES))
    first.links_changed({far(0): False, uplink(2): False})
    assert (bench.where(packet(0)), bench.where(packet(1))) == (SPINES[1], SPINES[3])
    bench.fib.close()
    bench.fib = LinuxFib(SWITCH, CABLES, opener=bench.world.switch.netlink)
    assert (bench.where(packet(0)), bench.where(packet(1))) == (SPINES[1], SPINES[3])
    second = Forwarding(SWITCH, bench.fib, links, down=[far(0), uplink(2)])
    assert (bench.where(packet(0)), bench.where(packet(1))) == (SPINES[1], SPINES[3])
    second.links_changed({far(0): True, uplink(2): True})
    assert (bench.where(packet(0)), bench.where(packet(1))) == (SPINES[0], SPINES[2])


@pytest.mark.parametrize(
    "words",
    [
        ("nft", "delete table inet heddle"),
        ("nft", "flush map inet heddle pairs"),
        ("nft", "flush map inet heddle ways"),
        ("nft", "flush chain inet heddle steer"),
        ("ip", "rule", "del", "pref", "17201"),
        ("ip", "rule", "del", "pref", "17200"),
        ("ip", "route", "flush", "table", str(0x48000001)),
    ],
    ids=lambda words: " ".join(words[:5]),
)
def test_what_others_remove_comes_back(bench: LinuxBench, words: tuple[str, ...]) -> None:
    """After a refresh entries forward as before, and groups on their backup are still there."""
    steady, moved = Group(SPINES[0], SPINES[1]), Group(SPINES[2], SPINES[3], (far(2),))
    program(bench, {pair(0): steady, pair(1): moved})
    bench.links(frozenset({far(2)}), {moved: Choice.BACKUP})
    bench.world.switch.run(*words)
    bench.fib.refresh()
    assert (bench.where(packet(0)), bench.where(packet(1))) == (SPINES[0], SPINES[3])
    bench.links(frozenset(), {moved: Choice.PRIMARY})
    assert bench.where(packet(1)) == SPINES[2]
    assert bench.fib.read_back().keys() == {pair(0), pair(1)}


@pytest.mark.parametrize("removal", ["delete table", "flush map pairs", "flush map ways"])
def test_what_others_remove_just_before_a_batch_or_a_repair_comes_back(
    bench: LinuxBench, removal: str
) -> None:
    """A batch or a repair that comes before the refresh does not hide what others removed."""
    first, second = Group(SPINES[0], SPINES[1]), Group(SPINES[2], SPINES[3], (far(2),))
    program(bench, {pair(0): first, pair(1): second})
    kind, what, *name = removal.split()
    removing = ("nft", kind, what, "inet", "heddle", *name)
    bench.world.switch.run(*removing)
    program(bench, {pair(2): first})
    bench.fib.refresh()
    assert [bench.where(packet(n)) for n in range(3)] == [SPINES[0], SPINES[2], SPINES[0]]
    bench.world.switch.run(*removing)
    bench.links(frozenset({far(2)}), {second: Choice.BACKUP})
    bench.fib.refresh()
    assert [bench.where(packet(n)) for n in range(3)] == [SPINES[0], SPINES[3], SPINES[0]]
    assert bench.fib.read_back().keys() == {pair(0), pair(1), pair(2)}


def test_notes_that_others_remove_come_back(bench: LinuxBench) -> None:
    """The next agent finds entries by their names, also if they are put back in pieces."""
    assert isinstance(bench.fib, LinuxFib)
    bench.fib.piece = 1
    groups = {pair(n, port): Group(SPINES[n]) for n in range(4) for port in (0, 7)}
    groups[pair(0, 7)] = Group(SPINES[0], SPINES[1], (far(0),))
    program(bench, groups)
    for removal in ("flush set inet heddle notes", "flush map inet heddle pairs"):
        bench.world.switch.run("nft", removal)
        bench.fib.refresh()
    bench.fib.close()
    bench.fib = LinuxFib(SWITCH, CABLES, opener=bench.world.switch.netlink)
    found = bench.fib.read_back()
    assert {match: key_of(group) for match, group in found.items()} == {
        match: key_of(group) for match, group in groups.items()
    }


def test_what_cannot_be_put_back_yet_is_put_back_later(bench: LinuxBench) -> None:
    """Entries over an interface that is gone come back with it; those deleted meanwhile do not."""
    program(bench, {pair(n): Group(SPINES[0]) for n in range(2)})
    bench.world.switch.ip("link set up0 name away")
    bench.world.switch.run("nft", "delete table inet heddle")
    bench.fib.refresh()
    program(bench, {}, pair(1))
    bench.world.switch.ip("link set away name up0")
    bench.fib.refresh()
    assert bench.fib.read_back().keys() == {pair(0)}
    assert bench.where(packet(0)) == SPINES[0]


def test_orders_outlive_the_table(bench: LinuxBench) -> None:
    """After others remove the table the overlay stays withdrawn, and NICs stay metered."""
    program(bench, {pair(0): Group(SPINES[0])})
    assert isinstance(bench.fib, LinuxFib)
    bench.fib.meter([Nic("nic0", ADDRESSES["nic0"])])
    bench.fib.set_overlay(withdrawn=True)
    bench.world.switch.run("nft", "flush", "ruleset")
    bench.fib.refresh()
    assert bench.fib.withdrawn
    assert ADDRESSES["nic0"] in bench.world.switch.run("nft", "list set inet heddle metered")
    assert {bench.where(packet(0, port)) for port in range(16)} != {SPINES[0]}
    bench.fib.set_overlay(withdrawn=False)
    assert {bench.where(packet(0, port)) for port in range(16)} == {SPINES[0]}


@pytest.mark.parametrize("change", ["table removed", "interface made again", "interface renamed"])
def test_cleaning_finds_every_interface_that_was_changed(bench: LinuxBench, change: str) -> None:
    """The setting of interfaces is taken back whatever has happened to table and interfaces."""
    for at in ("up0", "default"):
        setting = f"net.ipv4.conf.{at}.ignore_routes_with_linkdown=0"
        bench.world.switch.run("sysctl", "-qw", setting)
    program(bench, {pair(): Group(SPINES[0])})
    name = "swp7" if change == "interface renamed" else "up0"
    if change == "table removed":
        bench.world.switch.run("nft", "delete table inet heddle")
    elif change == "interface made again":
        bench.world.replug(0, name)
    else:
        bench.world.switch.ip(f"link set up0 name {name}")
        assert isinstance(bench.fib, LinuxFib)
        bench.fib.plug(SPINES[0].port, Cable(name))
    setting = f"/proc/sys/net/ipv4/conf/{name}/ignore_routes_with_linkdown"
    for _ in range(2):  # the first learns of the interface, the second notes it
        bench.fib.refresh()
    assert bench.world.switch.run("cat", setting) == "1\n"
    bench.fib.close()
    clean_kernel(bench.world.switch.netlink)
    assert bench.world.switch.run("cat", setting) == "0\n"


def test_a_batch_goes_in_though_the_table_was_removed(bench: LinuxBench) -> None:
    """A batch also restores what others removed since the last refresh."""
    program(bench, {pair(0): Group(SPINES[0])})
    bench.world.switch.run("nft", "delete table inet heddle")
    program(bench, {pair(1): Group(SPINES[1])})
    assert (bench.where(packet(0)), bench.where(packet(1))) == (SPINES[0], SPINES[1])
    bench.world.switch.run("nft", "flush map inet heddle pairs")
    program(bench, {}, pair(0))
    assert bench.fib.read_back().keys() == {pair(1)}


def test_nics_may_exchange_their_addresses(bench: LinuxBench) -> None:
    """Two NICs swap addresses in one batch: each entry follows its NIC, and none is left behind."""
    program(bench, {pair(0): Group(SPINES[0]), pair(1): Group(SPINES[1])})
    swapped = {**ADDRESSES, "far0": ADDRESSES["far1"], "far1": ADDRESSES["far0"]}
    again = dict(bench.fib.read_back())
    assert not bench.fib.apply(Batch(again, addresses=swapped))
    assert (bench.where(packet(0)), bench.where(packet(1))) == (SPINES[1], SPINES[0])
    assert bench.fib.addresses["far0"] == ADDRESSES["far1"]
    assert bench.fib.read_back() == again


def test_a_push_after_a_restart_moves_entries_to_new_addresses(bench: LinuxBench) -> None:
    """The table learns from the backend which addresses its entries were programmed with."""
    links = [hop.port for hop in SPINES]
    wanted = [(pair(0), entry(0))]
    take(Forwarding(SWITCH, bench.fib, links), push(wanted, addresses=ADDRESSES))
    moved = {**ADDRESSES, "far0": "10.9.8.8"}
    second = Forwarding(SWITCH, bench.fib, links)
    take(second, push(wanted, version=(1, 2), addresses=moved))
    assert bench.world.arrives(bench.world.send(("10.0.0.1", "10.9.8.8", 9, 9))) == "up0"
    assert bench.fib.addresses["far0"] == "10.9.8.8"
    assert bench.fib.counters() == {pair(0): Count(1, 64)}


def test_counters_outlive_every_change_of_their_entry(bench: LinuxBench) -> None:
    """An entry goes on counting when it gets another group, or its group moves to the backup."""
    group = Group(SPINES[0], SPINES[1], (far(0),))
    program(bench, {pair(): group})
    bench.carry(packet(), 2, 100)
    bench.links(frozenset({far(0)}), {group: Choice.BACKUP})
    bench.carry(packet(), 1, 100)
    program(bench, {pair(): Group(SPINES[2])})
    bench.carry(packet(), 1, 100)
    program(bench, {pair(1): Group(SPINES[2])})
    assert bench.fib.counters() == {pair(): Count(4, 400), pair(1): Count(0, 0)}


def test_tcp_follows_entries_of_pairs_and_no_entry_of_udp_ports(bench: LinuxBench) -> None:
    """Entries with ports match UDP only; an entry of a pair matches TCP, too."""
    program(bench, {pair(0): Group(SPINES[1]), pair(0, 7): Group(SPINES[2])})
    wire = (ADDRESSES["nic0"], ADDRESSES["far0"], 7, ROCE)
    udp, tcp = (bench.world.send(wire, protocol=number) for number in (17, 6))
    assert bench.world.arrives(udp) == "up2"
    assert bench.world.arrives(tcp) == "up1"


def test_steering_what_is_not_there_changes_nothing(bench: LinuxBench) -> None:
    """Steering accepts groups without entries and links of other switches, and changes nothing."""
    program(bench, {pair(): Group(SPINES[0])})
    strange = Group(SPINES[1], SPINES[2])
    bench.fib.steer(Steering({strange: Choice.BACKUP}, frozenset({far(3, 4)})))
    assert bench.where(packet()) == SPINES[0]
    assert bench.fib.read_back().keys() == {pair()}
