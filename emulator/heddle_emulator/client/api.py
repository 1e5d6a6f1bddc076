"""Calls of the public API with the model's fabrics, flows and jobs.

Values of the model become messages of the public API, written only from the comments in its
definition. Routes that a controller lists become arrays that can be compared with a walk.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np

from heddle.client import PROGRAMMED, AsyncClient, TimedOut
from heddle.names import link_name
from heddle.v1 import common_pb2, demand_pb2, fabric_pb2, placement_pb2, plan_pb2
from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import NUMBERS, Fabric, NodeKind, State
from heddle_controller.model.flows import ANY_PHASE, Flows, TrafficClass
from heddle_controller.model.job import Algorithm, Group, Job, Operation
from heddle_controller.model.plan import Paths

_ALGORITHMS = {
    Algorithm.AUTO: "UNSPECIFIED",
    Algorithm.RING: "RING",
    Algorithm.TREE: "TREE",
    Algorithm.PAIRWISE: "PAIRWISE",
}


DEMANDS_A_MESSAGE = 5000


def fabric_to_pb(name: str, fabric: Fabric) -> fabric_pb2.Fabric:
    """Return the message that puts a fabric under a name such as "fabrics/f1"."""
    return fabric_pb2.Fabric(
        name=name,
        title=fabric.name,
        nodes=[_node(fabric, row) for row in range(fabric.node_count)],
        links=[_link(fabric, row) for row in range(fabric.link_count)],
    )


def _node(fabric: Fabric, row: int) -> fabric_pb2.Node:
    structure, nodes = fabric.structure, fabric.structure.nodes
    zone, host = int(nodes.zone[row]), int(nodes.host[row])
    node = fabric_pb2.Node(
        id=nodes.ids[row],
        kind=fabric_pb2.NodeKind.Value(f"NODE_KIND_{NodeKind(int(nodes.kind[row])).name}"),
        zone="" if zone == NONE else structure.zone_names[zone],
        host="" if host == NONE else structure.host_names[host],
        address=nodes.address[row],
        admin_state=_state(fabric.node_state[row]),
    )
    for field in NUMBERS:
        value = int(getattr(nodes, field)[row])
        if value != NONE:
            setattr(node, field, value)
    if fabric.structure.hashes[row]:
        node.forwarding = fabric_pb2.FORWARDING_ECMP
    return node


def _link(fabric: Fabric, row: int) -> fabric_pb2.Link:
    ids, links = fabric.structure.nodes.ids, fabric.structure.links
    source, target = links.address[row] if links.address else ("", "")
    return fabric_pb2.Link(
        source_address=source,
        target_address=target,
        source=ids[int(links.a[row])],
        target=ids[int(links.b[row])],
        key=str(links.key[row]),
        gbps=float(links.gbps[row]),
        admin_state=_state(fabric.link_state[row]),
    )


def _state(state: int) -> common_pb2.State.ValueType:
    """Return the wire value of a state; "up" is the default and not sent."""
    if state == State.UP:
        return common_pb2.STATE_UNSPECIFIED
    return common_pb2.State.Value(f"STATE_{State(state).name}")


def demands_to_pb(
    name: str, request_id: str, fabric: Fabric, flows: Flows
) -> Iterator[demand_pb2.PutDemandsRequest]:
    """Yield messages that put flows as a set of demands, such as "fabrics/f1/demands/d1"."""
    yield demand_pb2.PutDemandsRequest(name=name, request_id=request_id, flow_count=len(flows))
    for begin in range(0, len(flows), DEMANDS_A_MESSAGE):
        rows = range(begin, min(begin + DEMANDS_A_MESSAGE, len(flows)))
        yield demand_pb2.PutDemandsRequest(demands=[_demand(fabric, flows, row) for row in rows])


def _demand(fabric: Fabric, flows: Flows, row: int) -> demand_pb2.FlowDemand:
    ids, phase = fabric.structure.nodes.ids, int(flows.phase[row])
    return demand_pb2.FlowDemand(
        flow=flows.ids[row],
        source=ids[int(flows.source[row])],
        destination=ids[int(flows.destination[row])],
        gbps=float(flows.gbps[row]),
        job=flows.job_names[int(flows.job[row])],
        phase="" if phase == ANY_PHASE else flows.phase_names[phase],
        qps=int(flows.qps[row]),
        traffic_class=_traffic_class(int(flows.traffic_class[row])),
    )


def _traffic_class(traffic_class: int) -> common_pb2.TrafficClass.ValueType:
    name = TrafficClass(traffic_class).name
    return common_pb2.TrafficClass.Value(f"TRAFFIC_CLASS_{name}")


def job_to_pb(job: Job) -> placement_pb2.JobSpec:
    """Return the specification that a scheduler would send for a job."""
    degrees = job.parallelism
    return placement_pb2.JobSpec(
        hosts=job.hosts,
        gpus_per_host=job.gpus_per_host,
        parallelism=placement_pb2.Parallelism(
            tp=degrees.tp, pp=degrees.pp, dp=degrees.dp, cp=degrees.cp, ep=degrees.ep
        ),
        collectives=[
            placement_pb2.Collective(
                operation=_operation(collective.operation),
                group=_group(collective.group),
                bytes=collective.bytes,
                algorithm=placement_pb2.CollectiveAlgorithm.Value(
                    f"COLLECTIVE_ALGORITHM_{_ALGORITHMS[collective.algorithm]}"
                ),
                overlap=collective.overlap,
            )
            for collective in job.collectives
        ],
        priority=job.priority,
        traffic_class=_traffic_class(job.traffic_class),
        qps=job.qps,
        gpus=[placement_pb2.HostGpus(gpus=part) for part in job.gpus],
        suspended=job.suspended,
        flops_per_iteration=job.flops_per_iteration,
        compute_seconds=job.compute_seconds,
        network_seconds=job.network_seconds,
    )


def _operation(operation: Operation) -> placement_pb2.CollectiveOperation.ValueType:
    return placement_pb2.CollectiveOperation.Value(f"COLLECTIVE_OPERATION_{operation.name}")


def _group(group: Group) -> placement_pb2.GroupKind.ValueType:
    return placement_pb2.GroupKind.Value(f"GROUP_KIND_{group.name}")


CALL_SECONDS = 30.0


class Client(AsyncClient):
    """A client for one fabric. Use it as ``async with``. All methods raise ``HeddleError``."""

    def __init__(self, address: str, fabric: str, patience: float | None = None) -> None:
        """Create a client.

        Args:
            address: Address of the controller.
            fabric: Full name of the fabric, such as "fabrics/f1".
            patience: Seconds to look for a controller that answers; None: as long as a call may
                take.
        """
        super().__init__(address, fabric=fabric, timeout=CALL_SECONDS, patience=patience)
        self.address = address
        self.name = fabric

    async def put_fabric(self, fabric: Fabric) -> None:
        """Create or replace the fabric."""
        message = fabric_to_pb(self.name, fabric)
        await self.fabrics.PutFabric(fabric_pb2.PutFabricRequest(fabric=message))

    async def put_demands(self, name: str, fabric: Fabric, flows: Flows) -> None:
        """Create or replace a set of demands; it is stored as a whole or not at all."""
        full = f"{self.name}/demands/{name}"
        await self.demands.PutDemands(demands_to_pb(full, str(uuid.uuid4()), fabric, flows))

    async def submit(self, job: Job) -> placement_pb2.Job:
        """Submit a job; the answer says that it is stored durably, and no more."""
        return await self.submit_job(job.name, job_to_pb(job))

    async def programmed_jobs(self, names: Iterable[str], seconds: float) -> None:
        """Wait until every switch holds all that these jobs need; degraded jobs are waited for."""
        await self.wait_until(PROGRAMMED, tuple(names), seconds)

    async def programmed_plan(
        self,
        after: int,
        seconds: float,
        report: Callable[[plan_pb2.Plan], None] | None = None,
        such_that: Callable[[plan_pb2.Plan], bool] = lambda _: True,
    ) -> plan_pb2.Plan:
        """Wait for a plan with a later generation than ``after`` that all its switches hold.

        ``report`` is called with every plan until then. ``such_that`` is a further condition on the
        plan.
        """

        def held(plan: plan_pb2.Plan) -> bool:
            if report is not None:
                report(plan)
            programmed = plan.generation > after and plan.HasField("programmed_time")
            return programmed and such_that(plan)

        return await self._plan_such_that(held, seconds, f"programmed after generation {after}")

    async def committed_plan(self, flows: int, seconds: float) -> plan_pb2.Plan:
        """Wait for a plan with so many flows, routed or not, whether or not switches hold it."""

        def whole(plan: plan_pb2.Plan) -> bool:
            return plan.routed_count + plan.unrouted_count == flows

        return await self._plan_such_that(whole, seconds, f"of {flows} flows")

    async def _plan_such_that(
        self, wanted: Callable[[plan_pb2.Plan], bool], seconds: float, what: str
    ) -> plan_pb2.Plan:
        async with aclosing(self.watch_plans(seconds)) as plans:
            async for plan in plans:
                if wanted(plan):
                    return plan
        raise TimedOut(f"no plan {what} in {seconds:g} s at {self.address}")

    async def plan(self) -> plan_pb2.Plan:
        """Return the newest plan, whether or not switches hold it."""
        return await self.plans.GetPlan(plan_pb2.GetPlanRequest(name=f"{self.name}/plan"))

    async def set_switch(self, node: str, state: State) -> None:
        """Set the administrative state of a switch."""
        wanted = common_pb2.State.Value(f"STATE_{state.name}")
        await self.fabrics.SetSwitchState(
            fabric_pb2.SetSwitchStateRequest(fabric=self.name, node=node, admin_state=wanted)
        )

    async def drained_switches(self) -> set[str]:
        """Return the switches whose administrative state is drained."""
        fabric = await self.fabrics.GetFabric(fabric_pb2.GetFabricRequest(name=self.name))
        drained = common_pb2.STATE_DRAINED
        return {node.id for node in fabric.nodes if node.admin_state == drained}

    async def count_demands(self, name: str) -> int:
        """Return the number of flows in a set of demands."""
        return len(await self.list_demands(name))


@dataclass(frozen=True, slots=True, eq=False)
class Routed:
    """The routes of some flows: their paths, or why they have none."""

    paths: Paths
    """Paths by flow row, of the flows they were read for, and QP."""
    source_port: Ints
    """UDP source port of QP 0 of each flow by the controller, shape (flows,); 0 means any."""
    unrouted: dict[str, str]
    """Reason by flow id."""


def routed(fabric: Fabric, flows: Flows, routes: Sequence[plan_pb2.Route]) -> Routed:
    """Convert the routes of exactly these flows.

    Raises:
        InputError: There is a route for another flow, or none for one of these.
    """
    row_of = {flow: row for row, flow in enumerate(flows.ids)}
    strangers = [route.flow for route in routes if route.flow not in row_of]
    missing = row_of.keys() - {route.flow for route in routes}
    if strangers:
        raise refuse("routes", f"flow {strangers[0]}", f"was not asked for ({len(strangers)} such)")
    if missing:
        raise refuse("routes", f"flow {min(missing)}", f"is not listed ({len(missing)} such)")
    links = _arcs(fabric)
    told = sorted(
        (row_of[route.flow], path.first_qp, path.last_qp, _way(links, path))
        for route in routes
        for path in route.paths
    )
    ports = np.zeros(len(flows), dtype=np.int64)
    ports[[row_of[route.flow] for route in routes]] = [route.source_port for route in routes]
    unrouted = {route.flow: route.unrouted_reason for route in routes if not route.paths}
    return Routed(_paths(told), ports, unrouted)


def _paths(told: list[tuple[int, int, int, list[int]]]) -> Paths:
    arcs = [arc for *_, way in told for arc in way]
    lengths = [len(way) for *_, way in told]
    first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Paths(
        flow=np.array([flow for flow, *_ in told], dtype=np.int64),
        first_qp=np.array([qp for _, qp, *_ in told], dtype=np.int64),
        last_qp=np.array([qp for *_, qp, _ in told], dtype=np.int64),
        first=first,
        arcs=np.array(arcs, dtype=np.int64),
    )


def _arcs(fabric: Fabric) -> dict[tuple[str, str, str], int]:
    """Return each arc by the ids of the nodes it leaves and enters, and its link's key."""
    structure, ids = fabric.structure, fabric.structure.nodes.ids
    return {
        (ids[tail], ids[head], str(structure.links.key[arc >> 1])): arc
        for arc, (tail, head) in enumerate(
            zip(structure.tail.tolist(), structure.head.tolist(), strict=True)
        )
    }


def _way(arcs: dict[tuple[str, str, str], int], path: common_pb2.Path) -> list[int]:
    hops = zip(path.nodes, path.nodes[1:], path.keys, strict=False)
    try:
        return [arcs[hop] for hop in hops]
    except KeyError as error:
        a, b, key = error.args[0]
        raise refuse(
            "routes", f"link {link_name(a, b, key)}", "is in a path, not in the fabric"
        ) from error


def qp_arcs(paths: Paths) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return the arcs of each QP by flow row and QP, to compare two sets of paths."""
    return {
        (int(paths.flow[row]), qp): tuple(paths.of(row).tolist())
        for row in range(len(paths))
        for qp in range(int(paths.first_qp[row]), int(paths.last_qp[row]) + 1)
    }
