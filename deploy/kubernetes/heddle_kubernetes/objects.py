"""The kinds of API objects, and safe access to objects that others wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from lightkube.generic_resource import (
    Generic,
    create_global_resource,
    create_namespaced_resource,
)

Object = dict[str, Any]
"""An object in the form of JSON."""
Kind = type[Generic]
"""A kind of objects, or a part of theirs such as their status."""

GROUP = "heddle.run"
"""The group in every name that belongs to Heddle."""
CONTROLLER = f"{GROUP}/admission-check"
"""``spec.controllerName`` of the AdmissionChecks that this program answers."""
SHAPE = f"{GROUP}/shape"
"""Annotation of a job: its shape in words."""
LABELLED = f"{GROUP}/tiers"
"""Annotation of a node: the labels that this program set, as JSON."""
FABRIC = f"{GROUP}/fabric"
"""Label of objects that this program made: the fabric that they describe."""
MANAGED_BY = "app.kubernetes.io/managed-by"
OURS = "heddle-kubernetes"
HOSTNAME = "kubernetes.io/hostname"
TIER = "fabric.topograph.run/tier-"
"""Prefix of node labels; the number of the tier follows, 0 for the leaf."""

NODE = create_global_resource("", "v1", "Node", "nodes")
NAMESPACE = create_global_resource("", "v1", "Namespace", "namespaces")
JOB = create_namespaced_resource("batch", "v1", "Job", "jobs")
JOB_SET = create_namespaced_resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
WORKLOAD = create_namespaced_resource("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")
ADMISSION_CHECK = create_global_resource(
    "kueue.x-k8s.io", "v1beta2", "AdmissionCheck", "admissionchecks"
)
TOPOLOGY = create_global_resource("kueue.x-k8s.io", "v1beta2", "Topology", "topologies")
HYPER_NODE = create_global_resource("topology.volcano.sh", "v1alpha1", "HyperNode", "hypernodes")


def part(value: object, *path: str) -> Any:  # noqa: ANN401 - JSON
    """Return what is at a path; None if a part of the path is missing or is no object."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def text(value: object, *path: str) -> str:
    """Return the text at a path; empty if there is none."""
    found = part(value, *path)
    return found if isinstance(found, str) else ""


def each(value: object, *path: str) -> Sequence[Any]:
    """Return the list at a path; empty if there is none."""
    found = part(value, *path)
    return found if isinstance(found, list) else ()


def key_of(value: object) -> str:
    """Return ``namespace/name`` of an object, or only the name if it has no namespace."""
    namespace = text(value, "metadata", "namespace")
    name = text(value, "metadata", "name")
    return f"{namespace}/{name}" if namespace else name


def condition(value: object, kind: str) -> Mapping[str, Any]:
    """Return the condition of a type in an object's status; empty if there is none."""
    for found in each(value, "status", "conditions"):
        if text(found, "type") == kind:
            return dict(found)
    return {}


def is_so(value: object, kind: str) -> bool:
    """Return whether an object has a condition and it is true."""
    return condition(value, kind).get("status") == "True"


def instant(time: str) -> float | None:
    """Convert a time as the API writes it to seconds since the epoch; None for anything else."""
    try:
        found = datetime.fromisoformat(time)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def written(seconds: float) -> str:
    """Write a time as the API requires."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
