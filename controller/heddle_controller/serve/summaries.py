"""Plans as clients see them, without routes: the newest, earlier ones, and comparisons.

Counting which of thousands of switches hold a plan takes milliseconds, and during a rollout many
clients ask again and again. So ``Summaries`` counts once for each change in the store or in what
agents report, for all clients together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from heddle.v1 import plan_pb2 as pb
from heddle_controller.plan.diff import Cause, CauseKind, causes_between, changed_flows
from heddle_controller.plan.limits import fares_of
from heddle_controller.reconcile.observations import Observations, with_down
from heddle_controller.serve.codec import common, names
from heddle_controller.serve.codec import plan as codec
from heddle_controller.serve.errors import Refusal, not_found
from heddle_controller.serve.what_if import MAX_TOLD, outcomes
from heddle_controller.state.plans import KEPT
from heddle_controller.state.records import Committed, PlanSummary, Rollback
from heddle_controller.store.store import Store

KINDS = {
    CauseKind.FABRIC_PUT: pb.PlanCause.FABRIC_PUT,
    CauseKind.LINK_LOST: pb.PlanCause.LINK_LOST,
    CauseKind.LINK_BACK: pb.PlanCause.LINK_BACK,
    CauseKind.LINK_DRAINED: pb.PlanCause.LINK_DRAINED,
    CauseKind.LINK_UNDRAINED: pb.PlanCause.LINK_UNDRAINED,
    CauseKind.SWITCH_LOST: pb.PlanCause.SWITCH_LOST,
    CauseKind.SWITCH_BACK: pb.PlanCause.SWITCH_BACK,
    CauseKind.SWITCH_DRAINED: pb.PlanCause.SWITCH_DRAINED,
    CauseKind.SWITCH_UNDRAINED: pb.PlanCause.SWITCH_UNDRAINED,
    CauseKind.JOB_CAME: pb.PlanCause.JOB_CAME,
    CauseKind.JOB_GONE: pb.PlanCause.JOB_GONE,
    CauseKind.JOB_SUSPENDED: pb.PlanCause.JOB_SUSPENDED,
    CauseKind.JOB_RESUMED: pb.PlanCause.JOB_RESUMED,
    CauseKind.FLOWS_CHANGED: pb.PlanCause.FLOWS_CHANGED,
    CauseKind.TRAFFIC_FOUND: pb.PlanCause.TRAFFIC_FOUND,
    CauseKind.TRAFFIC_GONE: pb.PlanCause.TRAFFIC_GONE,
    CauseKind.ROLLED_BACK: pb.PlanCause.ROLLED_BACK,
    CauseKind.BETTER_PLAN: pb.PlanCause.BETTER_PLAN,
}


def no_plan(fabric: str) -> Refusal:
    """Return a refusal: the fabric has no plan yet."""
    message = f"{names.fabric_name(fabric)} has no plan yet: watch it, or submit a job"
    return not_found("NO_PLAN", message, name=names.plan_name(fabric))


async def kept_plan(store: Store, fabric: str, generation: int) -> Committed:
    """Return the plan of a generation; 0 means the newest.

    Raises:
        Refusal: NOT_FOUND if there is no such plan yet, or it is no longer kept.
        NotFound: there is no such fabric.
    """
    found = await store.committed(fabric, generation)
    if found is not None:
        return found
    newest = (await store.versions(fabric)).generation  # raises NotFound for an unknown fabric
    name = names.plan_name(fabric)
    if not newest:
        raise no_plan(fabric)
    if generation > newest:
        message = f"{name} has no generation {generation} yet: the newest is {newest}"
    else:
        kept = f"the newest {KEPT} are, from {max(1, newest - KEPT + 1)} on"
        message = f"generation {generation} of {name} is not kept any more: {kept}"
    raise not_found("NO_SUCH_GENERATION", message, name=name)


def plan_summary_to_pb(summary: PlanSummary) -> pb.PlanSummary:
    """Return the summary of a plan as a message."""
    facts = summary.facts
    return pb.PlanSummary(
        generation=summary.generation,
        epoch=summary.epoch,
        intent_version=summary.intent_version,
        commit_time=common.time_to_pb(facts.commit_time),
        flow_count=summary.flow_count,
        unrouted_count=summary.unrouted_count,
        changed_count=facts.changed_count,
        solve_seconds=facts.solve_seconds,
        max_utilization=summary.max_utilization,
        lower_bound=summary.lower_bound,
        causes=_causes(facts.causes),
    )


def rollback_to_pb(rollback: Rollback) -> pb.Rollback:
    """Return a rollback as a message."""
    return pb.Rollback(
        generation=rollback.generation,
        end_time=common.time_to_pb(rollback.end_time),
        intent_version=rollback.version,
    )


def _causes(causes: Iterable[Cause]) -> list[pb.PlanCause]:
    return [
        pb.PlanCause(kind=KINDS[cause.kind], names=cause.names, count=cause.count)
        for cause in causes
    ]


def _differences(one: Committed, other: Committed) -> list[Cause]:
    """Return what changed between any two plans; a later one need not be the better one."""
    worse = other.plan.certificate.max_utilization > one.plan.certificate.max_utilization
    better = other.generation > one.generation and not worse
    found = causes_between(one.plan, other.plan)
    return [cause for cause in found if better or cause.kind != CauseKind.BETTER_PLAN]


def compared_to_pb(fabric: str, one: Committed, other: Committed) -> pb.ComparePlansResponse:
    """Return what differs between two plans: moved flows, causes, and jobs faster or slower."""
    before, after = one.plan, other.plan
    moved = changed_flows(before, after)
    was = {flow: row for row, flow in enumerate(before.flows.ids)} if len(moved) else {}
    old, new = (codec.Routes(plan, np.zeros(len(plan.flows), np.int64)) for plan in (before, after))
    told = [(after.flows.ids[row], row) for row in moved[:MAX_TOLD].tolist()]
    return pb.ComparePlansResponse(
        before=codec.committed_to_pb(fabric, one),
        after=codec.committed_to_pb(fabric, other),
        causes=_causes(_differences(one, other)),
        moved=[
            pb.MovedFlow(flow=flow, before=old.route(was[flow]).paths, after=new.route(row).paths)
            for flow, row in told
        ],
        moved_count=len(moved),
        jobs=outcomes(fares_of(before), fares_of(after))[:MAX_TOLD],
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """The last summary of a fabric."""

    committed: Committed
    about: tuple[int, int]
    """Versions of the intent and of observed link states for which it was made."""
    plan: pb.Plan


class Summaries:
    """Keeps the newest summary of each fabric; callers must not change the messages they get."""

    def __init__(self, store: Store, observations: Observations) -> None:
        self._store, self._observations = store, observations
        self._known: dict[str, _Known] = {}

    async def of(self, fabric: str) -> pb.Plan | None:
        """Return the summary of the newest plan; None if there is no plan yet.

        Raises:
            NotFound: there is no such fabric.
        """
        committed = await self._store.committed(fabric)
        if committed is None:
            self._known.pop(fabric, None)
            await self._store.versions(fabric)  # raises NotFound for an unknown fabric
            return None
        seen = self._observations.of(fabric)
        about = (await self._store.versions(fabric)).intent, seen.version
        before = self._known.get(fabric)
        if before is not None and _same(before.committed, committed):
            if before.about == about:
                return before.plan
            plan = pb.Plan()
            plan.CopyFrom(before.plan)
        else:
            plan = codec.committed_to_pb(fabric, committed)
        plan.ClearField("rollback")
        wanted = await self._store.rollback(fabric)
        if wanted is not None:
            plan.rollback.CopyFrom(rollback_to_pb(wanted))
        links = with_down((await self._store.get_fabric(fabric)).fabric, seen.down)
        plan.links_current = np.array_equal(links.effective, committed.plan.fabric.effective)
        self._known[fabric] = _Known(committed, about, plan)
        return plan


def _same(one: Committed, other: Committed) -> bool:
    return (
        one.plan is other.plan
        and one.program is other.program
        and one.facts == other.facts
        and one.programmed == other.programmed
        and one.kept_for == other.kept_for
    )
