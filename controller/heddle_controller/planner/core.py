"""What the planning process does: plans of several fabrics, each kept ready for its next repair.

Not for several threads at once, but ``reoptimise`` and ``what_if``, which keep nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from heddle_controller.model.job import Job
from heddle_controller.model.plan import Certificate, Plan
from heddle_controller.model.program import Entries
from heddle_controller.place.order import Hosts, candidates
from heddle_controller.place.score import Score, score
from heddle_controller.plan.what_if import compare
from heddle_controller.planner.engine import Engine, Repair
from heddle_controller.planner.planning import (
    Planned,
    Wanted,
    make_plan,
    reoptimise,
    same_input,
    wanted_again,
    wanted_of,
)
from heddle_controller.planner.port import PlanAnswer, RankOrder, WhatIf
from heddle_controller.state.records import Intent, JobFacts, JobRecord, JobState
from heddle_controller.traffic.groups import resolve_parallelism


@dataclass(slots=True)
class _FabricPlans:
    """What is kept of one fabric."""

    wanted: Wanted | None = None
    """Of the intent that came last."""
    made: tuple[Plan, Entries] | None = None
    """The last plan that was made here, and its entries."""
    repair: Repair | None = None
    prepared: Plan | None = None
    """The plan that ``repair`` begins with; a repair of it may have failed to be made."""


class PlanningCore:
    """Plans with the functions of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._fabrics: dict[str, _FabricPlans] = {}

    def plan(self, intent: Intent, standing: Plan | None) -> PlanAnswer:
        """See ``Planner``. Takes time in proportion to what changed, where that was a loss.

        Raises:
            Exception: whatever the last attempt failed with.
        """
        one = self._fabrics.setdefault(intent.name, _FabricPlans())
        wanted = one.wanted = self._wanted(intent, one.wanted, standing)
        if standing is not None and same_input(standing, wanted):
            return PlanAnswer(None, wanted.refused)
        if standing is not None:
            self.prepare(intent.name, standing)
        repair = one.repair if standing is not None else None
        one.prepared = None  # whatever comes of this, the repair goes on from another plan
        planned = make_plan(wanted, standing, repair, self._engine, one.made)
        one.made = planned.plan, planned.entries
        return PlanAnswer(planned, wanted.refused)

    def _wanted(self, intent: Intent, known: Wanted | None, standing: Plan | None) -> Wanted:
        again = wanted_again(intent, known)
        if again is not None:
            return again
        wanted = wanted_of(intent, self._engine, known)
        if standing is not None and standing.flows.same_as(wanted.flows):
            return replace(wanted, flows=standing.flows)  # compared once, and not at every event
        return wanted

    def prepare(self, fabric: str, standing: Plan) -> None:
        """See ``Planner``. What cannot be repaired is planned anew when the time comes."""
        one = self._fabrics.setdefault(fabric, _FabricPlans())
        if one.prepared is standing:
            return
        if one.repair is None or not one.repair.is_ready_for(standing):
            try:
                one.repair = self._engine.repairer(standing)
            except Exception:  # noqa: BLE001 - then the next plan is made anew
                one.repair = None
        one.prepared = standing

    def make_ready(self, fabric: str) -> None:
        """Have the repair of the last plan that was made ready; for after it was told."""
        one = self._fabrics.get(fabric)
        if one is not None and one.made is not None:
            self.prepare(fabric, one.made[0])

    def reoptimise(self, standing: Plan, worth_moving: float) -> Planned | Certificate | None:
        """See ``Planner``."""
        return reoptimise(standing, self._engine, worth_moving)

    def what_if(self, intent: Intent, supposed: Intent, standing: Plan | None) -> WhatIf:
        """See ``Planner``."""
        before = standing if standing is not None else self._rehearsed(intent, None)
        after = self._rehearsed(supposed, standing)
        return WhatIf(before, after, compare(before, after))

    def order_ranks(self, intent: Intent, job: Job, standing: Plan | None) -> RankOrder:
        """See ``Planner``. Plans once for each order that is tried, four at most."""

        def scored(hosts: Hosts) -> Score:
            return score(self._rehearsed(_with_job(intent, job, hosts), standing), job.name)

        first, *others = candidates(job, resolve_parallelism(job), intent.fabric)
        alphabetical = scored(first)
        best = RankOrder(first, alphabetical, alphabetical)
        for hosts in others:
            found = scored(hosts)
            if found.no_worse_than(alphabetical) and found.rank < best.score.rank:
                best = RankOrder(hosts, found, alphabetical)
        return best

    def _rehearsed(self, intent: Intent, previous: Plan | None) -> Plan:
        """The plan the loop would make of an intent after ``previous``."""
        repair = self._engine.repairer(previous) if previous is not None else None
        wanted = wanted_of(intent, self._engine)
        return make_plan(wanted, previous, repair, self._engine).plan


def _with_job(intent: Intent, job: Job, hosts: Hosts) -> Intent:
    """The intent with a job on these hosts, in place of one of its name."""
    facts = JobFacts("", JobState.ACCEPTED)
    ordered = JobRecord(replace(job, hosts=hosts), "", intent.change_time, facts)
    jobs = {record.job.name: record for record in intent.jobs} | {job.name: ordered}
    return replace(intent, jobs=tuple(jobs[name] for name in sorted(jobs)))
