"""After a quiet time, a repaired plan gives way to a plan from scratch that is clearly better."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Certificate, Plan
from heddle_controller.planner.port import PlannerLost
from heddle_controller.reconcile.ports import AgentGateway, Metric
from heddle_controller.reconcile.worker import Dependencies
from heddle_controller.solve import LossScreen, with_losses
from heddle_controller.solve.repair.repairer import Repairer
from heddle_controller.state.records import LinkName
from heddle_controller.store.store import Store
from tests.support.direct_planner import DirectPlanner
from tests.support.reconcile_world import ENGINE, SETTINGS, House, ring, three_tiers
from tests.support.waiting import PATIENCE

JOB = ring("j1", "h0.0.0", "h1.0.0", "h0.1.0", "h1.1.0")
SOON = 0.05
DOUBT = 0.1
"""The part of the true lower bound that ``Doubtful`` repairs claim."""
SAID = 9.0
"""The worst utilisation that ``Poor`` repairs claim."""


class Poor:
    """A repairer whose plans are valid but whose certificates claim to be far from the bound."""

    def __init__(self, plan: Plan) -> None:
        self._repairer = Repairer(plan)

    def copy(self, *, backups: bool = True) -> Poor:  # noqa: ARG002 - a port
        """Implement ``Repair.copy``."""
        return type(self)(self._repairer.plan)

    def beside(self, fabric: Fabric, flows: Flows) -> None:
        """Do nothing: this repairer knows only what it repaired itself."""

    def repair(self, fabric: Fabric, flows: Flows) -> Plan:
        """Implement ``Repair.repair``, with a bad certificate."""
        plan = self._repairer.repair(fabric, flows)
        return replace(plan, certificate=Certificate(SAID, 0.5, "cut"))

    def relieved(self) -> Plan | None:
        """Return None: there is never a relieved plan."""
        return None

    def is_ready_for(self, plan: Plan) -> bool:  # noqa: ARG002 - a port
        """Return False: the certificates of its plans are not true."""
        return False


class Doubtful(Poor):
    """A repairer with true utilisations, but with lower bounds that are too low."""

    def repair(self, fabric: Fabric, flows: Flows) -> Plan:
        """Implement ``Repair.repair``, with lower bounds that are too low."""
        plan = self._repairer.repair(fabric, flows)
        return replace(plan, certificate=doubted(plan.certificate))


def doubted(certificate: Certificate) -> Certificate:
    """Return the certificate with all its lower bounds scaled down by ``DOUBT``."""
    tiers = [replace(tier, lower_bound=tier.lower_bound * DOUBT) for tier in certificate.tiers]
    least = certificate.lower_bound * DOUBT
    return replace(certificate, lower_bound=least, tiers=tuple(tiers))


class Lost(DirectPlanner):
    """A planner whose process is lost, so it cannot prepare for questions."""

    async def prepare(self, fabric: str, standing: Plan) -> None:  # noqa: ARG002 - a port
        """Raise ``PlannerLost``."""
        raise PlannerLost("killed")


class Comparing(House):
    """A controller that compares plans after a short quiet time, with a set threshold."""

    worth_moving = 0.02
    compare_after = SOON
    repairer: type[Poor] = Poor
    questions: DirectPlanner | None = None
    """Answers questions instead of the planner; None means that the planner does."""

    def dependencies(self, store: Store, gateway: AgentGateway) -> Dependencies:
        """Return the controller's dependencies, with the repairer and thresholds under test."""
        self.engine = replace(
            self.engine, repairer=self.repairer, verify=lambda *_: None, back=lambda *_: None
        )
        settings = replace(
            SETTINGS, compare_after=self.compare_after, worth_moving=self.worth_moving
        )
        found = replace(super().dependencies(store, gateway), settings=settings)
        return replace(found, advisor=self.questions or found.advisor)


@pytest.fixture
def house(tmp_path: Path) -> Comparing:
    """A controller of two zones of two leaves, with two cores in each of two planes."""
    return Comparing(tmp_path, three_tiers())


async def lose_a_link(house: Comparing) -> int:
    """Plan a job, then drain a link; return the generation of the repaired plan."""
    await house.store.put_fabric("f1", house.fabric)
    await house.store.submit_job("f1", JOB)
    await house.programmed("j1")
    await house.settled()
    before = (await house.committed()).generation
    await house.store.set_link_state("f1", LinkName("l0.0", "s0.0"), State.DOWN)

    async def repaired() -> bool:
        return (await house.committed()).generation > before

    await house.until(repaired, "a repair")
    return before + 1


async def test_what_is_clearly_better_takes_the_place_of_a_repair(house: Comparing) -> None:
    """After a quiet time, flows move to the plan made from scratch, without lost packets.

    Nobody has waited for that plan, so no time is measured for it.
    """
    async with house.running():
        generation = await lose_a_link(house)

        async def migrated() -> bool:
            done = await house.committed()
            return done.generation > generation and done.plan.certificate.max_utilization < SAID

        await house.until(migrated, "the better plan")
        await house.settled()
        done = await house.committed()
        assert done.generation == generation + 1
        assert not house.trouble(done.plan.fabric, done.plan.flows)
        assert len(house.figures.values[Metric.PROGRAM_SECONDS]) <= generation


async def test_a_better_plan_needs_no_process_for_questions(house: Comparing) -> None:
    """Flows move to the better plan even if the process that answers questions is lost."""
    house.questions = Lost(house.engine)
    async with house.running():
        generation = await lose_a_link(house)

        async def migrated() -> bool:
            done = await house.committed()
            return done.generation > generation and done.plan.certificate.max_utilization < SAID

        await house.until(migrated, "the better plan")


async def test_what_wins_by_less_than_the_threshold_stays(house: Comparing) -> None:
    """With a threshold that nothing can pass, plans are compared and the repair stays."""
    house.worth_moving = 0.999
    solved: list[int] = []

    def counted(fabric: Fabric, flows: Flows, before: Plan | None = None) -> Plan:
        solved.append(len(flows))
        return ENGINE.solve(fabric, flows, before)

    house.engine = replace(ENGINE, solve=counted)
    async with house.running():
        generation = await lose_a_link(house)
        await house.until(lambda: len(solved) > 1, "a comparison")
        await house.settled()
        done = await house.committed()
        assert done.generation == generation
        assert done.plan.certificate.max_utilization == SAID


async def test_what_single_losses_do_is_told_without_quiet(house: Comparing) -> None:
    """The repair's certificate soon says what single losses do, without a new generation."""
    house.compare_after = 3600.0
    async with house.running():
        generation = await lose_a_link(house)

        async def told() -> bool:
            return bool((await house.committed()).plan.certificate.after_loss)

        await house.until(told, "the certificate of single losses")
        plan = (await house.committed()).plan
        assert plan.certificate == with_losses(plan, thorough=False)
        assert (await house.committed()).generation == generation


async def test_a_late_bound_makes_a_better_certificate_and_nothing_else(house: Comparing) -> None:
    """A bound proven after a repair changes the certificate, and watchers learn of it.

    No new plan is made and no entry is sent.
    """
    house.repairer, house.worth_moving = Doubtful, 0.999
    go_on = threading.Event()  # the proof must not come before the switches have the repair

    def patient(plan: Plan, screen: LossScreen) -> Certificate:
        assert go_on.wait(PATIENCE)
        return ENGINE.prove(plan, screen)

    house.engine = replace(ENGINE, prove=patient)
    async with house.running():
        generation = await lose_a_link(house)
        await house.settled()
        changes, before = house.change_count(), await house.committed()

        async def proven() -> bool:
            certificate = (await house.committed()).plan.certificate
            return certificate.proof == "lp"

        watching = asyncio.create_task(_facts_until(house, proven))
        go_on.set()
        await house.until(proven, "the late bound")
        await asyncio.wait_for(watching, PATIENCE)
        await house.settled()
        done = await house.committed()
        assert done.generation == generation
        assert house.change_count() == changes
        assert done.program is before.program
        assert done.plan.paths is before.plan.paths
        true = ENGINE.solve(done.plan.fabric, done.plan.flows, done.plan).certificate
        assert done.plan.certificate.max_utilization == before.plan.certificate.max_utilization
        assert done.plan.certificate.lower_bound <= true.max_utilization


async def _facts_until(house: Comparing, reached: Callable[[], Awaitable[bool]]) -> None:
    """Follow changes of facts, as watchers of a plan do, until the condition holds."""
    async for _ in house.store.changes(facts=True):
        if await reached():
            return


async def test_a_bound_that_comes_after_the_next_plan_is_dropped(house: Comparing) -> None:
    """A proof that ends after the next plan is committed does not change that plan."""
    house.repairer, house.worth_moving = Doubtful, 0.999
    begun, go_on = threading.Event(), threading.Event()
    proofs: list[tuple[Fabric, Certificate]] = []
    asked: list[Fabric] = []

    def slow(plan: Plan, _: LossScreen) -> Certificate:
        # On a busy machine the plan before the loss is compared too. That must not block here.
        if plan.fabric.plannable.all():
            return plan.certificate
        asked.append(plan.fabric)
        begun.set()
        assert go_on.wait(PATIENCE)
        proofs.append((plan.fabric, replace(plan.certificate, proof=f"proof {len(proofs)}")))
        return proofs[-1][1]

    house.engine = replace(ENGINE, prove=slow)
    async with house.running():
        generation = await lose_a_link(house)
        await house.until(begun.is_set, "a proof under way")
        await house.store.set_link_state("f1", LinkName("l0.1", "s0.1"), State.DRAINED)

        async def repaired() -> bool:
            return (await house.committed()).generation > generation

        await house.until(repaired, "the next plan")
        assert not proofs
        go_on.set()

        async def proven() -> bool:
            return (await house.committed()).plan.certificate.proof.startswith("proof")

        await house.until(proven, "the proof of the next plan")
        done = await house.committed()
        assert done.generation == generation + 1
        told = done.plan.certificate
        of = [fabric for fabric, proof in proofs if replace(proof, turns=()) == told]
        assert [fabric.link_state.tolist() for fabric in of] == [
            done.plan.fabric.link_state.tolist()
        ]
        assert asked[0].link_state.tolist() != of[0].link_state.tolist()
