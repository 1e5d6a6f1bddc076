"""Conversion of fabrics: to the model through a fabric.json document, and back from the arrays.

A fabric message holds the same as a fabric.json file. So it is converted to such a document, goes
through the same checks, and is refused with the same texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from heddle.v1 import fabric_pb2 as pb
from heddle_controller.model.arrays import NONE
from heddle_controller.model.errors import MAX_TITLE
from heddle_controller.model.fabric import NUMBERS, Fabric, Forwarding, NodeKind, State
from heddle_controller.model.files.fabric_file import parse_fabric
from heddle_controller.reconcile.observations import SeenLinks
from heddle_controller.serve.codec import common, names, times
from heddle_controller.state.records import (
    FabricRecord,
    FabricSummary,
    LinkRecord,
)

_KINDS = {kind + 1: kind.name.lower() for kind in NodeKind}
_STATES = {state + 1: state.name.lower() for state in State}
_STATES[0] = "up"
_FORWARDING = {one + 1: one.name.lower() for one in Forwarding}
_FORWARDING[0] = "programmed"


def fabric_from_pb(message: pb.Fabric) -> Fabric:
    """Return a checked fabric; takes 0.5 s for 24,576 NICs, so call it in a thread.

    Raises:
        InputError: as ``parse_fabric``, with a problem for each faulty record.
    """
    title = message.title[:MAX_TITLE]  # a longer one is refused where the title is stored
    document = {
        "graph": {"name": title or message.name.rpartition("/")[2]},
        "nodes": [_node_document(node) for node in message.nodes],
        "edges": [_link_document(link) for link in message.links],
    }
    return parse_fabric(document, "fabric")


def _node_document(node: pb.Node) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": node.id,
        "kind": _KINDS.get(node.kind, node.kind or None),
        "zone": node.zone,
        "host": node.host,
        "address": node.address,
        "state": _STATES.get(node.admin_state, node.admin_state),
        "forwarding": _FORWARDING.get(node.forwarding, node.forwarding),
    }
    for name in NUMBERS:
        if node.HasField(name):
            document[name] = getattr(node, name)
    return document


def _link_document(link: pb.Link) -> dict[str, Any]:
    document: dict[str, Any] = {
        "source": link.source or None,
        "target": link.target or None,
        "gbps": link.gbps,
        "state": _STATES.get(link.admin_state, link.admin_state),
    }
    if link.source_address:
        document["source_address"] = link.source_address
    if link.target_address:
        document["target_address"] = link.target_address
    if link.key:
        document["key"] = common.key_from_pb(link.key)
    return document


def node_to_pb(fabric: Fabric, row: int) -> pb.Node:
    """Return one node as a message."""
    nodes = fabric.structure.nodes
    message = pb.Node(
        id=nodes.ids[row],
        kind=pb.NodeKind.ValueType(int(nodes.kind[row]) + 1),
        address=nodes.address[row],
    )
    if (zone := int(nodes.zone[row])) != NONE:
        message.zone = fabric.structure.zone_names[zone]
    if (host := int(nodes.host[row])) != NONE:
        message.host = fabric.structure.host_names[host]
    for name in NUMBERS:
        if (value := int(getattr(nodes, name)[row])) != NONE:
            setattr(message, name, value)
    if nodes.kind[row] != NodeKind.NIC:
        message.admin_state = common.state_to_pb(int(fabric.node_state[row]))
        message.forwarding = pb.Forwarding.ValueType(int(nodes.forwarding[row]) + 1)
    return message


def links_to_pb(record: FabricRecord, seen: SeenLinks, rows: Iterable[int]) -> list[pb.Link]:
    """Return links as messages, with their administrative and their observed states."""
    told = []
    for row in rows:
        since = seen.since.get(row, 0.0)
        message = link_to_pb(record.link(row), down=row in seen.down, since=since)
        _add_addresses(message, record.fabric, row)
        told.append(message)
    return told


def _add_addresses(message: pb.Link, fabric: Fabric, row: int) -> None:
    if fabric.structure.links.address:
        message.source_address, message.target_address = fabric.structure.links.address[row]


def link_to_pb(link: LinkRecord, *, down: bool, since: float) -> pb.Link:
    """Return one link as a message.

    Args:
        link: The link with its administrative state.
        down: Whether agents report that it is down.
        since: Unix time of the last change in agents' reports; 0 without one.
    """
    changed = max(link.state_time, since)
    return pb.Link(
        source=link.link.source,
        target=link.link.target,
        key=str(link.link.key),
        gbps=link.gbps,
        admin_state=common.state_to_pb(link.admin_state),
        oper_state=common.state_to_pb(State.DOWN if down else State.UP),
        state_time=times.time_to_pb(changed) if changed else None,
    )


def fabric_record_to_pb(
    record: FabricRecord, seen: SeenLinks, aside: Mapping[str, str] | None = None
) -> pb.Fabric:
    """Return a stored fabric with all nodes and links as a message.

    Args:
        record: The stored fabric.
        seen: Link states as agents report them.
        aside: Switches that are set aside, each with the reason; None for none.
    """
    message = fabric_summary_to_pb(record.summary())
    fabric = record.fabric
    message.nodes.extend(node_to_pb(fabric, row) for row in range(fabric.node_count))
    message.links.extend(links_to_pb(record, seen, range(fabric.link_count)))
    for switch, why in (aside or {}).items():
        if switch in fabric.structure.index:
            message.nodes[fabric.structure.index[switch]].condition = why
    return message


def fabric_summary_to_pb(summary: FabricSummary) -> pb.Fabric:
    """Return a stored fabric as a message, without nodes and links."""
    return pb.Fabric(
        name=names.fabric_name(summary.name),
        title=summary.title,
        etag=summary.etag,
        structure_etag=summary.digest,
        update_time=times.time_to_pb(summary.update_time),
    )


def fabric_to_pb(name: str, fabric: Fabric) -> pb.Fabric:
    """Return a fabric as a message for ``PutFabric``, for clients."""
    message = pb.Fabric(name=names.fabric_name(name), title=fabric.name)
    message.nodes.extend(node_to_pb(fabric, row) for row in range(fabric.node_count))
    links, ids = fabric.structure.links, fabric.structure.nodes.ids
    states: Sequence[int] = fabric.link_state.tolist()
    message.links.extend(
        pb.Link(
            source=ids[a],
            target=ids[b],
            key=str(key),
            gbps=gbps,
            admin_state=common.state_to_pb(state),
        )
        for a, b, key, gbps, state in zip(
            links.a.tolist(), links.b.tolist(), links.key, links.gbps.tolist(), states, strict=True
        )
    )
    for row, link in enumerate(message.links):
        _add_addresses(link, fabric, row)
    return message
