"""A controller plans by ports on real kernels: FRR hashes, and no switch has an agent."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from heddle.ports import ports_document
from heddle.v1 import plan_pb2 as pb
from heddle_agent.host import (
    HostAgent,
    HostFigures,
    PathReporter,
    PathSteering,
    PortsFolder,
    Probing,
    Wanted,
)
from heddle_agent.host.trace import Pace
from heddle_agent.session import Address, Backoff, Channels, Resolver
from heddle_controller.model.demand import resolve
from heddle_controller.model.flows import Flows
from heddle_emulator.client import Client
from heddle_emulator.drill.lab.probes import Pathfinder
from heddle_emulator.fleet import Controller
from heddle_emulator.netns import tools
from heddle_emulator.netns.kernel import inside
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.probe.handle import probe_flow
from heddle_emulator.netns.steering import count_packets
from heddle_emulator.topology import hashing, with_ipv6
from tests.integration.demanding import demands_of
from tests.integration.labbing import small_fabric, small_lab
from tests.integration.test_nic_controller import NAME, across
from tests.support.waiting import PATIENCE, until

AGAIN_SECONDS = 1.0
SILENT = """
table inet silent {
    chain through {
        type filter hook forward priority 0; policy accept;
        oifname "%s" drop
    }
}
"""


class HostInLab(PathReporter):
    """What ``heddle-agent host`` runs to report paths, for a host of a lab.

    Its probes leave from the host's namespace. Its reports do not: hosts of a lab have no network
    except the fabric.
    """

    def __init__(self, lab: Lab, host: str, controller: str) -> None:
        super().__init__(
            NAME,
            host,
            resolver=Resolver([Address.parse(controller)]),
            channels=Channels(),
            probing=Probing(Pace(hops=3), AGAIN_SECONDS),
            figures=HostFigures(),
        )
        self._space = lab.spaces[host]

    def _probed(self, source: str, counts: dict[str, int]) -> list[pb.PortPaths]:
        probe = super()._probed
        return inside(self._space, lambda: probe(source, counts))


async def told(client: Client, job: str, host: str = "") -> pb.JobPorts:
    """Return the ports of a job's flows at one host, or at all."""
    hosts = [host] if host else []
    request = pb.GetJobPortsRequest(plan=f"{NAME}/plan", job=job, hosts=hosts, page_size=10_000)
    return (await client.plans.GetJobPorts(request)).ports


@asynccontextmanager
async def reporting(lab: Lab, client: Client) -> AsyncIterator[list[HostInLab]]:
    """Run a reporter for each host."""
    hosts = [HostInLab(lab, one, client.address) for one in lab.layout.fabric.structure.host_names]
    running = [asyncio.create_task(host.run()) for host in hosts]
    try:
        yield hosts
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def settled(lab: Lab, client: Client, flows: Flows, hosts: list[HostInLab]) -> None:
    """Wait until packets from the controller's ports load links as its certificate says."""
    names, job = lab.layout.fabric.structure.host_names, flows.job_names[0]
    async with asyncio.timeout(PATIENCE):
        while True:
            for name, host in zip(names, hosts, strict=True):
                host.want(job, [await told(client, job, name)])
            plan, ports = await client.plan(), await told(client, job)
            if plan.unrouted_count or plan.generation != ports.generation:
                continue
            listed = {
                one["flow"]: one["ports"] for one in ports_document("", job, [ports])["flows"]
            }
            chosen = np.array([port for flow in flows.ids for port in listed[flow]])
            found = await asyncio.to_thread(count_packets, lab, flows, chosen)
            worst = float(found.utilization.max())
            if worst == pytest.approx(plan.certificate.max_utilization):
                assert plan.entry_count == 0
                return


async def test_packets_go_as_the_controller_planned_by_kernel_counters(tmp_path: Path) -> None:
    """Hosts report probed paths, the controller gives ports, and switches count the packets.

    The worst link becomes that of the certificate, and again after other hash seeds.
    """
    with small_lab(programs=False, fabric=hashing(small_fabric())) as (lab, _):
        fabric = lab.layout.fabric
        flows = across(fabric, 1)
        async with Controller(tmp_path) as controller, Client(controller.api, NAME) as client:
            await client.put_fabric(fabric)
            await client.put_demands("flows", fabric, flows)
            await client.committed_plan(len(flows), PATIENCE)
            async with reporting(lab, client) as hosts:
                for seed in (lab.options.seed, 7):
                    lab.reseed(seed)
                    await settled(lab, client, flows, hosts)


class SteeringHost(HostAgent):
    """``heddle-agent host`` with probes from a host's namespace, and calls from outside it."""

    def __init__(self, lab: Lab, host: str, folder: Path, controller: str) -> None:
        self.path = folder / host
        super().__init__(
            Wanted(NAME, host),
            PortsFolder(self.path, NAME, host),
            controllers=[controller],
            channels=Channels(),
            backoff=Backoff(longest=1.0),
            probing=Probing(Pace(hops=3), AGAIN_SECONDS, each_seconds=0.2, hold_seconds=3600.0),
        )
        probe, opened, space = self._reporter._probed, PathSteering._opened, lab.spaces[host]

        class InSpace(PathSteering):
            def _opened(self, source: str) -> tuple[socket.socket, socket.socket]:
                return inside(space, lambda: opened(self, source))

        assert self._steering is not None
        self._steering.__class__ = InSpace
        self._reporter._probed = lambda *of: inside(space, lambda: probe(*of))  # type: ignore[method-assign]

    def told(self, name: str) -> dict[str, list[int]]:
        """Return a list in the host's files, such as "backup_ports", by flow."""
        files = [json.loads(path.read_text()) for path in self.path.glob("*.json")]
        return {flow["flow"]: flow.get(name, []) for file in files for flow in file["flows"]}


@asynccontextmanager
async def steering(lab: Lab, folder: Path, controller: str) -> AsyncIterator[list[SteeringHost]]:
    """Run an agent for each host."""
    names = lab.layout.fabric.structure.host_names
    hosts = [SteeringHost(lab, name, folder, controller) for name in names]
    running = [asyncio.create_task(host.run()) for host in hosts]
    try:
        yield hosts
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def answering(logged: Sequence[Mapping[str, Any]]) -> int:
    """Return for how many NICs hosts have logged that all paths answer."""
    lines = [line for line in logged if line["event"] == "every path answers"]
    return len({source for line in lines for source in line["sources"]})


def links_of(lab: Lab, flows: Flows, ports: list[int]) -> list[tuple[int, ...]]:
    """Return the link rows that packets of each QP take, by the kernels' counters."""
    ids = lab.layout.fabric.structure.nodes.ids
    owner = np.repeat(np.arange(len(flows)), flows.qps).tolist()
    ends = [(ids[flows.source[row]], ids[flows.destination[row]]) for row in owner]
    sent = [
        probe_flow(lab, pair, (port, 4791), 1.0) for pair, port in zip(ends, ports, strict=True)
    ]
    return [tuple(way) for way in Pathfinder(lab).ways(sent)]


@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
async def test_hosts_leave_lost_paths_while_no_controller_lives(
    tmp_path: Path, *, ipv6: bool
) -> None:
    """QPs on a lost path take the ports of their backups, no others do; the controller is dead.

    The far link drops packets while BGP goes on, so only the hosts can avoid it.
    """
    hashed = hashing(small_fabric())
    with small_lab(programs=False, fabric=with_ipv6(hashed) if ipv6 else hashed) as (lab, _):
        fabric = lab.layout.fabric
        pairs = [(f"l0-h{host}-n0", f"l1-h{host}-n0") for host in range(2)]
        demands = replace(demands_of(pairs), qps=np.full(len(pairs), 2, dtype=np.int64))
        flows = resolve(demands, fabric, origin="test")

        def told(hosts: list[SteeringHost], name: str) -> list[int]:
            found = {flow: ports for host in hosts for flow, ports in host.told(name).items()}
            return [port for flow in flows.ids for port in found.get(flow, ())]

        async with Controller(tmp_path) as controller:
            async with Client(controller.api, NAME) as client:
                await client.put_fabric(fabric)
                await client.put_demands("flows", fabric, flows)
                await client.committed_plan(len(flows), PATIENCE)
            with capture_logs() as logged:
                async with steering(lab, tmp_path / "ports", controller.api) as hosts:
                    qps = int(flows.qps.sum())
                    await until(lambda: len(told(hosts, "backup_ports")) == qps, "ports of all")
                    await until(
                        lambda: min(told(hosts, "backup_ports"), default=0) > 0, "backups of all"
                    )
                    await until(lambda: answering(logged) == len(pairs), "paths to answer")
                    await controller.kill()
                    await until(lambda: not any(host.figures.connected for host in hosts), "death")
                    ports, backups = told(hosts, "ports"), told(hosts, "backup_ports")
                    ways = await asyncio.to_thread(links_of, lab, flows, ports)
                    (link,) = fabric.find_links("s0", "l1")
                    lost = np.array([link in way for way in ways])
                    assert lost.any()
                    assert not lost.all()
                    (port,) = [e for e in lab.layout.cables[link].ends if e.node == "s0"]
                    tools.run_inside(lab.spaces["s0"], ["nft", "-f", "-"], SILENT % port.name)
                    wanted = np.where(lost, backups, ports).tolist()
                    await until(lambda: told(hosts, "ports") == wanted, "the ports of backups")
