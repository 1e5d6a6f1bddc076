"""drill.yaml -> Scenario: every fault of a file told at once, with its line and a cure.

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

A demand's ends may also be hosts or leaves: then every NIC of one sends to every NIC of the
other, or only the first few of each, where ``nics`` says how many.
``variants`` (a list of name and demands) runs the same under different demands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heddle_controller.model.demand import MAX_PROBLEMS
from heddle_controller.model.errors import InputError, Problem, refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import load_fabric_file
from heddle_controller.model.files.records import short
from heddle_controller.traffic.fields import Fields
from heddle_controller.traffic.yaml_text import Record, load_yaml
from heddle_emulator import topology
from heddle_emulator.drill.checks import check
from heddle_emulator.drill.durations import CURE, seconds
from heddle_emulator.drill.load_demands import read_demands
from heddle_emulator.drill.load_expect import read_expectations
from heddle_emulator.drill.load_steps import read_probes, read_steps
from heddle_emulator.drill.scenario import LabSpec, Scenario, Variant

WORLDS = ("fluid", "netns")
_KEYS = ("drill", "proves", "worlds", "fabric", "lab", "seed", "runs", "settle")
_LISTS = ("demands", "variants", "probes", "setup", "timeline", "expect")
_BUILDERS = {
    "clos": topology.clos,
    "three_tier": topology.three_tier,
    "rail": topology.rail_optimised,
    "random_regular": topology.random_regular,
    "dragonfly": topology.dragonfly,
}


def load_scenario(path: Path) -> Scenario:
    """The drill in a file.

    Raises:
        InputError: with a problem for each fault, its line and what would cure it.
    """
    document = load_yaml(path)
    if not isinstance(document, Record):
        raise refuse(str(path), "", f"is {short(document)}; give a mapping with 'drill: NAME'")
    problems: list[Problem] = []
    fields = Fields(document, f"line {document.line}", problems)
    fields.only(*_KEYS, *_LISTS)
    fabric = _fabric(path, fields)
    if fabric is None:
        raise InputError(str(path), *problems[:MAX_PROBLEMS])
    scenario = Scenario(
        name=fields.text("drill", "name the drill"),
        proves=fields.text("proves", "say in a sentence what it shows"),
        path=str(path),
        worlds=_worlds(fields),
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
    )
    problems += check(scenario) if not problems else []
    if problems:
        raise InputError(str(path), *problems[:MAX_PROBLEMS])
    return scenario


def _fabric(path: Path, fields: Fields) -> Fabric | None:
    value = fields.record.get("fabric")
    if isinstance(value, str):
        return load_fabric_file(path.parent / value)
    shapes = ", ".join(_BUILDERS)
    if not isinstance(value, Record) or len(value) != 1 or next(iter(value)) not in _BUILDERS:
        fields.fault(f"fabric is {short(value)}; give a file's name, or one of {shapes}: {{...}}")
        return None
    ((shape, options),) = value.items()
    if not isinstance(options, Record):
        fields.fault(f"fabric {shape} is {short(options)}; give its counts")
        return None
    builder: Any = _BUILDERS[shape]
    try:
        built: Fabric = builder(**options)
    except TypeError as error:
        reason = str(error).partition(") ")[2] or str(error)
        fields.problems.append(Problem(f"fabric (line {options.line})", f"{shape} {reason}"))
    except InputError as error:
        told = [
            Problem(f"fabric (line {options.line}), {p.record}", p.reason) for p in error.problems
        ]
        fields.problems.extend(told)
    else:
        return built
    return None


def _worlds(fields: Fields) -> frozenset[str]:
    named = fields.entries("worlds") or list(WORLDS)
    for name in named:
        if name not in WORLDS:
            fields.fault(f"worlds has {short(name)}; there are {', '.join(WORLDS)}")
    return frozenset(str(name) for name in named)


def _variants(fields: Fields, fabric: Fabric) -> tuple[Variant, ...]:
    records = fields.entries("variants")
    if not records:
        return (Variant("", read_demands(fields, fabric)),)
    if "demands" in fields.record:
        fields.fault("has both demands and variants; move the demands into the variants")
    found = []
    for row, record in enumerate(records):
        if not isinstance(record, Record):
            fields.fault(f"variants[{row}] is {short(record)}; give name and demands")
            continue
        own = Fields(record, f"variants[{row}] (line {record.line})", fields.problems)
        own.only("name", "demands")
        found.append(Variant(own.text("name", "name it"), read_demands(own, fabric)))
    return tuple(found)


def _settle(fields: Fields) -> float:
    value = seconds(fields.record.get("settle", "500ms"))
    if value is None or value <= 0:
        fields.fault(f"settle is {short(fields.record.get('settle'))}; {CURE}")
        return 0.5
    return value


def _lab(fields: Fields) -> LabSpec:
    value = fields.record.get("lab")
    if value is None:
        return LabSpec()
    if not isinstance(value, Record):
        fields.fault(f"lab is {short(value)}; give a mapping such as {{rate_mbit: 20}}")
        return LabSpec()
    own = Fields(value, f"lab (line {value.line})", fields.problems)
    own.only("rate_mbit", "bfd_ms", "probe_ms", "flap_memory", "programs")
    return LabSpec(
        rate_mbit=own.integer("rate_mbit", 0, least=0),
        bfd_ms=own.integer("bfd_ms", 0, least=0),
        probe_ms=own.integer("probe_ms", 0, least=0),
        flap_memory=own.integer("flap_memory", 5, least=0),
        programs=value.get("programs", True) is not False,
    )
