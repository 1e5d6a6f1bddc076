"""Measure a run in virtual time: a log of control during the run, and its values afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from heddle.v1 import plan_pb2
from heddle_controller.model.arrays import NONE, Bools, Floats, Ints
from heddle_emulator.drill.fluid.simulation import PACKET_GBIT, TrafficSimulation, TrafficState
from heddle_emulator.drill.scenario import ALL, FAULTS, Scenario, When
from heddle_emulator.report.evidence import Event, Mark

_SAME = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class FinishedRun:
    """A finished run."""

    scenario: Scenario
    simulation: TrafficSimulation
    log: Log
    horizon: float
    """Length of the run in virtual seconds."""
    settled: bool
    """Whether the controller had nothing left to push at the end."""

    @property
    def begin(self) -> float:
        """When the first step is due, in virtual seconds; infinite if there are no steps."""
        return self.scenario.timeline[0].at if self.scenario.timeline else float("inf")


def fluid_measured(outcome: FinishedRun) -> dict[tuple[str, str], float]:
    """Return values by measure, which may name a part of the run, and by group of flows."""
    found: dict[tuple[str, str], float] = {}
    for name, rows in outcome.simulation.traffic.groups.items():
        if len(rows):
            found.update({(key, name): v for key, v in _group(outcome, name, rows)})
    found.update({(key, ""): value for key, value in _whole(outcome)})
    return found


def _group(outcome: FinishedRun, name: str, rows: Ints) -> Iterator[tuple[str, float]]:
    simulation, traffic = outcome.simulation, outcome.simulation.traffic
    losses, streams = simulation.losses, streams_of_group(simulation, name, rows)
    lost = float(sum(span.lost[streams].sum() for span in simulation.spans))
    sent = float(sum(span.sent[streams].sum() for span in simulation.spans))
    loops = float(losses.loops[rows].sum())
    if name in traffic.rates:
        rate = traffic.rates[name]
        packets = rate * float(losses.packets[rows].mean())
        loops += rate * float(losses.looped[rows].mean())
    else:
        packets = lost / PACKET_GBIT
        loops += float((losses.looped * traffic.flows.gbps)[rows].sum()) / PACKET_GBIT
    yield "lost", packets + float(losses.moments[rows].sum())
    yield "lost_gbit", lost
    yield "looped", loops
    yield "delivered", sent / (sent + lost) if sent + lost > 0 else 1.0
    still = simulation.states[-1].losing[rows]
    yield "stranded", float(still.sum())
    if any(step.kind in FAULTS for step in outcome.scenario.timeline):
        yield "recovered", float("inf") if still.any() else float(losses.longest[rows].max())
    yield from _timed("slowest", outcome, lambda state: float(state.worth.ratios[rows].min()), min)
    gbps = traffic.flows.gbps

    def carried(state: TrafficState) -> float:
        wanted = rows[state.ways.wanted[traffic.first_qp[rows]]]
        offer = float(gbps[wanted].sum())
        got = float((state.worth.ratios * gbps)[wanted].sum())
        return got / offer if offer else 1.0

    yield from _timed("carried", outcome, carried, min)
    yield from _job(outcome, name)


def _timed(
    measure: str,
    outcome: FinishedRun,
    value: Callable[[TrafficState], float],
    worst: Callable[[Sequence[float]], float],
) -> Iterator[tuple[str, float]]:
    """Yield the values of a measure for the whole run and for each of its parts."""
    states, begin = outcome.simulation.states, outcome.begin
    before = [state for state in states if state.at < begin - _SAME] or states[:1]
    during = [state for state in states if state.at >= begin - _SAME]
    yield measure, worst([value(state) for state in states])
    yield f"{measure} {When.BEFORE.value}", value(before[-1])
    yield f"{measure} {When.AFTER.value}", value(states[-1])
    if during:
        yield f"{measure} {When.DURING.value}", worst([value(state) for state in during])


def _whole(outcome: FinishedRun) -> Iterator[tuple[str, float]]:
    def fullest(state: TrafficState) -> float:
        return float(state.worth.utilization.max(initial=0.0))

    yield from _timed("utilization", outcome, fullest, max)
    yield from _plans(outcome)
    yield from _stages(outcome)


def _plans(outcome: FinishedRun) -> Iterator[tuple[str, float]]:
    plans, begin = outcome.log.plans, outcome.begin
    if not plans:
        return
    before, after = plans[0][1], plans[-1][1]
    during = [plan for at, plan in plans[1:] if at >= begin - _SAME] or [before]
    for name, read in (
        ("gap", lambda plan: plan.certificate.gap),
        ("unrouted", lambda plan: float(plan.unrouted_count)),
    ):
        yield name, max(read(plan) for _, plan in plans)
        yield f"{name} before", read(before)
        yield f"{name} during", max(read(plan) for plan in during)
        yield f"{name} after", read(after)
    yield "entries", float(after.entry_count)
    yield "moved", float(sum(plan.changed_count for _, plan in plans[1:]))


def _stages(outcome: FinishedRun) -> Iterator[tuple[str, float]]:
    log, begin = outcome.log, outcome.begin
    if not np.isfinite(begin):
        return
    moments = {
        "detected": log.seen[:1],
        "notified": log.told[:1],
        "solved": [at for at, _ in log.plans[1:2]],
        "acked": [at for at in log.stood if log.plans[1:] and at >= log.plans[1][0]][:1],
    }
    for name, times in moments.items():
        if times:
            yield name, times[0] - begin
    last = outcome.scenario.timeline[-1].at
    busy = [at for at in log.stood if at >= last - _SAME]
    done = (busy[-1] - last) if busy else 0.0
    yield "converged", done if outcome.settled else float("inf")


def _job(outcome: FinishedRun, name: str) -> Iterator[tuple[str, float]]:
    """Yield the longest makespan, and the times of iterations over those before the first step.

    A job that a step ends before its last iteration has no makespan.
    """
    simulation, traffic = outcome.simulation, outcome.simulation.traffic
    run = simulation.fluid.told()
    times, begins, makespans = list[float](), list[float](), list[float]()
    for one, ends in zip(traffic.placed, traffic.ends, strict=True):
        if one.spec.job.name != name:
            continue
        over = run.end[ends]
        over = over[over <= min(one.end, outcome.simulation.now) + _SAME]
        starts = np.concatenate([[one.begin], over[:-1]])[: len(over)]
        times += (over - starts).tolist()
        begins += starts.tolist()
        whole = len(over) == len(ends)
        if one.spec.iterations and (whole or np.isinf(one.end)):
            makespans.append(float(over[-1] - one.begin) if whole else float("inf"))
    if makespans:
        yield "makespan", max(makespans)
    length, start = np.asarray(times), np.asarray(begins)
    early = start + length <= outcome.begin + _SAME
    if not early.any():
        return
    usual = float(length[early].mean())
    yield "iteration", float(length.max()) / usual
    yield "iteration before", 1.0
    if (~early).any():
        yield "iteration during", float(length[~early].max()) / usual
        yield "iteration after", float(length[-1]) / usual


def streams_of_group(simulation: TrafficSimulation, name: str, rows: Ints) -> Bools:
    """Return which streams belong to a group. Rings belong to whole jobs, not to single flows."""
    index, traffic = simulation.index, simulation.traffic
    member = np.zeros(len(traffic.flows), dtype=np.bool_)
    member[rows] = True
    found = np.zeros(len(index.flow), dtype=np.bool_)
    own = index.flow != NONE
    found[own] = member[index.flow[own]]
    if name in {ALL, *(one.spec.job.name for one in traffic.placed)}:
        script = traffic.script
        crossing = script.flow != NONE
        inside = np.zeros(len(script), dtype=np.bool_)
        inside[script.activity[crossing]] = member[script.flow[crossing]]
        found[index.messages : index.demands] = inside[index.ring_activity]
    return found


def rates(simulation: TrafficSimulation, streams: Bools, step: float) -> tuple[Floats, Floats]:
    """Return begin times and the mean Gbit/s of some streams from each of these times on.

    Each mean is over ``step`` seconds. A new one also begins when flows start or stop losing
    packets, so that no dip is smoothed away.
    """
    states = simulation.states
    marks = [state.at for was, state in pairwise(states) if (was.losing != state.losing).any()]
    begins, sums, lengths = list[float](), list[float](), list[float]()
    for span in simulation.spans:
        fresh = not begins or span.begin >= begins[-1] + step - _SAME
        if fresh or any(abs(span.begin - mark) < _SAME for mark in marks):
            begins.append(span.begin)
            sums.append(0.0)
            lengths.append(0.0)
        sums[-1] += float(span.sent[streams].sum())
        lengths[-1] += span.end - span.begin
    return np.asarray(begins), np.asarray(sums) / np.asarray(lengths)


@dataclass(slots=True)
class Log:
    """What control did during a run. Times are in virtual seconds."""

    events: list[Event] = field(default_factory=list)
    plans: list[tuple[float, plan_pb2.Plan]] = field(default_factory=list)
    """When each plan was committed, and the plan; the first is the one before the run."""
    seen: list[float] = field(default_factory=list)
    """When agents saw links change."""
    told: list[float] = field(default_factory=list)
    """When the reports of these changes reached the controller."""
    stood: list[float] = field(default_factory=list)
    """When the controller had finished its work."""

    def tell(self, at: float, mark: Mark, text: str, target: str = "") -> None:
        """Add an event."""
        self.events.append(Event(at, mark, text, target))

    def planned(self, at: float, plans: Mapping[int, plan_pb2.Plan]) -> bool:
        """Add the new ones of all plans so far, by generation; return whether any was new."""
        known = self.plans[-1][1].generation if self.plans else -1
        for generation in sorted(plans):
            if generation <= known:
                continue
            plan = plans[generation]
            if self.plans:
                text = f"plan {generation} committed, {plan.changed_count} flows move"
                self.tell(at, Mark.PLAN, text)
            self.plans.append((at, plan))
        return bool(plans) and max(plans) > known

    def stands(self, at: float) -> None:
        """Note that all switches hold the newest plan, at the earliest when it is committed."""
        if self.plans:
            # Without an entry to change, nothing is pushed, and no later call marks the commit.
            at = max(at, self.plans[-1][0])
            self.tell(at, Mark.ACK, f"plan {self.plans[-1][1].generation} stands in every switch")
        self.stood.append(at)
