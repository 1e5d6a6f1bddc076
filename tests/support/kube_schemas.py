"""What the schemas of Kubernetes, Kueue and Volcano require of the objects that are written here.

Types, limits, patterns and rules are restated in this project's words. The sources are the custom
resource definitions of Kueue (v1beta2: AdmissionCheck, Topology, Workload) and of Volcano
(v1alpha1: HyperNode), which are under Apache-2.0, and the API conventions of Kubernetes. A field
that no schema knows is refused, where a real server would drop it with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tests.support.kube_api import Json, Served

HOSTNAME = "kubernetes.io/hostname"
LABEL_VALUE = r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?"
DNS_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
LABEL_KEY = rf"({DNS_NAME}/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])"
WORD = r"([a-z0-9]([-a-z0-9]*[a-z0-9])?)"
REASON = r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"
Schema = Mapping[str, Any]


def text(longest: int, pattern: str = ".*", shortest: int = 0) -> Schema:
    """Return the schema of a text."""
    return {"is": str, "longest": longest, "pattern": pattern, "shortest": shortest}


def integer(least: int) -> Schema:
    """Return the schema of a whole number."""
    return {"is": int, "least": least}


def items(of: Schema, most: int, least: int = 0, key: str = "") -> Schema:
    """Return the schema of a list; with ``key``, no two items have the same value of that field."""
    return {"is": list, "of": of, "most": most, "least": least, "key": key}


def fields(needed: Mapping[str, Schema], others: Mapping[str, Schema] | None = None) -> Schema:
    """Return the schema of an object with known fields."""
    return {"is": dict, "needed": needed, "fields": {**needed, **(others or {})}}


TIME: Schema = {"is": str, "time": True}
ANYTHING: Schema = {}
CONDITION = fields(
    {
        "type": text(316, LABEL_KEY),
        "status": text(7, "True|False|Unknown"),
        "reason": text(1024, REASON, 1),
        "message": text(32768),
        "lastTransitionTime": TIME,
    },
    {"observedGeneration": integer(0)},
)
CONDITIONS = items(CONDITION, 16, key="type")
CHECK_STATE = fields(
    {
        "name": text(316, shortest=1),
        "state": text(8, "Pending|Ready|Retry|Rejected"),
        "lastTransitionTime": TIME,
        "message": text(32768),
    },
    {
        "requeueAfterSeconds": integer(0),
        "retryCount": integer(0),
        "podSetUpdates": items(ANYTHING, 18),
    },
)
SELECTOR = fields(
    {},
    {
        "exactMatch": fields({"name": text(253, DNS_NAME, 1)}),
        "regexMatch": fields({"pattern": text(1 << 20, shortest=1)}),
        "labelMatch": fields({}, {"matchLabels": ANYTHING, "matchExpressions": ANYTHING}),
    },
)
MEMBER = fields({"type": text(9, "Node|HyperNode")}, {"selector": SELECTOR})
TOPOLOGY = fields({"levels": items(fields({"nodeLabel": text(316, LABEL_KEY, 1)}), 16, least=1)})
HYPER_NODE = fields(
    {"tier": integer(0)}, {"tierName": text(253), "members": items(MEMBER, 1 << 20, least=1)}
)


def faults(value: object, schema: Schema, where: str) -> list[str]:
    """List what is wrong with a value."""
    wanted = schema.get("is")
    if wanted is None:
        return []
    if not isinstance(value, wanted) or isinstance(value, bool):
        return [f"{where}: {value!r} is no {wanted.__name__}"]
    if isinstance(value, str):
        return _of_text(value, schema, where)
    if isinstance(value, int):
        return [f"{where}: below {schema['least']}"] if value < schema["least"] else []
    if isinstance(value, list):
        return _of_list(value, schema, where)
    assert isinstance(value, dict)
    missing = [f"{where}.{name}: Required value" for name in schema["needed"].keys() - value.keys()]
    unknown = [f"{where}.{name}: unknown field" for name in value.keys() - schema["fields"].keys()]
    below = [
        fault
        for name, one in schema["fields"].items()
        if name in value
        for fault in faults(value[name], one, f"{where}.{name}")
    ]
    return missing + unknown + below


def _of_text(value: str, schema: Schema, where: str) -> list[str]:
    if schema.get("time"):
        try:
            return [] if datetime.fromisoformat(value).tzinfo else [f"{where}: has no zone"]
        except ValueError:
            return [f"{where}: {value!r} is no time"]
    if not schema["shortest"] <= len(value) <= schema["longest"]:
        return [f"{where}: {len(value)} characters"]
    if not re.fullmatch(schema["pattern"], value, re.DOTALL):
        return [f"{where}: {value!r} does not match {schema['pattern']}"]
    return []


def _of_list(value: list[Any], schema: Schema, where: str) -> list[str]:
    found = [
        fault
        for place, one in enumerate(value)
        for fault in faults(one, schema["of"], f"{where}[{place}]")
    ]
    if not schema["least"] <= len(value) <= schema["most"]:
        found.append(f"{where}: {len(value)} items")
    if schema["key"] and not found:
        keys = [one[schema["key"]] for one in value]
        found += [f"{where}: Duplicate value {key!r}" for key in set(keys) if keys.count(key) > 1]
    return found


def _named(one: Json) -> list[str]:
    """Check name, labels and annotations."""
    meta = one["metadata"]
    found = faults(meta["name"], text(253, DNS_NAME, 1), "metadata.name")
    for key, value in {**meta.get("labels", {})}.items():
        found += faults(value, text(63, LABEL_VALUE), f"metadata.labels[{key}]")
        found += _key(key)
    for key, value in {**meta.get("annotations", {})}.items():
        found += faults(value, text(256 << 10), f"metadata.annotations[{key}]") + _key(key)
    return found


def _key(key: str) -> list[str]:
    prefix, slash, name = key.rpartition("/")
    found = faults(name, text(63, r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", 1), key)
    return found + (faults(prefix, text(253, DNS_NAME, 1), key) if slash else [])


def _topology(before: Json | None, after: Json) -> list[str]:
    found = _named(after) + faults(after.get("spec"), TOPOLOGY, "spec")
    if found:
        return found
    levels = [one["nodeLabel"] for one in after["spec"]["levels"]]
    if len(set(levels)) < len(levels):
        found.append("spec.levels: must be unique")
    if HOSTNAME in levels[:-1]:
        found.append("spec.levels: the hostname can only be the lowest level")
    old = [one["nodeLabel"] for one in before["spec"]["levels"]] if before else levels
    if levels != old and not old[-1] == levels[-1] == HOSTNAME:
        found.append("spec.levels: mutable only when the hostname is the lowest level")
    return found


def _hyper_node(_: Json | None, after: Json) -> list[str]:
    found = _named(after) + faults(after.get("spec"), HYPER_NODE, "spec")
    for place, member in enumerate([] if found else after["spec"].get("members", [])):
        if len(member.get("selector", {})) != 1:
            found.append(f"spec.members[{place}].selector: needs one match")
    return found


def _only(part: str, before: Json | None, after: Json) -> list[str]:
    """Check that a client changes only one part of the status."""
    old, new = ({**(one or {}).get("status", {})} for one in (before, after))
    old.pop(part, None), new.pop(part, None)
    return [] if old == new else [f"status: more than {part} was changed"]


def _workload(before: Json | None, after: Json) -> list[str]:
    checks = items(CHECK_STATE, 8, key="name")
    value = after.get("status", {}).get("admissionChecks", [])
    return faults(value, checks, "status.admissionChecks") + _only("admissionChecks", before, after)


def _admission_check(before: Json | None, after: Json) -> list[str]:
    value = after.get("status", {}).get("conditions", [])
    return faults(value, CONDITIONS, "status.conditions") + _only("conditions", before, after)


def _node(_: Json | None, after: Json) -> list[str]:
    return _named(after)


KUEUE, VOLCANO = "kueue.x-k8s.io", "topology.volcano.sh"
CORE = [
    Served("", "v1", "Node", "nodes", has_status=True, validate=_node),
    Served("", "v1", "Namespace", "namespaces"),
    Served("batch", "v1", "Job", "jobs", namespaced=True, has_status=True),
    Served("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets", namespaced=True, has_status=True),
]
OF_KUEUE = [
    Served(KUEUE, "v1beta2", "Workload", "workloads", True, True, _workload),
    Served(
        KUEUE, "v1beta2", "AdmissionCheck", "admissionchecks", has_status=True,
        validate=_admission_check,
    ),
    Served(KUEUE, "v1beta2", "Topology", "topologies", validate=_topology),
]  # fmt: skip
OF_VOLCANO = [
    Served(VOLCANO, "v1alpha1", "HyperNode", "hypernodes", has_status=True, validate=_hyper_node)
]
EVERYTHING = [*CORE, *OF_KUEUE, *OF_VOLCANO]
