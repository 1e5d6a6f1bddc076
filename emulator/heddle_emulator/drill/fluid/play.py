"""A drill played once in virtual time: the real controller, real agents, and rates in between.

Everything has its moment. Links change when a step says so; agents see it ``detect`` later and
repair on their own; datagrams take ``notice`` from one to the next; the controller hears after
``report``, has a plan after ``plan``, and each stage of it takes a ``push``. What each does then
is real: the drill lets it happen, walks a packet of every QP through the tables that came of
it, and goes on. So a verdict depends on what was done, not on how fast this machine did it;
where ``measured``, plans and pushes take as long as they did.
"""

from __future__ import annotations

import random
import time
from functools import partial

from heddle_emulator.drill.fluid.agenda import PUSHES
from heddle_emulator.drill.fluid.control import GIVEN_UP_SECONDS, ROLLOUT_SECONDS, Conductor
from heddle_emulator.drill.fluid.course import Course
from heddle_emulator.drill.fluid.log import Log
from heddle_emulator.drill.fluid.stage import FluidStage
from heddle_emulator.drill.fluid.steps import Steps
from heddle_emulator.drill.fluid.traffic import Traffic
from heddle_emulator.drill.scenario import Scenario, Step
from heddle_emulator.fleet import Held
from heddle_emulator.report.evidence import Mark

TICK_SECONDS = 1.0
SAMPLES = 200
"""Points of a line over time, at least."""
CLOSE_LOOKS = 20_000
"""QPs times pushes of a moment up to which packets are sent between any two pushes."""


class Play(FluidStage):
    """One run under way."""

    def __init__(
        self, scenario: Scenario, traffic: Traffic, conductor: Conductor, seed: int
    ) -> None:
        super().__init__(scenario, traffic, conductor)
        self.steps = Steps(self)
        self._random = random.Random(seed)
        self._busy = False
        """Whether the controller had something to do when it was last looked at."""
        self._owed: float | None = None
        """When a plan is due that the controller has been given reason for and has not told of."""

    async def run(self, horizon: float) -> None:
        """Set up, then play the timeline to its end, in seconds."""
        await self.conductor.ready(self.wanted())
        self.log.planned(0.0, self.conductor.heard.plans)
        for step in self.scenario.setup:
            self.agenda.put(self.now, partial(self.steps.do, step))
        await self._until(0.0)
        self.now = self.fleet.air.now = 0.0
        self.log = Log(plans=self.log.plans[-1:])
        self.course = Course(self.fabric, self.traffic, self.cables, self.fleet.switches)
        for step in self._ordered():
            self.agenda.put(step.at, partial(self.steps.do, step))
        self.agenda.put(TICK_SECONDS, self._tick)
        self.agenda.put(horizon / SAMPLES, partial(self._sample, horizon / SAMPLES))
        await self._until(horizon)
        self.now = self.fleet.air.now = horizon
        self.course.advance(horizon)
        self.course.turn(self.fleet.switches)

    def _ordered(self) -> list[Step]:
        """The timeline; where it is a race, steps of one moment in any order."""
        steps = list(self.scenario.timeline)
        if self.scenario.race:
            self._random.shuffle(steps)
            steps.sort(key=lambda step: step.at)
        return steps

    async def _until(self, horizon: float) -> None:
        """Have happen all that is due before a moment."""
        while (at := min(self.agenda.next, self.fleet.air.next_due)) < horizon:
            self.now = self.fleet.air.now = at
            if self.course is not None:
                self.course.advance(at)
            deeds = self.agenda.due(at)
            for deed in deeds:
                await deed()
            if self.fleet.air.deliver():
                self.turning = True
                self.log.tell(at, Mark.NOTICE, "notices arrive")
            if self.turning and self.course is not None:
                self.course.turn(self.fleet.switches)
            self.turning = False
            await self._react()

    async def _sample(self, step: float) -> None:
        """Rates are looked at now, whatever happens."""
        self.agenda.put(self.now + step, partial(self._sample, step))

    async def _tick(self) -> None:
        await self.fleet.tick()
        self.agenda.put(self.now + TICK_SECONDS, self._tick)

    async def _react(self) -> None:
        """Let the controller do what it will do now, and put down when it takes effect."""
        if not self.provoked:
            return
        begin, told = time.monotonic(), self.now
        if "report" in self.provoked:
            told += self.control.report
        fresh = self.provoked - {"push"}
        self.provoked = set()
        held = await self.conductor.settle()
        committed = told + self.control.plan if fresh else self.now
        if fresh and self.control.measured:
            known = min([self.conductor.heard.committed, *(one.came for one in held)])
            # Word of it may come after its pushes, which are due to the nanosecond.
            committed = round(told + max(known - begin, 0.0), 9)
        self._plan_heard(committed, fresh=bool(fresh))
        for due, own in self._dues(held, committed, begin):
            self.agenda.put(due, partial(self._let_in, own), PUSHES)
        self._busy = self._busy or bool(fresh) or bool(held)
        if self._busy and self.conductor.settled and not self.agenda.pushes:
            self._busy, self._owed = False, None
            self.log.stands(self.now)
            if await self.conductor.tell_hosts() and self.course is not None:
                self.course.turn(self.fleet.switches)

    def _plan_heard(self, committed: float, *, fresh: bool) -> None:
        """Note a new plan at its moment: it may come before or after pushes that it is not of."""
        if fresh:
            self._owed = committed
        elif self._owed is not None and not self.control.measured:
            committed = self._owed
        if self.log.planned(committed, self.conductor.heard.plans):
            self._owed = None

    def _dues(
        self, held: list[Held], committed: float, begin: float
    ) -> list[tuple[float, list[Held]]]:
        """When pushes take effect: those of a moment together."""
        found: dict[float, list[Held]] = {}
        for one in held:
            took, waited = max(one.came - begin, 0.0), 0.0
            if took > GIVEN_UP_SECONDS and self.fleet.hung:  # it was waited for somebody who hangs
                took, waited = took - GIVEN_UP_SECONDS, ROLLOUT_SECONDS
            due = committed + self.control.push + self.slow.get(one.switch, 0.0)
            if self.control.measured:
                due = self.now + self.control.report + took
            due += waited
            found.setdefault(round(due, 9), []).append(one)
        return sorted(found.items())

    async def _let_in(self, held: list[Held]) -> None:
        """Pushes of one moment take effect, in any order; packets pass in between."""
        self._random.shuffle(held)
        close = len(held) * int(self.traffic.first_qp[-1]) <= CLOSE_LOOKS
        for place, one in enumerate(held):
            await self.conductor.let_in(one)
            if close and self.course is not None and place + 1 < len(held):
                self.course.glance(self.fleet.switches)
        self.turning = True
        self.provoked.add("push")
