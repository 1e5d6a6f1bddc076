"""UDP source ports of NICs: what hosts read of a job's ports, and what they report of port paths.

A watching stream keeps a digest of each job's ports, not the ports. If a new plan has the same
flows and ports as the plan before, which is usual after a lost link, nothing is compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from heddle.v1 import plan_pb2 as pb
from heddle_controller.model.arrays import NONE, Ints, distinct, ranges, starts
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.port_paths_file import parse_port_paths
from heddle_controller.model.flows import qp_ports
from heddle_controller.model.plan import NicPorts, Plan
from heddle_controller.reconcile.observations import LinkStates, PortReport
from heddle_controller.serve.errors import denied, exhausted, failed_precondition
from heddle_controller.serve.flow_index import FlowIndex, Ports
from heddle_controller.serve.security.caller import Caller

MOST_FLOWS = 10_000
"""Most flows in one message."""


def sending_nics(fabric: Fabric, hosts: Sequence[str], nics: Sequence[str]) -> Ints | None:
    """Return the node rows of all NICs of these hosts and of these NICs, ascending.

    It returns None, which means all NICs, if no host and no NIC is named.

    Raises:
        InputError: the fabric has no such host, or no such NIC.
    """
    if not hosts and not nics:
        return None
    structure, known = fabric.structure, fabric.structure.nics_of_host
    rows: list[int] = []
    for host in hosts:
        if host not in known:
            raise refuse("request", "hosts", f"the fabric has no host {host[:80]!r} with NICs")
        rows += known[host]
    for nic in nics:
        row = structure.index.get(nic, NONE)
        if row == NONE or structure.nodes.kind[row] != NodeKind.NIC:
            raise refuse("request", "nics", f"the fabric has no NIC {nic[:80]!r}")
        rows.append(row)
    return distinct(np.array(rows, dtype=np.int64))


def ports_to_pb(plan: Plan, first_ports: Ints, rows: Ints, job: str) -> pb.JobPorts:
    """Return the ports of some flows of a job as a message.

    Args:
        plan: The plan of the flows.
        first_ports: Source port of QP 0 of every flow of the plan.
        rows: Rows of the flows, all of one job.
        job: Name of the job.
    """
    flows, nodes = plan.flows, plan.fabric.structure.nodes
    hosts = plan.fabric.structure.host_names
    source, destination = flows.source[rows], flows.destination[rows]
    nics, number = np.unique(np.concatenate([source, destination]), return_inverse=True)
    message = pb.JobPorts(
        job=job,
        nics=[nodes.ids[row] for row in nics.tolist()],
        addresses=[nodes.address[row] for row in nics.tolist()],
        flows=[flows.ids[row] for row in rows.tolist()],
        sources=number[: len(rows)].tolist(),
        destinations=number[len(rows) :].tolist(),
        first_ports=first_ports[rows].tolist(),
        qp_counts=flows.qps[rows].tolist(),
        hosts=[hosts[row] if row != NONE else "" for row in nodes.host[nics].tolist()],
    )
    if plan.nic_ports is not None and plan.nic_ports.probes[rows].any():
        ports, backups = _of_qps(plan, plan.nic_ports, first_ports, rows)
        message.probe_counts.extend(plan.nic_ports.probes[rows].tolist())
        message.qp_ports.extend(ports.tolist())
        message.backup_ports.extend(backups.tolist())
    return message


def _of_qps(plan: Plan, chosen: NicPorts, first_ports: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return the ports of all QPs of some flows, and of their backups (0 for none).

    Both are sorted by flow, in the order of ``rows``, and then by QP.
    """
    count = plan.flows.qps[rows]
    bounds = starts(count)
    qp = ranges(np.zeros_like(count), count)
    ports, backups = qp_ports(np.repeat(first_ports[rows], count), qp), np.zeros_like(qp)
    place = np.full(len(plan.flows), NONE, dtype=np.int64)
    place[rows] = bounds[:-1]
    paths = plan.paths
    number = paths.qp_numbers()
    begin = np.repeat(place[paths.flow], paths.qp_count)
    for column, found in ((chosen.port, ports), (chosen.backup, backups)):
        at = np.flatnonzero((begin != NONE) & (column != NONE))
        found[begin[at] + number[at]] = column[at]
    return ports, backups


def parts_to_pb(plan: Plan, first_ports: Ints, rows: Ints, job: str) -> list[pb.JobPorts]:
    """Return messages as ``ports_to_pb``, with ``MOST_FLOWS`` flows each; at least one message."""
    starts = range(0, max(len(rows), 1), MOST_FLOWS)
    return [ports_to_pb(plan, first_ports, rows[at : at + MOST_FLOWS], job) for at in starts]


def rows_by_job(plan: Plan, rows: Ints) -> Iterator[tuple[str, Ints]]:
    """Yield each job that has some of the flow rows, with its rows, in the order of the jobs."""
    jobs = plan.flows.job[rows]
    order = np.argsort(jobs, kind="stable")
    found, starts = np.unique(jobs[order], return_index=True)
    for job, mine in zip(found.tolist(), np.split(rows[order], starts[1:]), strict=False):
        yield plan.flows.job_names[job], mine


MOST_PORTS = 20_000
"""Most ports in one message; a pair of NICs without ports counts as one."""
MOST_OF_HOST = 200_000
"""Most ports with a path that one host may have reported."""


def check_reporter(caller: Caller, fabric: str, host: str) -> None:
    """Raise ``Refusal`` if a host reports ports of another host."""
    if not caller.may_report_ports(fabric, host):
        message = f"{caller} may tell of its own NICs alone: give host its name"
        raise denied("OTHER_HOST", message)


def port_report(request: pb.ReportPortPathsRequest, fabric: Fabric) -> PortReport:
    """Return a host's report of port paths; takes a while, so call it in a thread.

    Raises:
        InputError: it names something that the fabric does not have, sources that are not NICs of
            the host, a pair twice, or too many ports.
        Refusal: no switch of the fabric hashes, so ports need no probing.
    """
    structure = fabric.structure
    if not structure.hashes.any():
        message = f"{request.fabric} has no switch with forwarding ecmp"
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
    """Raise ``Refusal`` if a host would have reported more ports than ``MOST_OF_HOST``."""
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
    """Return the node rows of the two NICs, which must be in the fabric."""
    source, destination = (_row(fabric, name) for name in (pair.source, pair.destination))
    return source, destination


def _row(fabric: Fabric, name: str) -> int:
    index, nodes = fabric.structure.index, fabric.structure.nodes
    return index[name] if name in index else nodes.address.index(name)


class ToldPorts:
    """The ports that one watching stream has received."""

    def __init__(self, request: pb.WatchJobPortsRequest) -> None:
        self._jobs = set(request.jobs)
        self._hosts, self._nics = list(request.hosts), list(request.nics)
        self._digests: dict[str, bytes] = {}
        self._of: Ports | None = None
        self._synced = False

    def events(self, index: FlowIndex) -> list[pb.JobPortsEvent]:
        """Return the events that a new plan causes; takes a while, so call it in a thread.

        Raises:
            InputError: the fabric does not have the hosts or NICs that were asked for.
        """
        if index.by_port is self._of:
            return []
        rows = rows_leaving(index, self._hosts, self._nics)
        told: list[pb.JobPortsEvent] = []
        digests: dict[str, bytes] = {}
        for job, mine in rows_by_job(index.plan, rows):
            if self._jobs and job not in self._jobs:
                continue
            parts = parts_to_pb(index.plan, index.ports, mine, job)
            digests[job] = _digest(parts)
            if digests[job] != self._digests.get(job):
                told += _told(parts, index.generation)
        for job in self._digests.keys() - digests.keys():
            told.append(pb.JobPortsEvent(deleted=job))
        if not self._synced:
            told.append(pb.JobPortsEvent(synced=True))
        self._digests, self._of, self._synced = digests, index.by_port, True
        return told


def rows_leaving(index: FlowIndex, hosts: Sequence[str], nics: Sequence[str]) -> Ints:
    """Return the rows of flows from these hosts and NICs, ascending; all flows if none is named.

    Raises:
        InputError: as ``sending_nics``.
    """
    sending = sending_nics(index.plan.fabric, hosts, nics)
    if sending is None:
        return np.arange(len(index.plan.flows), dtype=np.int64)
    return index.leaving(sending)


def _digest(parts: Sequence[pb.JobPorts]) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(part.SerializeToString(deterministic=True))
    return found.digest()


def _told(parts: Sequence[pb.JobPorts], generation: int) -> Iterator[pb.JobPortsEvent]:
    for number, part in enumerate(parts, 1):
        part.generation = generation
        yield pb.JobPortsEvent(ports=part, more=number < len(parts))
