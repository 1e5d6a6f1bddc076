"""Machines and the cables between them, as programs find them, made into a fabric.

What such programs know is names, ports and who is at the other end. What they do not
know is found here:

- *Hosts.* Each cable of a host is a NIC: it has the host's name if the host has one
  cable, else "HOST-PORT".
- *Tiers.* A switch with a host is a leaf; one with a leaf a spine; one with a spine
  a core. Where that is not so, ``--map leaf=PATTERN`` names the switches of a tier
  (``*`` and ``?`` as in a shell), and the rest is counted from them.
- *Speeds* of cables that tell none are ``link_gbps``.

A machine without a cable has no part in the fabric and is left out.

Other systems' words for kinds, states, fields and speeds, and ours for them.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeGuard

from heddle_controller.importers.options import ImportOptions, check_words
from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem, refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import parse_fabric
from heddle_controller.model.files.records import short

NodeRecord = Mapping[str, Any]

NODE_FIELDS: dict[str, tuple[str, ...]] = {
    "id": ("id", "name", "label"),
    "kind": ("kind", "type", "role", "node_type", "device_type", "device_role", "tier"),
    "zone": ("zone", "pod", "block"),
    "rail": ("rail",),
    "plane": ("plane",),
    "host": ("host", "hostname", "server"),
    "address": ("address", "ip", "loopback"),
    "table_size": ("table_size",),
    "gpu": ("gpu",),
    "state": ("state", "status"),
}
EDGE_FIELDS: dict[str, tuple[str, ...]] = {
    "source": ("source", "from", "src", "a"),
    "target": ("target", "to", "dst", "b"),
    "key": ("key",),
    "gbps": ("gbps", "bandwidth", "capacity", "speed", "bw", "rate", "link_speed"),
    "state": ("state", "status"),
}
"""Our fields, and the names each is found by where no mapping tells. ``state`` is a field of
both, and one mapping serves for both."""

HOST = "host"
"""A node that stands for a whole host: each of its links is a NIC."""

KIND_WORDS: dict[str, tuple[str, ...]] = {
    "nic": ("nic", "hca", "port", "gpu", "endpoint", "ca"),
    HOST: ("host", "server", "compute", "machine", "endhost", "worker"),
    "leaf": ("leaf", "tor", "topofrack", "rtsw", "rsw", "asw", "edge", "access", "leafswitch"),
    "spine": ("spine", "agg", "aggregation", "ctsw", "fsw", "psw", "distribution", "spineswitch"),
    "core": ("core", "superspine", "atsw", "ssw", "dsw", "coreswitch"),
    "switch": ("switch", "sw", "router", "bridge"),
}
_STATES: dict[str, tuple[str, ...]] = {
    "up": ("up", "active", "enabled", "ok", "true"),
    "down": ("down", "inactive", "disabled", "failed", "offline", "false"),
    "drained": ("drained", "maintenance"),
}

WORDS = tuple(dict.fromkeys([*NODE_FIELDS, *EDGE_FIELDS, *KIND_WORDS]))
"""Everything a mapping may name: fields are mapped to their attribute names, kinds to
their value. "host" is both; it names the attribute."""


def attribute_names(
    records: Sequence[NodeRecord],
    fields: Mapping[str, tuple[str, ...]],
    mapping: Mapping[str, str],
    origin: str,
    *,
    what: str,
    shared: Iterable[str] = (),
) -> dict[str, str]:
    """The attribute that holds each field, for fields that some record has.

    Raises:
        InputError: an attribute is mapped that no record has; ``shared`` fields are let
            off, as other records have them.
    """
    present = {name for record in records for name in record}
    names = {}
    for ours, candidates in fields.items():
        if ours in mapping and mapping[ours] not in present and ours not in shared:
            there = ", ".join(sorted(map(str, present))[:12])
            reason = f"no {what} has the attribute {mapping[ours]!r}; they have {there}"
            raise refuse(origin, f"mapping {ours}={mapping[ours]}", reason)
        tried = (mapping[ours],) if ours in mapping else candidates
        found = next((name for name in tried if name in present), None)
        if found is not None:
            names[ours] = found
    return names


def kinds_by_word(mapping: Mapping[str, str]) -> dict[str, str]:
    """Our kind for each plain word; mapped words win over what they mean otherwise."""
    words = by_word(KIND_WORDS)
    return words | {
        plain(mapping[kind]): kind for kind in KIND_WORDS if kind in mapping and kind != HOST
    }


def by_word(meanings: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Our word for each of theirs."""
    return {word: ours for ours, words in meanings.items() for word in words}


def plain(value: object) -> str:
    """A word without case, spaces and signs: "Top-of-Rack" is "topofrack"."""
    return re.sub(r"[\W_]", "", str(value)).lower()


def state_word_of(value: object) -> object:
    """Our word for a state, or the value as it is, for the check to fault."""
    return _STATE_WORDS.get(plain(value), value)


_STATE_WORDS = by_word(_STATES)


UNITS = {"bps": 1e-9, "K": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3}
"""Gbit/s in one of each unit."""

SUSPICIOUS = 1e6
"""Gbit/s above which a bare number was most likely in another unit."""

_CURE = "write one above 0 such as 400, '400G' or '1.6T'"
_TEXT = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*(?P<prefix>[kKmMgGtT])?(?P<bit>b|B|bits?|bE)?(?:ps|/s)?"
)


def gbps_of(value: object, unit: str) -> float:
    """A speed in Gbit/s; a number without a unit is in ``unit`` (a key of ``UNITS``).

    Raises:
        ValueError: in words, for what is no finite speed above 0.
    """
    if isinstance(value, str):
        number, scale = _parsed(value)
    else:
        number, scale = float(value) if _is_number(value) else math.nan, None
    gbps = number * (UNITS[unit] if scale is None else scale)
    if not (math.isfinite(gbps) and gbps > 0):
        raise ValueError(f"{str(value)[:40]!r} is not a speed; {_CURE}")
    if scale is None and gbps > SUSPICIOUS:
        raise ValueError(
            f"{value} would be {gbps:g} Gbit/s; tell the unit of bare numbers (speed_unit=bps?)"
        )
    return gbps


def _parsed(text: str) -> tuple[float, float | None]:
    """Number and Gbit/s of its unit, None where it has none; NaN for what is no speed."""
    match = _TEXT.fullmatch(text.strip())
    if not match:
        return math.nan, None
    number = float(match["number"])
    if not (match["prefix"] or match["bit"]):
        return number, None
    prefix = match["prefix"].upper() if match["prefix"] else "bps"
    return number, UNITS[prefix] * (8 if match["bit"] == "B" else 1)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


TIERS = ("leaf", "spine", "core")
NODE_KINDS = (HOST, *TIERS, "switch")
"""What a mapping may name; "switch" is one of no tier."""
ANY_SWITCH = "any switch"
"""The kind of a switch whose tier is to be found."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A host, or a switch of a tier or of ``ANY_SWITCH``; ``kept`` even without a cable."""

    kind: str
    record: Mapping[str, Any] = field(default_factory=dict)
    """What else is told of its node, in the words of fabric.json."""
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Port:
    """One end of a cable."""

    machine: str
    name: str
    record: Mapping[str, Any] = field(default_factory=dict)
    """What is told of the NIC here, ``id`` as well; empty at a switch."""


@dataclass(frozen=True, slots=True)
class Cable:
    """Two ports, and what the link has besides; without a speed it tells none."""

    a: Port
    b: Port
    where: str
    """Where the file tells it, for people."""
    record: Mapping[str, Any] = field(default_factory=dict)


def fabric_of(
    name: str,
    machines: Mapping[str, Machine],
    cables: Sequence[Cable],
    *,
    mapping: Mapping[str, str],
    options: ImportOptions,
    origin: str,
) -> Fabric:
    """The fabric of machines by their names, and cables.

    Raises:
        InputError: a port has two cables, an end is no machine, a cable has no speed,
            a mapping fits no machine; or it is no sound fabric.
    """
    check_words(mapping, NODE_KINDS, origin)
    problems = [*_unmatched(machines, mapping), *_faults(machines, cables, options)]
    if problems:
        raise InputError(origin, *problems[:MAX_PROBLEMS])
    kinds = _tiers(_kinds(machines, mapping), cables)
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
    """Kind of each machine: as it is mapped, else as the file tells it."""

    def kind(name: str) -> str:
        mapped = (kind for kind, pattern in mapping.items() if fnmatchcase(name, pattern))
        return next(mapped, machines[name].kind)

    return {name: kind(name) for name in machines}


def _tiers(kinds: dict[str, str], cables: Sequence[Cable]) -> dict[str, str]:
    """Kinds with a tier for each switch that has none yet; "switch" beyond the cores."""
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
