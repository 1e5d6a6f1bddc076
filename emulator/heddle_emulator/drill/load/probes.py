"""Probes of a drill: what is looked at in it."""

from __future__ import annotations

from heddle_controller.model.files.records import short
from heddle_controller.traffic.fields import Fields
from heddle_emulator.drill.load.steps import line_of, records_of
from heddle_emulator.drill.scenario import EachFlow, ProbeSpec

EACH = "demands"
_PROTOCOLS = {"udp": "udp", "tcp": "tcp"}


def read_probes(fields: Fields) -> tuple[ProbeSpec | EachFlow, ...]:
    """The probes of a drill, in order of the file."""
    records = records_of(fields, "probes", "{probe: NAME, from, to, rate}")
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
        line=line_of(own),
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
        line=line_of(own),
    )
