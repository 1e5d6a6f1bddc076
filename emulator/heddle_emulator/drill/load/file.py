"""Load a drill file as a ``Scenario``. All faults are reported at once, with line and cure.

::

    drill: remote-link
    proves: A cable between a spine and a leaf dies, and the far leaf moves its flows
    worlds: [netns]
    fabric: {clos: {leaves: 4, spines: 4, nics_per_leaf: 2, nics_per_host: 1}}
    demands:
      - {from: l0-h0-n0, to: l1-h0-n0, gbps: 400}
    probes:
      - {probe: pinned, from: l0-h0-n0, to: l1-h0-n0, rate: 2000}
      - {probe: frr, from: l0-h1-n0, to: l1-h1-n0, rate: 2000, beside: pinned}
    setup:
      - {kill: controller}
    timeline:
      - {at: 100ms, cut: hop 3 of pinned}
    runs: 30
    expect:
      - {recovered: pinned, p99: {most: 10ms}}

The ends of a demand may also be hosts or leaves. Then every NIC of one end sends to every NIC of
the other; ``nics`` limits this to the first few NICs of each.
With ``ipv6: true`` the fabric has IPv6 addresses. With ``forwarding: ecmp`` switches only hash, and
no part of Heddle runs on them. Hosts then choose the source port of every demanded QP, and change
it when its path is lost (``probe_ms`` of the lab says how often they probe their paths).
``variants``, a list of names and demands, plays the drill once under each of them.
``lab`` has settings of the lab, such as ``{rate_mbit: 20, bfd_ms: 50}``. With ``controllers: 2``
two controllers share one Redis, and "controller" means the one that leads.
With ``race: true`` steps of one moment come in an order drawn from the seed. See the modules
``traffic`` and ``steps`` for fabrics, demands, jobs, control and steps.

An expectation is about a probe or, in virtual time, also about a job, ``demands`` or ``all``.
Measures of the whole, such as ``utilization``, take any word. ``when: before | during | after``
limits measures that change during a run to a part of it::

    {slowest: all, when: after, least: 1.0}
    {utilization: links, when: during, most: 1.2}
    {iteration: big, when: after, most: 1.02}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem, refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.records import short
from heddle_controller.model.files.yaml_text import Record, load_yaml
from heddle_controller.traffic.fields import Fields
from heddle_emulator.drill.load.checks import check_scenario
from heddle_emulator.drill.load.steps import CURE, parse_seconds, read_steps
from heddle_emulator.drill.load.traffic import (
    read_control,
    read_demands,
    read_drill_jobs,
    read_fabric,
)
from heddle_emulator.drill.scenario import (
    Bound,
    EachFlow,
    Expectation,
    LabSpec,
    ProbeSpec,
    Scenario,
    Statistic,
    Variant,
    When,
)
from heddle_emulator.drill.verdict import MEASURES, Measure

WORLDS = ("fluid", "netns")
MOST_CONTROLLERS = 5
_KEYS = (
    *("drill", "proves", "worlds", "fabric", "ipv6", "forwarding", "lab", "control", "race"),
    *("seed", "runs", "settle"),
)
_LISTS = ("jobs", "demands", "variants", "probes", "setup", "timeline", "expect")


def load_scenario(path: Path) -> Scenario:
    """Read the drill in a file.

    Raises:
        InputError: the file has faults. Each problem has its line and a cure.
    """
    document = load_yaml(path)
    if not isinstance(document, Record):
        raise refuse(str(path), "", f"is {short(document)}; give a mapping with 'drill: NAME'")
    problems: list[Problem] = []
    fields = Fields(document, f"line {document.line}", problems)
    fields.only(*_KEYS, *_LISTS)
    fabric = read_fabric(path, fields)
    if fabric is None:
        raise InputError(str(path), *problems[:MAX_PROBLEMS])
    worlds = _worlds(fields)
    scenario = Scenario(
        name=fields.text("drill", "name the drill"),
        proves=fields.text("proves", "say in a sentence what it shows"),
        path=str(path),
        worlds=frozenset(worlds),
        fabric=fabric,
        variants=_variants(fields, fabric),
        probes=read_probes(fields),
        setup=read_steps(fields, "setup"),
        timeline=read_steps(fields, "timeline"),
        expectations=read_expectations(fields),
        runs=fields.integer("runs", 1),
        settle=_settle(fields),
        seed=fields.integer("seed", 0, least=0),
        lab=_lab(fields),
        jobs=read_drill_jobs(fields, path, fabric),
        control=read_control(fields),
        race=fields.flag("race"),
        world=worlds[0],
    )
    if not fields.entries("expect") and not problems:
        fields.fault(
            "expects nothing, so it would always hold; add expect: [{MEASURE: PROBE, ...}]"
        )
    problems += check_scenario(scenario) if not problems else []
    if problems:
        raise InputError(str(path), *problems[:MAX_PROBLEMS])
    return scenario


def _worlds(fields: Fields) -> tuple[str, ...]:
    """Return the worlds that can play the drill, the default one first."""
    named = fields.entries("worlds") or list(WORLDS)
    for name in named:
        if name not in WORLDS:
            fields.fault(f"worlds has {short(name)}; there are {', '.join(WORLDS)}")
    return tuple(str(name) for name in named)


def _variants(fields: Fields, fabric: Fabric) -> tuple[Variant, ...]:
    if not fields.entries("variants"):
        return (Variant("", read_demands(fields, fabric)),)
    if "demands" in fields.record:
        fields.fault("has both demands and variants; move the demands into the variants")
    found = []
    for own in fields.records("variants", "name and demands"):
        own.only("name", "demands")
        found.append(Variant(own.text("name", "name it"), read_demands(own, fabric)))
    return tuple(found)


def _settle(fields: Fields) -> float:
    value = parse_seconds(fields.record.get("settle", "500ms"))
    if value is None or value <= 0:
        fields.fault(f"settle is {short(fields.record.get('settle'))}; {CURE}")
        return 0.5
    return value


def _lab(fields: Fields) -> LabSpec:
    own = fields.inner("lab", "{rate_mbit: 20}")
    if own is None:
        return LabSpec()
    own.only("rate_mbit", "bfd_ms", "probe_ms", "flap_memory", "programs", "controllers")
    programs, controllers = own.flag("programs", default=True), own.integer("controllers", 1)
    if controllers > MOST_CONTROLLERS:
        own.fault(f"controllers is {controllers:,}; give at most {MOST_CONTROLLERS}")
    if controllers > 1 and not programs:
        own.fault("has controllers and no programs; leave one of the two out")
    return LabSpec(
        rate_mbit=own.integer("rate_mbit", 0, least=0),
        bfd_ms=own.integer("bfd_ms", 0, least=0),
        probe_ms=own.integer("probe_ms", 0, least=0),
        flap_memory=own.integer("flap_memory", 5, least=0),
        programs=programs,
        controllers=min(controllers, MOST_CONTROLLERS),
    )


_STATISTICS = {statistic.value: statistic for statistic in Statistic}
_WHEN = {when.value: when for when in When}
_BOUNDS = {bound.value: bound for bound in Bound}


def read_expectations(fields: Fields) -> tuple[Expectation, ...]:
    """Return the expectations, in order of the file."""
    read = map(_expectation, fields.records("expect", "{MEASURE: PROBE, most: VALUE}"))
    return tuple(one for one in read if one is not None)


def _expectation(own: Fields) -> Expectation | None:
    record = own.record
    own.only(*MEASURES, *_STATISTICS, *_BOUNDS, "variant", "over", "when")
    words = [word for word in record if word in MEASURES]
    if len(words) != 1:
        own.fault(f"names {len(words)} measures; give one of {', '.join(MEASURES)}")
        return None
    measure, of = MEASURES[words[0]], record[words[0]]
    if measure.per_probe and not (isinstance(of, str) and of):
        own.fault(f"{words[0]} is {short(of)}; name a probe or a job")
        return None
    statistic, bounds = _statistic(own, record)
    over = str(record.get("over", ""))
    told = _bound(own, bounds, measure, ratio=bool(over))
    if told is None:
        return None
    variant = str(record.get("variant", ""))
    name = str(of) if measure.per_probe else ""
    when = own.choice("when", _WHEN) if "when" in record else None
    if when and not measure.timed:
        timed = ", ".join(word for word, known in MEASURES.items() if known.timed)
        own.fault(f"{words[0]} is of a whole run; when goes with {timed}")
    return Expectation(words[0], name, statistic, *told, variant, over, when, own.line)


def _statistic(own: Fields, record: Mapping[Any, Any]) -> tuple[Statistic, Mapping[Any, Any]]:
    """Return the statistic and the mapping with its bound; without one, every run must hold."""
    words = [word for word in record if word in _STATISTICS]
    if not words:
        at_most = "least" not in record
        return (Statistic.MAX if at_most else Statistic.MIN), record
    inner = record[words[0]]
    if len(words) > 1 or not isinstance(inner, Record):
        own.fault(f"{words[0]} is {short(inner)}; give one of them, as {{most: 10ms}}")
        return _STATISTICS[words[0]], Record()
    return _STATISTICS[words[0]], inner


def _bound(
    own: Fields, bounds: Mapping[Any, Any], measure: Measure, *, ratio: bool
) -> tuple[Bound, float] | None:
    words = [word for word in bounds if word in _BOUNDS]
    if len(words) != 1:
        own.fault("has no bound; give one of most and least")
        return None
    value = bounds[words[0]]
    if measure.unit == "s" and not ratio:
        number = parse_seconds(value)
        cure = CURE
    else:
        number = float(value) if type(value) in {int, float} else None
        cure = "give a number"
    if number is None:
        own.fault(f"{words[0]} is {short(value)}; {cure}")
        return None
    return _BOUNDS[words[0]], number


EACH = "demands"
_PROTOCOLS = {"udp": "udp", "tcp": "tcp"}


def read_probes(fields: Fields) -> tuple[ProbeSpec | EachFlow, ...]:
    """Return the probes of a drill, in order of the file."""
    records = fields.records("probes", "{probe: NAME, from, to, rate}")
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
        line=own.line,
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
        line=own.line,
    )
