"""Make a fabric of machines and the cables between them, as discovery programs find them.

Such programs know names, ports, and what is at the other end of each cable. The rest is derived
here:

- *NICs.* Each cable of a host is a NIC. It has the name of the host if the host has one cable,
  otherwise "HOST-PORT".
- *Tiers.* A switch with a cable to a host is a leaf, one with a cable to a leaf is a spine, and one
  with a cable to a spine is a core. If that does not fit, ``--map leaf=PATTERN`` names the switches
  of a tier (``*`` and ``?`` as in a shell), and the other tiers follow from them.
- *Speeds.* A cable without a speed gets ``link_gbps``.

A machine without a cable is left out, unless it is a switch that is ``kept``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from heddle_controller.importers.options import HOST, ImportOptions, check_words
from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem, refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import parse_fabric
from heddle_controller.model.files.records import short

TIERS = ("leaf", "spine", "core")
NODE_KINDS = (HOST, *TIERS, "switch")
"""Kinds that a mapping may name. "switch" is a switch without a tier."""
ANY_SWITCH = "any switch"
"""Kind of a switch whose tier is not known yet."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A host or a switch. ``kind`` is one of ``NODE_KINDS`` or ``ANY_SWITCH``."""

    kind: str
    record: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of its node, as in fabric.json."""
    kept: bool = False
    """Whether a switch is in the fabric even without a cable."""


@dataclass(frozen=True, slots=True)
class Port:
    """One end of a cable."""

    machine: str
    name: str
    record: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the NIC at this port, including ``id``. Empty at a switch, or if not known."""


@dataclass(frozen=True, slots=True)
class Cable:
    """A cable between two ports."""

    a: Port
    b: Port
    where: str
    """Its place in the file, for messages."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the link, as in fabric.json; ``gbps`` only if the speed is known."""


def fabric_of(
    name: str,
    machines: Mapping[str, Machine],
    cables: Sequence[Cable],
    *,
    mapping: Mapping[str, str],
    options: ImportOptions,
    origin: str,
) -> Fabric:
    """Return the fabric of machines, given by name, and the cables between them.

    Raises:
        InputError: a port has two cables, an end is not one of the machines, a cable has no speed,
            a mapping fits no machine, or the result is not a valid fabric.
    """
    check_words(mapping, NODE_KINDS, origin)
    problems = [*_unmatched(machines, mapping), *_faults(machines, cables, options)]
    if problems:
        raise InputError(origin, *problems[:MAX_PROBLEMS])
    if not cables:
        raise refuse(origin, "", "tells of no cable between two machines; is it the right file?")
    kinds = _tiers(_kinds(machines, mapping), cables)
    if HOST not in kinds.values():
        named = short(next(iter(machines)))
        cure = f"name the hosts by --map {HOST}=PATTERN; machines are called like {named}"
        raise refuse(origin, "", f"no machine in it is a host; {cure}")
    ends: dict[str, int] = defaultdict(int)
    for cable in cables:
        for port in (cable.a, cable.b):
            ends[port.machine] += 1
    nodes = {
        name: {"id": name, "kind": kinds[name], **machine.record}
        for name, machine in machines.items()
        if kinds[name] != HOST and (ends[name] or machine.kept)
    }
    nics: dict[str, dict[str, Any]] = {}
    edges = []
    for cable in cables:
        both = []
        for port in (cable.a, cable.b):
            if kinds[port.machine] == HOST:
                nic = _nic(port, machines[port.machine], alone=ends[port.machine] == 1)
                both.append(str(nics.setdefault(str(nic["id"]), nic)["id"]))
            else:
                both.append(str(nodes[port.machine]["id"]))
        edge = {"source": both[0], "target": both[1], "gbps": options.link_gbps, **cable.record}
        edges.append(edge)
    document = {"graph": {"name": name}, "nodes": [*nics.values(), *nodes.values()], "edges": edges}
    return parse_fabric(document, origin)


def _nic(port: Port, host: Machine, *, alone: bool) -> dict[str, Any]:
    found = {"id": port.machine if alone else f"{port.machine}-{port.name}", "host": port.machine}
    return {"kind": "nic", **(port.record or {**found, **host.record})}


def _unmatched(machines: Mapping[str, Machine], mapping: Mapping[str, str]) -> Iterable[Problem]:
    for kind, pattern in mapping.items():
        if not any(fnmatchcase(name, pattern) for name in machines):
            some = short(next(iter(machines), ""))
            reason = f"no machine has such a name; they are called like {some}"
            yield Problem(f"mapping {kind}={pattern}", reason)


def _faults(
    machines: Mapping[str, Machine], cables: Sequence[Cable], options: ImportOptions
) -> Iterable[Problem]:
    used: dict[tuple[str, str], str] = {}
    for cable in cables:
        for port in (cable.a, cable.b):
            end = f"{port.machine}:{port.name}"
            if port.machine not in machines:
                yield Problem(cable.where, f"{short(port.machine)} is no machine here; add it")
            elif used.setdefault((port.machine, port.name), cable.where) != cable.where:
                told = used[port.machine, port.name]
                reason = f"{short(end)} has a cable already ({told}); a port takes one"
                yield Problem(cable.where, reason)
        if "gbps" not in cable.record and options.link_gbps is None:
            ends = f"{cable.a.machine}:{cable.a.name} to {cable.b.machine}:{cable.b.name}"
            reason = f"the link {short(ends)} tells no speed; give --link-gbps"
            yield Problem(cable.where, reason)


def _kinds(machines: Mapping[str, Machine], mapping: Mapping[str, str]) -> dict[str, str]:
    """Return the kind of each machine: from the mapping, otherwise from the file."""

    def kind(name: str) -> str:
        mapped = (kind for kind, pattern in mapping.items() if fnmatchcase(name, pattern))
        return next(mapped, machines[name].kind)

    return {name: kind(name) for name in machines}


def _tiers(kinds: dict[str, str], cables: Sequence[Cable]) -> dict[str, str]:
    """Return the kinds with a tier for each ``ANY_SWITCH``, or "switch" if it is in no tier."""
    beside: dict[str, list[str]] = defaultdict(list)
    for cable in cables:
        beside[cable.a.machine].append(cable.b.machine)
        beside[cable.b.machine].append(cable.a.machine)
    found = dict(kinds)
    for below, tier in zip((HOST, *TIERS), TIERS, strict=False):
        for name in [name for name, kind in found.items() if kind == below]:
            for other in beside[name]:
                if found[other] == ANY_SWITCH:
                    found[other] = tier
    return {name: "switch" if kind == ANY_SWITCH else kind for name, kind in found.items()}
