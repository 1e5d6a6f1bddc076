"""What is to become of a workload: a pure function of the object, asked anew at each change."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
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
"""Characters of a workload's name that its job is called by; a job has 63 in all."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to become of a workload."""

    key: str
    """``namespace/name``."""
    job: str
    """Name of its job at Heddle."""
    over: bool = False
    """Whether it has ended, or waits: no job is to be there."""
    spec: bytes = b""
    """The job that is to be there, serialised; nothing where there is none to plan."""
    reason: str = ""
    """Why there is none, where the workload is to go on without."""
    checks: tuple[str, ...] = ()
    """Its checks of ours that are to be answered."""
    since: float | None = None
    """When its quota was reserved, in seconds since the epoch; None where that is not told."""


class Names:
    """How jobs of a cluster are called at Heddle."""

    def __init__(self, cluster: str) -> None:
        """Jobs of clusters never meet.

        Args:
            cluster: What no other cluster is called, such as the uid of its first namespace.
        """
        self._prefix = f"k8s-{_digest(cluster)[:8]}-"

    def is_ours(self, job: str) -> bool:
        """Whether a job of that name is of a workload of this cluster."""
        return job.startswith(self._prefix)

    def of(self, workload: object) -> str:
        """Of a workload: readable at the front, and its own by its uid."""
        readable = _ODD.sub("-", text(workload, "metadata", "name"))[:_READABLE]
        return f"{self._prefix}{readable}-{_digest(text(workload, 'metadata', 'uid'))[:10]}"


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


def decide(
    workload: Object, names: Names, ours: Collection[str], owner_shape: str | None = None
) -> Decision:
    """What is to become of a workload.

    Args:
        workload: As it is now.
        names: How jobs are called.
        ours: Names of the AdmissionChecks that are answered here.
        owner_shape: The shape that stands at the job that the workload is of, if that was read.
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
    """Whether a workload holds its quota, and neither has ended nor is to make room."""
    return (
        is_so(workload, "QuotaReserved")
        and not is_so(workload, "Finished")
        and not is_so(workload, "Evicted")
        and part(workload, "spec", "active") is not False
        and not part(workload, "metadata", "deletionTimestamp")
    )


def shape_of(workload: object, owner_shape: str | None) -> tuple[str, list[str]]:
    """The shape in words, and the pod sets that it is of, in the order of their ranks.

    Raises:
        Unfit: nobody wrote one, or several.
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
    """Whether the shape of a workload can only stand at the job that it is of."""
    return part(workload, "metadata", "annotations", SHAPE) is None and not any(
        part(one, "template", "metadata", "annotations", SHAPE) is not None
        for one in each(workload, "spec", "podSets")
    )


def _spec(words: str, hosts: list[str]) -> bytes:
    """The job, with its ranks in the order of completion indices."""
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
