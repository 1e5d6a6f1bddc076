"""What can be said against a scenario before anything runs."""

from __future__ import annotations

from collections.abc import Iterator

from heddle_controller.model.errors import Problem
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_emulator.drill.load.course import contradictions
from heddle_emulator.drill.measures import MEASURES
from heddle_emulator.drill.scenario import (
    ALL,
    CABLES,
    CONTROLLER,
    JOBS,
    PROGRAMS,
    STORE,
    EachFlow,
    Expectation,
    Hop,
    ProbeSpec,
    Scenario,
    Step,
    StepKind,
    Target,
    When,
)
from heddle_emulator.drill.steps import cables, switches

DEMANDS = "demands"


def check(scenario: Scenario) -> list[Problem]:
    """Everything that names what is not there, or contradicts itself."""
    found = [
        *_probes(scenario),
        *_jobs(scenario),
        *(problem for step in scenario.setup for problem in _step(scenario, "setup", step)),
        *(problem for step in scenario.timeline for problem in _step(scenario, "timeline", step)),
        *(problem for told in scenario.expectations for problem in _expectation(scenario, told)),
    ]
    return found or list(contradictions(scenario))


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


def _jobs(scenario: Scenario) -> Iterator[Problem]:
    names: set[str] = set()
    taken = {probe.name for probe in scenario.probes} | {ALL, DEMANDS}
    for spec in scenario.jobs:
        at = f"job {spec.job.name} (line {spec.line})"
        if spec.job.name in names:
            yield Problem(at, "another has this name; give it one of its own")
        if spec.job.name in taken:
            yield Problem(at, f"a probe is called {spec.job.name}, or all; give the job another")
        names.add(spec.job.name)


def _step(scenario: Scenario, where: str, step: Step) -> Iterator[Problem]:
    at = f"{where} (line {step.line})"
    for target in step.targets:
        reason = _wrong(scenario, step, target)
        if reason:
            yield Problem(at, reason)
    if step.kind is StepKind.REPLACE and step.other not in scenario.fabric.structure.nics_of_host:
        yield Problem(at, f"there is no host {step.other} to take its place")
    if step.point is not None and any(target != CONTROLLER for target in step.targets):
        yield Problem(at, "only the controller dies at a point; leave point out")


def _wrong(scenario: Scenario, step: Step, target: Target) -> str:
    """What is wrong with a target; "" if nothing is."""
    kind = step.kind
    if kind in CABLES:
        return _no_cable(scenario, kind, target)
    if not isinstance(target, str):
        return f"{target} is a cable; {kind.value} wants a name"
    jobs = {spec.job.name for spec in scenario.jobs}
    hosts = {host for spec in scenario.jobs for host in spec.job.hosts}
    if kind in JOBS:
        known, why = jobs, f"there is no job {target}; there are {_some(jobs)}"
    elif kind is StepKind.REPLACE:
        known, why = hosts, f"no job has host {target}; they have {_some(hosts)}"
    elif kind in {StepKind.FAIL, StepKind.RESTORE}:
        known, why = {STORE}, f"{target} cannot fail; name the {STORE}"
    else:
        known, why = {*switches(scenario.fabric)}, f"there is no switch {target}"
        if kind in PROGRAMS | {StepKind.PART, StepKind.JOIN}:
            known.add(CONTROLLER)
    return "" if target in known else why


def _no_cable(scenario: Scenario, kind: StepKind, target: Target) -> str:
    names = {probe.name for probe in scenario.probes if isinstance(probe, ProbeSpec)}
    if isinstance(target, Hop):
        known = target.probe in names
        return "" if known else f"there is no probe {target.probe}; hops are those of a probe"
    if isinstance(target, str):
        all_of_them = kind is StepKind.MEND and target == ALL
        return "" if all_of_them else f"{target} is no cable; name it as 'l0 to s1'"
    if cables(scenario.fabric, target):
        return ""
    what = "two neighbours" if "to" in str(target).split() else "a switch or a zone that has some"
    return f"there is no cable {target}; name {what}"


def _some(names: set[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")  # noqa: PLR2004


def _expectation(scenario: Scenario, told: Expectation) -> Iterator[Problem]:
    at = f"expect (line {told.line})"
    names = {probe.name for probe in scenario.probes}
    names |= {spec.job.name for spec in scenario.jobs} | {ALL, DEMANDS}
    variants = {variant.name for variant in scenario.variants}
    measure = MEASURES[told.measure]
    if measure.per_probe and told.of not in names:
        yield Problem(at, f"there is no probe {told.of} to measure {told.measure} of, nor a job")
    for name in (told.variant, told.over):
        if name and name not in variants:
            yield Problem(at, f"there is no variant {name}; name one of those above")
    if told.over and not told.variant:
        yield Problem(at, "has over without variant; name which is divided by which")
    if told.measure in {"iteration", "makespan"}:
        yield from _of_a_job(scenario, at, told)
    if told.when is When.DURING and not scenario.timeline:
        yield Problem(at, "nothing happens, so there is no during; give a timeline")


def _of_a_job(scenario: Scenario, at: str, told: Expectation) -> Iterator[Problem]:
    spec = next((spec for spec in scenario.jobs if spec.job.name == told.of), None)
    if spec is None:
        yield Problem(at, f"{told.of} is no job; {told.measure} is one's")
    elif told.measure == "makespan" and not spec.iterations:
        yield Problem(at, f"job {told.of} has no end; give it iterations")
