"""From the whole intent to a verified plan: the thinking half of the loop.

Pure but for the time it takes. What is planned how:

- *Nothing to plan* where flows and states are those of the plan that stands, however
  often the intent was written in between.
- *Repair* wherever there is a plan: flows to which nothing happened stay.
- *Relieved* where links came back, or flows made a tier fuller, and the repaired plan is
  off its bound: a few more flows are moved, most often those that had to leave when links were
  lost. What was off its bound before flows came, and is no fuller for them, waits for quiet.
- *Kept to* where an operator rolled back to it: repair and nothing else, until that is over.
- *Anew* where there is none, where repair fails, or where that is quick. Nobody who waits for a
  path waits for a plan of many flows made anew.
- *Compared* once things are quiet: a plan with one made anew for the same input, which takes
  its place if the worst link or the times of jobs are better by more than a set threshold. If
  they are not, backups alone change where repairs left them no room. If they need not, a better
  bound is looked for, and the plan keeps all but its certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from math import log1p
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from heddle_controller.model.demand import Demands, first_flows, resolve, unannounced_rows
from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric, Structure
from heddle_controller.model.flows import Flows, concatenate
from heddle_controller.model.job import Job
from heddle_controller.model.plan import IDLE, Certificate, Plan
from heddle_controller.model.port_paths import joined_port_paths, no_port_paths
from heddle_controller.model.program import Entries
from heddle_controller.place.ask import EQUAL
from heddle_controller.place.score import gain_of_jobs
from heddle_controller.plan.diff import changed_flows
from heddle_controller.state.demands import check_ids
from heddle_controller.state.errors import FailedPrecondition
from heddle_controller.state.records import Intent

if TYPE_CHECKING:
    from heddle_controller.solve import LossScreen

_WORTH_MOVING = 0.02
"""How much fuller than in another plan the worst link is, for flows to move that need not.

Of changes that are no losses; what is compared in the background has a setting.
"""
YIELDS = 0.001
"""What a flow that nobody announced weighs, where the least of the others weighs 1."""
FEW = 256
"""Flows that are planned anew in less than half a second of processor."""


class Repair(Protocol):
    """A plan, ready to be repaired."""

    def copy(self, *, backups: bool = True) -> Repair:
        """Another of the same plan, for a repair that this one is not to know of.

        Without ``backups`` it may leave out those of paths that it makes.
        """
        ...

    def beside(self, fabric: Fabric, flows: Flows) -> tuple[Plan, bool] | None:
        """The plan of a job that comes if all else stays, and whether ``repair`` gives the same.

        New paths have no backups, and this stays as it is. None where that is not known.
        """
        ...

    def repair(self, fabric: Fabric, flows: Flows) -> Plan:
        """A plan for the fabric and flows as they are now, in which only what must move moves."""
        ...

    def relieved(self) -> Plan | None:
        """The plan that ``repair`` gave, brought to its bound by moving few; None where not."""
        ...

    def is_ready_for(self, plan: Plan) -> bool:
        """Whether it is this very plan that the next repair begins with, all indexes there."""
        ...


class EntriesOf(Protocol):
    """What switches must hold."""

    def __call__(self, plan: Plan, before: tuple[Plan, Entries] | None = None) -> Entries:
        """Entries of a plan; ``before`` is an earlier plan and what this gave for it."""
        ...


class Verify(Protocol):
    """Raises where a plan must not be used."""

    def __call__(self, plan: Plan, known: Plan | None = None) -> None:
        """Check a plan; ``known`` is one that passed, and need not be looked at twice."""
        ...


@dataclass(frozen=True, slots=True)
class Engine:
    """The functions that make a plan, handed in as values: who only plans by them loads no solver.

    Every one is pure, and may raise: the loop then keeps the plan it has.
    """

    flows_of_job: Callable[[Job, Fabric], Flows]
    """``traffic.jobs.flows_of_job``."""
    solve: Callable[[Fabric, Flows, Plan | None], Plan]
    """``solve.anew``."""
    repairer: Callable[[Plan], Repair]
    """``solve.repairer_of``."""
    screen: Callable[[Plan, LossScreen | None], LossScreen]
    """``solve.screen_of``."""
    back: Callable[[Plan, LossScreen], Plan | None]
    """``solve.better_backups``."""
    certify: Callable[[Plan, LossScreen], Certificate]
    """``solve.with_losses``, in haste."""
    prove: Callable[[Plan, LossScreen], Certificate]
    """``solve.prove``."""
    verify: Verify
    """``plan.verify.verify_plan``."""
    entries_of: EntriesOf
    """``plan.programs.entries_after``."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """All that flows of an intent follow from: its jobs and demands by name and etag."""

    structure: Structure
    jobs: tuple[tuple[str, str], ...]
    demands: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """What the intent comes to on its fabric."""

    fabric: Fabric
    flows: Flows
    refused: tuple[tuple[str, str], ...]
    """Jobs, by name, and demand sets, as no job can be named, that cannot be had, and why."""
    asked: _Asked | None = None
    """What the flows follow from; None where nobody has said."""
    kept: bool = False
    """Whether flows keep to the plan before wherever they can: an operator rolled back to it."""
    of_jobs: Mapping[tuple[str, str], Flows] = field(default_factory=dict)
    """The flows of each job that can be had, by name and etag."""


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A verified plan and what it means for switches."""

    plan: Plan
    entries: Entries
    changed_count: int


def wanted_of(intent: Intent, engine: Engine, known: Wanted | None = None) -> Wanted:
    """The flows of all jobs and demand sets, the oldest first.

    So a job that comes moves no row of others, and its flows are all that a repair looks at.
    One that was admitted but does not fit (any more) is left out, not the others. Jobs
    that are in ``known`` with the same etag, on the same structure, are taken from there.
    """
    refused = []
    same = known is not None and known.fabric.structure is intent.fabric.structure
    before: Mapping[tuple[str, str], Flows] = known.of_jobs if known and same else {}
    of_jobs = {}
    for record in intent.jobs:
        key = record.job.name, record.etag
        try:
            of_jobs[key] = (
                before[key] if key in before else engine.flows_of_job(record.job, intent.fabric)
            )
        except InputError as error:
            refused.append((record.job.name, str(error)))
    created = {(record.job.name, record.etag): record.create_time for record in intent.jobs}
    parts = [(created[key], flows) for key, flows in of_jobs.items()]
    unplanned, weights = left_out(intent), _weights(intent, of_jobs)
    for demands in intent.demands:
        origin = f"demands {demands.name!r}"
        if demands.name in unplanned:
            refused.append((origin, unplanned[demands.name]))
        else:
            flows = resolve(demands.demands, intent.fabric, weights, origin=origin)
            parts.append((demands.update_time, flows))
    parts.sort(key=itemgetter(0))
    flows = without_announced(concatenate([flows for _, flows in parts]))
    kept = intent.rollback is not None
    return Wanted(intent.fabric, flows, tuple(refused), _asked_of(intent), kept, of_jobs)


def with_more(wanted: Wanted, more: Flows) -> Wanted:
    """The same with the flows of a job that comes, behind all others that were announced."""
    flows = without_announced(concatenate([wanted.flows, more]))
    return Wanted(wanted.fabric, flows, wanted.refused, kept=wanted.kept)


def without_announced(flows: Flows) -> Flows:
    """The flows but for those of pairs that were found and that jobs or demand sets tell of now.

    Those that remain come last, and weigh a thousandth of the least that anybody announced.
    """
    found = unannounced_rows(flows)
    if not len(found):
        return flows
    reach = max(int(flows.source.max()), int(flows.destination.max())) + 1
    pair = flows.source * reach + flows.destination
    told = np.ones(len(flows), dtype=np.bool_)
    told[found] = False
    weight = flows.weight.copy()
    weight[found] = YIELDS * min(1.0, float(weight[told].min(initial=1.0)))
    rest = found[~np.isin(pair[found], pair[told])]
    ordered = replace(flows, weight=weight).take(np.append(np.flatnonzero(told), rest))
    return ordered if len(rest) else first_flows(ordered, len(ordered))


def _weights(intent: Intent, of_jobs: Mapping[tuple[str, str], Flows]) -> dict[str, float]:
    """What flows weigh that are demanded for a job: what it tells, or what its own flows weigh."""
    told = {}
    for record in intent.jobs:
        own = of_jobs.get((record.job.name, record.etag))
        most = float(own.weight.max(initial=0.0)) if own is not None else 0.0
        told[record.job.name] = record.job.priority or most or 1.0
    return told


def left_out(intent: Intent) -> dict[str, str]:
    """Demand sets that no plan can hold, by name, and why.

    What was stored before there was a check, or what a store brought back after it was lost: of
    sets with one id the first by name is planned.
    """
    jobs = frozenset(record.job.name for record in intent.jobs)
    planned: list[tuple[str, Demands]] = []
    found = {}
    for record in intent.demands:
        origin = f"demands {record.name!r}"
        try:
            resolve(record.demands, intent.fabric, origin=origin)
            check_ids(record.name, record.demands, planned, jobs)
        except (InputError, FailedPrecondition) as error:
            found[record.name] = str(error)
        else:
            planned.append((record.name, record.demands))
    return found


def wanted_again(intent: Intent, known: Wanted | None) -> Wanted | None:
    """What ``wanted_of`` gives, where it gave ``known`` for the same; None where it takes a while.

    Where jobs, demands and structure are those of then, so are the flows: they hang on nothing
    else.
    """
    if known is None or known.asked != _asked_of(intent):
        return None
    return replace(known, fabric=intent.fabric, kept=intent.rollback is not None)


def _asked_of(intent: Intent) -> _Asked:
    return _Asked(
        intent.fabric.structure,
        tuple((record.job.name, record.etag) for record in intent.jobs),
        tuple((demands.name, demands.etag) for demands in intent.demands),
    )


def with_known_ports(fabric: Fabric, standing: Plan | None) -> Fabric:
    """The fabric with what hosts told of source ports and, of NICs that none spoke of, the plan.

    Hosts tell all they know within a while; a controller that begins to lead need not wait for it.
    """
    if not fabric.structure.hashes.any():
        return fabric
    told = fabric.port_paths or no_port_paths()
    if standing is not None and standing.fabric.structure is fabric.structure:
        planned = standing.known_ways().without(told.source, told.destination)
        told = joined_port_paths([told, planned])
    return replace(fabric, port_paths=told)


def _same_ports(old: Fabric, new: Fabric) -> bool:
    if old.port_paths is new.port_paths:
        return True
    known = new.port_paths or no_port_paths()
    return known.same_as(old.port_paths or no_port_paths())


def same_plan(one: Plan, other: Plan) -> bool:
    """Whether two plans say the same of the same flows on the same fabric as it stands."""
    if one.fabric.structure is not other.fabric.structure:
        return False
    pairs = (one.paths, other.paths), (one.backups, other.backups)
    ports = one.nic_ports
    return (
        one.flows.same_as(other.flows)
        and np.array_equal(one.fabric.link_state, other.fabric.link_state)
        and np.array_equal(one.fabric.node_state, other.fabric.node_state)
        and one.unrouted.keys() == other.unrouted.keys()
        and (other.nic_ports is None if ports is None else ports.same_as(other.nic_ports))
        and all(
            np.array_equal(getattr(now, field.name), getattr(was, field.name))
            for now, was in pairs
            for field in fields(now)
        )
    )


def same_input(plan: Plan, wanted: Wanted) -> bool:
    """Whether a plan was made for just these flows on just this fabric."""
    old, new = plan.fabric, wanted.fabric
    if old.structure is not new.structure or not _same_ports(old, new):
        return False
    states = ((old.effective, new.effective), (old.node_state, new.node_state))
    if not all(np.array_equal(one, other) for one, other in states):
        return False
    return plan.flows.same_as(wanted.flows)


def make_plan(
    wanted: Wanted,
    previous: Plan | None,
    repair: Repair | None,
    engine: Engine,
    before: tuple[Plan, Entries] | None = None,
) -> Planned:
    """A verified plan; ``before`` is the plan that this engine last gave entries for, and these.

    Raises:
        Exception: whatever the last attempt failed with.
    """
    plan = best_plan(wanted, previous, repair, engine, before[0] if before else None)
    changed = len(changed_flows(previous, plan)) if previous is not None else 0
    return Planned(plan, engine.entries_of(plan, before), changed)


def best_plan(
    wanted: Wanted,
    previous: Plan | None,
    repair: Repair | None,
    engine: Engine,
    known: Plan | None = None,
) -> Plan:
    """The plan to have; ``known`` is one that was verified here.

    Raises:
        Exception: whatever the last attempt failed with.
    """
    if previous is not None and repair is not None:
        with suppress(Exception):  # whatever is wrong with the repair, a new plan may do
            return _verified(_repaired(wanted, previous, repair, engine), engine, known)
    return _verified(engine.solve(wanted.fabric, wanted.flows, previous), engine)


def expected_plan(
    wanted: Wanted, previous: Plan, repair: Repair | None, engine: Engine, *, hasty: bool = False
) -> tuple[Plan, bool]:
    """What ``best_plan`` comes to, for a question: not verified, and perhaps without backups.

    Where others had to make room for a job that comes, ``hasty`` leaves them where they are.
    ``repair`` stays as it is. Also says whether the plan is what ``best_plan`` comes to.

    Raises:
        Exception: whatever solving anew failed with.
    """
    if repair is not None:
        with suppress(Exception):  # as there
            found = repair.beside(wanted.fabric, wanted.flows)
            if found is not None:
                plan, same = found
                final = same and _may_stay(plan, wanted, previous)
                if final or hasty:
                    return plan, final
            return _repaired(wanted, previous, repair.copy(backups=False), engine), True
    return engine.solve(wanted.fabric, wanted.flows, previous), True


def _may_stay(repaired: Plan, wanted: Wanted, previous: Plan) -> bool:
    """Whether nothing is moved but what a repair had to move."""
    return (
        repaired.certificate.gap < _WORTH_MOVING
        or wanted.kept
        or only_losses(previous, wanted)
        or _no_fuller(repaired, previous)
    )


def _repaired(wanted: Wanted, previous: Plan, repair: Repair, engine: Engine) -> Plan:
    repaired = repair.repair(wanted.fabric, wanted.flows)
    if _may_stay(repaired, wanted, previous):
        return repaired
    plan = repair.relieved() or repaired
    if len(plan.flows) <= FEW:
        with suppress(Exception):  # the repaired plan is sound
            better = better_anew(plan, engine, _WORTH_MOVING)
            return plan if better is None else better.plan
    return plan


def _no_fuller(plan: Plan, previous: Plan) -> bool:
    """Whether a plan of many flows differs in these alone, and is off its bound as it was before.

    That is, no tier is fuller at its worst.
    """
    old, new = previous.fabric, plan.fabric
    tiers = zip(plan.certificate.tiers, previous.certificate.tiers, strict=False)
    return (
        len(plan.flows) > FEW
        and old.structure is new.structure
        and np.array_equal(old.plannable, new.plannable)
        and previous.certificate.gap >= _WORTH_MOVING
        and all(now.max_utilization <= was.max_utilization * (1 + EQUAL) for now, was in tiers)
    )


def settled_plan(
    wanted: Wanted, previous: Plan | None, repair: Repair | None, engine: Engine
) -> Plan:
    """What there is after some quiet; after a loss, what there is at once.

    Raises:
        Exception: whatever the last attempt failed with.
    """
    return after_quiet(best_plan(wanted, previous, repair, engine), wanted, previous, engine)


def after_quiet(plan: Plan, wanted: Wanted, previous: Plan | None, engine: Engine) -> Plan:
    """What becomes of the plan that is there at once, if nothing else happens.

    Raises:
        Exception: whatever solving anew failed with.
    """
    if wanted.kept or previous is None or only_losses(previous, wanted):
        return plan
    better = better_anew(plan, engine, _WORTH_MOVING)
    return plan if better is None else better.plan


def better_anew(plan: Plan, engine: Engine, worth_moving: float) -> Planned | None:
    """A verified plan made anew for the same input, where it wins by enough; None where not.

    It wins where it beats the other, or where no link is fuller in it than the fullest of the
    other, and the times of jobs, multiplied, are less by that share.

    Raises:
        Exception: whatever solving anew failed with.
    """
    reached = plan.certificate
    slow = reached.max_utilization > IDLE * (1 + EQUAL)
    if not slow and reached.within(worth_moving) and not plan.unrouted:
        return None
    fresh = _verified(engine.solve(plan.fabric, plan.flows, plan), engine)
    if not fresh.beats(plan, worth_moving) and not _faster(fresh, plan, worth_moving):
        return None
    return Planned(fresh, engine.entries_of(fresh), len(changed_flows(plan, fresh)))


def _faster(fresh: Plan, plan: Plan, share: float) -> bool:
    """Whether jobs take less time by so much, all in all, and no link is fuller for it."""
    most = plan.certificate.max_utilization * (1 + EQUAL)
    if len(fresh.unrouted) > len(plan.unrouted) or fresh.certificate.max_utilization > most:
        return False
    return gain_of_jobs(plan, fresh) > -log1p(-share)


def reoptimise(
    plan: Plan, engine: Engine, worth_moving: float, screen: LossScreen | None = None
) -> Planned | Certificate | None:
    """What there is to say of a plan in peace: a better one, or else a better bound for it.

    ``screen`` is of the plan, or one that is known, which saves time.

    Raises:
        Exception: whatever solving anew or proving failed with.
    """
    planned = better_anew(plan, engine, worth_moving)
    if planned is not None:
        return planned
    screen = engine.screen(plan, screen)
    backed = engine.back(plan, screen)
    if backed is not None:
        return Planned(_verified(backed, engine), engine.entries_of(backed), 0)
    certificate = engine.prove(plan, screen)
    return certificate if certificate != plan.certificate else None


def _verified(plan: Plan, engine: Engine, known: Plan | None = None) -> Plan:
    engine.verify(plan, known)
    return plan


def only_losses(previous: Plan, wanted: Wanted) -> bool:
    """Whether all that changed since a plan is that links or switches went out of service."""
    old, new = previous.fabric, wanted.fabric
    if old.structure is not new.structure or not previous.flows.same_as(wanted.flows):
        return False
    if not _same_ports(old, new):
        return False
    return not bool((new.plannable & ~old.plannable).any())
