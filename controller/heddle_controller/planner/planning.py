"""From the whole intent to a verified plan: the planning half of the loop.

Its functions are pure. They choose between several ways to plan:

- *Nothing* is planned if flows and states are those of the current plan, however often the
  intent was written in between.
- *Repair* is used whenever there is a plan. Flows to which nothing happened stay.
- *Relief* follows a repair if links came back or were drained, or if flows made a tier fuller, and
  the repaired plan does not reach its bound. A few more flows are moved, most often those that had
  to leave when links were lost. A plan of many flows that missed its bound before, and is no fuller
  now, waits for quiet.
- *Repair alone* is used while an operator holds an earlier plan. Flows that came since then begin
  where they are now.
- *A plan from scratch* is made if there is none, if repair fails, or if that is quick. If few flows
  come to a plan without a path, nothing is repaired. Nobody who waits for a path waits for a plan
  of many flows from scratch.
- *Comparison* follows once it is quiet: the plan is compared with one made from scratch for the
  same input. If the worst link or the times of jobs are better there by more than a threshold,
  search that moves few flows is tried as well. Its plan replaces the current one if it is as good
  up to the threshold, otherwise the plan from scratch does. If nothing is to be gained, backups
  alone change where repairs left them no room. If that does not help, a plan from scratch replaces
  one in which repairs have filled the room that flows need right after a loss. Otherwise a better
  bound is looked for, and only the certificate of the plan changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from math import log1p
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from heddle_controller.model.demand import Demands, resolve
from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric, Structure
from heddle_controller.model.flows import Flows, concatenate, first_flows, unannounced_rows
from heddle_controller.model.job import Job
from heddle_controller.model.plan import IDLE, Certificate, Plan
from heddle_controller.model.port_paths import joined_port_paths, no_port_paths
from heddle_controller.model.program import Entries
from heddle_controller.place.ask import EQUAL
from heddle_controller.place.score import gain_of_jobs
from heddle_controller.plan.diff import changed_flows
from heddle_controller.plan.kept import kept_of
from heddle_controller.state.demands import check_ids
from heddle_controller.state.errors import FailedPrecondition
from heddle_controller.state.records import Intent

if TYPE_CHECKING:
    from heddle_controller.solve import LossScreen

_WORTH_MOVING = 0.02
"""Share by which another plan must be better before flows move that need not move.

It applies to changes that are not losses. The comparison in quiet has a setting of its own.
"""
_WORTH_ROOM = 0.1
"""Share by which flows must be faster right after a loss before flows move for that alone."""
YIELDS = 0.001
"""Weight of an unannounced flow, as a part of the least weight of all others (1 at most)."""
FEW = 256
"""Flows for which a plan from scratch takes less than half a second of processor."""


class Repair(Protocol):
    """A plan that is ready to be repaired."""

    def copy(self, *, backups: bool = True) -> Repair:
        """Return a copy, whose repairs do not change this one.

        Without ``backups``, the copy may leave out the backups of paths that it makes.
        """
        ...

    def beside(self, fabric: Fabric, flows: Flows) -> tuple[Plan, bool] | None:
        """Return the plan with one new job while all else stays, and if ``repair`` does the same.

        New paths have no backups, and this repair does not change. None if only ``repair`` can
        tell.
        """
        ...

    def repair(self, fabric: Fabric, flows: Flows) -> Plan:
        """Return a plan for this fabric and these flows in which only flows move that must."""
        ...

    def relieved(self) -> Plan | None:
        """Move a few flows to bring the repaired plan to its bound; None if that does not help."""
        ...

    def is_ready_for(self, plan: Plan) -> bool:
        """Return whether the next repair begins with this very plan and has all its indexes."""
        ...


class EntriesOf(Protocol):
    """A function that returns the entries that switches must hold for a plan."""

    def __call__(self, plan: Plan, before: tuple[Plan, Entries] | None = None) -> Entries:
        """Return the entries of a plan; ``before`` is an earlier plan with its entries."""
        ...


class Verify(Protocol):
    """A function that raises an error if a plan must not be used."""

    def __call__(self, plan: Plan, before: tuple[Plan, Entries] | None = None) -> None:
        """Check a plan. Parts that are the same in one that has passed are skipped.

        ``before`` is that plan with its entries.
        """
        ...


@dataclass(frozen=True, slots=True)
class Engine:
    """The functions that make a plan, handed in as values, so that this module loads no solver.

    All of them are pure. Any may raise; the loop then keeps its plan.
    """

    flows_of_job: Callable[[Job, Fabric], Flows]
    """``traffic.jobs.flows_of_job``."""
    solve: Callable[[Fabric, Flows, Plan | None], Plan]
    """``solve.plan_anew``."""
    repairer: Callable[[Plan], Repair]
    """``solve.repairer_of``."""
    improvements: Callable[[Plan], Iterator[Plan]]
    """``solve.improvements``. Only the first makes links emptier, the others make flows faster."""
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
    """Everything that the flows of an intent follow from; jobs and demands by name and etag."""

    structure: Structure
    jobs: tuple[tuple[str, str], ...]
    demands: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """What an intent wants: its flows on its fabric."""

    fabric: Fabric
    flows: Flows
    refused: tuple[tuple[str, str], ...]
    """Jobs and demand sets that no plan can hold, and why. A job is given by its name, a demand set
    by a text that no job can have as its name."""
    asked: _Asked | None = None
    """What the flows follow from; None if they were not made by ``wanted_of``."""
    kept: bool = False
    """Whether flows must stay wherever they can, because an operator holds an earlier plan."""
    of_jobs: Mapping[tuple[str, str], Flows] = field(default_factory=dict)
    """The flows of each job that is not refused, by name and etag."""


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A verified plan, and the entries that switches must hold for it."""

    plan: Plan
    entries: Entries
    changed_count: int
    """Number of flows whose path differs from the plan before."""


def wanted_of(intent: Intent, engine: Engine, known: Wanted | None = None) -> Wanted:
    """Return the flows of all jobs and demand sets, the oldest first.

    In this order, a new job does not move the rows of others, and a repair looks at its flows only.
    Jobs and demand sets that do not fit the fabric are refused, and the rest is planned. The flows
    of jobs that are in ``known`` with the same etag, on the same structure, are taken from there.
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
    """Return ``wanted`` with more flows, placed after all others that were announced."""
    flows = without_announced(concatenate([wanted.flows, more]))
    return Wanted(wanted.fabric, flows, wanted.refused, kept=wanted.kept)


def without_announced(flows: Flows) -> Flows:
    """Return the flows without unannounced ones whose pair of NICs now has announced flows.

    The unannounced flows that remain come last. They weigh ``YIELDS`` times the least weight of the
    announced flows.
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
    """Return the weight of demands for each job: its priority, else that of its own flows."""
    told = {}
    for record in intent.jobs:
        own = of_jobs.get((record.job.name, record.etag))
        most = float(own.weight.max(initial=0.0)) if own is not None else 0.0
        told[record.job.name] = record.job.priority or most or 1.0
    return told


def left_out(intent: Intent) -> dict[str, str]:
    """Return the demand sets that no plan can hold, by name, and why.

    They may have been stored without today's checks, or have come back with the data of a store
    that was lost. If several sets have the same flow id, the first set in the intent is planned.
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
    """Return what ``wanted_of`` would return, if that follows from its result ``known``; else None.

    Flows depend only on jobs, demands and structure. If these are the same as for ``known``, so are
    the flows.
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
    """Return the fabric with the paths of source ports that hosts reported, or that the plan has.

    The plan counts for pairs of NICs that no host has reported. Hosts report all they know within a
    while, and a controller that begins to lead need not wait for that.
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
    """Return whether two plans have the same flows, fabric, link states, paths and ports."""
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
    """Return whether a plan was made for exactly these flows, states and known ports."""
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
    """Return a verified plan with its entries.

    Args:
        wanted: What to plan.
        previous: The current plan, or None.
        repair: A repair of ``previous``, or None.
        engine: The functions to plan with.
        before: The last plan that this engine verified, with its entries, or None.

    Raises:
        Exception: whatever the last attempt failed with.
    """
    structure = wanted.fabric.structure
    kept = None if before is None else kept_of(before, structure, wanted.flows)
    plan = best_plan(wanted, previous, repair, engine, kept)
    changed = len(changed_flows(previous, plan)) if previous is not None else 0
    return Planned(plan, engine.entries_of(plan, kept), changed)


def best_plan(
    wanted: Wanted,
    previous: Plan | None,
    repair: Repair | None,
    engine: Engine,
    before: tuple[Plan, Entries] | None = None,
) -> Plan:
    """Return a verified plan: a repair if that works, else a plan from scratch.

    ``before`` is a plan that was verified, with its entries, which saves time.

    Raises:
        Exception: whatever the last attempt failed with.
    """
    if previous is not None and repair is not None:
        with suppress(Exception):  # if the repair fails, a plan from scratch may succeed
            return _verified(_repaired(wanted, previous, repair, engine), engine, before)
    return _verified(engine.solve(wanted.fabric, wanted.flows, previous), engine)


def begins_anew(previous: Plan, wanted: Wanted) -> bool:
    """Return whether no flow has a path that it could keep, and a plan from scratch is quick."""
    return not len(previous.paths) and len(wanted.flows) <= FEW


def expected_plan(
    wanted: Wanted, previous: Plan, repair: Repair | None, engine: Engine, *, hasty: bool = False
) -> tuple[Plan, bool]:
    """Return the plan that ``best_plan`` would return, for a question, and whether it is that plan.

    It is not verified and may lack backups. ``repair`` does not change. With ``hasty``, other flows
    stay where they are even if they would make room for a new job; the plan may then differ.

    Raises:
        Exception: whatever solving from scratch failed with.
    """
    if repair is not None:
        with suppress(Exception):  # as in ``best_plan``
            found = repair.beside(wanted.fabric, wanted.flows)
            if found is not None:
                plan, same = found
                final = same and _may_stay(plan, wanted, previous)
                if final or hasty:
                    return plan, final
            return _repaired(wanted, previous, repair.copy(backups=False), engine), True
    return engine.solve(wanted.fabric, wanted.flows, previous), True


def _may_stay(repaired: Plan, wanted: Wanted, previous: Plan) -> bool:
    """Return whether a repaired plan is good enough, so that no further flows are moved."""
    return (
        repaired.certificate.gap < _WORTH_MOVING
        or wanted.kept
        or only_failures(previous, wanted)
        or _no_fuller(repaired, previous)
    )


def _repaired(wanted: Wanted, previous: Plan, repair: Repair, engine: Engine) -> Plan:
    repaired = repair.repair(wanted.fabric, wanted.flows)
    if _may_stay(repaired, wanted, previous):
        return repaired
    plan = repair.relieved() or repaired
    if len(plan.flows) <= FEW:
        with suppress(Exception):  # the repaired plan is sound
            better = better_plan(plan, engine, _WORTH_MOVING)
            return plan if better is None else better.plan
    return plan


def _no_fuller(plan: Plan, previous: Plan) -> bool:
    """Return whether a plan of many flows missed its bound before and has no fuller tier now.

    The fabric and the links that new paths may use must be the same as before.
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
    """Return the plan that the loop would have after some quiet; after a failure, the one at once.

    Raises:
        Exception: whatever the last attempt failed with.
    """
    return after_quiet(best_plan(wanted, previous, repair, engine), wanted, previous, engine)


def after_quiet(plan: Plan, wanted: Wanted, previous: Plan | None, engine: Engine) -> Plan:
    """Return the plan that follows ``plan`` after some quiet, if nothing else happens.

    Raises:
        Exception: whatever solving from scratch failed with.
    """
    if wanted.kept or previous is None or only_failures(previous, wanted):
        return plan
    better = better_plan(plan, engine, _WORTH_MOVING)
    return plan if better is None else better.plan


def better_plan(plan: Plan, engine: Engine, worth_moving: float) -> Planned | None:
    """Return a verified plan for the same input that wins, or None if there is no such plan.

    A plan wins if it beats the other by the share ``worth_moving`` (``Plan.beats``). It also wins
    if the product of the jobs' times is less by that share and its fullest link is no fuller. If
    the plan from scratch wins, it gives way to a plan against which it does not win and that moves
    fewer flows.

    Raises:
        Exception: whatever solving failed with.
    """
    reached = plan.certificate
    if _full_at_most(plan) and reached.within(worth_moving) and not plan.unrouted:
        return None
    better = _verified(engine.solve(plan.fabric, plan.flows, plan), engine)
    if not better.beats(plan, worth_moving) and not _faster(better, plan, worth_moving):
        return None
    changed_count = len(changed_flows(plan, better))
    for other in engine.improvements(plan):
        if better.beats(other, worth_moving):
            break  # more moves would not make links emptier
        moved = len(changed_flows(plan, other))
        if moved < changed_count and not _faster(better, other, worth_moving):
            better, changed_count = _verified(other, engine), moved
            break
    return Planned(better, engine.entries_of(better), changed_count)


def _faster(fresh: Plan, plan: Plan, share: float) -> bool:
    """Return whether the product of the jobs' times is less by ``share``.

    False as well if the worst link is fuller or more flows have no path.
    """
    most = plan.certificate.max_utilization * (1 + EQUAL)
    if len(fresh.unrouted) > len(plan.unrouted) or fresh.certificate.max_utilization > most:
        return False
    return gain_of_jobs(plan, fresh) > -log1p(-share)


def reoptimise(
    plan: Plan, engine: Engine, worth_moving: float, screen: LossScreen | None = None
) -> Planned | Certificate | None:
    """Return a better plan for the same input, else a better certificate of this one, else None.

    ``screen`` is a loss screen of this or of an earlier plan, which saves time.

    Raises:
        Exception: whatever solving from scratch or proving failed with.
    """
    planned = better_plan(plan, engine, worth_moving)
    if planned is not None:
        return planned
    screen = engine.screen(plan, screen)
    backed = engine.back(plan, screen)
    if backed is not None:
        return Planned(_verified(backed, engine), engine.entries_of(backed), 0)
    roomier = _roomier_anew(plan, engine, screen)
    if roomier is not None:
        return Planned(roomier, engine.entries_of(roomier), len(changed_flows(plan, roomier)))
    certificate = engine.prove(plan, screen)
    return certificate if certificate != plan.certificate else None


def _roomier_anew(plan: Plan, engine: Engine, screen: LossScreen) -> Plan | None:
    """Return a verified plan from scratch that serves flows clearly better right after a loss.

    Repairs fill some links and leave those empty that come back. No flow is slower for that, so no
    better plan is looked for; but the next loss then finds no room. None if links are over-full, if
    no tier could be much emptier, or if the plan from scratch is no better.

    Raises:
        Exception: whatever solving from scratch failed with.
    """
    reached = plan.certificate
    emptier = any(
        tier.max_utilization > tier.lower_bound * (1 + _WORTH_ROOM) for tier in reached.tiers
    )
    if plan.unrouted or not _full_at_most(plan) or not emptier:
        return None
    was = [loss.slowest_flow for loss in engine.certify(plan, screen).after_loss]
    if min(was, default=1.0) >= 1 - _WORTH_ROOM:
        return None
    fresh = _verified(engine.solve(plan.fabric, plan.flows, plan), engine)
    if fresh.unrouted or not _full_at_most(fresh):
        return None
    now = [
        loss.slowest_flow for loss in engine.certify(fresh, engine.screen(fresh, None)).after_loss
    ]
    pairs = list(zip(was, now, strict=True))
    worse = any(new < old * (1 - EQUAL) for old, new in pairs)
    better = any(new > old * (1 + _WORTH_ROOM) for old, new in pairs)
    return fresh if better and not worse else None


def _full_at_most(plan: Plan) -> bool:
    return plan.certificate.max_utilization <= IDLE * (1 + EQUAL)


def _verified(plan: Plan, engine: Engine, before: tuple[Plan, Entries] | None = None) -> Plan:
    engine.verify(plan, before)
    return plan


def only_failures(previous: Plan, wanted: Wanted) -> bool:
    """Return whether the only change since a plan is that links or switches failed.

    What operators drain has not failed: it still carries packets, so there is time to move more
    flows than those that must.
    """
    old, new = previous.fabric, wanted.fabric
    if old.structure is not new.structure or not previous.flows.same_as(wanted.flows):
        return False
    if not _same_ports(old, new) or bool((new.plannable & ~old.plannable).any()):
        return False
    lost = old.plannable & ~new.plannable
    return not lost.any() or not new.carries[lost].all()
