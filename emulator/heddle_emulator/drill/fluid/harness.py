"""The real controller and agents of a drill in virtual time.

The controller is the installed program with its own store, and the agents are those of switches.
Their work takes real time, during which virtual time stands still: ``settle`` waits until the
controller has done everything that it will do for what it was told. The resulting pushes wait at
the gate, and the drill lets them in when they are due.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from heddle.client import HeddleError
from heddle_agent.fib import Link
from heddle_controller.model.fabric import State
from heddle_controller.model.flows import Flows
from heddle_emulator.client import Client, ControllerView, Watcher
from heddle_emulator.drill.scenario import CONTROLLER, Scenario, StepKind
from heddle_emulator.fleet import ControllerPool, FaultInjectingController, Held, StagedFleet
from heddle_emulator.fleet.agents import agent_logs
from heddle_emulator.hosts import of_several, told_hosts

_DEMANDS = "drill"
EVERYBODY = 1 << 30
START_SECONDS = 60.0
"""Real seconds within which each part of the start has to be done."""
SETTLE_SECONDS = 60.0
"""Real seconds within which a controller has done what it can do."""
LULL_SECONDS = 0.08
"""Real seconds without a push after which all pushes of a stage have come."""
LONG_LULL_SECONDS = 2.0
"""The same while the controller has not heard of everything, or has no plan for it."""
CALM_SECONDS = 0.06
"""Real seconds without anything new after which nothing more will come."""
DEAF_SECONDS = 0.3
"""The same if nobody can confirm that nothing more will come."""
_POLL_SECONDS = 0.005
_ASK_SECONDS = 0.05
"""Real seconds between two questions to the controller."""
ROLLOUT_SECONDS = 0.5
"""Virtual seconds for which the controller waits for an agent that hangs."""
GIVEN_UP_SECONDS = 5.0
"""Real seconds for which it waits. All other agents must have answered by then, although their
pushes are held until they are due. Otherwise the controller would give these up as well, and do the
rest in another order."""
OPTIONS = (
    f"--rollout-seconds={GIVEN_UP_SECONDS}",
    "--debounce-seconds=0.03",
    "--counter-interval-seconds=0",
)


class ControllerHarness:
    """A controller and a fleet in virtual time, ready once its ``async with`` is entered."""

    def __init__(self, scenario: Scenario, seed: int, controllers: ControllerPool) -> None:
        self._scenario, self._controllers = scenario, controllers
        self._stack = AsyncExitStack()
        steps = (*scenario.setup, *scenario.timeline)
        apart = {
            str(target)
            for step in steps
            if step.kind is StepKind.PART and CONTROLLER in step.targets
            for target in step.targets
            if target != CONTROLLER
        }
        self._apart, self._seed = apart, seed
        self.fleet: StagedFleet
        self.controller: FaultInjectingController
        self.client: Client
        self.view = ControllerView(time.monotonic_ns)
        """What the controller has reported, with times of the monotonic clock in ns."""
        self.store_is_down = False
        self._wanted: Flows | None = None
        self._wanted_at = 0
        """When the demanded flows last changed, by the view's clock."""
        self._knows = 0
        """Time of the last change that the newest plan is known to take into account."""
        self._asked = 0.0
        self._unsaid: list[tuple[str, State]] = []
        self._told = 0
        """Generation of the plan that the hosts know."""
        self._ends = Counter[Link]()
        """Number of switches at the ends of each link."""
        self._due = Counter[int]()
        """Number of pushes by switch that ``settle`` returned and that are not let in yet."""

    async def __aenter__(self) -> Self:
        enter = self._stack.enter_async_context
        try:
            folder = Path(
                self._stack.enter_context(tempfile.TemporaryDirectory(prefix="heddle-drill-"))
            )
            self._stack.enter_context(agent_logs(folder))
            self.controller, fabric = await self._controllers.lend()
            self._stack.callback(self._controllers.give_back, self.controller)
            self.fleet = await enter(self._fleet(fabric))
            hops = (links.current() for links in self.fleet.links.values())
            self._ends.update(seen.link for current in hops for seen in current)
            self.fleet.aim(self.controller.api)
            self.client = await enter(Client(self.fleet.shared_relay.address, fabric, patience=0.0))
            await self.client.put_fabric(self._scenario.fabric)
            await self.fleet.connected(START_SECONDS)
            await self.fleet.notices.quiet()
            await enter(Watcher(self.client, self.view))
            await self._planned_once()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _planned_once(self) -> None:
        """Wait for the plan without flows, so that in every run the flows are planned after it."""
        async with asyncio.timeout(START_SECONDS):
            while self.view.plan is None:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)

    def _fleet(self, name: str) -> StagedFleet:
        return StagedFleet(
            self._scenario.fabric,
            name=name,
            seed=self._seed,
            notice=self._scenario.control.notice,
            apart=self._apart,
        )

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def ready(self, flows: Flows) -> None:
        """Have flows planned and programmed. From then on time is virtual.

        Raises:
            HeddleError: the controller refuses the flows.
            TimeoutError: the plan was not programmed in time.
        """
        if len(flows):
            await self.client.put_demands(_DEMANDS, self._scenario.fabric, flows)
        self._wanted = flows
        async with asyncio.timeout(START_SECONDS):
            while not (self._lacking == 0 and max(self.view.flows, 0) == len(flows)):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)
        await self.tell_hosts()
        self.fleet.gate.shut = True
        self.fleet.notices.live = False

    async def tell_hosts(self) -> bool:
        """Tell hosts the newest plan if they need one; return whether they learned a new one."""
        plan = self.view.plan
        if plan is None or plan.generation == self._told or not of_several(self._scenario.fabric):
            return False
        try:
            self.fleet.switches.hosts = await told_hosts(self._scenario.fabric, self.client)
        except HeddleError:
            return False  # the controller is away: hosts keep the old plan
        self._told = plan.generation
        return True

    async def want(self, flows: Flows) -> None:
        """Demand these flows from now on, at once or as soon as a controller can hear it."""
        self._wanted = flows
        self.view.changed = self._wanted_at = time.monotonic_ns()
        if self._can_hear:
            with contextlib.suppress(HeddleError):
                await self.client.put_demands(_DEMANDS, self._scenario.fabric, flows)
                return
        self._unsaid.append(("", State.UP))

    async def drain(self, switch: str, *, drained: bool) -> None:
        """Drain a switch or put it back, at once or as soon as a controller can hear it."""
        state = State.DRAINED if drained else State.UP
        self.view.changed = time.monotonic_ns()
        if self._can_hear:
            with contextlib.suppress(HeddleError):
                await self.client.set_switch(switch, state)
                return
        self._unsaid.append((switch, state))

    async def start_controller(self) -> None:
        """Start the controller again, and tell it everything that none could hear."""
        self.view.down.clear()  # beliefs of the old process
        await self.controller.start()
        self.view.changed = time.monotonic_ns()  # the new process looks at everything and may plan
        self.fleet.aim(self.controller.api)
        await self.fleet.shared_relay.drop()
        await self.catch_up()

    async def catch_up(self) -> None:
        """Repeat the requests that no controller could hear when they were due."""
        unsaid, self._unsaid = self._unsaid, []
        for switch, state in unsaid:
            if switch:
                await self.drain(switch, drained=state is State.DRAINED)
            elif self._wanted is not None:
                await self.want(self._wanted)

    async def kill_controller(self) -> None:
        """Kill the controller with SIGKILL."""
        await self.controller.kill()
        self.fleet.aim("")

    @property
    def _can_hear(self) -> bool:
        return self.controller.serves and not self.store_is_down

    async def settle(self) -> list[Held]:
        """Let the controller work until it waits for answers or has nothing to do.

        Wherever possible this waits for reports of what is done. If an agent is away or hangs,
        nothing reports, and a time without a push has to do.

        Returns:
            The pushes to agents that are awake. The caller lets them in.
        """
        begin = time.monotonic()
        calm = begin
        while (now := time.monotonic()) - begin < SETTLE_SECONDS:
            await self._ask_of_links()
            pushes = self.fleet.gate.waiting_for(self.fleet.awake)
            if pushes and now - self.fleet.gate.last > self._lull():
                break
            if pushes or (self._can_hear and not self._at_rest()):
                calm = now
            elif now - calm > self._calm():
                break
            await asyncio.sleep(_POLL_SECONDS)
        held = self.fleet.gate.take(self.fleet.awake)
        self._due.update(one.switch for one in held)
        return held

    def _lull(self) -> float:
        """Return the real seconds without a push after which all pushes for now have come.

        It is long while there is something that the controller has not planned for yet.
        """
        knows = self._is_fresh and self._agrees() and not self.fleet.unreached()
        return LULL_SECONDS if knows or not self._can_hear else LONG_LULL_SECONDS

    def _calm(self) -> float:
        """Return the real seconds without anything new after which nothing more will come."""
        if not self._can_hear:
            return DEAF_SECONDS
        if self.fleet.gate.waiting:
            return GIVEN_UP_SECONDS + DEAF_SECONDS  # until the controller gives up those pushes
        if self._lacking > self._away:  # some wait for what others do not hold yet
            cut_off = len(self._reaching()) < len(self.fleet.agents)
            return LONG_LULL_SECONDS + (GIVEN_UP_SECONDS if cut_off else 0.0)
        if self.fleet.bare & self._reaching():  # once asked what they hold, they get entries
            return LONG_LULL_SECONDS
        return CALM_SECONDS if self._lacking == 0 else DEAF_SECONDS

    @property
    def settled(self) -> bool:
        """Whether a controller runs and has nothing left to do."""
        told = self._can_hear and self._agrees() and not self.fleet.unreached()
        told = told and not self._newcomers(self._reaching())
        return told and self._lacking == 0 and not self.fleet.gate.waiting

    @property
    def _is_fresh(self) -> bool:
        """Whether the newest plan takes the last change of links and demands into account."""
        if self.view.committed < self._wanted_at:
            return False
        return self.view.is_fresh or self._knows == self.view.changed

    async def _ask_of_links(self) -> None:
        """Ask the controller whether its plan is made for the present links, if that is unclear.

        A plan older than the last reported change may still be: a new watch reports plans and
        links in any order, and a link may have returned to its earlier state.
        """
        now, changed = time.monotonic(), self.view.changed
        if self._is_fresh or now - self._asked < _ASK_SECONDS:
            return
        if self._can_hear and self._agrees() and not self.fleet.unreached():
            self._asked = now
            with contextlib.suppress(HeddleError):
                plan = await self.client.plan()
                # The watch may be late: only a plan that it has told of can be in the log.
                if plan.links_current and plan.generation in self.view.latest:
                    self._knows = changed

    @property
    def _lacking(self) -> int:
        """Number of switches that do not hold the newest plan; EVERYBODY while it is too old."""
        plan = self.view.plan
        if plan is None:
            return 0
        if not self._is_fresh:
            return EVERYBODY
        if plan.HasField("programmed_time"):
            return 0
        return max(plan.switch_count - plan.programmed_switch_count, 1)

    def _at_rest(self) -> bool:
        """Whether the controller has heard all it can, and lacks nothing but answers.

        Make before break: if a switch is away, or if its push is due later, others may have to wait
        for it as well.
        """
        told = not self.fleet.unreached() and self._agrees()
        told = told and not self._newcomers(self._reaching() - self._due.keys())
        return told and (self._lacking == 0 or (self._away > 0 and self._lacking < EVERYBODY))

    @property
    def _away(self) -> int:
        """Number of switches that cannot answer: without a session, or with a push that is due."""
        return len(self.fleet.agents) - len(self._reaching() - self._due.keys())

    def _newcomers(self, switches: set[int]) -> set[int]:
        """Return the switches whose agents are new; each will get a push, even without entries."""
        agents = self.fleet.agents
        return {row for row in switches if agents[row].held.epoch == 0}

    def _reaching(self) -> set[int]:
        """Return the rows of switches whose agents are awake and have a session."""
        fleet = self.fleet
        return {row for row in fleet.awake if fleet.agents[row].connected}

    def _agrees(self) -> bool:
        """Whether the controller's view of links matches that of the agents that reach it."""
        fleet = self.fleet
        lost, seen = set[Link](), Counter[Link]()
        for row in self._reaching():
            for one in fleet.links[row].current():
                seen[one.link] += 1
                if not one.up:
                    lost.add(one.link)
        believed = {Link.between(*name) for name in self.view.down}
        return lost <= believed and not any(
            link not in lost and seen[link] >= self._ends[link] for link in believed
        )

    async def let_in(self, held: Held) -> None:
        """Let one push in, and wait until the switch has programmed it."""
        self._due -= Counter([held.switch])
        held.free.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                await held.done.wait()
