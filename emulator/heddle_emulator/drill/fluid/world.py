"""The world of virtual time: every run has its own agents and starts from a whole fabric.

``fluid_story`` makes the story of a run for the report.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Self

import numpy as np

from heddle.v1 import plan_pb2
from heddle_controller.model.arrays import Floats, Ints
from heddle_emulator.drill.fluid.harness import OPTIONS, ControllerHarness
from heddle_emulator.drill.fluid.measure import FinishedRun, fluid_measured, rates, streams_of_group
from heddle_emulator.drill.fluid.run import FluidRun
from heddle_emulator.drill.fluid.simulation import TrafficState
from heddle_emulator.drill.fluid.traffic import DEMANDS, Traffic, traffic_of
from heddle_emulator.drill.runner import PlayedRun, Report, RunValues
from heddle_emulator.drill.scenario import ALL, ControlDelays, Scenario, Variant
from heddle_emulator.fleet import ControllerPool
from heddle_emulator.report.evidence import Certified, Chart, Event, Mark, Story, TimeSeries
from heddle_emulator.report.maps import Snapshot, heat_maps

_MOST_LINES = 8
POINTS = 100
"""Points of a line of rates."""
MOMENT = 1e-9
"""Seconds at the end that charts leave out: what stops there only stops with the run."""


def fluid_story(outcome: FinishedRun, title: str) -> Story:
    """Return the story of a run for the report."""
    return Story(
        title=title,
        clock="virtual",
        seconds=outcome.horizon,
        events=tuple(sorted([*outcome.log.events, *_recoveries(outcome)], key=lambda e: e.at)),
        charts=tuple(_charts(outcome)),
        maps=heat_maps(outcome.scenario.fabric, list(_snapshots(outcome))),
        certificates=tuple(_certificates(outcome)),
    )


def _recoveries(outcome: FinishedRun) -> Iterator[Event]:
    """Yield when all flows stopped losing packets."""
    states = outcome.simulation.states
    for before, state in pairwise(states):
        if before.losing.any() and not state.losing.any():
            yield Event(state.at, Mark.RECOVERED, "no packet is lost any more")


def _charts(outcome: FinishedRun) -> Iterator[Chart]:
    simulation, horizon = outcome.simulation, outcome.horizon
    names = [one.spec.job.name for one in simulation.traffic.placed]
    names = [*dict.fromkeys(names), DEMANDS][:_MOST_LINES]
    groups = {name: simulation.traffic.groups[name] for name in names}
    lines = []
    for name, rows in groups.items():
        if len(rows):
            times, gbps = rates(
                simulation, streams_of_group(simulation, name, rows), horizon / POINTS
            )
            lines.append(_line(name, times, gbps, horizon))
    if lines:
        yield Chart("What arrives, all flows together", "Gbit/s", tuple(lines))
    states = simulation.states
    times = np.array([state.at for state in states])
    slowest = [_line(n, times, _slowest(states, r), horizon) for n, r in groups.items() if len(r)]
    note = "Max-min fair rate over demand, as tables and links are at the time."
    yield Chart("Slowest flow", "share", tuple(slowest), 1.0, note)
    fullest = np.array([state.worth.utilization.max(initial=0.0) for state in states])
    line = _line("fullest link", times, fullest, horizon)
    yield Chart("Load over capacity of the fullest link", "share", (line,), 1.0)


def _slowest(states: list[TrafficState], rows: Ints) -> Floats:
    return np.array([state.worth.ratios[rows].min() for state in states])


def _line(name: str, times: Floats, values: Floats, end: float) -> TimeSeries:
    before = np.flatnonzero(times < end - MOMENT)
    shown = [round(float(value), 4) for value in values[before]]
    return TimeSeries(name, (*times[before].round(6).tolist(), end), (*shown, shown[-1]))


def _snapshots(outcome: FinishedRun) -> Iterator[Snapshot]:
    """Yield the loads before the first step, at the worst moment after it, and at the end."""
    states, begin = outcome.simulation.states, outcome.begin
    before = [state for state in states if state.at < begin] or states[:1]
    during = [state for state in states if state.at >= begin]
    yield _snapshot("before", before[-1])
    if during:
        worst = max(during, key=lambda state: float(state.worth.utilization.max(initial=0.0)))
        yield _snapshot("during", worst)
        yield _snapshot("after", states[-1])


def _snapshot(title: str, state: TrafficState) -> Snapshot:
    return Snapshot(title, state.at, state.worth.utilization, state.capacity > 0)


def _certificates(outcome: FinishedRun) -> Iterator[Certified]:
    plans = outcome.log.plans
    for title, place in (("before", 0), ("after", len(plans) - 1)):
        if plans and (place or title == "before"):
            yield _certified(title, plans[place][1])


def _certified(title: str, plan: plan_pb2.Plan) -> Certified:
    told = plan.certificate
    tiers = {tier.tier: tier.max_utilization for tier in told.tiers}
    return Certified(title, told.max_utilization, told.lower_bound, told.gap, told.proof, tiers)


def fluid_assumptions(control: ControlDelays) -> tuple[str, ...]:
    """Return the assumptions of the fluid world in sentences, with the given delays."""
    ms = {name: f"{getattr(control, name) * 1e3:g} ms" for name in ControlDelays.__slots__}
    plans = (
        "Planning and pushes take as long as they took on this machine."
        if control.measured
        else f"A plan is committed {ms['plan']} after the report, each stage of it takes"
        f" {ms['push']}, whatever this machine needed for them."
    )
    seen = (
        f"Agents see a lost carrier after {ms['detect']}, a silent cable after {ms['silent']};"
        f" a notice takes {ms['notice']} from one agent to the next, a report {ms['report']}."
    )
    lost = (
        "While a path is dead, jobs lose what they sent there before, and demands all that they"
        " ask for; nothing lost is sent again at a higher rate."
    )
    return (
        "Flows are fluid: rates are max-min fair at every moment, without queues or slow start.",
        seen,
        plans,
        f"BGP has told every switch {ms['bgp']} after a loss is seen; agents believe returns then.",
        lost,
        "A cable that loses a share of packets delivers the rest; agents leave it as it is.",
        "Senders repeat just what such a cable loses.",
        "Without a running agent the kernel still leaves next hops that lost their carrier.",
    )


_PATIENCE = 60.0
"""Virtual seconds after the end of the run in which jobs with an end may still finish."""


class FluidWorld:
    """The world of virtual time; implements ``World``. Sound controllers are used again."""

    worst = "the one that lost most"

    def __init__(self) -> None:
        self._controllers = ControllerPool(*OPTIONS)

    def assumptions(self, scenario: Scenario) -> tuple[str, ...]:
        """Implement ``World.assumptions``."""
        return fluid_assumptions(scenario.control)

    @contextmanager
    def open(self, scenario: Scenario, report: Report) -> Iterator[FluidSession]:  # noqa: ARG002
        """Implement ``World.open``: nothing is set up before a run."""
        yield FluidSession(scenario, self._controllers)

    async def close(self) -> None:
        """End all controllers."""
        await self._controllers.close()


class FluidSession:
    """One scenario in virtual time; implements ``Session``."""

    def __init__(self, scenario: Scenario, controllers: ControllerPool) -> None:
        self._scenario, self._controllers = scenario, controllers
        self._horizon = max((step.at for step in scenario.timeline), default=0.0)
        self._horizon += scenario.settle  # virtual seconds
        self._traffic: Traffic

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave the session: there is nothing to end."""

    async def prepare(self, variant: Variant) -> RunValues:
        """Implement ``Session.prepare``: work out all traffic that may flow.

        Raises:
            InputError: a job without a number of iterations would have too many in this drill.
        """
        self._traffic = traffic_of(self._scenario, variant.flows, self._horizon)
        return {}

    async def run(self, variant: Variant, number: int) -> PlayedRun:  # noqa: ARG002 - prepared
        """Implement ``Session.run``. The seed is that of the scenario plus ``number``."""
        finished = await self._once(self._scenario.seed + number)
        values = fluid_measured(finished)
        return PlayedRun(
            values, (values.get(("lost_gbit", ALL), 0.0),), partial(fluid_story, finished)
        )

    async def _once(self, seed: int) -> FinishedRun:
        scenario, horizon = self._scenario, self._horizon
        async with ControllerHarness(scenario, seed, self._controllers) as harness:
            run = FluidRun(scenario, self._traffic, harness, seed)
            await run.play(horizon)
            settled = harness.settled and not run.agenda.pushes
            finished = FinishedRun(scenario, run.simulation, run.log, horizon, settled)
        if any(one.spec.iterations for one in self._traffic.placed):
            finished.simulation.fluid.advance(horizon + _PATIENCE)
        return finished
