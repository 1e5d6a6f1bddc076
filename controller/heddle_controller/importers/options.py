"""Options of importers, and a dictionary of other systems' words.

Options say what a file does not. The dictionary translates words for kinds, states, fields and
speeds to those of fabric.json.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from heddle.text import meant
from heddle_controller.model.errors import InputError, Problem, refuse

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
"""Our fields of nodes and of links, and the attributes tried for each if no mapping is given.
``state`` is a field of both, and one mapping is used for both."""

HOST = "host"
"""Kind of a node that stands for a whole host. Each of its links is a NIC."""

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
"""All words that a mapping may have on its left: a field is mapped to the name of an attribute, a
kind to a value. "host" is both, and is mapped to an attribute."""


def attribute_names(
    records: Sequence[NodeRecord],
    fields: Mapping[str, tuple[str, ...]],
    mapping: Mapping[str, str],
    origin: str,
    *,
    what: str,
    shared: Iterable[str] = (),
) -> dict[str, str]:
    """Return the name of the attribute that holds each field, for fields that some record has.

    Args:
        records: The nodes, or the links.
        fields: Our fields, and the attributes to try for each.
        mapping: Our word to the word in the file.
        origin: The file, for messages.
        what: What the records are ("node" or "link"), for messages.
        shared: Fields whose mapped attribute may be missing, because other records have it.

    Raises:
        InputError: no record has an attribute that is mapped.
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
    """Return our kind for each ``plain`` word. The mapping takes precedence over the defaults."""
    words = by_word(KIND_WORDS)
    return words | {
        plain(mapping[kind]): kind for kind in KIND_WORDS if kind in mapping and kind != HOST
    }


def by_word(meanings: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Invert a table: return our word for each of the others."""
    return {word: ours for ours, words in meanings.items() for word in words}


def plain(value: object) -> str:
    """Return a word in lower case without spaces and punctuation: "Top-of-Rack" is "topofrack"."""
    return re.sub(r"[\W_]", "", str(value)).lower()


def state_word_of(value: object) -> object:
    """Return our word for a state, or the value itself, which a later check then refuses."""
    return _STATE_WORDS.get(plain(value), value)


_STATE_WORDS = by_word(_STATES)


UNITS = {"bps": 1e-9, "K": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3}
"""Gbit/s in one of each unit."""

SUSPICIOUS = 1e6
"""A number without a unit that means more Gbit/s than this was probably in another unit."""

_CURE = "write one above 0 such as 400, '400G' or '1.6T'"
_TEXT = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*(?P<prefix>[kKmMgGtT])?(?P<bit>b|B|bits?|bE)?(?:ps|/s)?"
)


def gbps_of(value: object, unit: str) -> float:
    """Parse a speed and return it in Gbit/s.

    A number without a unit is in ``unit``, a key of ``UNITS``.

    Raises:
        ValueError: the value is not a finite speed above 0, or is a bare number so large that it
            was probably in another unit. The message says so.
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
    """Return a number and the Gbit/s of its unit, or None without a unit. NaN if not a speed."""
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


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Choices that a file does not determine. Speeds are in Gbit/s."""

    nics_per_host: int = 8
    nic_gbps: float = 400.0
    uplink_gbps: float | None = None
    """Speed of one cable from leaf to spine, which becomes a link. None: as fast as a NIC."""
    spines_per_group: int | None = None
    """How many spines a named spine stands for. None: as many as a host has NICs."""
    cores_per_plane: int = 8
    """How many cores connect the spines that have the same position in their groups."""
    core_taper: float = 1.0
    """A spine's total speed to its leaves divided by its total speed to the cores."""
    link_gbps: float | None = None
    """Speed of links for which the file has none. None: such links are refused."""
    speed_unit: str = "G"
    """Unit of speeds without a unit: one of "bps", "K", "M", "G", "T"."""

    def check(self, origin: str) -> None:
        """Check that the values are allowed.

        Raises:
            InputError: with ``origin`` as its source; names the faulty options.
        """
        problems = [*self._counts(), *self._rates()]
        if self.speed_unit not in UNITS:
            reason = f"is {self.speed_unit!r}; give one of {', '.join(UNITS)}"
            problems.append(Problem("option speed_unit", reason))
        if problems:
            raise InputError(origin, *problems)

    def _counts(self) -> Iterable[Problem]:
        for name in ("nics_per_host", "spines_per_group", "cores_per_plane"):
            value = getattr(self, name)
            if value is not None and value < 1:
                yield Problem(f"option {name}", f"is {value}; give 1 or more")

    def _rates(self) -> Iterable[Problem]:
        for name in ("nic_gbps", "uplink_gbps", "core_taper", "link_gbps"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                yield Problem(f"option {name}", f"is {value}; give a finite number above 0")


def parse_mapping(text: str) -> dict[str, str]:
    """Parse a text such as ``"host=ip,leaf=ASW"`` to a mapping of our word to theirs.

    Raises:
        InputError: a part has no '=' or an empty side, or a word occurs twice.
    """
    mapping: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        ours, equals, theirs = (side.strip() for side in part.partition("="))
        if not (ours and equals and theirs):
            raise refuse("--map", repr(part), "give OURS=THEIRS, such as leaf=ASW")
        if ours in mapping:
            raise refuse("--map", repr(part), f"{ours} is given twice; keep one")
        mapping[ours] = theirs
    return mapping


def check_words(mapping: Mapping[str, str], known: Iterable[str], origin: str) -> None:
    """Check that an importer knows all words of ours in a mapping.

    Raises:
        InputError: names the unknown word, and a similar one or all known ones.
    """
    words = list(known)
    for word in mapping:
        if word not in words:
            reason = f"unknown {word!r}; {meant(word, words)}"
            raise refuse(origin, f"mapping {word}={mapping[word]}", reason)
