"""Planning for fabrics whose switches only hash: hosts report paths, and QPs get source ports."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import numpy as np
import pytest

from heddle.v1 import common_pb2, fabric_pb2
from heddle.v1 import plan_pb2 as pb
from heddle.v1.plan_pb2_grpc import PlanServiceStub
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import FIRST_SOURCE_PORT, Flows, concatenate
from heddle_controller.model.plan import arc_loads, utilization
from heddle_controller.serve.nic_ports import MOST_PORTS
from heddle_controller.serve.security.certificates import Tls as ServerTls
from heddle_emulator.client import Client
from heddle_emulator.fleet import Controller, Fleet
from heddle_emulator.switches import Switches
from heddle_emulator.topology import clos, hashing, three_tier
from heddle_emulator.traffic import flows_between
from heddle_emulator.walk import probed, walk
from tests.integration.certifying import Authority
from tests.support.serving import LOOPBACK, reason, refusal, serving, violations
from tests.support.waiting import PATIENCE

NAME = "fabrics/f1"
FABRIC = hashing(clos(leaves=4, spines=4, nics_per_leaf=4, nics_per_host=2))
SEED = 3


def across(fabric: Fabric, seed: int) -> Flows:
    """Return the flows of a random permutation of the NICs, with 4 QPs each."""
    return flows_between(fabric, "permutation", seed=seed, qps=4)


def with_addresses(fabric: Fabric) -> Fabric:
    """Return the fabric with an address at each end of each link, as parallel links have."""
    links = fabric.structure.links
    ends = tuple((f"198.18.0.{row}", f"198.19.0.{row}") for row in range(fabric.link_count))
    structure = replace(fabric.structure, links=replace(links, address=ends))
    return replace(fabric, structure=structure)


@dataclass
class PlayedHosts:
    """Simulated hosts that probe paths through hashing switches and report what they find."""

    client: Client
    switches: Switches
    job: str
    reported: int = 0
    ports: dict[str, list[int]] = field(default_factory=dict)
    """The source ports of each flow's QPs, as the controller last gave them."""
    backups: dict[str, list[int]] = field(default_factory=dict)

    @property
    def fabric(self) -> Fabric:
        """The fabric in its current state."""
        return self.switches.world

    async def look(self) -> None:
        """Read the job's ports, probe as many as the controller asks for, and report them."""
        plan = f"{NAME}/plan"
        request = pb.GetJobPortsRequest(plan=plan, job=self.job, page_size=10_000)
        told = (await self.client.plans.GetJobPorts(request)).ports
        ends = np.cumsum(told.qp_counts)
        for row, flow in enumerate(told.flows):
            mine = slice(int(ends[row] - told.qp_counts[row]), int(ends[row]))
            first, count = told.first_ports[row], told.qp_counts[row]
            ports, backups = list(told.qp_ports[mine]), list(told.backup_ports[mine])
            self.ports[flow] = ports or [*range(first, first + count)]
            self.backups[flow] = backups or [0] * count
        asked: dict[str, dict[tuple[str, str], int]] = {}
        for row, count in enumerate(told.probe_counts):
            if count:
                source, destination = told.sources[row], told.destinations[row]
                pair = told.nics[source], told.nics[destination]
                asked.setdefault(told.hosts[source], {})[pair] = count
        for host, pairs in asked.items():
            found = [self._probed(*pair, count) for pair, count in pairs.items()]
            await self.client.plans.ReportPortPaths(
                pb.ReportPortPathsRequest(fabric=NAME, host=host, pairs=found)
            )
            self.reported += 1

    def _probed(self, source: str, destination: str, count: int) -> pb.PortPaths:
        flows = self._pair(source, destination)
        tried = FIRST_SOURCE_PORT + np.arange(count)
        known = probed(self.fabric, flows, self.switches, tried[None])
        structure = self.fabric.structure
        nodes, links, heads = structure.nodes, structure.links, structure.head
        message = pb.PortPaths(source=source, destination=destination)
        for way in range(len(known)):
            arcs = known.arcs[known.first[way] : known.first[way + 1] - 1]
            answers = [
                links.address[arc >> 1][1 - (arc & 1)] if links.address else nodes.address[head]
                for arc, head in zip(arcs.tolist(), heads[arcs].tolist(), strict=True)
            ]
            message.paths.add(
                hops=answers,
                ports=known.ports[known.first_port[way] : known.first_port[way + 1]].tolist(),
            )
        return message

    def _pair(self, source: str, destination: str) -> Flows:
        """Return one flow between two NICs."""
        index = self.fabric.structure.index
        return replace(
            across(self.fabric, 0).take(np.array([0])),
            source=np.array([index[source]]),
            destination=np.array([index[destination]]),
        )

    async def settled(self, flows: Flows) -> pb.Plan:
        """Probe and report until the plan no longer changes and packets fill links as it says."""
        end = time.monotonic() + PATIENCE
        while True:
            before = (await self.client.plan()).generation
            await self.look()
            await self.look()  # reports lead to a new plan, which may ask for more
            plan = await self.client.plan()
            said = plan.certificate.max_utilization
            if plan.generation == before and plan.routed_count == len(flows):
                seen = self.worst(flows)
                if seen == pytest.approx(said):
                    return plan
                assert time.monotonic() < end, f"worst link: {seen}, certificate: {said}"

    def worst(self, flows: Flows) -> float:
        """Return the worst utilisation that these ports lead to; infinite if a packet is lost."""
        ports = np.array([port for flow in flows.ids for port in self.ports[flow]])
        seen = walk(self.fabric, flows, self.switches, ports)
        if len(seen.lost):
            return math.inf
        loads = arc_loads(2 * self.fabric.link_count, flows, seen.paths())
        return float(utilization(self.fabric, loads).max())


@asynccontextmanager
async def controlled(folder: Path, fabric: Fabric, flows: Flows) -> AsyncIterator[PlayedHosts]:
    """Start a controller in its own process, with the fabric and the flows as demands."""
    async with Controller(folder) as controller, Client(controller.api, NAME) as client:
        await client.put_fabric(fabric)
        await client.put_demands("flows", fabric, flows)
        await client.committed_plan(len(flows), PATIENCE)
        yield PlayedHosts(client, Switches(fabric, SEED), flows.job_names[0])


async def test_a_controller_plans_by_ports_that_hosts_report(tmp_path: Path) -> None:
    """QPs get ports by what hosts report, and then fill no link beyond its capacity.

    The first plan leaves flows unrouted, because no path is known yet. Later, packets load the
    links as the certificate says, at most 1.0, where the default ports would overload some. At
    least half of the flows have backup ports. The plan counts as programmed, because no switch
    needs an entry.
    """
    flows = across(FABRIC, 1)
    async with controlled(tmp_path, FABRIC, flows) as hosts:
        first = await hosts.client.plan()
        assert first.unrouted_count > 0
        plan = await hosts.settled(flows)
        assert plan.entry_count == 0
        assert not plan.unsettled_switches
        assert plan.certificate.max_utilization == pytest.approx(1.0)
        usual = arc_loads(
            2 * FABRIC.link_count, flows, walk(FABRIC, flows, Switches(FABRIC, SEED)).paths()
        )
        assert float(utilization(FABRIC, usual).max()) > 1.0
        crossing = {f for f, ports in hosts.backups.items() if any(ports)}
        assert len(crossing) >= len(flows) // 2


async def test_another_hash_is_planned_anew_and_told(tmp_path: Path) -> None:
    """When switches hash by a new seed and hosts report this, QPs get other ports that suit it."""
    flows = across(FABRIC, 1)
    async with controlled(tmp_path, FABRIC, flows) as hosts:
        await hosts.settled(flows)
        before = dict(hosts.ports)
        hosts.switches = Switches(FABRIC, SEED + 1)
        plan = await hosts.settled(flows)
        assert plan.certificate.max_utilization < 1.5
        assert hosts.ports != before


async def test_a_lost_link_moves_its_qps_alone(tmp_path: Path) -> None:
    """After a link is lost, all QPs on it get new ports, and few others do."""
    flows = across(FABRIC, 1)
    async with controlled(tmp_path, FABRIC, flows) as hosts:
        await hosts.settled(flows)
        before = dict(hosts.ports)
        (link,) = FABRIC.find_links("l0", "s0")
        way = walk(
            FABRIC, flows, hosts.switches, np.array([p for f in flows.ids for p in before[f]])
        )
        hit = (way.arcs >> 1 == link).any(axis=1)
        generation = (await hosts.client.plan()).generation
        await hosts.client.fabrics.SetLinkState(
            fabric_pb2.SetLinkStateRequest(
                fabric=NAME,
                link=common_pb2.LinkRef(source="l0", target="s0"),
                admin_state=common_pb2.STATE_DOWN,
            )
        )
        async with aclosing(hosts.client.watch_plans(PATIENCE)) as plans:
            async for plan in plans:
                if plan.generation > generation:
                    break
        await hosts.look()
        after = np.array([port for flow in flows.ids for port in hosts.ports[flow]])
        moved = after != np.array([port for flow in flows.ids for port in before[flow]])
        assert moved[hit].all()
        assert moved.sum() < 2 * hit.sum()


async def test_a_new_controller_goes_on_from_the_ports_of_the_plan(tmp_path: Path) -> None:
    """A new controller plans more flows before any host reports; the old QPs keep their ports."""
    flows = across(FABRIC, 1)
    async with controlled(tmp_path, FABRIC, flows) as hosts:
        plan = await hosts.settled(flows)
        before = dict(hosts.ports)
    async with Controller(tmp_path) as controller, Client(controller.api, NAME) as client:
        again = PlayedHosts(client, hosts.switches, hosts.job)
        more = replace(across(FABRIC, 2), ids=tuple(f"x{row}" for row in range(len(flows))))
        more = more.take(np.flatnonzero(more.source == more.source[0]))
        await client.put_demands("more", FABRIC, more)
        await client.committed_plan(len(flows) + len(more), PATIENCE)
        request = pb.GetJobPortsRequest(plan=f"{NAME}/plan", job=hosts.job, page_size=10_000)
        told = (await client.plans.GetJobPorts(request)).ports
        assert told.generation > plan.generation
        again.ports = {}
        ends = np.cumsum(told.qp_counts).tolist()
        for flow, end, count in zip(told.flows, ends, told.qp_counts, strict=True):
            if flow in before:
                assert list(told.qp_ports[end - count : end]) == before[flow]


async def test_a_zone_that_hashes_stands_beside_one_that_is_programmed(tmp_path: Path) -> None:
    """Only agents of the programmed zone hold entries, and packets of all flows follow the plan."""
    fabric = three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=2, cores=2, nics_per_host=1)
    fabric = with_addresses(hashing(fabric, ["z1"]))
    parts = [across(fabric, seed) for seed in (1, 2)]
    flows = concatenate(
        [replace(one, ids=tuple(f"{n}/{flow}" for flow in one.ids)) for n, one in enumerate(parts)]
    )
    async with controlled(tmp_path, fabric, flows) as hosts:
        ids = fabric.structure.nodes.ids
        chosen = [ids[row] for row in fabric.structure.programmed.tolist()]
        async with Fleet(fabric, [hosts.client.address], name=NAME, seed=SEED) as fleet:
            await fleet.connected(PATIENCE)
            hosts.switches = fleet.switches
            plan = await hosts.settled(flows)
            plan = await hosts.client.programmed_plan(plan.generation - 1, PATIENCE)
            assert 0 < plan.switch_count <= len(chosen)
            for row in np.flatnonzero(fabric.structure.hashes).tolist():
                assert not fleet.switches.fibs[row].read_back()
            await hosts.look()
            assert hosts.worst(flows) == pytest.approx(plan.certificate.max_utilization)


async def test_a_host_reports_for_its_own_nics_alone(tmp_path: Path) -> None:
    """A host's certificate lets it report its own NICs; a report for another host is refused."""
    authority = Authority(tmp_path / "pki")
    server, own = authority.server(), authority.role("host/f1/l0-h0")
    terms = replace(LOOPBACK, tls=ServerTls(server.cert, server.key, server.ca))
    host, nic, other = "l0-h0", "l0-h0-n0", "l1-h0-n0"
    asked = pb.ReportPortPathsRequest(fabric=NAME, host=host)
    asked.pairs.add(source=nic, destination=other).paths.add(hops=["100.64.0.1"], ports=[49152])
    async with serving(tmp_path / "store", terms) as s:
        await s.put_fabric(FABRIC)
        pems = [Path(name).read_bytes() for name in (own.ca, own.key, own.cert)]  # noqa: ASYNC240
        credentials = grpc.ssl_channel_credentials(*pems)
        async with grpc.aio.secure_channel(f"localhost:{s.api.port}", credentials) as channel:
            stub = PlanServiceStub(channel)
            await stub.ReportPortPaths(asked)
            asked.host = "l0-h1"
            refused = await refusal(stub.ReportPortPaths(asked))
            assert refused.code() == grpc.StatusCode.PERMISSION_DENIED
            assert reason(refused) == "OTHER_HOST"


async def test_odd_reports_are_refused_whole(tmp_path: Path) -> None:
    """A report with one invalid pair is refused, and nothing of it is recorded.

    The host or an address may be unknown, a NIC of another host, a pair given twice, the ports too
    many, or the fabric without a switch that hashes.
    """
    async with serving(tmp_path) as s:
        await s.put_fabric(FABRIC)
        await s.put_fabric(clos(leaves=2, spines=2, nics_per_leaf=1), "plain")
        nic, far = "l0-h0-n0", "l1-h0-n0"

        async def refused(
            host: str, *pairs: pb.PortPaths, fabric: str = NAME
        ) -> grpc.aio.AioRpcError:
            request = pb.ReportPortPathsRequest(fabric=fabric, host=host, pairs=pairs)
            return await refusal(s.plans.ReportPortPaths(request))

        def pair(source: str, *hops: str, ports: int = 1) -> pb.PortPaths:
            path = pb.PortPath(hops=hops, ports=range(49152, 49152 + ports))
            return pb.PortPaths(source=source, destination=far, paths=[path])

        assert "host" in violations(await refused("nobody", pair(nic)))
        assert "pairs[0]" in violations(await refused("l0-h0", pair(far)))
        assert "pairs[0]" in violations(await refused("l0-h0", pair(nic, "192.0.2.1")))
        assert "pairs[1]" in violations(await refused("l0-h0", pair(nic), pair(nic)))
        many = [pair(nic, ports=16_000), pair("l0-h0-n1", ports=MOST_PORTS - 15_999)]
        assert "pairs" in violations(await refused("l0-h0", *many))
        plain = await refused("l0-h0", pair(nic), fabric="fabrics/plain")
        assert reason(plain) == "NOTHING_HASHES"
        assert str(plain.details()).startswith("fabrics/plain has no switch"), "not its title"
        assert s.observations.of("f1").tells_ports(None)
