"""Withdrawal of the overlay, from the operator's command down to the packets of switches."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import orjson

from heddle_agent.agent import Agent
from heddle_agent.conformance import ADDRESSES
from heddle_agent.fib import Batch, Fib, Group, MemoryFib, NextHop, Packet
from heddle_agent.fib.linux import LinuxFib
from heddle_agent.session import Backoff, SessionOptions
from heddle_agent.watch import ManualLinks
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import parse_fabric, save_fabric_file
from tests.support import fib_linux
from tests.support.agent_worlds import ROCE, SPINES, SWITCH
from tests.support.fib_linux import CABLES, LinuxBench
from tests.support.operating import Controller, controlling
from tests.support.ports import free_port
from tests.support.redis_server import RedisServer
from tests.support.store_samples import clos
from tests.support.waiting import PATIENCE, until

FLOWS = "".join(f"f{n},n0.{n},n1.{n},400,j,\n" for n in range(2))
QUICK = SessionOptions(backoff=Backoff(first=0.02, longest=0.1))


@dataclass
class Switch:
    """One switch with its FIB; its agents come and go."""

    name: str
    hops: list[NextHop]
    fib: Fib

    @asynccontextmanager
    async def agent(self, *addresses: str) -> AsyncIterator[Agent]:
        """Run an agent of the switch, connected to all the addresses."""
        agent = Agent(
            fabric="fabrics/f1",
            switch=self.name,
            controllers=addresses,
            fib=self.fib,
            links=ManualLinks(self.name, self.hops),
            options=QUICK,
        )
        running = asyncio.create_task(agent.run())
        try:
            await until(lambda: agent.sessions.connected == len(addresses))
            yield agent
        finally:
            await agent.stop()
            with suppress(asyncio.CancelledError):
                await running


def switches(fabric: Fabric) -> dict[str, Switch]:
    """Return all switches of a fabric, with tables in memory."""
    ids, links = fabric.structure.nodes.ids, fabric.structure.links
    hops: dict[str, list[NextHop]] = {name: [] for name in ids if not name.startswith("n")}
    for a, b, key in zip(links.a.tolist(), links.b.tolist(), links.key, strict=True):
        for here, there in ((ids[a], ids[b]), (ids[b], ids[a])):
            if here in hops:
                hops[here].append(NextHop(there, str(key)))
    return {name: Switch(name, ways, MemoryFib(name, ways)) for name, ways in hops.items()}


async def furnish(controller: Controller, folder: Path, fabric: Fabric, flows: str = FLOWS) -> None:
    """Import a fabric, and put flows that a hash may send over one uplink."""
    save_fabric_file(fabric, folder / "fabric.json")
    (folder / "flows.csv").write_text(f"flow,src,dst,gbps,job,phase\n{flows}")
    for words in (
        ("fabric", "import", folder / "fabric.json", "--name", "f1"),
        ("demand", "put", "d1", folder / "flows.csv"),
    ):
        done = await controller.does(*words)
        assert done.code == 0, done.err


def answered(switch: Switch) -> list[str]:
    """Return where the switch sends each flow, or "hash" if no entry says so."""
    fib = switch.fib
    assert isinstance(fib, MemoryFib)
    found = []
    for n in range(2):
        packet = Packet(f"n0.{n}", f"n1.{n}", 50_000)
        hop = fib.lookup(packet)
        found.append(hop.node if hop and not fib.withdrawn and fib.read_back() else "hash")
    return found


async def overlay(controller: Controller) -> dict[str, object]:
    """Return the overlay's state as the operator sees it."""
    shown = await controller.does("overlay", "show", "--json")
    assert shown.code == 0, shown.err
    return dict(shown.json)


async def agents_become(controller: Controller, count: int) -> None:
    """Wait until the controller has sessions with so many agents."""
    async with asyncio.timeout(PATIENCE):
        while (await overlay(controller))["agent_count"] != count:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)


async def test_the_whole_fabric_on_the_underlay_and_back(tmp_path: Path) -> None:
    """One command withdraws the overlay and one restores it; absent agents learn it on return.

    Plans and entries go on changing meanwhile, without effect on packets.
    """
    fabric = clos()
    fleet = switches(fabric)
    leaf = fleet["l0"]
    async with controlling(tmp_path) as controller:
        await furnish(controller, tmp_path, fabric)
        async with (
            leaf.agent(controller.address) as first,
            fleet["s0"].agent(controller.address),
            fleet["s1"].agent(controller.address),
        ):
            async with fleet["l1"].agent(controller.address):
                await until(lambda: first.held.entries)
                planned = answered(leaf)
                assert sorted(planned) == ["s0", "s1"]
                done = await controller.does("overlay", "withdraw")
                assert done.code == 0, done.err
                assert "WITHDRAWN" in done.out
                assert "4 of 4" in done.out
                assert answered(leaf) == ["hash", "hash"]
                assert first.held.entries
                shown = await controller.does("show", "plan")
                assert "OVERLAY WITHDRAWN since" in shown.out
            await agents_become(controller, 3)
            # A link is drained meanwhile: entries follow the new plan, without effect.
            done = await controller.does("fabric", "link", "l1,s0", "down")
            assert done.code == 0, done.err
            await until(lambda: {g.primary.node for g in leaf.fib.read_back().values()} <= {"s1"})
            assert answered(leaf) == ["hash", "hash"]
            done = await controller.does("overlay", "restore")
            assert done.code == 0, done.err
            assert set(answered(leaf)) <= {"s1", "hash"}
            assert "WITHDRAWN" not in (await controller.does("show", "plan")).out
            assert fleet["l1"].fib.withdrawn  # its agent was away
            async with fleet["l1"].agent(controller.address):
                await until(lambda: not fleet["l1"].fib.withdrawn)
        trail = await controller.does("audit", "list", "--json")
        done_by = [orjson.loads(line)["action"] for line in trail.out.splitlines()]
        assert done_by.count("set_overlay") == 2


async def test_the_switch_survives_the_controller(tmp_path: Path) -> None:
    """A restarted controller keeps the overlay withdrawn, in metrics and for new agents too."""
    fabric = clos()
    fleet = switches(fabric)
    async with controlling(tmp_path) as controller:
        await furnish(controller, tmp_path, fabric)
        assert (await controller.does("overlay", "withdraw")).code == 0
        controller.process.kill()
    async with controlling(tmp_path) as controller:
        assert (await overlay(controller))["state"] == "OVERLAY_STATE_WITHDRAWN"
        async with fleet["l0"].agent(controller.address):
            await until(lambda: fleet["l0"].fib.withdrawn)
        port, line = controller.metrics_port, 'heddle_overlay_withdrawn{fabric="f1"} 1.0'
        end = time.monotonic() + PATIENCE
        while line not in (text := await asyncio.to_thread(_metrics, port)):
            assert time.monotonic() < end, f"metrics never told {line}:\n{text}"


def _metrics(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return str(answer.read(), "utf-8")


@contextmanager
def kernel() -> Iterator[LinuxBench]:
    """A switch in a real kernel, with the linux backend."""
    with fib_linux.world() as world:
        bench = LinuxBench(world)
        try:
            yield bench
        finally:
            bench.fib.close()


def one_pair() -> Fabric:
    """Return a fabric with the bench's switch: one NIC on either side of four spines."""
    nodes: list[dict[str, object]] = [
        {"id": nic, "kind": "nic", "host": nic, "address": ADDRESSES[nic]}
        for nic in ("nic0", "far0")
    ]
    nodes += [{"id": leaf, "kind": "leaf"} for leaf in (SWITCH, "leaf1")]
    nodes += [{"id": hop.node, "kind": "spine"} for hop in SPINES]
    ends = [("nic0", SWITCH), ("far0", "leaf1")]
    ends += [(leaf, hop.node) for leaf in (SWITCH, "leaf1") for hop in SPINES]
    edges = [{"source": a, "target": b, "key": 0, "gbps": 400} for a, b in ends]
    return parse_fabric({"graph": {"name": "f1"}, "nodes": nodes, "edges": edges}, "test")


async def test_on_a_kernel(tmp_path: Path) -> None:
    """Real packets follow an entry, but the hash while it is withdrawn and after it has expired.

    Entries stay without a controller for as long as the last one said: the first says an hour.
    """
    address = ("--listen", f"127.0.0.1:{free_port()}")
    with kernel() as bench:
        packets = [Packet("nic0", "far0", port, ROCE) for port in range(100, 108)]
        switch = Switch(SWITCH, list(SPINES), bench.fib)
        hashed = await asyncio.to_thread(sent, bench, packets)
        async with controlling(tmp_path, *address, "--entry-ttl-seconds", "3600") as controller:
            await furnish(controller, tmp_path, one_pair(), "f0,nic0,far0,400,j,\n")
            async with switch.agent(controller.address) as agent:
                await until(lambda: agent.held.entries)
                planned = await asyncio.to_thread(sent, bench, packets)
                assert len(set(planned)) == 1
                assert (await controller.does("overlay", "withdraw")).code == 0
                assert await asyncio.to_thread(sent, bench, packets) == hashed
                assert (await controller.does("overlay", "restore")).code == 0
                assert await asyncio.to_thread(sent, bench, packets) == planned
                await controller.ends(signal.SIGKILL)
                await until(lambda: not agent.sessions.connected)
                assert await asyncio.to_thread(sent, bench, packets) == planned
                async with controlling(tmp_path, *address, "--entry-ttl-seconds", "0.5") as last:
                    await until(lambda: agent.sessions.connected)
                    await last.ends(signal.SIGKILL)
                await until(lambda: not agent.held.entries)
                assert await asyncio.to_thread(sent, bench, packets) == hashed


def sent(bench: LinuxBench, packets: list[Packet]) -> list[NextHop | None]:
    """Return the uplink by which each packet leaves."""
    return [bench.where(packet) for packet in packets]


def test_a_restarted_agent_stands_as_before() -> None:
    """A restarted backend reads both the entries and the withdrawal from the kernel."""
    with kernel() as bench:
        packets = [Packet("nic0", "far0", port, ROCE) for port in range(100, 108)]
        hashed = sent(bench, packets)
        entry = {("nic0", "far0", 0, 0): Group(SPINES[2])}
        assert not bench.fib.apply(Batch(entry, addresses=ADDRESSES))
        assert bench.fib.set_overlay(withdrawn=True) == ""
        bench.fib.close()
        bench.fib = LinuxFib(SWITCH, CABLES, opener=bench.world.switch.netlink)
        assert bench.fib.withdrawn
        assert sent(bench, packets) == hashed
        assert bench.fib.set_overlay(withdrawn=False) == ""
        assert set(sent(bench, packets)) == {SPINES[2]}


async def test_over_replicas(tmp_path: Path) -> None:
    """Either replica takes the command, and both show the state and the same audit trail."""
    fabric = clos()
    leaf = switches(fabric)["l0"]
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    with RedisServer(tmp_path / "redis") as redis:
        async with (
            controlling(folders[0], "--store", redis.url) as one,
            controlling(folders[1], "--store", redis.url) as two,
        ):
            await furnish(one, tmp_path, fabric)
            async with leaf.agent(one.address, two.address):
                await until(leaf.fib.read_back, "entries")
                assert (await one.does("overlay", "withdraw")).code == 0
                await until(lambda: leaf.fib.withdrawn)
                for each in (one, two):
                    shown = await each.does("overlay", "show", "--json")
                    assert shown.json["state"] == "OVERLAY_STATE_WITHDRAWN"
                    assert shown.json["agent_count"] == 1
                assert (await two.does("overlay", "restore")).code == 0
                assert not leaf.fib.withdrawn
            marks = {(await each.does("audit", "verify")).out for each in (one, two)}
            assert len(marks) == 1
