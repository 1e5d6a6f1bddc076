"""A controller plans by ports on real kernels: FRR and a hash, and no agent on any switch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from heddle.ports import ports_document
from heddle.v1 import plan_pb2 as pb
from heddle_agent.host import HostFigures, PathReporter, Probing
from heddle_agent.host.trace import Pace
from heddle_agent.session import Address, Channels, Resolver
from heddle_controller.model.flows import Flows
from heddle_emulator.client import Client
from heddle_emulator.fleet import Controller
from heddle_emulator.netns.kernel import inside
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.ports import count_packets
from heddle_emulator.topology import hashing
from tests.integration.labbing import small_fabric, small_lab
from tests.integration.test_nic_controller import NAME, across
from tests.support.waiting import PATIENCE

AGAIN_SECONDS = 1.0


class HostInLab(PathReporter):
    """What `heddle-agent host` runs, whose probes leave a namespace; it tells from without.

    Hosts of a lab have no network but the fabric.
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
    """The ports of a host, or of all."""
    hosts = [host] if host else []
    request = pb.GetJobPortsRequest(plan=f"{NAME}/plan", job=job, hosts=hosts, page_size=10_000)
    return (await client.plans.GetJobPorts(request)).ports


@asynccontextmanager
async def reporting(lab: Lab, client: Client) -> AsyncIterator[list[HostInLab]]:
    """A reporter of each host, at work."""
    hosts = [HostInLab(lab, one, client.address) for one in lab.layout.fabric.structure.host_names]
    running = [asyncio.create_task(host.run()) for host in hosts]
    try:
        yield hosts
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def settled(lab: Lab, client: Client, flows: Flows, hosts: list[HostInLab]) -> None:
    """Wait until packets of the ports that are told do what the certificate says of them."""
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
    """Hosts probe and tell, the controller gives ports, switches count what is sent from these.

    The worst link comes to be that of the certificate, again after a reboot has changed the hashes.
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
