"""Agents learn from the controller whom to notify of lost links, and with which keys."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from grpc import aio

from heddle.v1 import agent_pb2 as pb
from heddle.v1 import common_pb2, fabric_pb2
from heddle_agent.agent import Agent
from heddle_agent.fib import MemoryFib, NextHop
from heddle_agent.peers import PeerConfiguration, UdpNetwork
from heddle_agent.watch import ManualLinks
from heddle_controller.model.errors import InputError
from heddle_controller.serve.agents.introductions import KeySchedule, read_secret
from heddle_controller.telemetry.metrics import Telemetry
from tests.support.operating import heddle
from tests.support.serving import Serving, serving, violations
from tests.support.store_samples import clos
from tests.support.waiting import until

FABRIC = clos()  # l0 and l1 below s0 and s1


class Session:
    """The agent's end of a session, with the peer configurations that it received."""

    def __init__(self, s: Serving, switch: str, address: str) -> None:
        self.call = s.agents.Session()
        self.switch, self.address = switch, address
        self.told: list[pb.PeerConfiguration] = []

    async def begin(self) -> None:
        """Introduce the agent, and listen from then on."""
        parameters = pb.SessionParameters(
            fabric="fabrics/f1",
            switch=self.switch,
            instance_id="i",
            peer_address=self.address,
        )
        await self.call.write(pb.AgentMessage(session_parameters=parameters))
        self.listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for message in self.call:
            if message.WhichOneof("message") == "peer_configuration":
                self.told.append(message.peer_configuration)

    def peers(self) -> dict[str, str]:
        """Return the address of each peer by the newest configuration; empty before the first."""
        return {peer.switch: peer.address for peer in self.told[-1].peers} if self.told else {}

    async def report(self, reason: str, *, full: bool = False, **ratios: float) -> None:
        """Report the link between l0 and s0; without a reason, report no link."""
        report = pb.LinkStateReport(full=full)
        if reason:
            well = reason in {"grey", "slow"}
            report.links.add(
                link=common_pb2.LinkRef(source="l0", target="s0", key="0"),
                state=common_pb2.STATE_UP if well else common_pb2.STATE_DOWN,
                reason=reason,
                **ratios,
            )
        await self.call.write(pb.AgentMessage(link_state=report))


async def test_neighbours_are_told_of_each_other(tmp_path: Path) -> None:
    """Each switch gets the addresses of the switches that it has links with, and the same keys.

    All are told again as soon as an agent shows that the fabric has changed.
    """
    async with serving(tmp_path) as s:
        await s.put_fabric(FABRIC)
        sessions = [
            Session(s, switch, f"10.0.0.{number}:7402")
            for number, switch in enumerate(("l0", "l1", "s0"), 1)
        ]
        for session in sessions:
            await session.begin()
        leaf, other, spine = sessions
        await until(lambda: leaf.peers().get("s0"))
        await until(lambda: all(spine.peers().values()) and spine.peers())
        await until(lambda: other.told)
        assert leaf.peers() == {"s0": "10.0.0.3:7402", "s1": ""}
        assert spine.peers() == {"l0": "10.0.0.1:7402", "l1": "10.0.0.2:7402"}
        assert {tuple(one.told[-1].keys) for one in sessions} == {tuple(leaf.told[0].keys)}
        assert len(leaf.told[0].keys) == 3
        other.call.cancel()
        moved = Session(s, "l1", "10.0.0.9:7402")
        await moved.begin()
        await until(lambda: spine.peers()["l1"] == "10.0.0.9:7402")
        await s.put_fabric(clos(spines=3))
        await Session(s, "s2", "").begin()
        await until(lambda: leaf.peers() == {"s0": "10.0.0.3:7402", "s1": "", "s2": ""})


async def test_an_agent_without_peer_notices_is_left_alone(tmp_path: Path) -> None:
    """An agent without peer notices gets no peers, and its neighbours get no address of it."""
    async with serving(tmp_path) as s:
        await s.put_fabric(FABRIC)
        quiet, spine = Session(s, "l0", ""), Session(s, "s0", "[fd00::1]:7402")
        await quiet.begin()
        await spine.begin()
        await until(lambda: spine.told)
        assert spine.peers() == {"l0": "", "l1": ""}
        assert quiet.told == []


@pytest.mark.parametrize("address", ["spine0:7402", "10.0.0.1", "10.0.0.1:0", "0.0.0.0:7"])
async def test_an_address_that_nobody_can_use_is_refused(tmp_path: Path, address: str) -> None:
    """An unusable address is refused by the name of its field."""
    async with serving(tmp_path) as s:
        await s.put_fabric(FABRIC)
        session = Session(s, "l0", address)
        await session.begin()
        with pytest.raises(aio.AioRpcError) as caught:
            await session.listening
    assert list(violations(caught.value)) == ["session_parameters.peer_address"]


async def test_agents_meet_through_the_controller(tmp_path: Path) -> None:
    """Real agents get peers and keys, and tell each other of a lost link without a controller."""
    async with AsyncExitStack() as stack:
        s = await stack.enter_async_context(serving(tmp_path))
        await s.put_fabric(FABRIC)
        links = {name: neighbours(name) for name in ("l0", "l1", "s0", "s1")}
        agents = {name: agent(name, s.api.port, links[name]) for name in links}
        running = [asyncio.create_task(one.run()) for one in agents.values()]
        met = [one.peer_notices for one in agents.values() if one.peer_notices]
        await until(lambda: [notices.introduced for notices in met] == [2] * 4)
        await stack.aclose()
        links["s0"].down("l1")
        lost = {name: one.forwarding.table.down for name, one in agents.items()}
        assert not any(lost.values())
        await until(lambda: all(one.forwarding.table.down for one in agents.values()))
        assert len({one.forwarding.table.down for one in agents.values()}) == 1
        await asyncio.gather(*(one.stop() for one in agents.values()))
        await asyncio.gather(*running)


def neighbours(switch: str) -> ManualLinks:
    """Return the links of a switch of the sample fabric to other switches."""
    others = ("s0", "s1") if switch.startswith("l") else ("l0", "l1")
    return ManualLinks(switch, [NextHop(other) for other in others])


def agent(switch: str, port: int, links: ManualLinks) -> Agent:
    """Return a real agent that takes peer notices on a free port."""
    return Agent(
        fabric="fabrics/f1",
        switch=switch,
        controllers=[f"127.0.0.1:{port}"],
        fib=MemoryFib(switch, links.next_hops),
        links=links,
        peer_configuration=PeerConfiguration(UdpNetwork("127.0.0.1:0")),
    )


async def test_unwell_links_are_counted(tmp_path: Path) -> None:
    """Gauges count grey, slow and flap-damped links, and no longer once the session has ended."""
    async with serving(tmp_path) as s:
        await s.put_fabric(FABRIC)
        session = Session(s, "l0", "")
        await session.begin()
        none = {"grey": 0.0, "slow": 0.0, "flap-damped": 0.0}
        for reason in ("grey", "flap-damped", "slow", "carrier", "grey"):
            await session.report(reason)
            expected = {**none, reason: 1.0} if reason in none else none
            await until(partial(_is, s.telemetry, expected))
        await session.report("", full=True)
        await until(lambda: unwell(s.telemetry)["grey"] == 0.0)
        await session.report("grey")
        await until(lambda: unwell(s.telemetry)["grey"] == 1.0)
        session.call.cancel()
        await until(lambda: unwell(s.telemetry)["grey"] == 0.0)


async def test_what_is_wrong_with_a_link_is_listed(tmp_path: Path) -> None:
    """A link's condition is the worse of what both ends report, until their sessions end.

    It is listed with the links that are not up.
    """
    async with serving(tmp_path) as s:
        await s.put_fabric(FABRIC)
        sessions = [Session(s, switch, "") for switch in ("l0", "s0")]
        for session in sessions:
            await session.begin()
        await sessions[0].report("grey", loss_ratio=0.02)
        await sessions[1].report("slow", rate_ratio=0.25)
        await until(partial(_is, s.telemetry, {"grey": 1.0, "slow": 1.0, "flap-damped": 0.0}))
        request = fabric_pb2.ListLinksRequest(parent="fabrics/f1", not_up_only=True)
        (link,) = (await s.fabrics.ListLinks(request)).links
        assert {link.source, link.target} == {"l0", "s0"}
        assert link.oper_state == common_pb2.STATE_UP
        assert (link.condition, link.loss_ratio, link.rate_ratio) == ("grey", 0.02, 0.25)
        every = (await s.fabrics.ListLinks(fabric_pb2.ListLinksRequest(parent="fabrics/f1"))).links
        assert [one for one in every if one.condition] == [link]
        words = ("--server", f"127.0.0.1:{s.api.port}", "fabric", "show")
        shown = await asyncio.to_thread(heddle, *words)
        assert "grey, loses 2.00%, 25% of its speed" in shown.out
        examined = await asyncio.to_thread(heddle, *words[:2], "doctor")
        assert "links: l0,s0,0 is grey." in examined.out
        assert "heddle drain l0,s0,0;" in examined.out
        for session in sessions:
            session.call.cancel()
        await until(partial(_is, s.telemetry, {"grey": 0.0, "slow": 0.0, "flap-damped": 0.0}))
        assert not (await s.fabrics.ListLinks(request)).links


def _is(telemetry: Telemetry, expected: dict[str, float]) -> bool:
    return unwell(telemetry) == expected


def unwell(telemetry: Telemetry) -> dict[str, float | None]:
    """Return the gauges of unwell links by reason."""
    return {
        reason: telemetry.registry.get_sample_value(
            "heddle_unwell_links", {"fabric": "f1", "reason": reason}
        )
        for reason in ("grey", "slow", "flap-damped")
    }


def test_keys_of_replicas_agree_and_rotate() -> None:
    """Keys follow from secret, fabric and period, and each is known one period before it signs."""
    schedule, replica = KeySchedule(b"s" * 32, 100.0), KeySchedule(b"s" * 32, 100.0)
    now, following = schedule.keys("f1", 250.0), schedule.keys("f1", 300.0)
    assert replica.keys("f1", 299.9) == now
    assert following[0] == now[1]
    assert following[2] == now[0]
    others = [schedule.keys("f2", 250.0), KeySchedule(b"t" * 32, 100.0).keys("f1", 250.0)]
    assert all(set(now).isdisjoint(other) for other in others)
    assert "sss" not in repr(schedule)


def test_the_secret_is_made_once_and_kept(tmp_path: Path) -> None:
    """The secret is made once, is readable by its owner alone, and is found by later starts."""
    path = tmp_path / "secret"
    secret = read_secret(path)
    assert len(secret) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_secret(path) == secret


def test_a_secret_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    """A secret that is too short or cannot be made is refused with the reason."""
    short = tmp_path / "short"
    short.write_text("abc\n")
    with pytest.raises(InputError, match="short holds 3 bytes"):
        read_secret(short)
    with pytest.raises(InputError, match="cannot be made"):
        read_secret(tmp_path / "no" / "folder")


def test_the_command_ends_with_the_reason(tmp_path: Path) -> None:
    """A bad secret ends ``serve`` with status 2 and one line, with the setting and the reason."""
    short = tmp_path / "short"
    short.write_text("abc\n")
    done = subprocess.run(
        [
            Path(sys.executable).with_name("heddle-controller"),
            "serve",
            "--listen=127.0.0.1:0",
            "--metrics-port=0",
            f"--store=sqlite:///{tmp_path / 's.sqlite3'}",
            f"--peer-key-secret={short}",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "peer_key_secret" in line
    assert "short holds 3 bytes" in line
