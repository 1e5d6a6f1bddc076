"""Pure functions that return a changed copy of a job's specification."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import grpc

from heddle.client.errors import InvalidRequest, Violation
from heddle.text import similar
from heddle.v1 import placement_pb2 as pb

SHOWN = 3


def replaced(spec: pb.JobSpec, hosts: Mapping[str, str]) -> pb.JobSpec:
    """Return the specification with some hosts replaced by others that give as many GPUs.

    Args:
        spec: The current specification.
        hosts: For each host that leaves, the host that takes its place.

    Raises:
        InvalidRequest: A host that leaves is not of the job, or a new one already is.
    """
    _check(spec, hosts.keys(), hosts.values())
    found = _copy(spec)
    found.hosts[:] = [hosts.get(host, host) for host in spec.hosts]
    return found


def resized(
    spec: pb.JobSpec,
    *,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    gpus: Sequence[pb.HostGpus] = (),
    dp: int = 0,
) -> pb.JobSpec:
    """Return the specification with hosts added at the end, and without the removed ones.

    The number of replicas (dp) is set to ``dp``; all other degrees stay.

    Args:
        spec: The current specification.
        add: Hosts to add.
        remove: Hosts to remove.
        gpus: If the job has parts of hosts: the GPUs of each added host, or one item for all. Empty
            means the same GPUs as the job's present hosts give.
        dp: Number of replicas; 0 means as many as the ranks allow.

    Raises:
        InvalidRequest: Nothing would change, a host to remove is not of the job, a host to add
            already is, none would be left, or it is not clear which GPUs of the added hosts to
                take.
    """
    _check(spec, remove, add)
    if not add and not remove:
        raise _refused("hosts", "none comes and none goes: say which")
    kept = [host for host in spec.hosts if host not in set(remove)]
    if not (kept or add):
        raise _refused("hosts", "none would be left: delete the job, or suspend it")
    found = _copy(spec)
    found.hosts[:] = [*kept, *add]
    found.parallelism.dp = dp
    if spec.gpus:
        parts = dict(zip(spec.hosts, _parts(spec.gpus, len(spec.hosts)), strict=True))
        new = _new_parts(spec, add, gpus)
        del found.gpus[:]
        found.gpus.extend([*(parts[host] for host in kept), *new])
        found.gpus_per_host = 0
    elif gpus:
        raise _refused("gpus", "the job has whole hosts: submit it with gpus to have parts of them")
    return found


def corrected(
    spec: pb.JobSpec, before: Sequence[pb.Collective], after: Sequence[pb.Collective]
) -> pb.JobSpec:
    """Return the specification with its collectives replaced.

    Args:
        spec: The current specification.
        before: The collectives from which ``after`` was derived.
        after: The new collectives.

    Raises:
        InvalidRequest: The job's collectives are no longer ``before``.
    """
    if list(spec.collectives) != list(before):
        raise _refused("collectives", "the job has others by now: measure it again")
    found = _copy(spec)
    del found.collectives[:]
    found.collectives.extend(after)
    return found


def drifted(spec: pb.JobSpec, seconds: float) -> pb.JobSpec:
    """Return the specification with so many more seconds of computing in an iteration, or fewer.

    Raises:
        InvalidRequest: It gives no ``compute_seconds``, or nothing of them would be left.
    """
    found = _copy(spec)
    found.compute_seconds += seconds
    if not (spec.compute_seconds and found.compute_seconds > 0):
        told = f"it is {spec.compute_seconds:g}, and drifted by {seconds:g}"
        raise _refused("compute_seconds", f"{told}: tell how long the job computes")
    return found


def suspended(spec: pb.JobSpec, *, rests: bool) -> pb.JobSpec:
    """Return the specification, suspended or not."""
    found = _copy(spec)
    found.suspended = rests
    return found


def _new_parts(
    spec: pb.JobSpec, add: Sequence[str], gpus: Sequence[pb.HostGpus]
) -> list[pb.HostGpus]:
    """Return the GPUs of the hosts to add."""
    told = list(gpus)
    if not told and add:
        if len({tuple(part.gpus) for part in spec.gpus}) > 1:
            raise _refused("gpus", "its hosts give different GPUs: say which the new ones give")
        told = list(spec.gpus[:1])
    if len(told) not in (1, len(add)):
        raise _refused(
            "gpus", f"there are {len(told)} for {len(add)} hosts: give one a host, or one for all"
        )
    return _parts(told, len(add))


def _parts(gpus: Sequence[pb.HostGpus], count: int) -> list[pb.HostGpus]:
    return list(gpus) * count if len(gpus) == 1 else list(gpus)


def _check(spec: pb.JobSpec, gone: Iterable[str], come: Iterable[str]) -> None:
    gone, come, known = list(gone), list(come), set(spec.hosts)
    for host in gone:
        if host not in known:
            raise _refused("hosts", f"{host!r} is not of the job, {_hint(host, spec.hosts)}")
    for host in come:
        if host in known:
            raise _refused("hosts", f"{host!r} is of the job already: name another")
        if come.count(host) > 1:
            raise _refused("hosts", f"{host!r} is named twice: name each host once")


def _hint(host: str, hosts: Sequence[str]) -> str:
    """Say which hosts the job has, those with similar names first."""
    near = similar(host, hosts, SHOWN) or hosts[:SHOWN]
    more = len(hosts) - len(near)
    return f"which has {', '.join(near)}{f' and {more} more' if more else ''}"


def _copy(spec: pb.JobSpec) -> pb.JobSpec:
    found = pb.JobSpec()
    found.CopyFrom(spec)
    return found


def _refused(field: str, why: str) -> InvalidRequest:
    violation = Violation(field, why)
    return InvalidRequest(
        f"{field}: {why}", code=grpc.StatusCode.INVALID_ARGUMENT, violations=(violation,)
    )
