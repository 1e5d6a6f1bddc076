"""Controller and agents of a drill in virtual time: how real work is fitted into it.

The controller is the installed program on a store of its own, the agents are those of switches.
What they do takes real time, during which virtual time stands still: ``settle`` waits until the
controller has done all that it will do on what it was told. The pushes that came of it wait at
the gate; the drill lets them in when they are due.
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
"""Real seconds for the whole to come up."""
SETTLE_SECONDS = 60.0
"""Real seconds in which a controller that can do something has done it."""
LULL_SECONDS = 0.08
"""No push for so long: all of this stage have come."""
LONG_LULL_SECONDS = 2.0
"""The same while the controller has not heard of all, or has no plan for it."""
CALM_SECONDS = 0.06
"""Nothing at all for so long: there is nothing more to come."""
DEAF_SECONDS = 0.3
"""The same where nobody could say that there is nothing more."""
_POLL_SECONDS = 0.005
_ASK_SECONDS = 0.05
"""Real seconds after which the controller is asked again."""
ROLLOUT_SECONDS = 0.5
"""Virtual seconds for which the controller waits for an agent that hangs."""
GIVEN_UP_SECONDS = 5.0
"""Real seconds for the same. All others have to have answered by then, though their pushes are held
until they are due: a controller that gave them up would do the rest in another order."""
OPTIONS = (
    f"--rollout-seconds={GIVEN_UP_SECONDS}",
    "--debounce-seconds=0.03",
    "--counter-interval-seconds=0",
)


class ControllerHarness:
    """Use as ``async with``: entered when everybody has a session and knows his peers."""

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
        """What the controller has told."""
        self.store_is_down = False
        self._wanted: Flows | None = None
        self._wanted_at = 0
        """When other flows were last asked for, by the view's clock."""
        self._knows = 0
        """The change of links that the newest plan is known to be made for, by its time."""
        self._asked = 0.0
        self._unsaid: list[tuple[str, State]] = []
        self._told = 0
        """Generation of the plan that hosts know."""
        self._ends = Counter[Link]()
        """Switches at the ends of each link."""
        self._due = Counter[int]()
        """Pushes that were handed out and not let in yet, by switch."""

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
        """Wait for the plan of the empty fabric, so that every run plans the flows after it."""
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
        """Plan flows and program them; from then on time is virtual.

        Raises:
            HeddleError: the controller refuses them, or does not come to an end.
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
        """Tell hosts of the newest plan; False if there is none that they do not know."""
        plan = self.view.plan
        if plan is None or plan.generation == self._told or not of_several(self._scenario.fabric):
            return False
        try:
            self.fleet.switches.hosts = await told_hosts(self._scenario.fabric, self.client)
        except HeddleError:
            return False  # it is away: hosts go on as they were told
        self._told = plan.generation
        return True

    async def want(self, flows: Flows) -> None:
        """These flows are wanted from now on, as soon as there is a controller to hear it."""
        self._wanted = flows
        self.view.changed = self._wanted_at = time.monotonic_ns()
        if self._can_hear:
            with contextlib.suppress(HeddleError):
                await self.client.put_demands(_DEMANDS, self._scenario.fabric, flows)
                return
        self._unsaid.append(("", State.UP))

    async def drain(self, switch: str, *, drained: bool) -> None:
        """Take a switch out of service, or back into it, as soon as somebody hears it."""
        state = State.DRAINED if drained else State.UP
        self.view.changed = time.monotonic_ns()
        if self._can_hear:
            with contextlib.suppress(HeddleError):
                await self.client.set_switch(switch, state)
                return
        self._unsaid.append((switch, state))

    async def start_controller(self) -> None:
        """Start it anew, and tell it what nobody was there to hear."""
        self.view.down.clear()  # what another believed
        await self.controller.start()
        self.view.changed = time.monotonic_ns()  # it looks at everything anew, and may plan
        self.fleet.aim(self.controller.api)
        await self.fleet.shared_relay.drop()
        await self.catch_up()

    async def catch_up(self) -> None:
        """Say what could not be said when it was due."""
        unsaid, self._unsaid = self._unsaid, []
        for switch, state in unsaid:
            if switch:
                await self.drain(switch, drained=state is State.DRAINED)
            elif self._wanted is not None:
                await self.want(self._wanted)

    async def kill_controller(self) -> None:
        """SIGKILL."""
        await self.controller.kill()
        self.fleet.aim("")

    @property
    def _can_hear(self) -> bool:
        return self.controller.serves and not self.store_is_down

    async def settle(self) -> list[Held]:
        """Let the controller work until it waits for answers or has nothing to do: its pushes.

        What is waited for is told, not timed, wherever there is somebody to tell it. Where an
        agent is away or hangs its answer is not; then a while without a push has to do.
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
        """Real seconds without a push after which those that have come are all for now.

        While there is something that the controller has not planned for yet, more will come.
        """
        knows = self._is_fresh and self._agrees() and not self.fleet.unreached()
        return LULL_SECONDS if knows or not self._can_hear else LONG_LULL_SECONDS

    def _calm(self) -> float:
        """Real seconds without anything new after which there is nothing more to come."""
        if not self._can_hear:
            return DEAF_SECONDS
        if self.fleet.gate.waiting:
            return GIVEN_UP_SECONDS + DEAF_SECONDS  # the controller gives up waiting for those
        return CALM_SECONDS if self._lacking == 0 else DEAF_SECONDS

    @property
    def settled(self) -> bool:
        """Whether there is a controller, and it has nothing left to do."""
        told = self._can_hear and self._agrees() and not self.fleet.unreached()
        told = told and not self._newcomers(self._reaching())
        return told and self._lacking == 0 and not self.fleet.gate.waiting

    @property
    def _is_fresh(self) -> bool:
        """Whether the newest plan knows of the last change of links and of wants."""
        if self.view.committed < self._wanted_at:
            return False
        return self.view.is_fresh or self._knows == self.view.changed

    async def _ask_of_links(self) -> None:
        """Ask of a plan that is older than the last change told of whether it was made for that.

        Who watches anew hears of plans and links in any order; a link may be as it was again.
        """
        now, changed = time.monotonic(), self.view.changed
        if self._is_fresh or now - self._asked < _ASK_SECONDS:
            return
        if self._can_hear and self._agrees() and not self.fleet.unreached():
            self._asked = now
            with contextlib.suppress(HeddleError):
                if (await self.client.plan()).links_current:
                    self._knows = changed

    @property
    def _lacking(self) -> int:
        """Switches that do not hold the newest plan, or EVERYBODY while it is too old."""
        plan = self.view.plan
        if plan is None:
            return 0
        if not self._is_fresh:
            return EVERYBODY
        if plan.HasField("programmed_time"):
            return 0
        return max(plan.switch_count - plan.programmed_switch_count, 1)

    def _at_rest(self) -> bool:
        """Whether all that can reach the controller has, and who can hold its plan does."""
        answering = self._reaching() - self._due.keys()
        away = len(self.fleet.agents) - len(answering)
        told = not self.fleet.unreached() and self._agrees()
        return told and self._lacking <= away and not self._newcomers(answering)

    def _newcomers(self, switches: set[int]) -> set[int]:
        """Those whose agents have started anew: each is pushed to, even with no entry to hold."""
        agents = self.fleet.agents
        return {row for row in switches if agents[row].held.generation == 0}

    def _reaching(self) -> set[int]:
        """Switches, by row, whose agents have a session and answer."""
        fleet = self.fleet
        return {row for row in fleet.awake if fleet.agents[row].connected}

    def _agrees(self) -> bool:
        """Whether the controller believes of links what agents that reach it say."""
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
        """Let one push in, and wait until the switch has taken it."""
        self._due -= Counter([held.switch])
        held.free.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                await held.done.wait()
