"""What can be said against a scenario before anything runs."""

from __future__ import annotations

from collections.abc import Iterator

from heddle_controller.model.errors import Problem
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_emulator.drill.measures import MEASURES
from heddle_emulator.drill.scenario import (
    ALL,
    CABLES,
    CONTROLLER,
    CableName,
    EachFlow,
    Expectation,
    Hop,
    Kind,
    ProbeSpec,
    Scenario,
    Step,
)


def check(scenario: Scenario) -> list[Problem]:
    """Everything that names what is not there, or contradicts itself."""
    return [
        *_probes(scenario),
        *(problem for step in scenario.setup for problem in _step(scenario, "setup", step)),
        *(problem for step in scenario.timeline for problem in _step(scenario, "timeline", step)),
        *_contradictions(scenario),
        *(problem for told in scenario.expectations for problem in _expectation(scenario, told)),
    ]


def _probes(scenario: Scenario) -> Iterator[Problem]:
    seen: dict[str, ProbeSpec | EachFlow] = {}
    for probe in scenario.probes:
        at = f"probe {probe.name} (line {probe.line})"
        if probe.name in seen:
            yield Problem(at, "another has this name; give it one of its own")
        if (probe.rate > 0) == (probe.mbit > 0) and probe.protocol != "tcp":
            yield Problem(at, "give either rate, in packets a second, or mbit")
        variants = {variant.name for variant in scenario.variants}
        if isinstance(probe, EachFlow) and probe.variant and probe.variant not in variants:
            yield Problem(at, f"there is no variant {probe.variant} whose demands it could send")
        if isinstance(probe, ProbeSpec):
            yield from _ends(scenario.fabric, at, probe)
            if probe.beside and not isinstance(seen.get(probe.beside), ProbeSpec):
                yield Problem(at, f"is beside {probe.beside}, and no such probe stands above it")
        seen[probe.name] = probe


def _ends(fabric: Fabric, at: str, probe: ProbeSpec) -> Iterator[Problem]:
    index, kind = fabric.structure.index, fabric.structure.nodes.kind
    for nic in (probe.source, probe.destination):
        if nic not in index or kind[index[nic]] != NodeKind.NIC:
            yield Problem(at, f"{nic} is no NIC of the fabric")


def _step(scenario: Scenario, where: str, step: Step) -> Iterator[Problem]:
    at, fabric = f"{where} (line {step.line})", scenario.fabric
    index, kind = fabric.structure.index, fabric.structure.nodes.kind
    names = {probe.name for probe in scenario.probes if isinstance(probe, ProbeSpec)}
    for target in step.targets:
        if step.kind in CABLES:
            if isinstance(target, Hop) and target.probe not in names:
                yield Problem(at, f"there is no probe {target.probe}; hops are those of a probe")
            if isinstance(target, CableName) and not fabric.find_links(
                target.a, target.b, target.key
            ):
                yield Problem(at, f"there is no cable {target}; name two neighbours")
            if isinstance(target, str) and not (step.kind is Kind.MEND and target == ALL):
                yield Problem(at, f"{target} is no cable; name it as 'l0 to s1'")
            continue
        known = isinstance(target, str) and target in index
        if step.kind in {Kind.KILL, Kind.START} and target == CONTROLLER:
            continue
        if not known or kind[index[str(target)]] == NodeKind.NIC:
            yield Problem(at, f"there is no switch {target}")


def _contradictions(scenario: Scenario) -> Iterator[Problem]:
    """The same thing twice at the same time, one way and the other."""
    seen: dict[tuple[float, str], Kind] = {}
    for step in scenario.timeline:
        for target in step.targets:
            before = seen.setdefault((step.at, str(target)), step.kind)
            if before is not step.kind:
                what = f"{before.value} and {step.kind.value} {target} at the same time"
                yield Problem(f"timeline (line {step.line})", f"{what}; keep one of them")


def _expectation(scenario: Scenario, told: Expectation) -> Iterator[Problem]:
    at = f"expect (line {told.line})"
    names = {probe.name for probe in scenario.probes}
    variants = {variant.name for variant in scenario.variants}
    if MEASURES[told.measure].per_probe and told.of not in names:
        yield Problem(at, f"there is no probe {told.of} to measure {told.measure} of")
    for name in (told.variant, told.over):
        if name and name not in variants:
            yield Problem(at, f"there is no variant {name}; name one of those above")
    if told.over and not told.variant:
        yield Problem(at, "has over without variant; name which is divided by which")
