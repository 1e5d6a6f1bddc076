"""The worker of one fabric under one leader: read the whole intent, plan, commit, roll out.

It is level-triggered: whatever woke it, it compares the current intent with the current plan. A
second run without a change does nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace

import structlog

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.job import Iteration
from heddle_controller.model.plan import Certificate, Plan, Turn
from heddle_controller.model.port_paths import PortPaths
from heddle_controller.model.program import Program
from heddle_controller.plan.diff import Cause, CauseKind, causes_between, changed_flows
from heddle_controller.planner.planning import Planned
from heddle_controller.planner.port import Advisor, PlanAnswer, Planner, PlannerLost, PlanningFailed
from heddle_controller.reconcile.observations import (
    LinkEnds,
    LinkStates,
    Observations,
    held_down,
    undecided,
    with_down,
)
from heddle_controller.reconcile.ports import AgentGateway, Clock, Metric, Metrics
from heddle_controller.reconcile.rollout.driver import Rollout, RolloutSettings, pause
from heddle_controller.reconcile.rollout.report import Account, Target, job_facts
from heddle_controller.reconcile.unannounced import FoundFlows
from heddle_controller.state.errors import FabricDeleted, NotFound, PortError, StaleEpoch
from heddle_controller.state.records import Committed, Intent, PlanFacts
from heddle_controller.store.store import Store

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ReconcileSettings:
    """How eager and how patient the controller is. All times are in seconds."""

    holder: str = "controller"
    """Name of this replica, shown to people."""
    debounce: float = 0.005
    """Changes that follow one another within this time are planned together."""
    debounce_most: float = 0.1
    """The longest that a change waits for others. The first change after so much quiet does not
    wait at all."""
    retry_first: float = 1.0
    """Until planning is tried again after a failure; doubled after each further failure."""
    retry_last: float = 60.0
    """The longest time until planning is tried again."""
    compact_after: float = 0.2
    """Time of quiet until the store is asked to compact what it keeps."""
    compare_after: float = 1.0
    """Time of quiet until the plan is compared with one made from scratch."""
    worth_moving: float = 0.02
    """Share by which another plan must be better before flows move that need not move."""
    found_pace: float = 1.0
    """Shortest time between two plans that only follow unannounced flows."""
    rollout: RolloutSettings = field(default_factory=RolloutSettings)


Refused = tuple[tuple[str, str], ...]
"""Jobs and demand sets that no plan can hold, and why; see ``PlanAnswer``."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What the loop works with."""

    store: Store
    gateway: AgentGateway
    observations: Observations
    clock: Clock
    metrics: Metrics
    planner: Planner
    """Plans after events. It is asked nothing else, so that no event waits."""
    advisor: Advisor
    """Answers questions of clients."""
    prover: Planner
    """Looks for better plans and bounds, and certifies. No event waits for this."""
    settings: ReconcileSettings


@dataclass(frozen=True, slots=True, eq=False)
class BetterPlan:
    """A better plan for the same input, found in quiet time."""

    generation: int
    """Generation of the plan that it is better than."""
    intent: Intent
    refused: Refused
    planned: Planned
    seconds: float
    """Time that the comparison took."""


class Worker:
    """Keeps one fabric's plan in line with its intent, and its switches with the plan."""

    def __init__(
        self, fabric: str, epoch: int, world: Dependencies, followers: dict[str, int]
    ) -> None:
        """``followers``: as for ``Rollout``."""
        self._fabric = fabric
        self._epoch = epoch
        self._world = world
        self._rollout = Rollout(
            fabric,
            epoch,
            followers,
            store=world.store,
            gateway=world.gateway,
            clock=world.clock,
            metrics=world.metrics,
            settings=world.settings.rollout,
        )
        self._wake = asyncio.Event()
        self._version: int | None = None
        """Version of the intent that the newest plan answers; None forces a new look."""
        self._down: frozenset[LinkEnds] = frozenset()
        """Links that were taken to be down for that plan."""
        self._ports: PortPaths | None = None
        """Paths of source ports that were known for that plan."""
        self._found = FoundFlows()
        """Unannounced flows that were planned with last."""
        self._found_next = 0.0
        """Earliest time to plan with other unannounced flows. There is no hurry for them."""
        self._held: frozenset[LinkEnds] | None = None
        """Links that were down in the plan we began with and whose state is not known yet."""
        self._held_until = world.clock.monotonic() + world.settings.rollout.patience
        self._committed: Committed | None = None
        self._answered_until = 0.0
        """Time of the newest change that a plan has answered, Unix seconds."""
        self._account = Account()
        self._refused: Refused = ()
        """What the last planning refused."""
        self._delay = world.settings.retry_first
        self._retry_at: float | None = None
        self._idle_since: float | None = None
        """When the last run ended without an error; None before the first."""
        self._kept_until: float | None = None
        """When the current rollback ends; None without one."""
        self._comparison: asyncio.Task[None] | None = None
        self._compared: Intent | None = None
        """The intent for which the last comparison was started."""
        self._proven: tuple[int, Certificate] = (0, Certificate())
        """Generation that was last compared with a plan made from scratch, and its certificate."""
        self._better: BetterPlan | None = None

    def wake(self) -> None:
        """Note that something may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled. If there is no such fabric yet, wait until it is put.

        Raises:
            Superseded: an agent has followed another leader, of this epoch or a newer one.
            StaleEpoch: the store has seen a newer epoch.
            FabricDeleted: the fabric was deleted while it was planned.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._rollout.run())
                await self._until_put()
                await self._work()  # not a task: see end_if_asked
        finally:
            if self._comparison is not None:
                self._comparison.cancel()

    async def _until_put(self) -> None:
        """Wait until there is such a fabric; have switches remove what they hold of a deleted one.

        If a store lost a fabric, they keep it.
        """
        while True:
            self._wake.clear()
            try:
                await self._world.store.versions(self._fabric)
            except FabricDeleted as gone:
                self._rollout.withdraw(gone.generation)
                await self._wake.wait()
            except NotFound:
                await self._wake.wait()
            else:
                return

    async def _work(self) -> None:
        self._wake.set()
        while True:
            found = None if self._seen().unannounced.flows is self._found else self._found_next
            held = self._held_until if self._held else None
            ends = [self._retry_at, held, self._kept_until, found]
            await pause(self._world.clock, self._wake, ends)
            await self._settle()
            self._wake.clear()
            self._retry_at = None
            try:
                await self._reconcile()
                await self._take_better()
                self._idle_since = self._world.clock.monotonic()
            except (StaleEpoch, FabricDeleted):
                raise
            except PortError as error:  # the store is away, or another plan was committed
                log.warning("fabric not reconciled", fabric=self._fabric, why=str(error))
                self._world.metrics.count(Metric.RECONCILE_FAILURES, self._fabric)
                self._committed = self._version = None
                self._try_again()

    async def _settle(self) -> None:
        """Wait a little, so that changes that come together are planned together.

        The first change after some quiet does not wait: it is most often a single lost link.
        """
        clock, settings = self._world.clock, self._world.settings
        now = clock.monotonic()
        if self._idle_since is not None and now >= self._idle_since + settings.debounce_most:
            return
        end = now + settings.debounce_most
        while self._wake.is_set() and clock.monotonic() < end:
            self._wake.clear()
            await clock.sleep(settings.debounce)

    def _try_again(self) -> None:
        """Schedule another run. The delay doubles each time; a change wakes the worker sooner."""
        self._retry_at = self._world.clock.monotonic() + self._delay
        self._delay = min(2 * self._delay, self._world.settings.retry_last)

    async def _reconcile(self) -> None:
        world, fabric = self._world, self._fabric
        world.metrics.count(Metric.RECONCILE_RUNS, fabric)
        if self._committed is None:
            await self._pick_up()
        if self._kept_until is not None and world.clock.monotonic() >= self._kept_until:
            self._kept_until = self._version = None
        version = (await world.store.versions(fabric)).intent
        if version == self._version and not self._held and self._is_as_then():
            return
        intent, down, found = self._merged(await world.store.intent(fabric))
        ports = intent.fabric.port_paths
        same = down == self._down and ports is self._ports and found is self._found
        if intent.version == self._version and same:
            return
        self._take_in(found)
        self._down, self._ports = down, ports
        start = world.clock.monotonic()
        previous = self._committed.plan if self._committed else None
        try:
            earlier = await self._rolled_back(intent)
            if earlier is None:
                answer = await world.planner.plan(intent, previous)
            else:
                answer = await world.planner.plan(intent, earlier.plan, previous)
                answer = await asyncio.to_thread(_gone_back, answer, earlier, previous)
        except Exception as error:  # noqa: BLE001 - whatever planning fails with, the loop lives on
            await self._in_trouble(intent, error)
            return
        seconds = world.clock.monotonic() - start
        self._note_refused(answer)
        if answer.planned is None:
            await self._keep(intent, answer.refused)
        else:
            world.metrics.observe(Metric.SOLVE_SECONDS, fabric, seconds)
            await self._commit(intent, answer.refused, answer.planned, seconds, earlier)
            self._compare_later(intent, answer.refused)
            if earlier is not None and self._committed is not None:
                await self._prepare(self._committed)
        self._delay = world.settings.retry_first

    def _seen(self) -> LinkStates:
        return self._world.observations.of(self._fabric)

    def _is_as_then(self) -> bool:
        """Whether agents and hosts report the same as when the newest plan was made."""
        seen = self._seen()
        if seen.down != self._down or not seen.tells_ports(self._ports):
            return False
        found = seen.unannounced.flows is self._found
        return found or self._world.clock.monotonic() < self._found_next

    def _take_in(self, found: FoundFlows) -> None:
        """Plan with these unannounced flows, and with no others for ``found_pace`` seconds."""
        if found is not self._found:
            self._found = found
            self._found_next = self._world.clock.monotonic() + self._world.settings.found_pace

    def _merged(self, intent: Intent) -> tuple[Intent, frozenset[LinkEnds], FoundFlows]:
        """Return the intent with all observations, the links taken to be down, and found flows."""
        seen, held = self._seen(), self._held or frozenset()
        if self._world.clock.monotonic() >= self._held_until:
            held = frozenset()
        self._held = undecided(held, seen.heard, intent.fabric)
        down = self._held | seen.down
        due = self._world.clock.monotonic() >= self._found_next
        found = seen.unannounced.flows if due else self._found
        changed = max(intent.change_time, seen.change_time)
        if found is not self._found:
            changed = max(changed, found.change_time)
        fabric = seen.with_ports(with_down(intent.fabric, down))
        merged = replace(intent, fabric=fabric, change_time=changed)
        return seen.with_unannounced(merged, found), down, found

    async def _pick_up(self) -> None:
        """Go on from the newest plan in the store, whoever made it."""
        committed = await self._world.store.committed(self._fabric)
        if self._held is None:
            self._held = held_down(committed.plan.fabric) if committed else frozenset()
        if committed is None:
            return
        self._committed = committed
        self._answered_until = max(self._answered_until, committed.facts.commit_time)
        clock = self._world.clock
        self._seen().unannounced.adopt(committed.plan, clock.monotonic(), clock.now())
        self._rollout.aim(Target(committed, Account(committed.generation)))
        await self._prepare(committed)

    def _note_refused(self, answer: PlanAnswer) -> None:
        """Log what is left out of plans, but only when it changes."""
        if answer.refused != self._refused:
            for name, why in answer.refused:
                log.warning("left out of plans", fabric=self._fabric, what=name, why=why)
        self._refused = answer.refused

    async def _keep(self, intent: Intent, refused: Refused) -> None:
        """Record that the current plan answers this intent too."""
        assert self._committed is not None
        self._account = _account(self._committed.generation, intent, refused)
        self._version, self._answered_until = intent.version, intent.change_time
        self._rollout.aim(Target(self._committed, self._account))
        if intent.version > self._committed.answered_version:
            await self._world.store.record_kept(
                self._fabric, epoch=self._epoch, version=intent.version
            )
        # None: the plan is of an earlier leader, who may not have compared it
        if self._compared is None or _asked(intent) != _asked(self._compared):
            self._compare_later(intent, refused)

    async def _rolled_back(self, intent: Intent) -> Committed | None:
        """Return the plan to go back to, and note how long the rollback lasts.

        None if there is no rollback, if a plan since then answers it and no link is back that its
        flows may have left, or if that plan is gone.
        """
        world, wanted, current = self._world, intent.rollback, self._committed
        self._kept_until = None
        if wanted is None:
            return None
        self._kept_until = world.clock.monotonic() + wanted.end_time - world.clock.now()
        if current is None:
            return None
        answered = current.program.intent_version >= wanted.version
        if answered and not _any_back(current.plan.fabric, intent.fabric):
            return None
        earlier = await world.store.committed(self._fabric, wanted.generation)
        if earlier is None:
            log.warning("plan to go back to is gone", fabric=self._fabric, at=wanted.generation)
        return earlier

    async def _commit(
        self,
        intent: Intent,
        refused: Refused,
        planned: Planned,
        seconds: float,
        earlier: Committed | None = None,
    ) -> None:
        if self._committed is not None:
            before = self._committed.generation
        else:  # 0, or where a deleted fabric of this name ended
            before = (await self._world.store.versions(self._fabric)).generation
        causes = causes_between(
            self._committed.plan if self._committed else None,
            planned.plan,
            were_suspended={one.job.name for one in intent.jobs if one.facts.resumed},
            are_suspended={one.job.name for one in intent.jobs if one.job.suspended},
        )
        if earlier is not None:
            others = (cause for cause in causes if cause.kind != CauseKind.BETTER_PLAN)
            causes = (Cause(CauseKind.ROLLED_BACK, (str(earlier.generation),), 1), *others)
        committed = await self._world.store.commit(
            self._fabric,
            epoch=self._epoch,
            expected_generation=before,
            plan=planned.plan,
            program=Program(self._epoch, before + 1, intent.version, planned.entries),
            facts=PlanFacts(planned.changed_count, seconds, causes=causes),
        )
        self._committed, self._version = committed, intent.version
        self._account = _account(committed.generation, intent, refused)
        # Nobody waits for a better plan, or for one that follows a rollback.
        since = intent.change_time if intent.change_time > self._answered_until else None
        self._rollout.aim(Target(committed, self._account, since))
        self._answered_until = intent.change_time
        moved = committed.facts.changed_count
        self._world.metrics.count(Metric.CHANGED_FLOWS, self._fabric, moved)

    def _compare_later(self, intent: Intent, refused: Refused) -> None:
        """Start to find out what losses would do and, once it is quiet, whether a plan is better.

        The next call cancels this.
        """
        if self._comparison is not None:
            self._comparison.cancel()
        assert self._committed is not None
        self._compared = intent
        self._comparison = asyncio.create_task(self._compare(self._committed, intent, refused))

    async def _compare(self, committed: Committed, intent: Intent, refused: Refused) -> None:
        clock, settings = self._world.clock, self._world.settings
        start = clock.monotonic()
        # Pushes to switches come first.
        await clock.sleep(min(settings.debounce_most, settings.compare_after))
        try:
            committed = await self._with_losses(committed)
            await clock.sleep(max(0.0, start + settings.compact_after - clock.monotonic()))
            await self._world.store.compact(self._fabric, epoch=self._epoch)
            await clock.sleep(max(0.0, start + settings.compare_after - clock.monotonic()))
            start = clock.monotonic()
            await self._ready_advisor()
            found = await self._better_or_certified(committed, intent)
            if isinstance(found, Certificate):
                await self._certify(committed.generation, found)
        except Exception as error:  # noqa: BLE001 - the plan that stands is sound
            log.warning("no comparison", fabric=self._fabric, why=str(error))
            return
        if isinstance(found, Planned):
            seconds = clock.monotonic() - start
            self._better = BetterPlan(committed.generation, intent, refused, found, seconds)
            self._wake.set()

    async def _with_losses(self, committed: Committed) -> Committed:
        """Add to the certificate what single losses would do to the plan, and store it."""
        plan = committed.plan
        if plan.certificate.after_loss or self._proven[0] == committed.generation:
            return committed  # this is known already
        certificate = await self._world.prover.certify(self._fabric, plan)
        await self._certify(committed.generation, certificate, in_haste=True)
        return replace(committed, plan=replace(plan, certificate=certificate))

    async def _better_or_certified(
        self, committed: Committed, intent: Intent
    ) -> Planned | Certificate:
        """Return a better plan, or else the fullest certificate of the current plan.

        A plan is compared once, and not while an operator holds an earlier plan.
        """
        plan, prover = committed.plan, self._world.prover
        generation, certificate = self._proven
        if generation != committed.generation:
            certificate = plan.certificate
            if intent.rollback is None:
                worth_moving = self._world.settings.worth_moving
                found = await prover.reoptimise(self._fabric, plan, worth_moving)
                if isinstance(found, Planned):
                    return found
                certificate = found or certificate
                self._proven = committed.generation, certificate
        iterations, turns = _iterations(intent), tuple[Turn, ...]()
        if len(iterations) > 1:
            turns = await prover.turns(self._fabric, plan, iterations)
        return replace(certificate, turns=turns)

    async def _ready_advisor(self) -> None:
        """Have the advisor index the newest plan, so that the first question does not wait."""
        newest = await self._world.store.committed(self._fabric)
        if newest is not None:
            with suppress(PlannerLost, PlanningFailed):  # the next question gets another process
                await self._world.advisor.prepare(self._fabric, newest.plan)

    async def _certify(
        self, generation: int, certificate: Certificate, *, in_haste: bool = False
    ) -> None:
        """Store the certificate if its plan is still the newest. Switches are not told."""
        newest = await self._world.store.committed(self._fabric)
        if newest is None or newest.plan.certificate == certificate:
            return
        done = await self._world.store.certify(
            self._fabric,
            epoch=self._epoch,
            generation=generation,
            certificate=certificate,
            in_haste=in_haste,
        )
        if done:
            log.info(
                "plan certified",
                fabric=self._fabric,
                generation=generation,
                bound=certificate.lower_bound,
                turns=len(certificate.turns or ()),
            )

    async def _take_better(self) -> None:
        """Commit the better plan, if the plan it was compared with is still the newest."""
        better, self._better = self._better, None
        if better is None or self._committed is None:
            return
        now = (self._committed.generation, self._version)
        if now == (better.generation, better.intent.version):
            await self._commit(better.intent, better.refused, better.planned, better.seconds)
            await self._prepare(self._committed)  # the prover made it, not the planner
            self._compare_later(better.intent, better.refused)  # to get its bound

    async def _prepare(self, committed: Committed) -> None:
        """Have the planner prepare to repair this plan before that is needed."""
        try:
            await self._world.planner.prepare(self._fabric, committed.plan)
        except PlannerLost as error:  # the next request prepares it
            log.warning("plan not prepared", fabric=self._fabric, why=str(error))

    async def _in_trouble(self, intent: Intent, error: Exception) -> None:
        """Keep the old plan, report the trouble in every job, and try again later."""
        log.error("planning failed", fabric=self._fabric, why=str(error), exc_info=error)
        self._world.metrics.count(Metric.RECONCILE_FAILURES, self._fabric)
        known = {record.etag for record in self._account.jobs}
        self._account = replace(
            self._account,
            jobs=tuple(record for record in intent.jobs if record.etag in known),
            others=tuple(record for record in intent.jobs if record.etag not in known),
            trouble=_words(error),
        )
        self._version = None
        self._try_again()
        if self._committed is not None:
            self._rollout.aim(Target(self._committed, self._account))
            return
        facts = job_facts(self._account, {}, {}, self._world.clock.now())
        await self._world.store.record_jobs(self._fabric, epoch=self._epoch, facts=facts)


def _iterations(intent: Intent) -> tuple[Iteration, ...]:
    told = (record.job.iteration for record in intent.jobs if record.job.compute_seconds)
    return tuple(one for one in told if one is not None)


def _asked(intent: Intent) -> tuple[bool, tuple[Iteration, ...]]:
    """What a comparison depends on besides the plan: a rollback, and the jobs' iterations."""
    return intent.rollback is None, _iterations(intent)


def _any_back(before: Fabric, now: Fabric) -> bool:
    """Return whether a link takes new paths that did not before."""
    return before.structure is now.structure and bool((now.plannable & ~before.plannable).any())


def _gone_back(answer: PlanAnswer, earlier: Committed, previous: Plan | None) -> PlanAnswer:
    """Turn an answer that follows the plan of a rollback into one that follows ``previous``."""
    planned = answer.planned or Planned(earlier.plan, earlier.program.entries, 0)
    changed = 0 if previous is None else len(changed_flows(previous, planned.plan))
    return replace(answer, planned=replace(planned, changed_count=changed))


def _words(error: Exception) -> str:
    told = isinstance(error, PlanningFailed | PlannerLost)
    return str(error) if told else f"{type(error).__name__}: {error}"


def _account(generation: int, intent: Intent, refused: Refused) -> Account:
    left_out = dict(refused)
    return Account(
        generation=generation,
        jobs=tuple(record for record in intent.jobs if record.job.name not in left_out),
        others=tuple(record for record in intent.jobs if record.job.name in left_out),
        refused=refused,
    )
