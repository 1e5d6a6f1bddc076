"""Check that a world has all steps and measures that a scenario needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem
from heddle_controller.model.fabric import Forwarding, NodeKind
from heddle_emulator.drill.scenario import (
    ALL,
    CABLES,
    CONTROLLER,
    EachFlow,
    Scenario,
    Step,
    StepKind,
)
from heddle_emulator.drill.verdict import MEASURES

FLUID, NETNS = "fluid", "netns"
_IN_LAB = frozenset(
    {
        StepKind.CUT,
        StepKind.SILENCE,
        StepKind.DEGRADE,
        StepKind.MEND,
        StepKind.KILL,
        StepKind.START,
        StepKind.HANG,
        StepKind.RESUME,
        StepKind.CRASH,
        StepKind.REBOOT,
        StepKind.PART,
        StepKind.JOIN,
        StepKind.FAIL,
        StepKind.RESTORE,
        StepKind.SKEW,
        StepKind.SLOW,
        StepKind.DRAIN,
        StepKind.UNDRAIN,
    }
)
_KINDS = {FLUID: frozenset(StepKind) - {StepKind.FLAP}, NETNS: _IN_LAB}
"""Kinds of steps by world. Flaps become cuts and mends before a world sees them."""


def fit(scenario: Scenario, world: str) -> None:
    """Check that a world can play all of a scenario.

    Raises:
        InputError: it cannot. There is a problem for each part, with its line and a cure.
    """
    problems = list(_problems(scenario, world))
    if problems:
        raise InputError(scenario.path, *problems[:MAX_PROBLEMS])


def _problems(scenario: Scenario, world: str) -> Iterator[Problem]:
    if world not in scenario.worlds:
        known = ", ".join(sorted(scenario.worlds))
        yield Problem(f"drill {scenario.name}", f"is for {known}, not for {world}")
        return
    for where, steps in (("setup", scenario.setup), ("timeline", scenario.timeline)):
        for step in steps:
            reason = _unable(step, world)
            if reason:
                yield Problem(f"{where} (line {step.line})", reason)
    for told in scenario.expectations:
        worlds = MEASURES[told.measure].worlds
        at = f"expect (line {told.line})"
        if world not in worlds:
            yield Problem(at, f"{world} cannot measure {told.measure}; {_only(worlds)} can")
        elif world == NETNS and (told.when or told.of == ALL):
            yield Problem(at, "netns measures whole runs, of probes; leave when and all out")
    yield from (_in_lab if world == NETNS else _in_fluid)(scenario)


def _unable(step: Step, world: str) -> str:
    """Return why a world cannot do a step; "" if it can."""
    word = step.kind.value
    if step.kind not in _KINDS[world]:
        able = [name for name, kinds in _KINDS.items() if step.kind in kinds]
        return f"{world} cannot {word}; leave it out, or play it in {_only(able)}"
    if world == NETNS and step.kind is StepKind.SKEW and set(step.targets) != {CONTROLLER}:
        return f"{world} has one clock; skew the {CONTROLLER}, or play it in {FLUID}"
    return ""


def _in_lab(scenario: Scenario) -> Iterator[Problem]:
    if scenario.steers:
        yield from _steered(scenario)
    if scenario.steers or not scenario.lab.programs:
        for where, steps in (("setup", scenario.setup), ("timeline", scenario.timeline)):
            for step in steps:
                if step.kind not in CABLES:
                    reason = f"nothing of Heddle runs here to {step.kind.value}; leave it out"
                    yield Problem(f"{where} (line {step.line})", reason)
    for spec in scenario.jobs:
        yield Problem(
            f"job {spec.job.name} (line {spec.line})", f"{NETNS} has no jobs; probe flows"
        )
    for step in scenario.timeline:
        if step.kind is StepKind.DEGRADE and not scenario.lab.rate_mbit:
            at = f"timeline (line {step.line})"
            yield Problem(at, "cables have no speed to lose; give lab: {rate_mbit: 20} or the like")
    if not scenario.probes:
        yield Problem("probes", f"there are none; {NETNS} sees nothing else, so give one or more")


def _steered(scenario: Scenario) -> Iterator[Problem]:
    """Yield what a lab cannot do for a scenario in which hosts choose the ports."""
    nodes = scenario.fabric.structure.nodes
    if (nodes.forwarding[nodes.kind != NodeKind.NIC] != Forwarding.ECMP).any():
        yield Problem("fabric", f"only some switches hash; in {NETNS} all do, or none")
    if scenario.lab.controllers > 1:
        yield Problem("lab", "hosts steer without a controller; leave controllers out")
    for told in scenario.expectations:
        at = f"expect (line {told.line})"
        probe = next((one for one in scenario.probes if one.name == told.of), None)
        if told.measure == "looped" and isinstance(probe, EachFlow):
            yield Problem(at, "switches cannot tell QPs that share a port apart; leave looped out")


def _in_fluid(scenario: Scenario) -> Iterator[Problem]:
    if scenario.steers:
        yield Problem(
            "fabric", f"switches only hash, and {FLUID} has no hosts that probe; play it in {NETNS}"
        )
    for probe in scenario.probes:
        at = f"probe {probe.name} (line {probe.line})"
        if not isinstance(probe, EachFlow) and probe.beside:
            yield Problem(at, f"{FLUID} has nothing beside a demand; leave beside out")
        if probe.protocol == "tcp":
            yield Problem(at, f"{FLUID} knows no protocols; leave protocol out")
    for step in scenario.setup:
        if step.kind is StepKind.KILL and step.point is not None:
            at = f"setup (line {step.line})"
            yield Problem(at, f"the {CONTROLLER} dies at a point of its work; put it in timeline")


def _only(worlds: Iterable[str]) -> str:
    return " or ".join(sorted(worlds))
