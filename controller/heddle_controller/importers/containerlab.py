"""Topologies of containerlab (``.clab.yml``), read and written.

Reading: a node's ``kind`` says whether it is a host (``linux`` and similar kinds) or a switch (a
network operating system), unless its ``group`` or a tier in ``--map`` says what it is. Kinds and
groups are inherited as in containerlab. Links that leave the lab (to the machine that runs it, or
to the management network) are not part of the fabric. Speeds are in a link's ``vars`` (``gbps``),
because containerlab itself has no speeds.

Writing: each host is a node with an interface for each NIC, and each switch is a node. All are of
kind linux, and each tier has its image in one place. Other facts about the fabric go into
``labels`` and ``vars``, which containerlab ignores, so that the same fabric can be read back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from heddle_controller.importers.cabling import (
    ANY_SWITCH,
    NODE_KINDS,
    Cable,
    Machine,
    Port,
    fabric_of,
)
from heddle_controller.importers.options import (
    HOST,
    KIND_WORDS,
    ImportOptions,
    by_word,
    gbps_of,
    plain,
)
from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem, refuse
from heddle_controller.model.fabric import NUMBERS, Fabric
from heddle_controller.model.files.fabric_file import fabric_document
from heddle_controller.model.files.records import short
from heddle_controller.model.files.yaml_text import Record, load_yaml

HOST_KINDS = {"linux", "host", "k8s-kind", "ext-container", "generic_vm", "generic-vm"}
OUTSIDE = {"host", "mgmt-net", "macvlan", "vxlan", "vxlan-stitch", "dummy"}
"""Names that an endpoint has in place of a node if a link leaves the lab, and types of such
links."""
LABEL = "heddle-"
"""Prefix of labels with facts for which containerlab has no field."""
IMAGES = {
    "switch": "quay.io/frrouting/frr:10.2.1",
    HOST: "docker.io/library/alpine:3",
}
"""Container images in written topologies. A user can change them in the file's groups."""

_EXPECTED = "give a containerlab topology: topology, with nodes and links"


def import_clab(path: Path, mapping: Mapping[str, str], options: ImportOptions) -> Fabric:
    """Read the fabric of a topology file. ``mapping`` gives patterns of names for tiers.

    Raises:
        InputError: the file is not a topology or has faulty nodes or links (with the line), or it
            is not a valid fabric.
    """
    origin = str(path)
    document = load_yaml(path)
    topology = _mapping(document, "topology", origin)
    nodes = _mapping(topology, "nodes", origin)
    groups = {name: topology.get(name) for name in ("defaults", "groups", "kinds")}
    problems: list[Problem] = []
    machines = {}
    for name, told in nodes.items():
        line = told.line if isinstance(told, Record) else nodes.line
        where = f"line {line}, node {short(name)}"
        if isinstance(told, dict) or told is None:
            machines[str(name)] = _machine(told or {}, where, groups, problems)
        else:
            problems.append(Problem(where, f"is {short(told)}; give an object"))
    links = topology.get("links")
    if not isinstance(links, list):
        raise refuse(origin, f"line {topology.line}", f"links is {short(links)}; {_EXPECTED}")
    cables = [
        cable
        for place, link in enumerate(links)
        for cable in _cable(link, place, machines, options, problems)
    ]
    if problems:
        raise InputError(origin, *problems[:MAX_PROBLEMS])
    defaults = groups["defaults"]
    labels = defaults.get("labels") if isinstance(defaults, dict) else None
    title = labels.get(f"{LABEL}name") if isinstance(labels, dict) else None
    name = str(title if title is not None else document.get("name", ""))
    return fabric_of(name, machines, cables, mapping=mapping, options=options, origin=origin)


def _mapping(document: object, field: str, origin: str) -> Record:
    found = document.get(field) if isinstance(document, dict) else None
    if not isinstance(found, Record) or not found:
        line = f"line {document.line}" if isinstance(document, Record) else ""
        raise refuse(origin, line, f"{field} is {short(found)}; {_EXPECTED}")
    return found


def _machine(
    told: Mapping[str, Any], where: str, above: Mapping[str, Any], problems: list[Problem]
) -> Machine:
    """Return a node as a machine. Its kind and group may be inherited from ``above``."""
    defaults = above["defaults"] if isinstance(above["defaults"], dict) else {}
    group = told.get("group", defaults.get("group"))
    groups = above["groups"]
    shared = groups.get(group) if isinstance(groups, dict) else None
    shared = shared if isinstance(shared, dict) else {}
    kind = told.get("kind", shared.get("kind", defaults.get("kind")))
    if not isinstance(kind, str):
        problems.append(Problem(where, f"kind is {short(kind)}; give the node a kind"))
        return Machine(HOST)
    meant = by_word(KIND_WORDS).get(plain(group)) if group is not None else None
    labels = told.get("labels")
    record = _labelled(labels if isinstance(labels, dict) else {})
    if meant in NODE_KINDS and meant is not None:
        return Machine(meant, record, kept=bool(record))
    return Machine(HOST if kind in HOST_KINDS else ANY_SWITCH, record)


def _labelled(labels: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the fields of fabric.json that labels contain."""
    found: dict[str, Any] = {
        str(name).removeprefix(LABEL): value
        for name, value in labels.items()
        if str(name).startswith(LABEL)
    }
    for number in NUMBERS:
        value = found.get(number)
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
            found[number] = int(value)
    return found


def _cable(
    link: object,
    place: int,
    machines: Mapping[str, Machine],
    options: ImportOptions,
    problems: list[Problem],
) -> Iterator[Cable]:
    where = f"line {link.line}" if isinstance(link, Record) else f"links[{place}]"
    if not isinstance(link, dict):
        problems.append(Problem(where, f"is {short(link)}; give a link with endpoints"))
        return
    if link.get("type", "veth") in OUTSIDE:
        return
    told, extra = link.get("endpoints"), link.get("vars")
    extra = dict(extra) if isinstance(extra, dict) else {}
    try:
        ends = _ends(told)
        if any(machine in OUTSIDE - machines.keys() for machine, _ in ends):
            return
        if extra.get("gbps") is not None:
            extra["gbps"] = gbps_of(extra["gbps"], options.speed_unit)
    except ValueError as error:
        problems.append(Problem(where, str(error)))
        return
    nic = extra.pop("nic", None)
    nic = nic if isinstance(nic, dict) and nic.get("id") is not None else {}
    names = {"gbps", "key", "state", "source_address", "target_address"}
    record = {name: value for name, value in extra.items() if name in names and value is not None}
    a, b = (Port(machine, port, nic) for machine, port in ends)
    yield Cable(a, b, where, record)


def _ends(told: object) -> list[tuple[str, str]]:
    if not isinstance(told, list) or len(told) != 2:  # noqa: PLR2004 - a cable has two ends
        raise ValueError(f"endpoints is {short(told)}; give two, such as leaf1:eth1")
    return [_end(one) for one in told]


def _end(told: object) -> tuple[str, str]:
    """Return the node and interface of an endpoint, in either of containerlab's forms."""
    if isinstance(told, dict):
        machine, port = told.get("node"), told.get("interface")
    else:
        machine, _, port = str(told).partition(":")
    if not (isinstance(machine, str) and isinstance(port, str) and machine and port):
        raise ValueError(f"{short(told)} is no endpoint; give NODE:INTERFACE, such as leaf1:eth1")
    return machine, port


_Plain: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_Plain):  # type: ignore[misc]  # chosen at run time: libyaml may be absent
    """Quotes text that some YAML readers could take for a number."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ANN401, ARG002 - PyYAML's
        """Write everything out, without aliases."""
        return True


def _quoted(dumper: Any, text: str) -> yaml.ScalarNode:  # noqa: ANN401 - see _Plain
    simple = re.fullmatch(r"[A-Za-z][A-Za-z0-9_./:-]*", text) is not None
    style = None if simple else '"'
    written: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
    return written


_Dumper.add_representer(str, _quoted)


def clab_text(fabric: Fabric) -> str:
    """Return a fabric as a containerlab topology; ``import_clab`` reads the same fabric back."""
    document = fabric_document(fabric)
    name = _clean(fabric.name) or "fabric"
    nodes, home = _written_nodes(document["nodes"])
    records = {record["id"]: record for record in document["nodes"]}
    ports: dict[str, int] = {}
    links = []
    for edge in document["edges"]:
        ends, nic = [], {}
        for end in ("source", "target"):
            machine = home[edge[end]]
            ports[machine] = ports.get(machine, 0) + 1
            ends.append(f"{machine}:eth{ports[machine]}")
            if records[edge[end]]["kind"] == "nic":
                nic = {"nic": records[edge[end]]}
        extra = {word: value for word, value in edge.items() if word not in ("source", "target")}
        links.append({"endpoints": ends, "vars": {**extra, **nic}})
    topology: dict[str, Any] = {
        "defaults": {"kind": "linux"}
        | ({"labels": {f"{LABEL}name": fabric.name}} if fabric.name != name else {}),
        "groups": {
            group: {"image": IMAGES.get(group, IMAGES["switch"])}
            for group in NODE_KINDS
            if any(node["group"] == group for node in nodes.values())
        },
        "nodes": nodes,
        "links": links,
    }
    lab = {"name": name, "topology": topology}
    written: str = yaml.dump(lab, Dumper=_Dumper, sort_keys=False, width=120)
    return written


def _written_nodes(
    records: Iterable[Mapping[str, Any]],
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the nodes of the topology, and which of them each node of the fabric is part of."""
    nodes: dict[str, dict[str, Any]] = {}
    taken: set[str] = set(OUTSIDE)
    home: dict[str, str] = {}
    hosts: dict[str, str] = {}
    for record in records:
        node = record["id"]
        if record["kind"] == "nic":
            host = record.get("host", "")
            machine = hosts.get(host) or _free(_clean(host or node), taken)
            nodes.setdefault(machine, {"group": HOST})
            if host:
                hosts[host] = machine
            home[node] = machine
            continue
        home[node] = _free(_clean(node), taken)
        told = {
            f"{LABEL}{word}": str(value)
            for word, value in record.items()
            if word not in ("kind", "id") or (word == "id" and value != home[node])
        }
        told = told or {f"{LABEL}id": node}
        nodes[home[node]] = {"group": record["kind"], "labels": told}
    return nodes, home


def _clean(name: str) -> str:
    """Return a name that is allowed for a container."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name).lstrip("-._")[:60]


def _free(name: str, taken: set[str]) -> str:
    found, count = name or "node", 1
    while found in taken:
        count += 1
        found = f"{name}-{count}"
    taken.add(found)
    return found
