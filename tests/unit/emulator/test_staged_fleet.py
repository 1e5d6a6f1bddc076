"""A fleet in virtual time: delayed notices, cut relays, and agents that hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from heddle_emulator.drill.cables import Cables
from heddle_emulator.fleet import StagedFleet
from heddle_emulator.fleet.relay import TcpRelay
from heddle_emulator.fleet.staged import TimedNetwork
from heddle_emulator.topology import clos
from heddle_emulator.traffic import flows_between
from heddle_emulator.walk import walk
from tests.support.waiting import PATIENCE, until

FABRIC = clos(leaves=4, spines=2, nics_per_leaf=2, nics_per_host=1)
FLOWS = flows_between(FABRIC, "shift", qps=16)
L0, S0 = (FABRIC.structure.index[name] for name in ("l0", "s0"))


@pytest.fixture
async def fleet() -> AsyncIterator[StagedFleet]:
    """Run agents of all switches that know each other and find no controller."""
    async with StagedFleet(FABRIC, name="fabrics/f", seed=1, notice=0.001, apart=["l0"]) as staged:
        agents = [agent.peer_notices for agent in staged.agents.values()]
        await until(lambda: all(d and d.peers and d.introduced == len(d.peers) for d in agents))
        await staged.notices.quiet()
        staged.notices.live = False
        yield staged


def _lost(fleet: StagedFleet) -> int:
    return len(walk(fleet.world, FLOWS, fleet.switches).lost)


def _down(fleet: StagedFleet, switch: str) -> int:
    """Return the number of links that a switch's agent believes to be down."""
    return len(fleet.agents[FABRIC.structure.index[switch]].forwarding.table.down)


async def test_what_is_not_seen_is_not_repaired(fleet: StagedFleet) -> None:
    """Packets are lost from the cut until both ends look. Notices arrive later."""
    (row,) = FABRIC.find_links("l0", "s0")
    fleet.change([row], up=False)
    assert _lost(fleet)
    await fleet.see([row])
    assert _down(fleet, "l0") == _down(fleet, "s0") == 1
    assert _down(fleet, "l1") == 0
    fleet.notices.now = 0.0005
    assert fleet.notices.deliver() == 0
    fleet.notices.now = fleet.notices.next_due
    assert fleet.notices.now == pytest.approx(0.001)
    assert fleet.notices.deliver() > 0
    assert _down(fleet, "l1") == 1


async def test_a_part_of_the_ends_may_look(fleet: StagedFleet) -> None:
    """Each end sees the loss by itself."""
    (row,) = FABRIC.find_links("l0", "s0")
    fleet.change([row], up=False)
    await fleet.see([row], {S0})
    assert (_down(fleet, "s0"), _down(fleet, "l0")) == (1, 0)


async def test_who_hangs_sees_nothing_but_the_kernel_does(fleet: StagedFleet) -> None:
    """The table avoids dead next hops, but the agent reports nothing until it goes on."""
    (row,) = FABRIC.find_links("l0", "s0")
    fleet.hang(L0)
    fleet.change([row], up=False)
    await fleet.see([row], {L0})
    walked = walk(fleet.world, FLOWS, fleet.switches)
    assert not (walked.last[walked.lost] == L0).any()
    assert fleet.notices.next_due == float("inf")
    await fleet.resume(L0)
    assert fleet.notices.next_due < float("inf")


async def test_notices_go_around_who_cannot_be_reached(fleet: StagedFleet) -> None:
    """A leaf cut off from the switch that saw the loss hears of it later from others."""
    (row,) = FABRIC.find_links("l0", "s0")
    fleet.notices.cut.add(frozenset(("s0", "l1")))
    fleet.change([row], up=False)
    await fleet.see([row])
    heard = []
    while (due := fleet.notices.next_due) < float("inf"):
        fleet.notices.now = due
        fleet.notices.deliver()
        heard.append((due, _down(fleet, "l1")))
    assert [at for at, _ in heard[:2]] == pytest.approx([0.001, 0.002])
    assert [count for _, count in heard[:2]] == [0, 1]


async def test_who_starts_anew_hears_from_its_peers_what_was_lost(fleet: StagedFleet) -> None:
    """An agent knows of a remote link that was lost while it was away, once it has started."""
    await fleet.crash(L0)
    (row,) = FABRIC.find_links("l2", "s0")
    fleet.change([row], up=False)
    await fleet.see([row])
    await fleet.start(L0, PATIENCE)
    assert _down(fleet, "l0") == 1


async def test_who_cannot_reach_a_peer_starts_without_it(fleet: StagedFleet) -> None:
    """A peer that cannot be reached is not waited for."""
    await fleet.crash(L0)
    fleet.notices.cut.add(frozenset(("l0", "s0")))
    await fleet.start(L0, PATIENCE)
    notices = fleet.agents[L0].peer_notices
    assert notices is not None
    assert notices.introduced == 1


async def test_an_agent_that_comes_back_knows_what_its_links_are(fleet: StagedFleet) -> None:
    """A crashed agent sees nothing. After its start it sees its links as they are."""
    (row,) = FABRIC.find_links("l0", "s0")
    await fleet.crash(S0)
    fleet.change([row], up=False)
    await fleet.see([row], {L0})
    await fleet.start(S0, 20)
    assert _down(fleet, "s0") == 1


async def test_what_agents_say_by_themselves_has_no_moment() -> None:
    """Only datagrams that are sent because of an event are carried, if they can be."""
    network, heard = TimedNetwork(0.5), list[str]()
    network.attach("b").open(lambda datagram, source: heard.append(f"{source} {datagram.decode()}"))
    network.live = False
    network.put("a", "b", b"by the clock")
    with network.speaking():
        network.put("a", "b", b"because")
        network.put("c", "b", b"cut")
    network.now = network.next_due
    network.cut.add(frozenset(("b", "c")))
    with network.speaking():
        network.put("c", "b", b"too late")
    network.deliver()
    assert heard == ["a because", "c cut"]
    assert network.next_due == float("inf")


async def test_a_relay_can_be_cut_and_aimed_anew() -> None:
    """Connections end when the relay is cut, and none is made before it is joined again."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()

    async def echo(address: str) -> bytes:
        reader, writer = await asyncio.open_connection(*address.rsplit(":", 1))
        try:
            writer.write(b"hello\n")
            return await asyncio.wait_for(reader.readline(), PATIENCE)
        except OSError:
            return b""
        finally:
            writer.transport.abort()

    async with server, TcpRelay() as relay:
        assert await echo(relay.address) == b""
        relay.target = f"{host}:{port}"
        assert await echo(relay.address) == b"hello\n"
        await relay.cut()
        assert await echo(relay.address) == b""
        relay.join()
        assert await echo(relay.address) == b"hello\n"


def test_cables_are_as_bad_as_the_worst_of_them() -> None:
    """Dark beats silent, and silent beats degraded. Without power a mended cable stays dark."""
    cables, row = Cables(), 3
    whole = cables.capacity(FABRIC)[2 * row]
    cables.degraded[row] = 100.0
    assert cables.capacity(FABRIC)[2 * row] == 100
    cables.silent[row] = 0.25
    assert cables.capacity(FABRIC)[2 * row + 1] == 75
    assert cables.lossy(FABRIC)[2 * row]
    cables.cut.add(row)
    cables.power([row], on=False)
    cables.power([row], on=False)
    assert not cables.carries(row)
    cables.mend([row])
    assert cables.dark(row)
    cables.power([row], on=True)
    assert cables.dark(row), "the switch at the other end has no power either"
    cables.power([row], on=True)
    assert cables.capacity(FABRIC)[2 * row] == whole
    assert cables.broken == []
