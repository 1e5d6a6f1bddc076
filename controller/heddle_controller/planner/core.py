"""The planning process: a core with the plans of several fabrics, and the solver's engine.

The module is the program of the process: ``core SOCKET SECONDS OBJECTIVE PARENT``. A controller
starts it. It reads questions from the socket of number SOCKET and answers one after another.
SECONDS is the time limit of one run of the solver. OBJECTIVE is the objective of plans, "headroom"
or "economy". PARENT is the process id of the controller, which the process does not outlive. It
ignores signals that end a whole group of processes, because the controller decides when to end it.

Only a planning process loads the solver. A core is not made for several threads at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from heddle_controller.model import graphs
from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.job import Iteration, Job
from heddle_controller.model.plan import Certificate, Objective, Plan, Turn, utilization
from heddle_controller.model.program import Entries
from heddle_controller.place.ask import EQUAL, Choices, PlacementAsk, Score
from heddle_controller.place.choose import choose
from heddle_controller.place.estimate import (
    Estimator,
    Surroundings,
    cross_zone_gbps,
    zone_of_nodes,
)
from heddle_controller.place.order import places
from heddle_controller.place.score import scores, scores_beside
from heddle_controller.plan.programs import entries_after
from heddle_controller.plan.rollback import with_newer_flows
from heddle_controller.plan.sharing import turns_in
from heddle_controller.plan.verify import loads_after, verify_plan
from heddle_controller.plan.what_if import compare_plans
from heddle_controller.planner.planning import (
    Engine,
    Planned,
    Repair,
    Wanted,
    after_quiet,
    begins_anew,
    expected_plan,
    make_plan,
    reoptimise,
    same_input,
    same_plan,
    settled_plan,
    wanted_again,
    wanted_of,
    with_known_ports,
    with_more,
)
from heddle_controller.planner.port import Cost, PlanAnswer, PlanningFailed, Trial, WhatIf
from heddle_controller.planner.protocol import (
    FabricMirror,
    Failed,
    Question,
    Unpacker,
    answered,
    packed,
    received,
)
from heddle_controller.solve import (
    LossScreen,
    Options,
    better_backups,
    cp_sat,
    improvements,
    plan_anew,
    prove,
    repairer_of,
    screen_of,
    with_losses,
)
from heddle_controller.state.codec.intent import job_json
from heddle_controller.state.records import Intent, JobFacts, JobRecord, JobState
from heddle_controller.traffic.jobs import flows_of_job

_MAX_TOLD = 20
"""The most slowed jobs that a trial names."""


@dataclass(frozen=True, eq=False)
class _Beside:
    """A plan beside which jobs are tried, and what all these trials have in common."""

    plan: Plan
    fabric: Fabric
    """The fabric as it is now; the plan may have been made for other link states."""

    @cached_property
    def scores(self) -> Mapping[str, Score]:
        """How jobs fare in the plan, by name."""
        return scores(self.plan)

    @cached_property
    def _around(self) -> Surroundings:
        return Surroundings.of_plan(self.fabric, self.plan)

    @cached_property
    def zone(self) -> Ints:
        """The zone of each node, shape (nodes,)."""
        return zone_of_nodes(self.fabric)

    def around(self, job: str) -> Surroundings:
        """Return the fabric with the loads of the plan, without those of a job."""
        if job not in self.plan.flows.job_names:
            return self._around
        return Surroundings.of_plan(self.fabric, self.plan, without=job)


@dataclass(slots=True)
class _FabricPlans:
    """What the core keeps of one fabric."""

    wanted: Wanted | None = None
    """What the last planned intent wants."""
    tried: Wanted | None = None
    """What the intent wants that jobs were last tried beside."""
    beside: _Beside | None = None
    """The plan that jobs were last tried beside."""
    made: tuple[Plan, Entries] | None = None
    """The last plan that was made here, and its entries."""
    repair: Repair | None = None
    """A repair that begins with ``prepared``; None if it could not be made."""
    prepared: Plan | None = None
    """The plan that ``repair`` was prepared for; None if it has to be prepared again."""
    told: Plan | None = None
    """The plan that was answered last, if its repair has not been prepared yet."""
    screen: LossScreen | None = None
    """The loss screen of the plan that was certified or reoptimised last."""
    kept: tuple[Plan, Fabric] | None = None
    """A plan for which planning found the same plan again, and the fabric it was planned for."""

    def keeps(self, standing: Plan, wanted: Wanted) -> bool:
        """Return whether planning has found before that this plan is what is wanted."""
        if self.kept is None or self.kept[0] is not standing:
            return False
        return same_input(replace(standing, fabric=self.kept[1]), wanted)


class PlanningCore:
    """Implements the methods of ``Planner``, without waiting, by the functions of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._fabrics: dict[str, _FabricPlans] = {}

    def plan(self, intent: Intent, standing: Plan | None, newest: Plan | None = None) -> PlanAnswer:
        """Implement ``Planner.plan``. After a loss, the time is proportional to what changed.

        Raises:
            Exception: whatever the last attempt to plan failed with.
        """
        one = self._fabrics.setdefault(intent.name, _FabricPlans())
        begin = standing
        if standing is not None and newest is not None:
            begin = with_newer_flows(standing, newest)
        wanted = one.wanted = self._wanted(intent, one.wanted, begin)
        wanted = _knowing(wanted, begin)
        known = standing if begin is standing else None  # a plan that the caller may keep
        if known is not None and (same_input(known, wanted) or one.keeps(known, wanted)):
            return PlanAnswer(None, wanted.refused)
        repair = None if begin is None else self._repair_of(intent.name, begin, wanted)
        one.prepared = None  # from now on, the repair begins with another plan
        planned = make_plan(wanted, begin, repair, self._engine, one.made)
        if known is not None and planned.plan.nic_ports and same_plan(planned.plan, known):
            one.kept = known, wanted.fabric
            return PlanAnswer(None, wanted.refused)
        one.made, one.told = (planned.plan, planned.entries), planned.plan
        return PlanAnswer(planned, wanted.refused)

    def _wanted(self, intent: Intent, known: Wanted | None, standing: Plan | None) -> Wanted:
        again = wanted_again(intent, known)
        if again is not None:
            return again
        wanted = wanted_of(intent, self._engine, known)
        if standing is not None and standing.flows.same_as(wanted.flows):
            return replace(wanted, flows=standing.flows)  # so that flows are compared only once
        return wanted

    def prepare(self, fabric: str, standing: Plan) -> None:
        """Implement ``Planner.prepare``. A plan that cannot be repaired is made anew later."""
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
        """Prepare to repair the plan that was made last. Call it after the plan was answered."""
        one = self._fabrics.get(fabric)
        if one is not None and one.told is not None:
            plan, one.told = one.told, None
            self.prepare(fabric, plan)

    def certify(self, fabric: str, standing: Plan) -> Certificate:
        """Implement ``Planner.certify``, in time proportional to changes since the last call."""
        one = self._fabrics.setdefault(fabric, _FabricPlans())
        one.screen = self._engine.screen(standing, one.screen)
        return self._engine.certify(standing, one.screen)

    def reoptimise(
        self, fabric: str, standing: Plan, worth_moving: float
    ) -> Planned | Certificate | None:
        """Implement ``Planner.reoptimise``."""
        one = self._fabrics.setdefault(fabric, _FabricPlans())
        known = with_known_ports(standing.fabric, standing)
        plan = replace(standing, fabric=known)
        one.screen = self._engine.screen(plan, one.screen)
        return reoptimise(plan, self._engine, worth_moving, one.screen)

    def turns(self, standing: Plan, iterations: Sequence[Iteration]) -> tuple[Turn, ...]:
        """Implement ``Planner.turns``."""
        return turns_in(standing, iterations)

    def what_if(self, intent: Intent, supposed: Intent, standing: Plan | None) -> WhatIf:
        """Implement ``Planner.what_if``."""
        before = standing if standing is not None else self._rehearsed(intent, None)
        after = self._rehearsed(supposed, standing)
        return WhatIf(before, after, compare_plans(before, after))

    def choose(self, intent: Intent, ask: PlacementAsk, standing: Plan | None) -> Choices:
        """Implement ``Planner.choose``."""
        around = self._beside(intent, self._standing(intent, standing)).around(ask.job.name)
        return choose(ask, around, self._engine.flows_of_job)

    def try_job(
        self,
        intent: Intent,
        job: Job,
        standing: Plan | None,
        *,
        settled: bool = False,
        hasty: bool = False,
    ) -> Trial:
        """Implement ``Planner.try_job``."""
        before = self._standing(intent, standing)
        own = self._engine.flows_of_job(job, intent.fabric)
        wanted = self._wanted_with(intent, job, own, before, in_order=settled)
        wanted = _knowing(wanted, before)
        repair = self._repair_of(intent.name, before, wanted)
        beside = self._beside(intent, before)
        after, final = expected_plan(wanted, before, repair, self._engine, hasty=hasty)
        loads_after(after, before)
        trial = replace(_trial(job, after, beside), final=final)
        least = trial.score.seconds
        if settled and repair is not None:
            later = after_quiet(after, wanted, before, self._engine)
            score = scores(later).get(job.name, trial.score)
            return replace(
                trial, score=replace(trial.score, least_seconds=score.seconds, settled=True)
            )
        if repair is not None:  # otherwise the plan was made anew and is the settled one
            estimator = Estimator(beside.around(job.name), own, job.hosts)
            least = min(least, estimator.of(job.hosts).seconds)
        anew = repair is None
        return replace(trial, score=replace(trial.score, least_seconds=least, settled=anew))

    def _wanted_with(
        self, intent: Intent, job: Job, own: Flows, before: Plan, *, in_order: bool
    ) -> Wanted:
        """Return what the intent wants together with a job.

        The flows of a new job come last, so that the rows of others stay. With ``in_order``, they
        come where they will be once the job is submitted, because the order of flows decides
        between equal choices. A job of that name in the intent or in the plan is replaced.
        """
        one = self._fabrics.setdefault(intent.name, _FabricPlans())
        wanted = one.tried = self._wanted(intent, one.tried, before)
        known = {record.job.name for record in intent.jobs}
        if in_order or job.name in known.union(wanted.flows.job_names):
            return wanted_of(_with_job(intent, job), self._engine, wanted)
        return with_more(wanted, own)

    def _beside(self, intent: Intent, before: Plan) -> _Beside:
        one = self._fabrics.setdefault(intent.name, _FabricPlans())
        known = one.beside
        if known is None or known.plan is not before or known.fabric is not intent.fabric:
            known = one.beside = _Beside(before, intent.fabric)
        return known

    def _repair_of(self, fabric: str, standing: Plan, wanted: Wanted) -> Repair | None:
        """Return the repair of the current plan, or None if a plan from scratch is to be made.

        A question that changes it must take a copy.
        """
        self.prepare(fabric, standing)
        return None if begins_anew(standing, wanted) else self._fabrics[fabric].repair

    def _standing(self, intent: Intent, standing: Plan | None) -> Plan:
        return standing if standing is not None else self._rehearsed(intent, None)

    def _rehearsed(self, intent: Intent, previous: Plan | None) -> Plan:
        """Return the plan that the loop would have for an intent after ``previous``, in quiet."""
        wanted = _knowing(wanted_of(intent, self._engine), previous)
        repair = None if previous is None else self._repair_of(intent.name, previous, wanted)
        repair = None if repair is None else repair.copy()
        return settled_plan(wanted, previous, repair, self._engine)


def _knowing(wanted: Wanted, standing: Plan | None) -> Wanted:
    """Return ``wanted`` with all that is known of source ports, where switches hash."""
    return replace(wanted, fabric=with_known_ports(wanted.fabric, standing))


def _with_job(intent: Intent, job: Job) -> Intent:
    """Return the intent with a job added, or replaced by name. Its JSON serves as its etag."""
    etag = job_json(job).decode()
    record = JobRecord(job, etag, intent.change_time, JobFacts(etag, JobState.ACCEPTED))
    jobs = {record.job.name: record for record in intent.jobs} | {job.name: record}
    return replace(intent, jobs=tuple(jobs[name] for name in sorted(jobs)))


def _trial(job: Job, after: Plan, beside: _Beside) -> Trial:
    """Return how a job fares in a plan, and how others fare compared with the plan before."""
    name, was = job.name, beside.scores
    now = scores_beside(after, beside.plan, was)
    costs = [
        Cost(other, was[other], score)
        for other, score in now.items()
        if other != name and other in was and score.seconds > was[other].seconds * (1 + EQUAL)
    ]
    costs.sort(key=lambda cost: (-cost.after.seconds / max(cost.before.seconds, 1e-12), cost.job))
    flows, paths, fabric = after.flows, after.paths, after.fabric
    leaves = {leaf for place in places(job.held, beside.fabric).values() for leaf in place.leaves}
    told = tuple(costs[:_MAX_TOLD])
    without_flows = Trial(Score(), told, len(costs), 0.0, False, "", len(leaves), True)
    if name not in flows.job_names:
        return without_flows
    mine = flows.job == flows.job_names.index(name)
    own_paths, arcs = paths.take(np.flatnonzero(mine[paths.flow])), len(after.loads)
    uses = np.bincount(own_paths.arcs, minlength=arcs)
    crossed = np.stack([uses > 0, np.bincount(paths.arcs, minlength=arcs) > uses])
    own = np.flatnonzero(uses)
    of_links = crossed[:, 0::2] | crossed[:, 1::2]
    used = utilization(fabric, after.loads)[own]
    fullest = fabric.link_name(int(own[int(used.argmax())]) >> 1) if len(own) else ""
    crossing = cross_zone_gbps(flows.take(np.flatnonzero(mine)), beside.zone)
    return replace(
        without_flows,
        score=now[name],
        cross_zone_gbps=crossing,
        shares_links=bool(of_links.all(axis=0).any()),
        fullest_link=fullest,
    )


PROOF_SECONDS = 10.0
"""Time limit for a better bound. Nobody waits for the bound, but other questions may have to."""


def planning_engine(solve_seconds: float | None, objective: Objective = "headroom") -> Engine:
    """Return the engine that plans with the solver.

    ``solve_seconds`` is the time limit of each run of the solver; None for no limit.
    """
    options = Options(objective=objective, time_limit_seconds=solve_seconds)
    return Engine(
        flows_of_job=flows_of_job,
        solve=partial(plan_anew, options=options),
        repairer=partial(repairer_of, options=options),
        improvements=partial(improvements, options=options),
        screen=screen_of,
        back=better_backups,
        certify=partial(with_losses, thorough=False),
        prove=partial(prove, options=Options(time_limit_seconds=PROOF_SECONDS)),
        verify=verify_plan,
        entries_of=entries_after,
    )


PR_SET_PDEATHSIG = 1
QUIET = 10.0
"""Seconds without a question after which the process loads modules that later plans may need."""
OOM_SCORE = 500
"""Makes the kernel choose this process rather than the controller when memory runs out."""


def main() -> None:
    """Answer questions until the controller is gone."""
    number, seconds, parent = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[4])
    objective: Objective = "economy" if sys.argv[3] == "economy" else "headroom"
    _die_with(parent)
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_IGN)
    # A controller that ends between question and answer breaks the connection.
    with socket.socket(fileno=number) as end, contextlib.suppress(ConnectionError):
        _serve(end, PlanningCore(planning_engine(seconds, objective)))


def _die_with(parent: int) -> None:
    """Have the kernel end this process with the controller, even in the middle of a plan.

    Also makes this process the one that the kernel ends first when memory runs out.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the controller ended before the call
        sys.exit(0)
    try:
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")
    except OSError:  # this is a precaution, and the process works without it
        return


def _serve(end: socket.socket, core: PlanningCore) -> None:
    unpacker, mirrors, planned = Unpacker(), dict[str, FabricMirror](), False
    heard = select.poll()  # select.select takes no file number above 1,023
    heard.register(end, select.POLLIN)
    while True:
        if planned and not heard.poll(QUIET * 1000):
            graphs.load_graphs()
            cp_sat.load_cp_sat()
            planned = False
        if not received(end, unpacker):
            return
        found = unpacker.message()
        if found is not None:
            question = Question(*found[0])
            mirror = mirrors.setdefault(question.fabric, FabricMirror())
            _send(end, _answer(core, mirror, question))
            planned = planned or question.method in {"plan", "prepare"}
            if question.method == "plan":
                core.make_ready(question.fabric)  # after the answer, so that nobody waits


def _answer(core: PlanningCore, mirror: FabricMirror, question: Question) -> Any:  # noqa: ANN401 - packed
    try:
        return answered(core, mirror, question)
    except PlanningFailed as error:  # any other error ends the process, and it is replaced
        return Failed(str(error))


def _send(end: socket.socket, message: object) -> None:
    data, file = packed(message)
    sent = socket.send_fds(end, [data], [] if file is None else [file])
    if file is not None:
        os.close(file)
    end.sendall(memoryview(data)[sent:])


if __name__ == "__main__":
    main()
