"""One run of a drill in virtual time: a real controller, real agents, and computed rates.

The delays in ``ControlDelays`` decide when things happen. Links change when a step says so. Agents
see it ``detect`` later and repair on their own. A notice takes ``notice`` from one agent to the
next. The controller hears of it after ``report`` and has a plan after ``plan``, and each stage of
its rollout takes a ``push``. What each of them does then is real: the run lets it happen, walks a
packet of every QP through the resulting tables, and goes on. So a verdict depends on what was done,
not on how fast this machine is. If ``measured`` is set, plans and pushes take as long as they did.

Agents trust a link that is back only once BGP uses it again.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import Flows
from heddle_emulator.drill.cables import Cables
from heddle_emulator.drill.fluid.harness import (
    GIVEN_UP_SECONDS,
    ROLLOUT_SECONDS,
    START_SECONDS,
    ControllerHarness,
)
from heddle_emulator.drill.fluid.measure import Log
from heddle_emulator.drill.fluid.simulation import TrafficSimulation
from heddle_emulator.drill.fluid.traffic import Traffic
from heddle_emulator.drill.scenario import CONTROLLER, Point, Scenario, Step
from heddle_emulator.drill.steps import FabricUnderTest, StepRunner, check_death
from heddle_emulator.fleet import Held, StagedFleet
from heddle_emulator.report.evidence import Mark

LONG_AGO = -1e3
"""Virtual time of the set-up. All its effects are over before the run begins at 0."""
_TICK_SECONDS = 1.0
SAMPLES = 200
"""Least number of points of a line over time."""
CLOSE_LOOKS = 20_000
"""Most QPs times pushes of one moment for which packets are walked between any two pushes."""
_FEW = 4


class VirtualFabric(FabricUnderTest):
    """The fabric of one run: cables, agents, controller and traffic. Times are virtual seconds."""

    def __init__(self, scenario: Scenario, traffic: Traffic, harness: ControllerHarness) -> None:
        self.scenario, self.traffic, self.harness = scenario, traffic, harness
        self.control = scenario.control
        self.cables = Cables()
        self.agenda = Agenda()
        self.log = Log()
        self.now = LONG_AGO
        self.late: dict[int, float] = {}
        """Extra seconds that slow agents need, by node row."""
        self.changed = False
        """Whether links, tables or demands have changed at this moment."""
        self._routed: dict[int, float] = {}
        """When the last change of each link happened that BGP has told of, by link row.

        It guards against old news: silence is found later than a mend that follows it."""
        self._simulation: TrafficSimulation | None = None
        """The traffic; None until the run begins."""
        self.provoked: set[str] = set()
        """What the controller may react to: a "report", a "call", or a "push" that was answered."""

    @property
    def fabric(self) -> Fabric:
        """Implement ``FabricUnderTest.fabric``."""
        return self.scenario.fabric

    @property
    def fleet(self) -> StagedFleet:
        """The agents."""
        return self.harness.fleet

    @property
    def simulation(self) -> TrafficSimulation:
        """The traffic of the run. The run must have begun."""
        assert self._simulation is not None
        return self._simulation

    @property
    def broken(self) -> Sequence[int]:
        """Implement ``FabricUnderTest.broken``."""
        return self.cables.broken

    def way(self, probe: str) -> Sequence[int]:
        """Implement ``FabricUnderTest.way``: the present path of the probe's first QP."""
        ways, rows = self.simulation.states[-1].ways, self.traffic.groups[probe]
        qp = int(self.traffic.first_qp[rows[0]])
        found: list[int] = (ways.arcs[ways.first[qp] : ways.first[qp + 1]] >> 1).tolist()
        return found

    def wanted(self) -> Flows:
        """Return the flows that the controller is to plan now."""
        active = self.traffic.active(max(self.now, 0.0))
        active[self.traffic.told :] = False
        return self.traffic.flows.take(np.flatnonzero(active))

    def provoke(self, *, reports: bool = False) -> None:
        """Note that the controller may react: once a report arrives (``reports``), or at once."""
        self.provoked.add("report" if reports else "call")

    async def begin(self, step: Step, mark: Mark, words: str, target: str) -> None:  # noqa: ARG002
        """Implement ``FabricUnderTest.begin``."""
        self.log.tell(self.now, mark, words, target)

    async def cut(self, links: Sequence[int]) -> None:
        """Cut links. Agents see it after ``detect``."""
        self.cables.cut.update(links)
        self._changed(links, self.control.detect)

    async def silence(self, links: Sequence[int], share: float) -> None:
        """Make links lose packets. Agents find links that lose all of them after ``silent``."""
        self.cables.silent.update(dict.fromkeys(links, share))
        self._changed(links, self.control.silent)

    async def degrade(self, links: Sequence[int], gbps: float) -> None:
        """Make links carry less. No agent is told."""
        self.cables.degraded.update(dict.fromkeys(links, gbps))
        self.changed = True

    async def mend(self, links: Sequence[int]) -> None:
        """Mend links. Agents trust them once BGP uses them."""
        self.cables.mend(links)
        self._changed(links, self.control.detect)

    async def crash(self, switch: str) -> None:
        """Take power from a switch. Its neighbours see dark cables."""
        row = self._row(switch)
        await self.fleet.crash(row)
        links = self.fleet.links_at(row)
        self.cables.power(links, on=False)
        self._changed(links, self.control.detect, but=row)

    async def reboot(self, switch: str) -> None:
        """Boot a switch again, with a new agent and an empty table."""
        row = self._row(switch)
        links = self.fleet.links_at(row)
        self.cables.power(links, on=True)
        self._changed(links, self.control.detect, but=row)
        await self.fleet.start(row, START_SECONDS, empty=True)
        self.provoke()

    async def kill(self, program: str, point: Point | None) -> None:
        """Implement ``FabricUnderTest.kill``."""
        if program != CONTROLLER:
            await self.fleet.crash(self._row(program))
        elif point is not None:
            self.harness.controller.orders.die_at(point.value)
        else:
            await self.harness.kill_controller()

    async def start(self, program: str, *, empty: bool) -> None:
        """Implement ``FabricUnderTest.start``."""
        if program == CONTROLLER:
            check_death(self.harness.controller.orders)
            await self.harness.start_controller()
        else:
            await self.fleet.start(self._row(program), START_SECONDS, empty=empty)
        self.changed = True
        self.provoke()

    async def hang(self, program: str) -> None:
        """Implement ``FabricUnderTest.hang``."""
        if program == CONTROLLER:
            self.harness.controller.hang()
        else:
            self.fleet.hang(self._row(program))

    async def resume(self, program: str) -> None:
        """Implement ``FabricUnderTest.resume``."""
        if program == CONTROLLER:
            self.harness.controller.resume()
            await self.harness.catch_up()
        else:
            await self.fleet.resume(self._row(program))
        self.changed = True
        self.provoke(reports=True)

    async def slow(self, switch: str, seconds: float) -> None:
        """Implement ``FabricUnderTest.slow``."""
        self.late[self._row(switch)] = seconds

    async def part(self, one: str, other: str, *, apart: bool) -> None:
        """Implement ``FabricUnderTest.part``."""
        if one != CONTROLLER:
            (self.fleet.notices.cut.add if apart else self.fleet.notices.cut.discard)(
                frozenset((one, other))
            )
        elif apart:
            await self.fleet.own_relays[other].cut()
        else:
            self.fleet.own_relays[other].join()
            self.provoke(reports=True)

    async def fail_store(self, *, down: bool) -> None:
        """Implement ``FabricUnderTest.fail_store``."""
        self.harness.controller.orders.store_down(down=down)
        self.harness.store_is_down = down
        if not down:
            await self.harness.catch_up()
            self.provoke(reports=True)

    async def skew(self, program: str, seconds: float) -> None:
        """Implement ``FabricUnderTest.skew``."""
        if program == CONTROLLER:
            self.harness.controller.orders.skew(seconds)
        else:
            self.fleet.skew[self._row(program)] = seconds

    async def drain(self, switch: str, *, drained: bool) -> None:
        """Implement ``FabricUnderTest.drain``."""
        await self.harness.drain(switch, drained=drained)
        self.provoke()

    async def change_jobs(self) -> None:
        """Implement ``FabricUnderTest.change_jobs``."""
        self.changed = True
        await self.harness.want(self.wanted())
        self.provoke()

    def _row(self, switch: str) -> int:
        return self.fabric.structure.index[switch]

    def _changed(self, links: Iterable[int], delay: float, but: int = -1) -> None:
        """Update links whose cables changed. Agents at their ends, except ``but``, see it later."""
        world = self.fleet.world
        self.changed = True
        rows = [row for row in links if self.cables.carries(row) != bool(world.carries[2 * row])]
        told = delay + self.control.bgp
        for up, seen in ((False, delay), (True, told)):
            own = [row for row in rows if self.cables.carries(row) == up]
            if own:
                self.agenda.put(self.now + told, partial(self._converge, own, self.now, up=up))
                self.fleet.change(own, up=up)
                self._seen(own, seen, but)

    def _seen(self, rows: Sequence[int], delay: float, but: int) -> None:
        """Put on the agenda when agents at the ends of links see them, all except ``but``."""
        links = self.fabric.structure.links
        ends = {int(end) for row in rows for end in (links.a[row], links.b[row])}
        ends = (ends & self.fleet.agents.keys()) - {but}
        for extra in sorted({self.late.get(end, 0.0) for end in ends}):
            seeing = {end for end in ends if self.late.get(end, 0.0) == extra}
            self.agenda.put(self.now + delay + extra, partial(self._see, rows, seeing))

    async def _see(self, rows: Sequence[int], ends: Collection[int]) -> None:
        """Let the agents of switches ``ends`` see the present state of links."""
        names = sorted(self.fabric.structure.nodes.ids[end] for end in ends)
        await self.fleet.see(rows, ends)
        shown = ", ".join(names[:_FEW]) + (" and others" if len(names) > _FEW else "")
        self.log.tell(self.now, Mark.DETECTED, f"{shown} see it", shown)
        self.log.seen.append(self.now)
        self.log.told.append(self.now + self.control.report)
        self.changed = True
        self.provoke(reports=True)

    async def _converge(self, rows: Sequence[int], changed: float, *, up: bool) -> None:
        """Let BGP tell all switches what links became at ``changed``, unless it told later news."""
        news = [row for row in rows if self._routed.get(row, changed) <= changed]
        self._routed.update(dict.fromkeys(news, changed))
        self.fleet.converge(dict.fromkeys(news, State.UP if up else State.DOWN))
        self.changed = True
        self.log.tell(self.now, Mark.OTHER, "BGP has converged")


class FluidRun(VirtualFabric):
    """One run under way."""

    def __init__(
        self, scenario: Scenario, traffic: Traffic, harness: ControllerHarness, seed: int
    ) -> None:
        super().__init__(scenario, traffic, harness)
        self.steps = StepRunner(self)
        self._random = random.Random(seed)
        self._busy = False
        """Whether the controller had something to do when it was last checked."""
        self._owed: float | None = None
        """When a plan is due that the controller has not reported yet; None if it owes none."""

    async def play(self, horizon: float) -> None:
        """Do the set-up, and then play the timeline until ``horizon`` virtual seconds.

        Raises:
            StepError: a step cannot be done, or a controller did not die at the point that it was
                to.
        """
        await self.harness.ready(self.wanted())
        self.log.planned(0.0, self.harness.view.latest)
        for step in self.scenario.setup:
            self.agenda.put(self.now, partial(self.steps.do, step))
        await self._until(0.0)
        self.now = self.fleet.notices.now = 0.0
        self.log = Log(plans=self.log.plans[-1:])
        self._simulation = TrafficSimulation(
            self.fabric, self.traffic, self.cables, self.fleet.switches
        )
        for step in self._ordered():
            self.agenda.put(step.at, partial(self.steps.do, step))
        self.agenda.put(_TICK_SECONDS, self._tick)
        self.agenda.put(horizon / SAMPLES, partial(self._sample, horizon / SAMPLES))
        await self._until(horizon)
        check_death(self.harness.controller.orders)
        self.now = self.fleet.notices.now = horizon
        self._simulation.advance(horizon)
        self._simulation.update(self.fleet.switches)

    def _ordered(self) -> list[Step]:
        """Return the timeline. In a race, steps of one moment come in random order."""
        steps = list(self.scenario.timeline)
        if self.scenario.race:
            self._random.shuffle(steps)
            steps.sort(key=lambda step: step.at)
        return steps

    async def _until(self, horizon: float) -> None:
        """Do everything that is due before ``horizon``."""
        while (at := min(self.agenda.next, self.fleet.notices.next_due)) < horizon:
            self.now = self.fleet.notices.now = at
            if self._simulation is not None:
                self._simulation.advance(at)
            deeds = self.agenda.due(at)
            for deed in deeds:
                await deed()
            if self.fleet.notices.deliver():
                self.changed = True
                self.log.tell(at, Mark.NOTICE, "notices arrive")
            if self.changed and self._simulation is not None:
                self._simulation.update(self.fleet.switches)
            self.changed = False
            await self._react()

    async def _sample(self, step: float) -> None:
        """Sample rates now and every ``step`` seconds from here on."""
        self.agenda.put(self.now + step, partial(self._sample, step))

    async def _tick(self) -> None:
        await self.fleet.tick()
        self.agenda.put(self.now + _TICK_SECONDS, self._tick)

    async def _react(self) -> None:
        """Let the controller react, and put its pushes on the agenda for when they take effect."""
        if not self.provoked:
            return
        begin, told = time.monotonic(), self.now
        if "report" in self.provoked:
            told += self.control.report
        fresh = self.provoked - {"push"}
        self.provoked = set()
        held = await self.harness.settle()
        committed = told + self.control.plan if fresh else self.now
        if fresh and self.control.measured:
            known = min([self.harness.view.committed / 1e9, *(one.came for one in held)])
            # Its report may come after its pushes, which are due to the nanosecond.
            committed = round(told + max(known - begin, 0.0), 9)
        self._plan_heard(committed, fresh=bool(fresh))
        for due, own in self._dues(held, committed, begin):
            self.agenda.put(due, partial(self._let_in, own), PUSHES)
        self._busy = self._busy or bool(fresh) or bool(held)
        if self._busy and self.harness.settled and not self.agenda.pushes:
            self._busy, self._owed = False, None
            self.log.stands(self.now)
            if await self.harness.tell_hosts() and self._simulation is not None:
                self._simulation.update(self.fleet.switches)

    def _plan_heard(self, committed: float, *, fresh: bool) -> None:
        """Log a new plan at its time of commit, which may lie before or after unrelated pushes."""
        if fresh:
            self._owed = committed
        elif self._owed is not None and not self.control.measured:
            committed = self._owed
        if self.log.planned(committed, self.harness.view.latest):
            self._owed = None

    def _dues(
        self, held: list[Held], committed: float, begin: float
    ) -> list[tuple[float, list[Held]]]:
        """Return the pushes that take effect at each moment, in order of time."""
        found: dict[float, list[Held]] = {}
        for one in held:
            took, waited = max(one.came - begin, 0.0), 0.0
            if took > GIVEN_UP_SECONDS and self.fleet.hung:  # it waited for a hung agent
                took, waited = took - GIVEN_UP_SECONDS, ROLLOUT_SECONDS
            due = committed + self.control.push + self.late.get(one.switch, 0.0)
            if self.control.measured:
                due = self.now + self.control.report + took
            due += waited
            found.setdefault(round(due, 9), []).append(one)
        return sorted(found.items())

    async def _let_in(self, held: list[Held]) -> None:
        """Let pushes of one moment in, in random order, and walk packets in between."""
        self._random.shuffle(held)
        close = len(held) * int(self.traffic.first_qp[-1]) <= CLOSE_LOOKS
        for place, one in enumerate(held):
            await self.harness.let_in(one)
            if close and self._simulation is not None and place + 1 < len(held):
                self._simulation.probe(self.fleet.switches)
        self.changed = True
        self.provoked.add("push")


Deed = Callable[[], Awaitable[None]]
_SAME = 1e-9
"""Seconds within which events belong to one moment."""
PUSHES = 1
"""Rank of pushes, which come last in their moment."""


@dataclass(order=True, slots=True)
class _Item:
    at: float
    rank: int
    number: int
    deed: Deed = field(compare=False)


@dataclass(slots=True)
class Agenda:
    """Calls to make and when they are due, in virtual time.

    Calls of one moment happen in the order they were added. Pushes come last: a link that is lost
    when a push arrives is lost first.
    """

    _items: list[_Item] = field(default_factory=list)
    _number: int = 0

    def put(self, at: float, deed: Deed, rank: int = 0) -> None:
        """Add a call that is due ``at`` a moment, in seconds."""
        self._number += 1
        heapq.heappush(self._items, _Item(at, rank, self._number, deed))

    @property
    def next(self) -> float:
        """When the next call is due; infinite if there is none."""
        return self._items[0].at if self._items else float("inf")

    @property
    def pushes(self) -> int:
        """How many calls of rank ``PUSHES`` are still to come."""
        return sum(item.rank == PUSHES for item in self._items)

    def due(self, now: float) -> list[Deed]:
        """Remove and return all calls that are due by a moment, in order."""
        found = []
        while self._items and self._items[0].at <= now + _SAME:
            found.append(heapq.heappop(self._items).deed)
        return found
