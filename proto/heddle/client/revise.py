"""Specifications of jobs as they are to become: other hosts, more, fewer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

import grpc

from heddle.client.errors import InvalidRequest, Violation
from heddle.v1 import placement_pb2 as pb

SHOWN = 3


def replaced(spec: pb.JobSpec, hosts: Mapping[str, str]) -> pb.JobSpec:
    """The specification with other hosts in the place of some, each with as many GPUs.

    Args:
        spec: As it is.
        hosts: The new host of each that goes.

    Raises:
        InvalidRequest: a host that goes is not of the job, or one that comes is.
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
    """The specification with more hosts, at the end, and without some.

    The number of replicas (dp) follows; all other degrees stay.

    Args:
        spec: As it is.
        add: Hosts that come.
        remove: Hosts that go.
        gpus: Those of each host that comes, or one for all, where the job has parts of hosts;
            none: those that each of its hosts gives.
        dp: Replicas; 0: as many as the ranks make.

    Raises:
        InvalidRequest: a host that goes is not of the job, one that comes is, none is left, or
            nobody says which GPUs of a host the job is to have.
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
    """The specification with other collectives in the place of those that it has.

    Args:
        spec: As it is.
        before: Its collectives, as they were when others were found for them.
        after: What takes their place.

    Raises:
        InvalidRequest: it has others by now.
    """
    if list(spec.collectives) != list(before):
        raise _refused("collectives", "the job has others by now: measure it again")
    found = _copy(spec)
    del found.collectives[:]
    found.collectives.extend(after)
    return found


def drifted(spec: pb.JobSpec, seconds: float) -> pb.JobSpec:
    """The same, computing for so much longer in an iteration, or less.

    Raises:
        InvalidRequest: it tells no ``compute_seconds``, or none would be left.
    """
    found = _copy(spec)
    found.compute_seconds += seconds
    if not (spec.compute_seconds and found.compute_seconds > 0):
        told = f"it is {spec.compute_seconds:g}, and drifted by {seconds:g}"
        raise _refused("compute_seconds", f"{told}: tell how long the job computes")
    return found


def suspended(spec: pb.JobSpec, *, rests: bool) -> pb.JobSpec:
    """The same, at rest or not."""
    found = _copy(spec)
    found.suspended = rests
    return found


def _new_parts(
    spec: pb.JobSpec, add: Sequence[str], gpus: Sequence[pb.HostGpus]
) -> list[pb.HostGpus]:
    """The GPUs of the hosts that come."""
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
    """Which hosts there are."""
    near = get_close_matches(host, hosts, SHOWN) or hosts[:SHOWN]
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
