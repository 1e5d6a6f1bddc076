"""Write and read plan.json.

To write it, arrays are turned into ids and keys in one step for the whole plan. Each route then
takes its slice. To read it, ids and keys are translated to rows, and flows are matched by id.

The flows may have changed since the plan was made. Routes of flows that are gone are dropped. A
flow that is new, or whose NICs or QPs are not those of its route, has no path in the plan and is
listed as unrouted. The fabric must be the same: a route over a link or node that does not exist is
refused. Links and nodes get the states that they had when the plan was made, if the plan says them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from heddle.names import link_name
from heddle_controller.model.arrays import NONE, Bools, Ints, starts
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric, State, Structure
from heddle_controller.model.files.content import MEBIBYTE, read_json, write_content
from heddle_controller.model.files.records import LARGEST, short
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import (
    AfterLoss,
    Certificate,
    Paths,
    Plan,
    TierCertificate,
    Turn,
)

JsonObject = dict[str, Any]


def certificate_record(certificate: Certificate, fabric: Fabric) -> JsonObject:
    """Return a certificate as in plan.json, with ``after_loss`` and ``turns`` if computed."""
    after_loss = {
        one.kind: {
            "worst_utilization": one.worst_utilization,
            "slowest_flow": one.slowest_flow,
            "of": _of_record(one.of, fabric),
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


def _of_record(of: str, fabric: Fabric) -> str:
    """Return the name of a loss as in plan.json, where a link has a key only if it is parallel.

    Programs rely on this form of the file.
    """
    ends = of.rpartition(",")[0]
    return ends if len(fabric.links_named(ends)) == 1 else of


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
        "certificate": certificate_record(plan.certificate, plan.fabric),
        "timing": dict(timing or {}) | {"write_seconds": time.perf_counter() - start},
        "changed": changed,
        "states": state_records(plan.fabric),
    }
    # Join the two objects: "{a}" and "{b}" become "{a,b}".
    write_content(path, orjson.dumps(head)[:-1], b",", memoryview(bulk)[1:], b"\n")
    return time.perf_counter() - start


def load_plan(path: Path, fabric: Fabric, flows: Flows, *, no_others: bool = False) -> Plan:
    """Read a plan.json, plain or gzip, as a plan of these flows on this fabric.

    The flows may differ from those that the plan was made for; see the module docstring. With
    ``no_others``, a plan that has routes of other flows too is refused.

    Raises:
        InputError: the file cannot be read, is not JSON, or is not a plan of the fabric.
    """
    document, origin = read_json(path, _CEILING), str(path)
    return parse_plan(document, fabric, flows, origin, no_others=no_others)


_CEILING = 4096 * MEBIBYTE
"""Size limit, unpacked. A million routes of five hops with backups take about 500 MB."""
NEW = "the previous plan has no route for it"
_STATES = {state.name.lower(): state for state in State}
_SHARE_SLACK = 0.005
"""How far a share may be from that of the QPs, since tools may round it to two digits."""
ROUTE_CHANGED = "its ends or its QPs are not those of its route in the previous plan"


def parse_plan(
    document: object, fabric: Fabric, flows: Flows, origin: str, *, no_others: bool = False
) -> Plan:
    """Return the plan in a document, for ``flows`` on ``fabric``.

    Its links and nodes have the states in the document. If the document has no states, as in plans
    of earlier releases, they have those of ``fabric``.

    Raises:
        InputError: with ``origin`` as its source: the document is not a plan, has a flow twice,
            has a route over nodes or links that are not in the fabric, or has, with ``no_others``,
            routes of other flows.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("routes"), list):
        raise refuse(origin, "routes", "missing; give a plan.json of heddle plan")
    routes, others = _Routes.of(document["routes"], flows, origin)
    if others and no_others:
        more = f", nor are {len(others) - 1:,} more" if len(others) > 1 else ""
        reason = f"the flow is not among these flows{more}; give the plan of these flows"
        raise refuse(origin, f"route {short(others[0])}", reason)
    paths = _paths(routes, routes.ways, fabric.structure, origin)
    backups = _paths(routes, routes.backups, fabric.structure, origin)
    order = np.lexsort((paths.first_qp, paths.flow))
    paths, backups = paths.take(order), backups.take(order)
    fits = _fits(fabric.structure, flows, paths)
    kept = np.flatnonzero(fits[paths.flow])
    known = np.zeros(len(flows), dtype=np.bool_)
    known[paths.flow] = True
    reasons = _reasons(document.get("unrouted"), origin)
    unrouted = {
        row: ROUTE_CHANGED if known[row] else reasons.get(flows.ids[row], NEW)
        for row in np.flatnonzero(~fits).tolist()
    }
    return Plan(
        fabric=_as_it_was(fabric, document.get("states"), origin),
        flows=flows,
        paths=paths.take(kept),
        backups=backups.take(kept),
        certificate=_certificate(document.get("certificate"), fabric, origin),
        unrouted=unrouted,
    )


@dataclass(frozen=True, slots=True)
class _Routes:
    """Paths of the routes of known flows, as parallel lists with an element per path."""

    names: list[str]
    """Flow id of each path, for messages."""
    flow: list[int]
    ways: list[JsonObject]
    backups: list[JsonObject]

    @classmethod
    def of(cls, routes: Sequence[object], flows: Flows, origin: str) -> tuple[_Routes, list[str]]:
        """Return the paths of the routes of these flows, and the other flows that have a route."""
        rows = {flow: row for row, flow in enumerate(flows.ids)}
        seen: set[str] = set()
        found, others = cls([], [], [], []), list[str]()
        for at, route in enumerate(routes):
            name = route.get("flow") if isinstance(route, dict) else None
            if not isinstance(route, dict) or not isinstance(name, str):
                raise refuse(origin, f"routes[{at}]", "names no flow; give its id")
            if name in seen:
                raise refuse(origin, f"route {short(name)}", "is there twice; keep one")
            seen.add(name)
            if name in rows:
                found.add(rows[name], name, route, origin)
            else:
                others.append(name)
        return found, others

    def add(self, row: int, name: str, route: JsonObject, origin: str) -> None:
        """Add the paths of one route, and a backup for each."""
        ways, backups = route.get("paths"), route.get("backups") or []
        if not isinstance(ways, list) or not ways or not isinstance(backups, list):
            raise refuse(origin, f"route {short(name)}", "has no paths; give one, or drop it")
        if len(backups) not in (0, len(ways)):
            reason = f"has {len(ways)} paths and {len(backups)} backups; give each path its own"
            raise refuse(origin, f"route {short(name)}", reason)
        self.names.extend([name] * len(ways))
        self.flow.extend([row] * len(ways))
        self.ways.extend(ways)
        self.backups.extend(backups or [_NOWHERE] * len(ways))


_NOWHERE: JsonObject = {"nodes": [], "keys": []}


def _paths(routes: _Routes, records: list[JsonObject], structure: Structure, origin: str) -> Paths:
    """Return the paths in ``records``, which has one element for each of the routes' paths."""
    for name, record in zip(routes.names, records, strict=True):
        if not _is_way(record):
            reason = "needs lists nodes and keys for each path, keys one fewer than nodes"
            raise refuse(origin, f"route {short(name)}", reason)
    hops = np.array([len(record["keys"]) for record in records], dtype=np.int64)
    arcs = _arcs(routes, records, hops, structure, origin)
    first_qp, last_qp = _qps(routes, origin)
    first = np.concatenate([[0], np.cumsum(hops)]).astype(np.int64)
    return Paths(np.array(routes.flow, dtype=np.int64), first_qp, last_qp, first, arcs)


def _is_way(record: object) -> bool:
    if not isinstance(record, dict):
        return False
    nodes, keys = record.get("nodes"), record.get("keys")
    if not isinstance(nodes, list) or not isinstance(keys, list):
        return False
    return len(keys) == max(len(nodes) - 1, 0)


def _qps(routes: _Routes, origin: str) -> tuple[Ints, Ints]:
    """Return the first and last QP of each path."""
    for name, way in zip(routes.names, routes.ways, strict=True):
        match way.get("qps"):
            case [int(first), int(last)] if 0 <= first <= last < LARGEST:
                continue
        reason = f"qps is {short(way.get('qps'))}; give the first and the last QP of the path"
        raise refuse(origin, f"route {short(name)}", reason)
    qps = np.array([way["qps"] for way in routes.ways], dtype=np.int64).reshape(-1, 2)
    _check_shares(routes, qps[:, 1] - qps[:, 0] + 1, origin)
    return qps[:, 0].copy(), qps[:, 1].copy()


def _check_shares(routes: _Routes, count: Ints, origin: str) -> None:
    """Refuse a path whose share is not that of its QPs. A path may leave its share out.

    Args:
        routes: The paths.
        count: Number of QPs of each path.
        origin: Source for messages.
    """
    total = np.bincount(routes.flow, weights=count)[routes.flow] if routes.flow else count
    due = (count / total).tolist()
    for row, (name, way) in enumerate(zip(routes.names, routes.ways, strict=True)):
        told = way.get("share", due[row])
        if type(told) not in (int, float) or not abs(told - due[row]) <= _SHARE_SLACK:
            reason = f"share is {short(told)}, but its QPs are {due[row]:.4g} of the flow"
            raise refuse(origin, f"route {short(name)}", f"{reason}; correct share or qps")


def _arcs(
    routes: _Routes, records: list[JsonObject], hops: Ints, structure: Structure, origin: str
) -> Ints:
    """Return the arcs of all paths, one path after another, found by node ids and link keys."""
    names = [*chain.from_iterable(record["nodes"] for record in records)]
    keys = [*chain.from_iterable(record["keys"] for record in records)]
    index = structure.index
    try:
        nodes = np.array([index.get(name, NONE) for name in names], dtype=np.int64)
    except TypeError as error:  # a list or an object is not hashable
        raise refuse(origin, "routes", "nodes must be lists of node ids") from error
    counts = np.array([len(record["nodes"]) for record in records], dtype=np.int64)
    if (nodes == NONE).any():
        at = int(np.argmax(nodes == NONE))
        name = routes.names[int(np.searchsorted(np.cumsum(counts), at, side="right"))]
        reason = f"node {short(names[at])} is not in the fabric; is it the fabric of this plan?"
        raise refuse(origin, f"route {short(name)}", reason)
    inner = np.ones(len(nodes), dtype=np.bool_)
    inner[np.cumsum(counts)[counts > 0] - 1] = False
    tails = np.flatnonzero(inner)
    arcs = arcs_between(structure, nodes[tails], nodes[tails + 1], [str(key) for key in keys])
    if (arcs == NONE).any():
        at = int(np.argmax(arcs == NONE))
        name = routes.names[int(np.searchsorted(np.cumsum(hops), at, side="right"))]
        link = short(link_name(names[tails[at]], names[tails[at] + 1], keys[at]))
        reason = f"link {link} is not in the fabric"
        raise refuse(origin, f"route {short(name)}", reason)
    return arcs


def arcs_between(structure: Structure, tail: Ints, head: Ints, keys: Sequence[str]) -> Ints:
    """Return the arc from ``tail[i]`` to ``head[i]`` with key ``keys[i]``; ``NONE`` if absent."""
    numbers = {name: at for at, name in enumerate(dict.fromkeys(map(str, structure.links.key)))}
    known = np.array([numbers[str(key)] for key in structure.links.key], dtype=np.int64)
    wanted = np.array([numbers.get(key, NONE) for key in keys], dtype=np.int64)

    def code(tail: Ints, head: Ints, key: Ints) -> Ints:
        return (tail * len(structure.nodes.ids) + head) * len(numbers) + key

    codes = code(structure.tail, structure.head, np.repeat(known, 2))
    order = np.argsort(codes)
    sought = code(tail, head, wanted)
    place = np.minimum(np.searchsorted(codes, sought, sorter=order), len(codes) - 1)
    arcs = order[place]
    return np.where((codes[arcs] == sought) & (wanted != NONE), arcs, NONE)


def _fits(structure: Structure, flows: Flows, paths: Paths) -> Bools:
    """Return whether the paths of each flow suit it, shape (flows,).

    They must lead from its source to its destination and cover exactly its QPs.
    """
    fits = np.zeros(len(flows), dtype=np.bool_)
    fits[paths.flow] = True
    long = np.diff(paths.first) > 0
    fits[paths.flow[~long]] = False
    rows, starts = paths.flow[long], paths.first[:-1][long]
    ends = paths.first[1:][long] - 1
    off = structure.tail[paths.arcs[starts]] != flows.source[rows]
    off |= structure.head[paths.arcs[ends]] != flows.destination[rows]
    fits[rows[off]] = False
    same = paths.flow[1:] == paths.flow[:-1]
    due = np.zeros(len(paths), dtype=np.int64)
    due[1:] = np.where(same, paths.last_qp[:-1] + 1, 0)
    fits[paths.flow[paths.first_qp != due]] = False
    last = np.ones(len(paths), dtype=np.bool_)
    last[:-1] = ~same
    fits[paths.flow[last & (paths.last_qp != flows.qps[paths.flow] - 1)]] = False
    return fits


def _as_it_was(fabric: Fabric, records: object, origin: str) -> Fabric:
    """Return the fabric with the states in a plan's records; skip nodes and links that are gone.

    Without records (None), return the fabric unchanged.
    """
    if records is None:
        return fabric
    if not isinstance(records, list):
        raise refuse(origin, "states", "give a list of nodes and links that are not up")
    structure = fabric.structure
    whole = Fabric(structure, np.zeros_like(fabric.link_state), np.zeros_like(fabric.node_state))
    nodes: dict[int, State] = {}
    links: dict[int, State] = {}
    for at, record in enumerate(records):
        told = record if isinstance(record, dict) else {}
        state = _STATES.get(str(told.get("state")))
        if state is None:
            raise refuse(origin, f"states[{at}]", "needs a state: up, down or drained")
        if (node := told.get("node")) is not None:
            nodes |= {structure.index[str(node)]: state} if str(node) in structure.index else {}
            continue
        ends = [str(told.get(name)) for name in ("source", "target", "key")]
        links |= dict.fromkeys(whole.find_links(*ends), state)
    return whole.with_links(links).with_nodes(nodes)


def _reasons(records: object, origin: str) -> dict[str, str]:
    """Return the reason of each flow that had no path in the plan, by flow id."""
    if records is None:
        return {}
    try:
        return {str(one["flow"]): str(one["reason"]) for one in records}  # type: ignore[attr-defined]  # not a list of such: refused below
    except (TypeError, KeyError) as error:
        raise refuse(origin, "unrouted", "give a list of objects with flow and reason") from error


def _certificate(record: object, fabric: Fabric, origin: str) -> Certificate:
    """Return the certificate in a record, or an empty one if there is no record."""
    if record is None:
        return Certificate()
    if not isinstance(record, Mapping):
        raise refuse(origin, "certificate", "is not an object")
    tiers, bounds = record.get("tiers") or {}, record.get("tier_bounds") or {}
    if not isinstance(tiers, Mapping) or not isinstance(bounds, Mapping):
        raise refuse(origin, "certificate", "tiers and tier_bounds must be objects")
    return Certificate(
        max_utilization=_figure(record, "max_utilization", origin),
        lower_bound=_figure(record, "lower_bound", origin),
        proof=str(record.get("proof", "none")),
        tiers=tuple(
            TierCertificate(tier, _figure(tiers, tier, origin), _figure(bounds, tier, origin))
            for tier in tiers
        ),
        after_loss=_after_loss(record.get("after_loss") or {}, fabric, origin),
        turns=_turns(record.get("turns"), origin),
    )


def _turns(records: object, origin: str) -> tuple[Turn, ...] | None:
    if records is None:
        return None
    if not isinstance(records, list) or not all(isinstance(one, Mapping) for one in records):
        raise refuse(origin, "certificate", "turns must be a list of objects")
    figures = ("shift_seconds", "pace_seconds", "saved")
    return tuple(
        Turn(str(one.get("job", "")), *(_figure(one, name, origin) for name in figures))
        for one in records
    )


def _after_loss(record: object, fabric: Fabric, origin: str) -> tuple[AfterLoss, ...]:
    if not isinstance(record, Mapping) or not all(
        isinstance(one, Mapping) for one in record.values()
    ):
        raise refuse(origin, "certificate", "after_loss must be an object of objects")
    return tuple(
        AfterLoss(
            kind=str(kind),
            worst_utilization=_figure(one, "worst_utilization", origin),
            slowest_flow=_figure(one, "slowest_flow", origin),
            of=_of(str(one.get("of", "")), fabric),
            lower_bound=_figure(one, "lower_bound", origin),
            stranded=int(_figure(one, "stranded", origin)),
        )
        for kind, one in record.items()
    )


def _of(name: str, fabric: Fabric) -> str:
    """Return the name of a loss, a link always with its key."""
    rows = fabric.links_named(name)
    return fabric.link_name(rows[0]) if len(rows) == 1 else name


def _figure(record: Mapping[str, Any], name: str, origin: str) -> float:
    value = record.get(name, 0.0)
    if type(value) not in (int, float) or not math.isfinite(value):
        raise refuse(origin, "certificate", f"{name} is {short(value)}; give a finite number")
    return float(value)
