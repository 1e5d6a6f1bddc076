"""A timeline gone through in the mind: steps that contradict what stands before them.

Cables of hops are not known before packets flow, so nothing is said of those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from heddle_controller.model.errors import Problem
from heddle_emulator.drill.scenario import (
    ALL,
    CABLES,
    Bundle,
    Hop,
    Scenario,
    Step,
    StepKind,
    Target,
)
from heddle_emulator.drill.steps import cables

_OPPOSITES = {
    StepKind.REBOOT: StepKind.CRASH,
    StepKind.UNDRAIN: StepKind.DRAIN,
    StepKind.START: StepKind.KILL,
    StepKind.RESUME: StepKind.HANG,
    StepKind.JOIN: StepKind.PART,
    StepKind.RESTORE: StepKind.FAIL,
}
"""What undoes, and what it undoes."""
_DOES = frozenset(_OPPOSITES.values())
_STATES = {StepKind.DEGRADE: "degraded", StepKind.SILENCE: "silent", StepKind.CUT: "cut"}
"""What cables may be, each worse than the one before."""
_LASTING = {StepKind.KILL: "killed", StepKind.HANG: "hanging", StepKind.CRASH: "without power"}


def contradictions(scenario: Scenario) -> Iterator[Problem]:
    """Steps that cannot be done, in order of time."""
    mind = _Mind(scenario)
    for where, steps in (("setup", scenario.setup), ("timeline", scenario.timeline)):
        moment: dict[tuple[float, str], Step] = {}
        for step in steps:
            pair = step.kind in {StepKind.PART, StepKind.JOIN}
            for target in step.targets[:1] if pair else step.targets:
                at = f"{where} (line {step.line})"
                before = moment.setdefault((step.at, str(target)), step)
                if where == "timeline" and before.line != step.line and _against(before, step):
                    what = f"{before.kind.value} and {step.kind.value} {target} at the same time"
                    yield Problem(at, f"{what}; keep one of them")
                    continue
                reason = mind.reason(step, target)
                if reason:
                    yield Problem(at, reason)


def _against(before: Step, step: Step) -> bool:
    """Whether two steps cannot both be of one moment: one does, the other undoes."""
    kinds = {before.kind, step.kind}
    return before.kind is not step.kind and (
        StepKind.MEND in kinds or bool(kinds & _OPPOSITES.keys() and kinds & _DOES)
    )


def _worse(kind: StepKind, than: StepKind) -> bool:
    order = list(_STATES)
    return order.index(kind) > order.index(than) or kind is than is StepKind.DEGRADE


@dataclass(slots=True)
class _Mind:
    """How everything stands, and since which line."""

    scenario: Scenario
    broken: dict[int, tuple[StepKind, int]] = field(default_factory=dict)
    """By link row: what was done to it last, and the line."""
    lasting: dict[tuple[StepKind, str], int] = field(default_factory=dict)
    """What was done and not undone, and the line."""
    hops: bool = False
    """Whether cables were broken that are not known yet."""
    hosts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of jobs that run."""

    def __post_init__(self) -> None:
        late = {
            str(target)
            for step in self.scenario.timeline
            if step.kind is StepKind.SUBMIT
            for target in step.targets
        }
        for spec in self.scenario.jobs:
            if spec.job.name not in late:
                self.hosts[spec.job.name] = spec.job.hosts

    def reason(self, step: Step, target: Target) -> str:
        """Why a step cannot be done; "" if it can, and then it counts as done."""
        if step.kind in CABLES:
            return self._cables(step, target)
        if step.kind in _DOES or step.kind in _OPPOSITES:
            return self._lasting(step, str(target))
        if step.kind is StepKind.SUBMIT:
            return self._submit(str(target))
        if step.kind is StepKind.FINISH:
            gone = self.hosts.pop(str(target), None) is None
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
        """Worse may follow: what is degraded may be silent, what is silent may be cut."""
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
            key = (undone, self._pair(step) or target)
            if self.lasting.pop(key, None) is None:
                return f"{undone.value} {target} does not stand before it; leave it out"
            return ""
        key = (step.kind, self._pair(step) or target)
        if key in self.lasting and self.lasting[key] != step.line:
            since = self.lasting[key]
            return f"{step.kind.value} {target} stands already, since line {since}; undo it before"
        for kind, word in _LASTING.items():
            if step.kind in _LASTING and kind is not step.kind and (kind, target) in self.lasting:
                since = self.lasting[kind, target]
                return f"{target} is {word} since line {since}; it cannot {step.kind.value} then"
        self.lasting[key] = step.line
        return ""

    def _pair(self, step: Step) -> str:
        if step.kind not in {StepKind.PART, StepKind.JOIN}:
            return ""
        return " ".join(sorted(str(target) for target in step.targets))

    def _submit(self, name: str) -> str:
        if name in self.hosts:
            return f"job {name} runs then; finish it before"
        wanted = next(spec.job.hosts for spec in self.scenario.jobs if spec.job.name == name)
        return self._place(name, wanted)

    def _place(self, name: str, wanted: tuple[str, ...]) -> str:
        for other, hosts in self.hosts.items():
            shared = sorted(set(hosts) & set(wanted))
            if other != name and shared:
                return f"host {shared[0]} is in use by job {other} then; give {name} another"
        self.hosts[name] = wanted
        return ""

    def _replace(self, step: Step, host: str) -> str:
        for name, hosts in self.hosts.items():
            if host in hosts:
                if step.other in hosts:
                    return f"job {name} has {step.other} already; name a host that is free"
                fresh = tuple(step.other if one == host else one for one in hosts)
                return self._place(name, fresh)
        return f"no job has {host} then; name a host that one runs on"
