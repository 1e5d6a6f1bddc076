"""Write plan.json; ``plan_parse`` reads it.

Arrays are turned into ids and keys in one step for the whole plan. Each route then takes its slice.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from heddle_controller.model.arrays import NONE, Ints, starts
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.files.content import write_content
from heddle_controller.model.plan import Certificate, Paths, Plan

JsonObject = dict[str, Any]


def certificate_record(certificate: Certificate) -> JsonObject:
    """Return a certificate as in plan.json, with ``after_loss`` and ``turns`` if computed."""
    after_loss = {
        one.kind: {
            "worst_utilization": one.worst_utilization,
            "slowest_flow": one.slowest_flow,
            "of": one.of,
            "lower_bound": one.lower_bound,
            "stranded": one.stranded,
        }
        for one in certificate.after_loss
    }
    record = {
        "max_utilization": certificate.max_utilization,
        "lower_bound": certificate.lower_bound,
        "gap": certificate.gap,
        "proof": certificate.proof,
        "tiers": {tier.tier: tier.max_utilization for tier in certificate.tiers},
        "tier_bounds": {tier.tier: tier.lower_bound for tier in certificate.tiers},
    } | ({"after_loss": after_loss} if after_loss else {})
    if certificate.turns is not None:
        record["turns"] = [asdict(one) for one in certificate.turns]
    return record


def state_records(fabric: Fabric) -> list[JsonObject]:
    """Return the nodes and links that are not up, with the field names of fabric.json."""
    structure = fabric.structure
    ids, links = structure.nodes.ids, structure.links
    nodes: list[JsonObject] = [
        {"node": ids[row], "state": _name(fabric.node_state[row])}
        for row in np.flatnonzero(fabric.node_state != State.UP).tolist()
    ]
    return nodes + [
        {
            "source": ids[links.a[row]],
            "target": ids[links.b[row]],
            "key": links.key[row],
            "state": _name(fabric.link_state[row]),
        }
        for row in np.flatnonzero(fabric.link_state != State.UP).tolist()
    ]


def _name(state: int) -> str:
    return State(state).name.lower()


def unrouted_records(plan: Plan) -> list[JsonObject]:
    """Return the flows without a path, each with the reason."""
    return [
        {"flow": plan.flows.ids[row], "reason": reason}
        for row, reason in sorted(plan.unrouted.items())
    ]


def route_records(plan: Plan) -> list[JsonObject]:
    """Return the routes of all flows that have a path, in order of flow rows.

    A path without a backup has a backup with no nodes. If no path of a flow has a backup, its list
    of backups is empty. ``ports`` are the source ports that the QPs of a path must use. Hosts
    should set them even where an entry matches any port. Where source ports carry a flow, its
    backups also have ``ports``: those that lead over the backup.
    """
    paths, flows = plan.paths, plan.flows
    forward = _hop_records(plan, paths)
    backup = _hop_records(plan, plan.backups) if len(plan.backups) else [{}] * len(paths)
    shares = (paths.qp_count / flows.qps[paths.flow]).tolist()
    first_qp, last_qp = paths.first_qp.tolist(), paths.last_qp.tolist()
    ports, bounds = plan.qp_ports().tolist(), starts(paths.qp_count).tolist()
    if plan.nic_ports is not None:
        spare = plan.nic_ports.backup.tolist()
        for p, record in enumerate(backup):
            if record["nodes"] and spare[bounds[p]] != NONE:
                record["ports"] = spare[bounds[p] : bounds[p + 1]]
    rows, begins = np.unique(paths.flow, return_index=True)
    ends = np.append(begins, len(paths))[1:].tolist()
    routes: list[JsonObject] = []
    for flow, start, end in zip(rows.tolist(), begins.tolist(), ends, strict=True):
        own = range(start, end)
        ways = [
            {
                "share": shares[p],
                "qps": [first_qp[p], last_qp[p]],
                "ports": ports[bounds[p] : bounds[p + 1]],
                **forward[p],
            }
            for p in own
        ]
        backups = backup[start:end] if any(backup[p].get("nodes") for p in own) else []
        routes.append({"flow": flows.ids[flow], "paths": ways, "backups": backups})
    return routes


def _hop_records(plan: Plan, paths: Paths) -> list[JsonObject]:
    """Return the nodes and link keys of each path."""
    structure = plan.fabric.structure
    ids, keys = structure.nodes.ids, structure.links.key
    names = [ids[row] for row in _node_rows(structure.tail, structure.head, paths).tolist()]
    ways = [keys[link] for link in (paths.arcs >> 1).tolist()]
    bounds = paths.first.tolist()
    records: list[JsonObject] = []
    before = 0  # paths with arcs so far; each has one more node than arcs
    for low, high in pairwise(bounds):
        if low == high:
            records.append({"nodes": [], "keys": []})
            continue
        start, end = low + before, high + before + 1
        records.append({"nodes": names[start:end], "keys": ways[low:high]})
        before += 1
    return records


def _node_rows(tail: Ints, head: Ints, paths: Paths) -> Ints:
    """Return the node rows of all paths in order of travel, one path after another."""
    starts = paths.first[:-1][np.diff(paths.first) > 0]
    return np.insert(head[paths.arcs], starts, tail[paths.arcs[starts]])


def save_plan(
    plan: Plan, path: Path, *, timing: Mapping[str, float] | None = None, changed: int = 0
) -> float:
    """Write a plan.json, as gzip if the name ends in ``.gz``, and return the seconds it took.

    Args:
        plan: The plan.
        path: The file.
        timing: Seconds that earlier steps took, by name. The file also gets ``write_seconds``,
            the time until the bulk of its bytes was ready, because it cannot contain the time
            that the disk takes.
        changed: The number of changed flows, as the file reports it.

    Raises:
        InputError: the file cannot be written.
    """
    start = time.perf_counter()
    bulk = orjson.dumps({"routes": route_records(plan), "unrouted": unrouted_records(plan)})
    head = {
        "certificate": certificate_record(plan.certificate),
        "timing": dict(timing or {}) | {"write_seconds": time.perf_counter() - start},
        "changed": changed,
        "states": state_records(plan.fabric),
    }
    # Join the two objects: "{a}" and "{b}" become "{a,b}".
    write_content(path, orjson.dumps(head)[:-1], b",", memoryview(bulk)[1:], b"\n")
    return time.perf_counter() - start
