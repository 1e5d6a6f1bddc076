"""Model values as messages of the public API, written from its comments alone."""

from __future__ import annotations

from heddle.v1 import fabric_pb2, placement_pb2
from heddle_controller.model.fabric import NONE, Fabric, NodeKind
from heddle_controller.model.job import Algorithm, Group, Job, Operation

_ALGORITHMS = {
    Algorithm.AUTO: "UNSPECIFIED",
    Algorithm.RING: "RING",
    Algorithm.TREE: "TREE",
    Algorithm.PAIRWISE: "PAIRWISE",
}


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
    )
    for field in ("rail", "plane", "table_size"):
        value = int(getattr(nodes, field)[row])
        if value != NONE:
            setattr(node, field, value)
    return node


def _link(fabric: Fabric, row: int) -> fabric_pb2.Link:
    ids, links = fabric.structure.nodes.ids, fabric.structure.links
    return fabric_pb2.Link(
        source=ids[int(links.a[row])],
        target=ids[int(links.b[row])],
        key=str(links.key[row]),
        gbps=float(links.gbps[row]),
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
            )
            for collective in job.collectives
        ],
        priority=job.priority,
        qps=job.qps,
    )


def _operation(operation: Operation) -> placement_pb2.CollectiveOperation.ValueType:
    return placement_pb2.CollectiveOperation.Value(f"COLLECTIVE_OPERATION_{operation.name}")


def _group(group: Group) -> placement_pb2.GroupKind.ValueType:
    return placement_pb2.GroupKind.Value(f"GROUP_KIND_{group.name}")
