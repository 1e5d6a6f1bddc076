"""The SONiC backend with a real Redis and a fake orchagent that is slow, full or in the way."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle_agent.conformance import ADDRESSES, SPINES, uplink
from heddle_agent.fib import Avoiding, Batch, Choice, Group, Match, Packet, Reason, Steering
from heddle_agent.fib.sonic import Exit, UnavailableSwitchError, schema
from tests.support import fib_linux
from tests.support.orchagent import EXITS, SonicSwitch
from tests.support.redis_server import ALWAYS
from tests.support.waiting import wait_until

DOWN = frozenset({uplink(0)})


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[SonicSwitch]:
    """A switch whose Redis keeps every write that it acknowledged."""
    made = SonicSwitch(tmp_path, options=ALWAYS)
    yield made
    made.close()


def pair(number: int) -> Match:
    """Return the match from the local NIC to a far NIC, any port."""
    return ("nic0", f"far{number}", 0, 0)


def sets(*rows: tuple[int, Group]) -> Batch:
    """Return a batch with an entry for each pair."""
    return Batch({pair(number): group for number, group in rows}, addresses=ADDRESSES)


def leaves(switch: SonicSwitch, number: int) -> object:
    """Return the next hop of a packet of a pair."""
    return switch.where(Packet("nic0", f"far{number}", 100))


def rules(switch: SonicSwitch) -> set[str]:
    """Return the keys of all ACL rules, tables and table types, foreign ones included."""
    return set(switch.connect(schema.CONFIG_DB).keys("ACL_*"))


def test_an_entry_is_a_rule_as_sonic_documents_it(switch: SonicSwitch) -> None:
    """Type, table and rule have the fields that SONiC documents."""
    match: Match = ("nic0", "far0", 49152, 4791)
    assert not switch.fib.apply(Batch({match: Group(SPINES[1])}, addresses=ADDRESSES))
    config = switch.connect(schema.CONFIG_DB)
    assert config.hgetall("ACL_TABLE_TYPE|HEDDLE") == {
        "MATCHES@": (
            "SRC_IP,DST_IP,IP_PROTOCOL,SRC_IPV6,DST_IPV6,NEXT_HEADER,L4_SRC_PORT,L4_DST_PORT"
        ),
        "ACTIONS@": "PACKET_ACTION,REDIRECT_ACTION",
        "BIND_POINTS@": "PORT,PORTCHANNEL",
    }
    table = config.hgetall("ACL_TABLE|HEDDLE")
    assert (table["type"], table["stage"]) == ("HEDDLE", "ingress")
    assert table["ports@"] == "Ethernet0,Ethernet12,Ethernet4,Ethernet8"
    (key,) = rules(switch) - {"ACL_TABLE_TYPE|HEDDLE", "ACL_TABLE|HEDDLE"}
    assert config.hgetall(key) == {
        "PRIORITY": "9000",
        "SRC_IP": "10.0.0.1/32",
        "DST_IP": "10.9.0.1/32",
        "IP_PROTOCOL": "17",
        "L4_SRC_PORT": "49152",
        "L4_DST_PORT": "4791",
        "REDIRECT_ACTION": "10.1.1.1@Ethernet4",
    }


def test_addresses_of_ipv6_have_fields_of_their_own(switch: SonicSwitch) -> None:
    """One table has rules of both families; a pair of mixed or odd addresses fails alone."""
    group = Group(SPINES[1])
    told = {"nic0": "fd00::1", "far0": "fd09::1", "far1": "10.9.0.1", "far2": "x"}
    sets: dict[Match, Group] = {("nic0", far, 0, 0): group for far in ("far0", "far1", "far2")}
    failures = {f.match[1]: f.message for f in switch.fib.apply(Batch(sets, addresses=told))}
    assert failures == {
        "far1": "nic0 and far1 have addresses of two families",
        "far2": "NIC far2 has address 'x': give it one of IPv4 or of IPv6",
    }
    (key,) = rules(switch) - {"ACL_TABLE_TYPE|HEDDLE", "ACL_TABLE|HEDDLE"}
    assert switch.connect(schema.CONFIG_DB).hgetall(key) == {
        "PRIORITY": "8000",
        "SRC_IPV6": "fd00::1/128",
        "DST_IPV6": "fd09::1/128",
        "NEXT_HEADER": "17",
        "REDIRECT_ACTION": "10.1.1.1@Ethernet4",
    }


def test_a_restarted_agent_takes_over_what_is_there(switch: SonicSwitch) -> None:
    """The next agent finds entries, shared groups, their choices, and a withdrawn overlay."""
    group = Group(SPINES[0], SPINES[1], (uplink(3),))
    assert not switch.fib.apply(sets((0, group), (1, group), (2, Group(SPINES[2]))))
    switch.links(DOWN, {group: Choice.BACKUP})
    before = rules(switch)
    again = switch.open()
    held = again.read_back()
    assert held.keys() == {pair(0), pair(1), pair(2)}
    assert held[pair(0)] is held[pair(1)]
    assert held[pair(0)].like(group)
    assert again.addresses == {nic: ADDRESSES[nic] for nic in ("nic0", "far0", "far1", "far2")}
    again.refresh()
    assert rules(switch) == before
    assert leaves(switch, 0) == SPINES[1]
    again.steer(Steering({held[pair(0)]: Choice.PRIMARY}, frozenset()))
    switch.orchagent.down = set()
    assert leaves(switch, 1) == SPINES[0]
    assert again.set_overlay(withdrawn=True) == ""
    assert switch.open().withdrawn


def test_what_an_agent_left_half_done_is_put_right(switch: SonicSwitch) -> None:
    """Of two rules for a match the newer one stays, and a note without a rule is removed.

    A rule without a note is not ours and stays.
    """
    assert not switch.fib.apply(sets((0, Group(SPINES[0]))))
    config, state = switch.connect(schema.CONFIG_DB), switch.connect(schema.STATE_DB)
    (name,) = state.hkeys(schema.NOTES_KEY)
    for other in ("e7", "stranger"):
        config.hset(f"{schema.RULES}{other}", mapping=config.hgetall(f"{schema.RULES}{name}"))
    for other in ("e7", "e9"):
        state.hset(schema.NOTES_KEY, other, state.hget(schema.NOTES_KEY, name))
    again = switch.open()
    assert set(again.read_back()) == {pair(0)}
    assert state.hkeys(schema.NOTES_KEY) == ["e7"]
    found = {key for key in rules(switch) if key.startswith(schema.RULES)}
    assert found == {f"{schema.RULES}e7", f"{schema.RULES}stranger"}
    assert not again.apply(sets((1, Group(SPINES[1]))))
    assert set(state.hkeys(schema.NOTES_KEY)) == {"e7", "e10"}


def test_rules_of_others_are_left_alone(switch: SonicSwitch) -> None:
    """A rule of another table, and one of our table that we have not made, stay."""
    config = switch.connect(schema.CONFIG_DB)
    config.hset("ACL_TABLE|DATAACL", mapping={"type": "L3", "ports@": "", "stage": "ingress"})
    foreign = {"ACL_RULE|DATAACL|e1", f"{schema.RULES}mine"}
    for key in foreign:
        config.hset(key, mapping={"PRIORITY": "1", "PACKET_ACTION": "FORWARD"})
    assert not switch.fib.apply(sets((0, Group(SPINES[0]))))
    assert not switch.fib.apply(Batch(deletes=[pair(0)]))
    switch.fib.refresh()
    switch.open().refresh()
    assert foreign <= rules(switch)
    assert len(rules(switch)) == len(foreign) + 3


def test_what_others_remove_is_put_back(switch: SonicSwitch) -> None:
    """Removed rules, table and type come back as they were, including groups on their backup."""
    group = Group(SPINES[0], SPINES[1])
    assert not switch.fib.apply(sets((0, group)))
    switch.links(DOWN, {group: Choice.BACKUP})
    config = switch.connect(schema.CONFIG_DB)
    before = {key: config.hgetall(key) for key in rules(switch)}
    config.delete(*before)
    switch.fib.refresh()
    assert {key: config.hgetall(key) for key in rules(switch)} == before


def test_rules_follow_the_address_of_a_link(switch: SonicSwitch) -> None:
    """Rules lead to the new address of a link, also if it had none when the agent started."""
    group = Group(SPINES[0])
    assert not switch.fib.apply(sets((0, group), (1, Group(SPINES[1]))))
    again = switch.open(without=SPINES[0])
    (held,) = (group for match, group in again.read_back().items() if match == pair(0))
    again.steer(Steering({held: Choice.PRIMARY}, frozenset()))
    assert leaves(switch, 1) == SPINES[1]
    config = switch.connect(schema.CONFIG_DB)
    for address in ("10.1.0.7", "10.1.0.9"):
        again.plug(SPINES[0].port, Exit("Ethernet0", address))
        again.refresh()
        led = [config.hget(key, schema.REDIRECT) for key in config.keys(f"{schema.RULES}*")]
        assert sorted(led) == [f"{address}@Ethernet0", "10.1.1.1@Ethernet4"]


def test_a_rule_without_an_arp_entry_fails_alone(switch: SonicSwitch) -> None:
    """A rule that is inactive for lack of ARP fails and says so; its entry forwards as before.

    Other entries are programmed.
    """
    assert not switch.fib.apply(sets((0, Group(SPINES[3]))))
    switch.orchagent.conduct.arp.discard(EXITS[SPINES[2].port].redirect)
    (failure,) = switch.fib.apply(sets((0, Group(SPINES[2])), (1, Group(SPINES[1]))))
    assert (failure.match, failure.reason) == (pair(0), Reason.BACKEND)
    assert "ARP" in failure.message
    assert (leaves(switch, 0), leaves(switch, 1)) == (SPINES[3], SPINES[1])
    assert len(switch.connect(schema.STATE_DB).hkeys(schema.NOTES_KEY)) == 2


def test_the_room_is_read_from_the_switch(switch: SonicSwitch) -> None:
    """On a full chip new entries fail with TABLE_FULL; others can be replaced and deleted."""
    switch.orchagent.conduct.room = 3
    switch.orchagent._tell_room()
    fib = switch.open()
    assert fib.table_size == 3
    failures = fib.apply(sets(*((number, Group(SPINES[0])) for number in range(4))))
    assert [failure.reason for failure in failures] == [Reason.TABLE_FULL]
    assert not fib.apply(sets(*((number, Group(SPINES[1])) for number in range(3))))
    assert [leaves(switch, number) for number in range(3)] == [SPINES[1]] * 3
    assert not fib.apply(Batch(deletes=[pair(0)]))
    assert not fib.apply(sets((3, Group(SPINES[2]))))
    assert leaves(switch, 3) == SPINES[2]


def test_room_that_others_have_taken_is_no_room(switch: SonicSwitch) -> None:
    """If the chip has less room than its counters say, what it refuses fails with TABLE_FULL."""
    switch.orchagent.conduct.room = 1
    failures = switch.fib.apply(sets((0, Group(SPINES[0])), (1, Group(SPINES[0]))))
    assert [failure.reason for failure in failures] == [Reason.TABLE_FULL]
    assert len(switch.fib.read_back()) == 1


def test_a_switch_that_says_nothing_is_not_waited_for_for_ever(switch: SonicSwitch) -> None:
    """Rules without an answer fail in time and are taken back, so none takes effect later."""
    assert not switch.fib.apply(sets((0, Group(SPINES[3]))))
    impatient = switch.open(patience=0.2)
    switch.orchagent.conduct.awake.clear()
    failures = impatient.apply(sets((0, Group(SPINES[1])), (1, Group(SPINES[1]))))
    assert {failure.match for failure in failures} == {pair(0), pair(1)}
    assert all("says nothing" in failure.message for failure in failures)
    switch.orchagent.conduct.awake.set()
    assert leaves(switch, 0) == SPINES[3]
    assert len(switch.orchagent.rules) == 1


def test_a_repair_does_not_wait_for_a_batch(switch: SonicSwitch) -> None:
    """While orchagent sleeps over a batch, no rule, old or new, leads to a lost next hop."""
    old, new = Group(SPINES[0], SPINES[1]), Group(SPINES[0])
    assert not switch.fib.apply(sets((0, old)))
    switch.orchagent.settle()
    switch.orchagent.conduct.awake.clear()
    batch = threading.Thread(target=lambda: switch.fib.apply(sets((1, new), (2, old))))
    batch.start()
    config = switch.connect(schema.CONFIG_DB)

    def actions() -> list[str | None]:
        keys = [key for key in rules(switch) if key.startswith(schema.RULES)]
        return sorted(config.hget(key, "REDIRECT_ACTION") or "" for key in keys)

    wait_until(lambda: len(actions()) == 3, "all rules of the batch")
    assert isinstance(switch.fib, Avoiding)
    switch.fib.avoid({SPINES[0].port})
    assert batch.is_alive()
    assert actions() == ["", "10.1.1.1@Ethernet4", "10.1.1.1@Ethernet4"]
    switch.orchagent.conduct.awake.set()
    batch.join()
    switch.links(DOWN, {old: Choice.BACKUP, new: Choice.UNDERLAY})
    assert (leaves(switch, 0), leaves(switch, 2)) == (SPINES[1], SPINES[1])
    assert leaves(switch, 1) in SPINES[1:]
    switch.links(frozenset(), {old: Choice.PRIMARY, new: Choice.PRIMARY})
    assert {leaves(switch, number) for number in range(3)} == {SPINES[0]}


def test_a_redis_that_goes_away_fails_what_it_did_not_take(switch: SonicSwitch) -> None:
    """Without Redis batches fail, and repairs are made once it is back."""
    group = Group(SPINES[0], SPINES[1])
    assert not switch.fib.apply(sets((0, group)))
    switch.server.kill()
    (failure,) = switch.fib.apply(sets((1, Group(SPINES[2]))))
    assert (failure.match, failure.reason) == (pair(1), Reason.BACKEND)
    assert "Redis does not answer" in failure.message
    switch.fib.steer(Steering({group: Choice.BACKUP}, DOWN))
    assert not switch.fib.read_back()
    assert "Redis" in switch.fib.set_overlay(withdrawn=True)
    switch.fib.refresh()
    switch.server.start()
    switch.play()
    switch.fib.refresh()
    assert leaves(switch, 0) == SPINES[1]
    assert not switch.fib.apply(sets((1, Group(SPINES[2]))))
    assert leaves(switch, 1) == SPINES[2]


def test_a_switch_that_cannot_redirect_is_refused(switch: SonicSwitch) -> None:
    """A switch that cannot redirect, or whose Redis does not answer, is refused with the reason."""
    state = switch.connect(schema.STATE_DB)
    state.hset(schema.CAPABILITY_KEY, "action_list", "PACKET_ACTION")
    with pytest.raises(UnavailableSwitchError, match="may redirect"):
        switch.open()
    switch.server.kill()
    with pytest.raises(UnavailableSwitchError, match="Redis does not answer"):
        switch.open()


def test_the_agent_programs_the_switch_that_it_runs_on(switch: SonicSwitch) -> None:
    """``--fib sonic`` binds its table to all links; without Redis it says so and exits with 2."""
    fib_linux.needed()
    fib_linux.sweep()
    space = fib_linux.Space(f"hdfib.{os.getpid()}.{secrets.token_hex(2)}.sonic")
    agent = str(Path(sys.executable).with_name("heddle-agent"))
    command = [
        *("ip", "netns", "exec", space.name, agent, "run", "--fabric=fabrics/f1", "--switch=leaf0"),
        *("--controller=127.0.0.1:1", "--fib=sonic", "--interfaces=alias", "--log-format=json"),
    ]
    switch.connect(schema.CONFIG_DB).flushdb()
    try:
        space.ip(
            "link add Ethernet0 type veth peer name far0",
            "addr add 10.1.0.0/31 dev Ethernet0",
            "link set Ethernet0 alias spine0,0,400 up",
            "link add Ethernet4 type veth peer name far1",
            "link set Ethernet4 alias nic0,0,400 up",
        )
        away = subprocess.run(
            [*command, "--sonic-redis=/nowhere/redis.sock"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (away.returncode, "Redis does not answer" in away.stderr) == (2, True), away.stderr
        config = switch.connect(schema.CONFIG_DB)
        own = f"--sonic-redis={switch.server.socket}"
        with subprocess.Popen([*command, own], stderr=subprocess.PIPE, text=True) as running:
            assert running.stderr is not None
            started = next(line for line in running.stderr if "agent started" in line)
            assert '"fib": "sonic"' in started
            assert config.hget(schema.TABLE_KEY, "ports@") == "Ethernet0,Ethernet4"
            running.terminate()
            running.communicate()
        assert running.returncode == 0
        assert config.exists(schema.TABLE_KEY)
    finally:
        space.remove()
