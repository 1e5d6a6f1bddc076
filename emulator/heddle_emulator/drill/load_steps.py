"""Probes and steps of a drill."""

from __future__ import annotations

import re
from collections.abc import Iterator

from heddle_controller.model.files.records import short
from heddle_controller.traffic.fields import Fields
from heddle_controller.traffic.yaml_text import Record
from heddle_emulator.drill.durations import CURE, seconds
from heddle_emulator.drill.scenario import CableName, EachFlow, Hop, Kind, ProbeSpec, Step, Target

EACH = "demands"
_HOP = re.compile(r"hop (\d+) of (\S+)")
_CABLE = re.compile(r"(\S+) to (\S+?)(?: key (\S+))?")
_PROTOCOLS = {"udp": "udp", "tcp": "tcp"}
_KINDS = {kind.value: kind for kind in Kind}


def read_probes(fields: Fields) -> tuple[ProbeSpec | EachFlow, ...]:
    """The probes of a drill, in order of the file."""
    records = _records(fields, "probes", "{probe: NAME, from, to, rate}")
    return tuple(_each(own) if "each" in own.record else _probe(own) for own in records)


def _probe(own: Fields) -> ProbeSpec:
    own.only("probe", "from", "to", "rate", "mbit", "protocol", "beside", "port")
    return ProbeSpec(
        name=own.text("probe", "name it"),
        source=own.text("from", "name a NIC"),
        destination=own.text("to", "name a NIC"),
        rate=own.positive("rate", 1.0) if "rate" in own.record else 0.0,
        mbit=own.positive("mbit", 1.0) if "mbit" in own.record else 0.0,
        protocol=own.choice("protocol", _PROTOCOLS, "udp"),
        beside=str(own.record.get("beside", "")),
        source_port=own.integer("port", 0, least=0),
        line=_line(own),
    )


def _each(own: Fields) -> EachFlow:
    own.only("probe", "each", "of", "rate", "mbit", "protocol")
    if own.record["each"] != EACH:
        own.fault(f"each is {short(own.record['each'])}; give {EACH}: a probe for every QP of them")
    return EachFlow(
        name=own.text("probe", "name it"),
        variant=str(own.record.get("of", "")),
        rate=own.positive("rate", 1.0) if "rate" in own.record else 0.0,
        mbit=own.positive("mbit", 1.0) if "mbit" in own.record else 0.0,
        protocol=own.choice("protocol", _PROTOCOLS, "udp"),
        line=_line(own),
    )


def read_steps(fields: Fields, name: str) -> tuple[Step, ...]:
    """Steps in order of time; those of one time in order of the file."""
    steps = [_step(own, timed=name == "timeline") for own in _records(fields, name, "a step")]
    return tuple(sorted((step for step in steps if step), key=lambda step: step.at))


def _step(own: Fields, *, timed: bool) -> Step | None:
    own.only("at", *_KINDS)
    words = [word for word in own.record if word in _KINDS]
    if len(words) != 1:
        own.fault(f"does {len(words)} things; give one of {', '.join(_KINDS)}")
        return None
    at = seconds(own.record.get("at", 0))
    if at is None or (timed and "at" not in own.record):
        own.fault(f"at is {short(own.record.get('at'))}; {CURE}")
        at = 0.0
    kind, value = _KINDS[words[0]], own.record[words[0]]
    targets = [_target(own, kind, text) for text in (value if isinstance(value, list) else [value])]
    return Step(at, kind, tuple(t for t in targets if t is not None), _line(own))


def _target(own: Fields, kind: Kind, text: object) -> Target | None:
    if isinstance(text, str) and text:
        if match := _HOP.fullmatch(text):
            return Hop(match[2], int(match[1]))
        if match := _CABLE.fullmatch(text):
            return CableName(match[1], match[2], match[3])
        if " " not in text:
            return text
    own.fault(
        f"{kind.value} is {short(text)}; name a cable as 'l0 to s1' or 'hop 2 of PROBE',"
        " or one node"
    )
    return None


def _records(fields: Fields, name: str, form: str) -> Iterator[Fields]:
    for row, record in enumerate(fields.entries(name)):
        if isinstance(record, Record):
            yield Fields(record, f"{name}[{row}] (line {record.line})", fields.problems)
        else:
            fields.fault(f"{name}[{row}] is {short(record)}; give {form}")


def _line(own: Fields) -> int:
    return own.record.line if isinstance(own.record, Record) else 0
