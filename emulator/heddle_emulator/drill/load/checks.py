"""Check a scenario before anything runs: unknown names, and steps that contradict each other.

The checks follow the state of everything through the timeline. The cable of a hop is unknown until
packets flow, so hops are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from heddle.text import some_of
from heddle_controller.model.errors import Problem
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.job import Job, in_use
from heddle_emulator.drill.scenario import (
    ALL,
    CABLES,
    CONTROLLER,
    JOBS,
    PROGRAMS,
    STORE,
    Bundle,
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
from heddle_emulator.drill.verdict import MEASURES

_DEMANDS = "demands"


def check_scenario(scenario: Scenario) -> list[Problem]:
    """Return a problem for each unknown name. If there are none, look for contradictions."""
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
            yield Problem(at, f"{nic} is not a NIC of the fabric")


def _jobs(scenario: Scenario) -> Iterator[Problem]:
    names: set[str] = set()
    taken = {probe.name for probe in scenario.probes} | {ALL, _DEMANDS}
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
        if where == "setup" and isinstance(target, Hop):
            reason = reason or f"{target}: probes take no path yet; name the cable as 'l0 to s1'"
        if reason:
            yield Problem(at, reason)
    if step.kind is StepKind.REPLACE and step.other not in scenario.fabric.structure.nics_of_host:
        yield Problem(at, f"there is no host {step.other} to take its place")
    if step.point is not None and any(target != CONTROLLER for target in step.targets):
        yield Problem(at, "only the controller dies at a point; leave point out")
    if step.kind is StepKind.SLOW and step.by < 0:
        yield Problem(at, "by is negative; say how much later the agent reacts, such as 50ms")


def _wrong(scenario: Scenario, step: Step, target: Target) -> str:
    """Return what is wrong with a target; "" if nothing is."""
    kind = step.kind
    if kind in CABLES:
        return _no_cable(scenario, kind, target)
    if not isinstance(target, str):
        return f"{target} is a cable; {kind.value} wants a name"
    jobs = {spec.job.name for spec in scenario.jobs}
    hosts = {host for spec in scenario.jobs for host in spec.job.hosts}
    if kind in JOBS:
        known, why = jobs, f"there is no job {target}; there are {some_of(sorted(jobs), 5)}"
    elif kind is StepKind.REPLACE:
        known, why = hosts, f"no job has host {target}; they have {some_of(sorted(hosts), 5)}"
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
        return "" if all_of_them else f"{target} is not a cable; name it as 'l0 to s1'"
    if cables(scenario.fabric, target):
        return ""
    what = "two neighbours" if "to" in str(target).split() else "a switch or a zone that has some"
    return f"there is no cable {target}; name {what}"


def _expectation(scenario: Scenario, told: Expectation) -> Iterator[Problem]:
    at = f"expect (line {told.line})"
    names = {probe.name for probe in scenario.probes}
    names |= {spec.job.name for spec in scenario.jobs} | {ALL, _DEMANDS}
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
        yield Problem(at, f"{told.of} is not a job; {told.measure} is one's")
    elif told.measure == "makespan" and not spec.iterations:
        yield Problem(at, f"job {told.of} has no end; give it iterations")


_OPPOSITES = {
    StepKind.REBOOT: StepKind.CRASH,
    StepKind.UNDRAIN: StepKind.DRAIN,
    StepKind.START: StepKind.KILL,
    StepKind.RESUME: StepKind.HANG,
    StepKind.JOIN: StepKind.PART,
    StepKind.RESTORE: StepKind.FAIL,
}
"""Steps that undo another step, by kind, with the kind that they undo."""
_DOES = frozenset(_OPPOSITES.values())
_STATES = {StepKind.DEGRADE: "degraded", StepKind.SILENCE: "silent", StepKind.CUT: "cut"}
"""Conditions of cables in words, by the step that causes them, in order of severity."""
_LASTING = {StepKind.KILL: "killed", StepKind.HANG: "hanging", StepKind.CRASH: "without power"}


def contradictions(scenario: Scenario) -> Iterator[Problem]:
    """Yield a problem for each step that cannot be done, in order of time."""
    mind = _Mind(scenario)
    for where, steps in (("setup", scenario.setup), ("timeline", scenario.timeline)):
        moment: dict[tuple[float, str], Step] = {}
        for step in steps:
            pair = _pair(step)
            for target in step.targets[:1] if pair else step.targets:
                at = f"{where} (line {step.line})"
                before = moment.setdefault((step.at, pair or str(target)), step)
                if where == "timeline" and before.line != step.line and _against(before, step):
                    who = pair or target
                    what = f"{before.kind.value} and {step.kind.value} {who} at the same time"
                    yield Problem(at, f"{what}; keep one of them")
                    continue
                reason = mind.reason(step, target)
                if reason:
                    yield Problem(at, reason)


def _against(before: Step, step: Step) -> bool:
    """Whether two steps on one target exclude each other at the same time: one undoes the other."""
    kinds = {before.kind, step.kind}
    if StepKind.MEND in kinds:
        return before.kind is not step.kind
    return before.kind is _OPPOSITES.get(step.kind) or step.kind is _OPPOSITES.get(before.kind)


def _pair(step: Step) -> str:
    """Return the two nodes of a step on what is between them, in one order; "" for other steps."""
    if step.kind not in {StepKind.PART, StepKind.JOIN}:
        return ""
    return " and ".join(sorted(str(target) for target in step.targets))


def _worse(kind: StepKind, than: StepKind) -> bool:
    order = list(_STATES)
    return order.index(kind) > order.index(than) or kind is than is StepKind.DEGRADE


@dataclass(slots=True)
class _Mind:
    """The state of everything at one point of the scenario, and the lines that caused it."""

    scenario: Scenario
    broken: dict[int, tuple[StepKind, int]] = field(default_factory=dict)
    """The last step that broke each cable and its line, by link row."""
    lasting: dict[tuple[StepKind, str], int] = field(default_factory=dict)
    """The lines of steps that are not undone yet, by kind and target."""
    hops: bool = False
    """Whether a step named hops, so that cables may be broken that are not in ``broken``."""
    jobs: dict[str, Job] = field(default_factory=dict)
    """The jobs that run, with their present hosts, by name."""

    def __post_init__(self) -> None:
        late = {
            str(target)
            for step in self.scenario.timeline
            if step.kind is StepKind.SUBMIT
            for target in step.targets
        }
        for spec in self.scenario.jobs:
            if spec.job.name not in late:
                self.jobs[spec.job.name] = spec.job

    def reason(self, step: Step, target: Target) -> str:
        """Do a step, and return why it cannot be done; "" if it can."""
        if step.kind in CABLES:
            return self._cables(step, target)
        if step.kind in _DOES or step.kind in _OPPOSITES:
            return self._lasting(step, str(target))
        if step.kind is StepKind.SUBMIT:
            return self._submit(str(target))
        if step.kind is StepKind.FINISH:
            gone = self.jobs.pop(str(target), None) is None
            return f"job {target} does not run then; submit it before" if gone else ""
        return self._replace(step, str(target)) if step.kind is StepKind.REPLACE else ""

    def _cables(self, step: Step, target: Target) -> str:
        if isinstance(target, Hop):
            self.hops = True
            return ""
        if step.kind is StepKind.MEND and target == ALL:
            known = self.hops or self.broken
            self.broken, self.hops = {}, False
            return "" if known else "nothing is broken then; leave it out, or break something"
        rows = cables(self.scenario.fabric, target)
        if step.kind is StepKind.MEND:
            whole = [row for row in rows if row not in self.broken]
            for row in rows:
                self.broken.pop(row, None)
            if not self.hops and len(whole) == len(rows):
                return f"{target} is whole then; leave it out, or break it before"
            return ""
        return self._break(step, target, rows)

    def _break(self, step: Step, target: Target, rows: Sequence[int]) -> str:
        """Break cables. Broken cables may only get worse: degraded, then silent, then cut."""
        known = [self.broken[row] for row in rows if row in self.broken]
        again = [(kind, line) for kind, line in known if not _worse(step.kind, kind)]
        for row in rows:
            self.broken[row] = (step.kind, step.line)
        if again and (not isinstance(target, Bundle) or len(again) == len(rows)):
            kind, line = again[0]
            return f"{target} is {_STATES[kind]} already, since line {line}; mend it before"
        return ""

    def _lasting(self, step: Step, target: str) -> str:
        undone = _OPPOSITES.get(step.kind)
        if undone is not None:
            key = (undone, _pair(step) or target)
            if self.lasting.pop(key, None) is None:
                return f"{undone.value} {target} does not stand before it; leave it out"
            away = self.lasting.get((StepKind.FAIL, STORE))
            if away is not None and step.kind is StepKind.START and target == CONTROLLER:
                return f"it serves only with its {STORE}, which fails since line {away}; restore it"
            return ""
        key = (step.kind, _pair(step) or target)
        if key in self.lasting and self.lasting[key] != step.line:
            since = self.lasting[key]
            return f"{step.kind.value} {target} stands already, since line {since}; undo it before"
        for kind, word in _LASTING.items():
            if step.kind in _LASTING and kind is not step.kind and (kind, target) in self.lasting:
                since = self.lasting[kind, target]
                return f"{target} is {word} since line {since}; it cannot {step.kind.value} then"
        self.lasting[key] = step.line
        return ""

    def _submit(self, name: str) -> str:
        if name in self.jobs:
            return f"job {name} runs then; finish it before"
        return self._place(next(s.job for s in self.scenario.jobs if s.job.name == name))

    def _place(self, wanted: Job) -> str:
        for other in self.jobs.values():
            for host, gpus in wanted.held.items() if other.name != wanted.name else ():
                if found := in_use(
                    gpus, {other.name: other.held[host]} if host in other.held else {}
                ):
                    cure = f"give {wanted.name} another"
                    return f"host {host}: {found[1]} by job {other.name} then; {cure}"
        self.jobs[wanted.name] = wanted
        return ""

    def _replace(self, step: Step, host: str) -> str:
        those = [job for job in self.jobs.values() if host in job.hosts]
        if not those:
            return f"no job has {host} then; name a host that one runs on"
        if len(those) > 1:
            told = ", ".join(job.name for job in those)
            return f"jobs {told} share {host} then; replace a host that one job has"
        (job,) = those
        if step.other in job.hosts:
            return f"job {job.name} has {step.other} already; name a host that is free"
        fresh = tuple(step.other if one == host else one for one in job.hosts)
        return self._place(replace(job, hosts=fresh))
