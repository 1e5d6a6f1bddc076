"""What to do with a workload: a pure function of the object, called again at each change."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from heddle.shape import ShapeError, parse_shape, shape_text
from heddle.text import clean
from heddle_kubernetes.assignment import Unfit, hosts_of
from heddle_kubernetes.objects import (
    SHAPE,
    Object,
    condition,
    each,
    instant,
    is_so,
    key_of,
    part,
    text,
)

PENDING, READY = "Pending", "Ready"
LONGEST_SHAPE = 64 << 10
_ODD = re.compile(r"[^A-Za-z0-9_.-]")
_READABLE = 38
"""Most characters of a workload's name in its job's name, which may have 63 in all."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a workload."""

    key: str
    """``namespace/name`` of the workload."""
    job: str
    """Name of its job in Heddle."""
    over: bool = False
    """Whether the workload has ended or waits, so that no job should exist."""
    spec: bytes = b""
    """The job that should exist, serialised; empty if there is nothing to plan."""
    reason: str = ""
    """Why there is nothing to plan, if the workload is to start without a plan."""
    checks: tuple[str, ...] = ()
    """Names of the workload's pending checks that this program answers."""
    since: float | None = None
    """When its quota was reserved, in seconds since the epoch; None if unknown."""


class Names:
    """The names that a cluster's jobs have in Heddle."""

    def __init__(self, cluster: str) -> None:
        """Create the names of a cluster's jobs; they differ from those of all other clusters.

        Args:
            cluster: An id that no other cluster has, such as the uid of its first namespace.
        """
        self._prefix = f"k8s-{_digest(cluster)[:8]}-"

    def is_ours(self, job: str) -> bool:
        """Return whether a job of that name belongs to a workload of this cluster."""
        return job.startswith(self._prefix)

    def of(self, workload: object) -> str:
        """Return the job name of a workload: readable at the front, and unique by its uid."""
        readable = _ODD.sub("-", text(workload, "metadata", "name"))[:_READABLE]
        return f"{self._prefix}{readable}-{_digest(text(workload, 'metadata', 'uid'))[:10]}"


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


def decide(
    workload: Object, names: Names, ours: Collection[str], owner_shape: str | None = None
) -> Decision:
    """Return what to do with a workload.

    Args:
        workload: The workload as it is now.
        names: The names of jobs.
        ours: Names of the AdmissionChecks that this program answers.
        owner_shape: The shape in the annotation of the job that owns the workload, if it was read.
    """
    key, job = key_of(workload), names.of(workload)
    if not is_running(workload):
        return Decision(key, job, over=True)
    states = {
        text(one, "name"): text(one, "state")
        for one in each(workload, "status", "admissionChecks")
        if text(one, "name") in ours
    }
    if not states:
        return Decision(key, job)
    checks = tuple(name for name, state in states.items() if state == PENDING)
    since = instant(str(condition(workload, "QuotaReserved").get("lastTransitionTime")))
    try:
        shape, pod_sets = shape_of(workload, owner_shape)
        spec = _spec(shape, hosts_of(workload, pod_sets))
    except Unfit as unfit:
        return Decision(key, job, reason=clean(str(unfit)), checks=checks, since=since)
    return Decision(key, job, spec=spec, checks=checks, since=since)


def is_running(workload: object) -> bool:
    """Return whether a workload holds its quota, has not ended, and is not being evicted."""
    return (
        is_so(workload, "QuotaReserved")
        and not is_so(workload, "Finished")
        and not is_so(workload, "Evicted")
        and part(workload, "spec", "active") is not False
        and not part(workload, "metadata", "deletionTimestamp")
    )


def shape_of(workload: object, owner_shape: str | None) -> tuple[str, list[str]]:
    """Return the shape in words and the names of its pod sets, in the order of their ranks.

    Raises:
        Unfit: There is no shape, or there are different ones, or no pod sets.
    """
    pod_sets = each(workload, "spec", "podSets")
    own = {
        text(one, "name") or "main": part(one, "template", "metadata", "annotations", SHAPE)
        for one in pod_sets
    }
    shared = part(workload, "metadata", "annotations", SHAPE)
    if shared is None and any(one is not None for one in own.values()):
        own = {name: one for name, one in own.items() if one is not None}
        if len(set(map(str, own.values()))) > 1:
            raise Unfit(f"its pod sets have different shapes in {SHAPE}: a workload is one job")
        shared = next(iter(own.values()))
    if shared is None:
        shared = owner_shape
    if shared is None:
        raise Unfit(f"nobody wrote its shape: annotate the job with {SHAPE}, as in 'gpus=8 tp=8'")
    assigned = {
        text(one, "name")
        for one in each(workload, "status", "admission", "podSetAssignments")
        if part(one, "topologyAssignment") is not None
    }
    names = [name for name in own if name in assigned] or list(own)[:1]
    if not names:
        raise Unfit("it has no pod sets")
    return str(shared), names


def needs_owner(workload: object) -> bool:
    """Return whether the shape can only be in the annotation of the job that owns the workload."""
    return part(workload, "metadata", "annotations", SHAPE) is None and not any(
        part(one, "template", "metadata", "annotations", SHAPE) is not None
        for one in each(workload, "spec", "podSets")
    )


def without_containers(workload: Object) -> Object:
    """Return a workload without what its pods run, which is most of it and decides nothing."""
    found = {**workload, "metadata": {**(part(workload, "metadata") or {})}}
    found["metadata"].pop("managedFields", None)
    if isinstance(spec := part(workload, "spec"), Mapping):
        pod_sets = [
            {**one, "template": {"metadata": part(one, "template", "metadata")}}
            if isinstance(one, Mapping)
            else one
            for one in each(spec, "podSets")
        ]
        found["spec"] = {**spec, "podSets": pod_sets}
    return found


def _spec(words: str, hosts: list[str]) -> bytes:
    """Return the serialised job, whose ranks are in the order of completion indices."""
    if len(words) > LONGEST_SHAPE:
        raise Unfit(f"{SHAPE} is longer than {LONGEST_SHAPE >> 10} KiB: no shape is")
    marked = shape_text(words)
    try:
        shape = parse_shape(words if marked is None else marked)
    except ShapeError as error:
        raise Unfit(f"{SHAPE}: {error}") from None
    if shape.order:
        raise Unfit(f"{SHAPE}: 'order' is a word for Slurm; here ranks follow completion indices")
    shape.spec.hosts.extend(hosts)
    return shape.spec.SerializeToString(deterministic=True)
