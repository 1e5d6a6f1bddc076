"""What a host tells of its source ports: whose it may be, how much, and what it comes to."""

from __future__ import annotations

import grpc
import numpy as np

from heddle.v1 import plan_pb2 as pb
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.port_paths_file import parse_port_paths
from heddle_controller.reconcile.observations import LinkStates, PortReport
from heddle_controller.serve.codec import names
from heddle_controller.serve.errors import Refusal, exhausted, failed_precondition
from heddle_controller.serve.security.caller import Caller

MOST_PORTS = 20_000
"""Of one message; a pair of NICs without any counts as one."""
MOST_OF_HOST = 200_000
"""Ports of one host with a path."""


def check_reporter(caller: Caller, fabric: str, host: str) -> None:
    """Raises ``Refusal`` where a host speaks for another."""
    if not caller.may_report_ports(fabric, host):
        message = f"{caller} may tell of its own NICs alone: give host its name"
        raise Refusal(grpc.StatusCode.PERMISSION_DENIED, "OTHER_HOST", message)


def port_report(request: pb.ReportPortPathsRequest, fabric: Fabric) -> PortReport:
    """What a host tells; takes a while, so call it in a thread.

    Raises:
        InputError: it names what the fabric does not have, other hosts' NICs, or too much.
        Refusal: no switch of the fabric hashes.
    """
    structure = fabric.structure
    if not structure.hashes.any():
        message = f"{names.fabric_name(fabric.name)} has no switch with forwarding ecmp"
        raise failed_precondition("NOTHING_HASHES", f"{message}: ports need no probing")
    own = structure.nics_of_host.get(request.host, ())
    if not own:
        raise refuse("request", "host", f"the fabric has no host {request.host[:80]!r} with NICs")
    count = sum(max(1, sum(len(path.ports) for path in pair.paths)) for pair in request.pairs)
    if count > MOST_PORTS:
        reason = f"tell of {count} ports; tell of at most {MOST_PORTS} in one message"
        raise refuse("request", "pairs", reason)
    document = {"pairs": [_record(pair) for pair in request.pairs]}
    known = parse_port_paths(document, fabric, "request")
    rows = np.array([_rows(pair, fabric) for pair in request.pairs], dtype=np.int64).reshape(-1, 2)
    for at in np.flatnonzero(~np.isin(rows[:, 0], own)).tolist():
        reason = f"source {request.pairs[at].source[:80]!r} is no NIC of {request.host!r}"
        raise refuse("request", f"pairs[{at}]", reason)
    if len(np.unique(rows, axis=0)) < len(rows):
        raise refuse("request", "pairs", "tell of two NICs twice; tell of each two once")
    return PortReport(structure, rows[:, 0], rows[:, 1], known)


def check_room(states: LinkStates, host: str, told: PortReport) -> None:
    """Raises ``Refusal`` where a host tells of more ports than one may."""
    before = states.ports_of(host, told.structure).without(told.source, told.destination)
    count = len(before.ports) + len(told.known.ports)
    if count > MOST_OF_HOST:
        message = f"{host} would have told of {count} ports; a host tells of {MOST_OF_HOST} at most"
        raise exhausted("TOO_MANY_PORTS", f"{message}: probe fewer")


def _record(pair: pb.PortPaths) -> dict[str, object]:
    paths = [
        {"hops": [hop or None for hop in path.hops], "ports": [*path.ports]} for path in pair.paths
    ]
    return {"source": pair.source, "destination": pair.destination, "paths": paths}


def _rows(pair: pb.PortPaths, fabric: Fabric) -> tuple[int, int]:
    """Node rows of the two NICs, which are known."""
    source, destination = (_row(fabric, name) for name in (pair.source, pair.destination))
    return source, destination


def _row(fabric: Fabric, name: str) -> int:
    index, nodes = fabric.structure.index, fabric.structure.nodes
    return index[name] if name in index else nodes.address.index(name)
