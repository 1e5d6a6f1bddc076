"""All traffic of a drill in virtual time: jobs in their placements, demands, and probes.

A job that moves to another host has two placements, one after the other. The timeline says when
each begins and ends, so all flows are known before the run. Each flow has a row, and a QP has one
stream for the whole run, whichever path it takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import ANY_PHASE, Flows, TrafficClass, concatenate, no_flows
from heddle_emulator.drill.scenario import (
    ALL,
    MOST_ITERATIONS,
    EachFlow,
    JobSpec,
    Scenario,
    StepKind,
)
from heddle_emulator.play.iteration import Placed, write_iterations
from heddle_emulator.traffic.script import Script, Writer
from heddle_emulator.traffic.workload import workload_of

DEMANDS = "demands"
SMALL_GBIT = 64 * 8 / 1e9
"""Size in Gbit of a packet of a probe that is given in packets per second."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A job on its hosts, from ``begin`` to ``end`` in virtual seconds."""

    spec: JobSpec
    name: str
    """The job's name; later placements of the same job add a number, as in "big.2"."""
    hosts: tuple[str, ...]
    begin: float
    end: float = float("inf")


def placements(scenario: Scenario) -> list[Placement]:
    """Return the placements of all jobs by the timeline, in order of their beginning."""
    specs = {spec.job.name: spec for spec in scenario.jobs}
    late = {str(t) for s in scenario.timeline if s.kind is StepKind.SUBMIT for t in s.targets}
    found: list[Placement] = []
    now: dict[str, int] = {}

    def begin(name: str, hosts: tuple[str, ...], at: float) -> None:
        again = sum(one.spec.job.name == name for one in found)
        label = f"{name}.{again + 1}" if again else name
        now[name] = len(found)
        found.append(Placement(specs[name], label, hosts, at))

    def finish(name: str, at: float) -> Placement:
        row = now.pop(name)
        found[row] = replace(found[row], end=at)
        return found[row]

    for name, spec in specs.items():
        if name not in late:
            begin(name, spec.job.hosts, 0.0)
    for step in scenario.timeline:
        for target in step.targets:
            if step.kind is StepKind.SUBMIT:
                begin(str(target), specs[str(target)].job.hosts, step.at)
            elif step.kind is StepKind.FINISH:
                finish(str(target), step.at)
            elif step.kind is StepKind.REPLACE:
                host = str(target)
                name = next(n for n, row in now.items() if host in found[row].hosts)
                before = finish(name, step.at).hosts
                fresh = tuple(step.other if one == host else one for one in before)
                begin(name, fresh, step.at)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """All traffic that may flow in one variant."""

    flows: Flows
    """Flows of jobs, then demands, then flows for probes that match none of these."""
    script: Script
    """What jobs send; its flows are the first of ``flows``."""
    placed: tuple[Placement, ...]
    ends: tuple[Ints, ...]
    """For each placement, the activity that ends each of its iterations."""
    placement: Ints
    """The placement that each flow is of; ``NONE`` for demands and probes, shape (flows,)."""
    begin: Floats
    """When each flow begins, in seconds, shape (flows,)."""
    end: Floats
    """When each flow ends, in seconds, infinite if it does not, shape (flows,)."""
    groups: dict[str, Ints]
    """Flow rows by the name of the group: "all", "demands", jobs, probes."""
    rates: dict[str, float]
    """Packets per second by probe, for probes that are given so."""
    told: int
    """How many of the flows, from the first one, the controller plans: all but those of probes."""

    def active(self, now: float) -> Bools:
        """Return whether each flow may send at a moment by the timeline, shape (flows,).

        A job that has done all its iterations sends no more, but nobody has ended it.
        """
        return (self.begin <= now) & (now < self.end)

    @property
    def last_ends(self) -> Ints:
        """The activity with which each placement is done; ``NONE`` if it goes on for ever."""
        pairs = zip(self.placed, self.ends, strict=True)
        found = [int(ends[-1]) if one.spec.iterations else NONE for one, ends in pairs]
        return np.array(found, dtype=np.int64)

    @property
    def first_qp(self) -> Ints:
        """Row of each flow's first QP among all QPs, then the number of QPs, shape (flows + 1,)."""
        return np.concatenate([[0], np.cumsum(self.flows.qps)]).astype(np.int64)


def traffic_of(scenario: Scenario, demands: Flows, horizon: float) -> Traffic:
    """Return all traffic of ``horizon`` seconds.

    Raises:
        InputError: a job without a number of iterations would have more than ``MOST_ITERATIONS``.
    """
    fabric, writer = scenario.fabric, Writer(scenario.fabric)
    placed, ends = placements(scenario), []
    for one in placed:
        count = one.spec.iterations or _count(scenario, one, horizon)
        before = writer.compute(one.begin, np.empty(0, dtype=np.int64), f"{one.name}/begin")
        ends.append(write_iterations(fabric, writer, _as_placed(one), count, before))
    script = writer.script()
    loose, names = _loose(scenario, concatenate([script.flows, demands]))
    flows = concatenate([script.flows, demands, loose])
    begin, end = np.zeros(len(flows)), np.full(len(flows), np.inf)
    placement = np.full(len(flows), NONE)
    for number, one in enumerate(placed):
        rows = _rows_of(flows, len(script.flows), one.name)
        placement[rows] = number
        begin[rows], end[rows] = one.begin, one.end
    return Traffic(
        flows,
        script,
        tuple(placed),
        tuple(ends),
        placement,
        begin,
        end,
        dict(_groups(scenario, flows, len(script.flows), placed, names)),
        {p.name: p.rate for p in scenario.probes if p.rate},
        len(flows) - len(loose),
    )


def _as_placed(one: Placement) -> Placed:
    spec = one.spec
    workload = workload_of(spec.job, spec.compute)
    job = replace(spec.job, hosts=one.hosts)
    return Placed(one.name, workload, job.hosts, job.gpus_per_host, job.qps, gpus=job.gpus)


def _count(scenario: Scenario, one: Placement, horizon: float) -> int:
    """Return a number of iterations that surely lasts until the end."""
    writer = Writer(scenario.fabric)
    write_iterations(scenario.fabric, writer, _as_placed(one), 1, np.empty(0, dtype=np.int64))
    script = writer.script()
    least = one.spec.compute + _busiest(scenario.fabric, script)
    left = min(one.end, horizon) - one.begin
    count = ceil(left / least) + 1 if least > 0 else MOST_ITERATIONS + 1
    if count > MOST_ITERATIONS:
        reason = f"has some {count:,} iterations in {left:g} s; let it compute, or give more bytes"
        raise refuse(scenario.path, f"job {one.spec.job.name} (line {one.spec.line})", reason)
    return count


def _busiest(fabric: Fabric, script: Script) -> float:
    """Return the seconds that the busiest NIC needs for a script: no iteration is faster."""
    flows, crossing = script.flows, script.flow >= 0
    if not len(flows):
        return 0.0
    structure = fabric.structure
    line = np.bincount(
        structure.tail, weights=structure.capacity, minlength=fabric.node_count
    ).astype(np.float64)
    source = flows.source[script.flow[crossing]]
    sent = np.bincount(source, weights=script.gbit[crossing], minlength=fabric.node_count)
    return float(np.divide(sent, line, out=np.zeros(len(line)), where=line > 0).max())


def _loose(scenario: Scenario, known: Flows) -> tuple[Flows, list[str]]:
    """Return flows for probes between NICs that have no other flow, and those probes' names."""
    index = scenario.fabric.structure.index
    pairs = set(zip(known.source.tolist(), known.destination.tolist(), strict=True))
    parts, names = [no_flows()], []
    for probe in scenario.probes:
        if isinstance(probe, EachFlow):
            continue
        ends = index[probe.source], index[probe.destination]
        if ends in pairs:
            continue
        gbps = probe.rate * SMALL_GBIT if probe.rate else probe.mbit / 1e3
        parts.append(_one_flow(ends, gbps, f"probe/{probe.name}"))
        names.append(probe.name)
    return concatenate(parts), names


def _one_flow(ends: tuple[int, int], gbps: float, name: str) -> Flows:
    one = np.ones(1)
    return Flows(
        ids=(name,),
        source=np.array([ends[0]]),
        destination=np.array([ends[1]]),
        gbps=one * gbps,
        job=np.zeros(1, dtype=np.int64),
        phase=np.full(1, ANY_PHASE, dtype=np.int64),
        qps=np.ones(1, dtype=np.int64),
        traffic_class=np.full(1, int(TrafficClass.BANDWIDTH), dtype=np.int64),
        weight=one,
        job_names=(name,),
        phase_names=(),
    )


def _rows_of(flows: Flows, jobs: int, name: str) -> Ints:
    """Return the rows of a placement's flows among the ``jobs`` flows of jobs."""
    if name not in flows.job_names:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(flows.job[:jobs] == flows.job_names.index(name))


def _groups(
    scenario: Scenario, flows: Flows, jobs: int, placed: list[Placement], loose: list[str]
) -> Iterator[tuple[str, Ints]]:
    count = len(flows)
    wanted = count - len(loose)
    yield ALL, np.arange(count, dtype=np.int64)
    yield DEMANDS, np.arange(jobs, wanted, dtype=np.int64)
    for spec in scenario.jobs:
        own = [one.name for one in placed if one.spec is spec]
        rows = [_rows_of(flows, jobs, name) for name in own]
        yield spec.job.name, np.concatenate([np.empty(0, dtype=np.int64), *rows])
    index = scenario.fabric.structure.index
    for probe in scenario.probes:
        if isinstance(probe, EachFlow):
            yield probe.name, np.arange(jobs, wanted, dtype=np.int64)
        elif probe.name in loose:
            yield probe.name, np.array([wanted + loose.index(probe.name)], dtype=np.int64)
        else:
            yield probe.name, _between(flows, index[probe.source], index[probe.destination])


def _between(flows: Flows, source: int, destination: int) -> Ints:
    return np.flatnonzero((flows.source == source) & (flows.destination == destination))
