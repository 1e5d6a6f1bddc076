"""Model values as messages of the public API, written from its comments alone."""

from __future__ import annotations

from collections.abc import Iterator

from heddle.v1 import common_pb2, demand_pb2, fabric_pb2, placement_pb2
from heddle_controller.model.arrays import NONE
from heddle_controller.model.fabric import NUMBERS, Fabric, NodeKind, State
from heddle_controller.model.flows import ANY_PHASE, Flows, TrafficClass
from heddle_controller.model.job import Algorithm, Group, Job, Operation

_ALGORITHMS = {
    Algorithm.AUTO: "UNSPECIFIED",
    Algorithm.RING: "RING",
    Algorithm.TREE: "TREE",
    Algorithm.PAIRWISE: "PAIRWISE",
}


DEMANDS_A_MESSAGE = 5000


def fabric_to_pb(name: str, fabric: Fabric) -> fabric_pb2.Fabric:
    """A fabric to put under a name such as "fabrics/f1"."""
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
    """Up goes without saying."""
    if state == State.UP:
        return common_pb2.STATE_UNSPECIFIED
    return common_pb2.State.Value(f"STATE_{State(state).name}")


def demands_to_pb(
    name: str, request_id: str, fabric: Fabric, flows: Flows
) -> Iterator[demand_pb2.PutDemandsRequest]:
    """Messages that put flows as a set of demands under a name such as "fabrics/f1/demands/d1"."""
    yield demand_pb2.PutDemandsRequest(name=name, request_id=request_id, flow_count=len(flows))
    for begin in range(0, len(flows), DEMANDS_A_MESSAGE):
        rows = range(begin, min(begin + DEMANDS_A_MESSAGE, len(flows)))
        yield demand_pb2.PutDemandsRequest(demands=[_demand(fabric, flows, row) for row in rows])


def _demand(fabric: Fabric, flows: Flows, row: int) -> demand_pb2.FlowDemand:
    ids, phase = fabric.structure.nodes.ids, int(flows.phase[row])
    kind = TrafficClass(int(flows.traffic_class[row])).name
    return demand_pb2.FlowDemand(
        flow=flows.ids[row],
        source=ids[int(flows.source[row])],
        destination=ids[int(flows.destination[row])],
        gbps=float(flows.gbps[row]),
        job=flows.job_names[int(flows.job[row])],
        phase="" if phase == ANY_PHASE else flows.phase_names[phase],
        qps=int(flows.qps[row]),
        traffic_class=common_pb2.TrafficClass.Value(f"TRAFFIC_CLASS_{kind}"),
    )


def job_to_pb(job: Job) -> placement_pb2.JobSpec:
    """What a scheduler would send for a job."""
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
