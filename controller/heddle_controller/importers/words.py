"""Other systems' words for kinds, states, fields and speeds, and ours for them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from heddle_controller.model.errors import refuse

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
