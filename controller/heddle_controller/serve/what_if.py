"""What-if questions, and the progress of drains.

A what-if question supposes changes of the intent, and nothing is written. The supposed intent is
checked like a real one and planned by the same code as in the reconcile loop, so the answer is what
would happen.

A drain is complete when its links are idle. Switches may hold entries of older plans, so a plan
that does not use the links is not enough. They are idle once all switches hold a generation from
which on no plan uses the links and each answers an intent with the links out of service. They are
never idle while switches leave all traffic to the underlay, which may use any link.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace

import numpy as np

from heddle.v1 import common_pb2, placement_pb2
from heddle.v1 import plan_pb2 as pb
from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.demand import resolve
from heddle_controller.model.errors import InputError, Problem, refuse
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.job import Gpus, Job, in_use
from heddle_controller.plan.limits import Fares, fares_of
from heddle_controller.plan.what_if import cut_off, flows_over, links_of
from heddle_controller.planner.port import WhatIf
from heddle_controller.serve.codec import common, names
from heddle_controller.serve.codec import demand as demand_codec
from heddle_controller.serve.codec import job as job_codec
from heddle_controller.serve.codec import plan as plan_codec
from heddle_controller.serve.codec.plan import NAMES_PER_ANSWER
from heddle_controller.state.admission import admit_job
from heddle_controller.state.demands import check_ids, check_job_ids, jobs_meant
from heddle_controller.state.errors import FailedPrecondition
from heddle_controller.state.fabrics import no_switch
from heddle_controller.state.records import (
    Committed,
    DemandRecord,
    Intent,
    JobFacts,
    JobRecord,
    JobState,
)

MAX_TOLD = 1000
"""Most flows, jobs and hosts that an answer names."""
_EQUAL = 1e-9
"""Shares that differ by no more count as equal."""
MAX_JOBS = 1000
"""Most jobs that one request supposes."""
_SUPPOSED = "what-if"
"""Name of the demand set that holds supposed flows."""


def suppose(intent: Intent, down: AbstractSet[int], request: pb.WhatIfRequest) -> Intent:
    """Return the intent with the changes of a request.

    Args:
        intent: The present intent.
        down: Rows of links that agents say are down. They stay down unless supposed to be up.
        request: The supposed changes.

    Raises:
        InputError: a link, switch, job or flow is unknown or malformed.
        FailedPrecondition: a supposed job has hosts that another job uses, or a supposed flow has
            the id of another.
    """
    if len(request.jobs) > MAX_JOBS:
        reason = f"there are {len(request.jobs)}: suppose {MAX_JOBS} at most"
        raise refuse("request", "jobs", reason)
    fabric = _fabric(intent.fabric, down, request)
    jobs = {record.job.name: record for record in intent.jobs}
    for i, name in enumerate(request.deleted_jobs):
        if jobs.pop(_last(name), None) is None:
            reason = f"there is no job {_last(name)!r}: name one of heddle job list"
            raise refuse("request", f"deleted_jobs[{i}]", reason)
    told = [_job(fabric, message, f"jobs[{i}]") for i, message in enumerate(request.jobs)]
    supposed = {job.name: job for job in told}
    if new := supposed.keys() - jobs.keys():
        sets = [(one.name, jobs_meant(one.demands)) for one in intent.demands]
        for name in sorted(new):
            check_job_ids(name, sets)
    for name, job in supposed.items():
        jobs[name] = JobRecord(job, "", intent.change_time, JobFacts("", JobState.ACCEPTED))
    for job in supposed.values():  # once all are there: they may take hosts from each other
        check_free(job, jobs.values(), "suppose that it is deleted too, or on other hosts")
    return replace(
        intent,
        fabric=fabric,
        jobs=tuple(jobs[name] for name in sorted(jobs)),
        demands=(*intent.demands, *_demands(intent, fabric, request, jobs)),
    )


def _job(fabric: Fabric, message: placement_pb2.Job, field: str) -> Job:
    name = names.check_id(_last(message.name), f"{field}.name")
    job = job_codec.job_from_pb(name, message.spec, f"{field}.spec")
    admit_job(fabric, job)
    return job


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _fabric(fabric: Fabric, down: AbstractSet[int], request: pb.WhatIfRequest) -> Fabric:
    links: dict[int, State] = dict.fromkeys(down, State.DOWN)
    for i, change in enumerate(request.links):
        row = common.find_link(fabric, change.link, f"links[{i}].link")
        state = common.state_from_pb(change.admin_state, f"links[{i}].admin_state")
        if row not in down or state == State.UP:
            links[row] = state
    nodes: dict[int, State] = {}
    for i, switch in enumerate(request.switches):
        node = _switch(fabric, switch.node, f"switches[{i}].node")
        nodes[node] = common.state_from_pb(switch.admin_state, f"switches[{i}].admin_state")
    return fabric.with_links(links).with_nodes(nodes)


def check_free(job: Job, others: Iterable[JobRecord], cure: str) -> None:
    """Check that no other job uses the hosts or GPUs of a job.

    Raises:
        FailedPrecondition: some are in use; names each host, the job that uses it, and the cure.
    """
    holders: dict[str, dict[str, Gpus]] = {}
    for other in others:
        for host, gpus in other.job.held.items():
            holders.setdefault(host, {})[other.job.name] = gpus
    taken = [
        Problem(f"host {host!r}", f"{found[1]} by job {found[0]!r}: {cure}")
        for host, gpus in job.held.items()
        if (found := in_use(gpus, holders.get(host, {}), but=job.name))
    ]
    if taken:
        raise FailedPrecondition(job.label, *taken)


def _demands(
    intent: Intent, fabric: Fabric, request: pb.WhatIfRequest, jobs: Container[str]
) -> Iterator[DemandRecord]:
    if request.demands:
        demands = demand_codec.demands_from_pb(request.demands)
        resolve(demands, fabric, origin="request")
        others = ((record.name, record.demands) for record in intent.demands)
        check_ids(_SUPPOSED, demands, others, jobs)
        yield DemandRecord(_SUPPOSED, demands, "", intent.change_time)


def what_if_to_pb(
    fabric: str, committed: Committed | None, found: WhatIf, request: pb.WhatIfRequest
) -> pb.WhatIfResponse:
    """Return the answer: both plans, and moved and unrouted flows, changed jobs, and lost hosts."""
    old, new = found.before, found.after
    if committed is None:
        before = plan_codec.plan_to_pb(fabric, old)
    else:
        before = plan_codec.committed_to_pb(fabric, committed)
    after = plan_codec.plan_to_pb(fabric, new)
    after.changed_count = len(found.comparison.moved)
    ids = new.flows.ids
    unrouted_before = {old.flows.ids[row] for row in old.unrouted}
    lost = [row for row in sorted(new.unrouted) if ids[row] not in unrouted_before]
    routes = plan_codec.Routes(new, np.zeros(len(new.flows), dtype=np.int64))
    staying = flows_over(new, _drained(new.fabric, request), backups=False)
    hosts, nics = _cut_off(old.fabric, new.fabric)
    return pb.WhatIfResponse(
        before=before,
        after=after,
        moved_flows=[ids[row] for row in found.comparison.moved[:MAX_TOLD].tolist()],
        unrouted=[routes.route(row) for row in lost[:MAX_TOLD]],
        jobs=outcomes(fares_of(old), fares_of(new))[:MAX_TOLD],
        staying_flows=[ids[row] for row in staying[:MAX_TOLD].tolist()],
        staying_count=len(staying),
        cut_off_hosts=hosts[:MAX_TOLD],
        cut_off_nics=nics[:MAX_TOLD],
    )


def _drained(fabric: Fabric, request: pb.WhatIfRequest) -> Ints:
    """Return the rows of the links that a request drains."""
    wanted = common_pb2.STATE_DRAINED
    links = [change.link for change in request.links if change.admin_state == wanted]
    switches = [change.node for change in request.switches if change.admin_state == wanted]
    return link_rows(fabric, links, switches, "links", "switches")


def link_rows(
    fabric: Fabric,
    links: Iterable[common_pb2.LinkRef],
    switches: Iterable[str],
    field: str,
    switch_field: str,
) -> Ints:
    """Return the rows of these links, and of all links of these switches, ascending.

    Raises:
        InputError: the fabric does not have one of them; ``field`` or ``switch_field`` is named.
    """
    named = [common.find_link(fabric, link, f"{field}[{i}]") for i, link in enumerate(links)]
    nodes = [_switch(fabric, node, f"{switch_field}[{i}]") for i, node in enumerate(switches)]
    of_nodes = links_of(fabric, np.array(nodes, dtype=np.int64))
    return np.union1d(np.array(named, dtype=np.int64), of_nodes)


def _rows_there(
    fabric: Fabric, links: Iterable[common_pb2.LinkRef], switches: Iterable[str]
) -> Ints:
    """Return the same as ``link_rows``, leaving out links and switches that the fabric lacks."""
    rows: set[int] = set()
    for link in links:
        with suppress(InputError):
            rows.add(common.find_link(fabric, link, "links"))
    for switch in switches:
        with suppress(InputError):
            node = _switch(fabric, switch, "switches")
            rows.update(links_of(fabric, np.array([node], dtype=np.int64)).tolist())
    return np.array(sorted(rows), dtype=np.int64)


def _switch(fabric: Fabric, name: str, field: str) -> int:
    """Return the row of a switch; raises ``InputError`` if it is no switch of the fabric."""
    if reason := no_switch(fabric.structure, name):
        raise refuse("request", field, reason)
    return fabric.structure.index[name]


def outcomes(before: Fares, after: Fares) -> list[pb.JobOutcome]:
    """Return the jobs whose slowest flow or number of unrouted flows differs, most loss first."""
    was, now = _slowest(before), _slowest(after)
    idle = pb.SlowestFlow(share=1.0)
    told = [
        pb.JobOutcome(job=job, before=was.get(job, idle), after=now.get(job, idle))
        for job in sorted({*was, *now})
    ]
    differs = [
        one
        for one in told
        if abs(one.before.share - one.after.share) > _EQUAL
        or one.before.unrouted_count != one.after.unrouted_count
    ]
    return sorted(differs, key=lambda one: one.after.share - one.before.share)


def _slowest(fares: Fares) -> dict[str, pb.SlowestFlow]:
    unrouted = fares.unrouted_of_jobs()
    return {
        job: plan_codec.slowest_to_pb(fares, row, unrouted[job])
        for job, row in fares.slowest_of_jobs().items()
    }


def _cut_off(before: Fabric, after: Fabric) -> tuple[list[str], list[str]]:
    """Return the hosts all of whose NICs are cut off, and the ids of other NICs that are."""
    if before.structure is not after.structure:
        return [], []  # the fabric was replaced in the meantime
    nodes, names_of = after.structure.nodes, after.structure.host_names
    lost = cut_off(before, after)
    of_hosts = nodes.host[lost]
    known = nodes.host[nodes.host != NONE]
    gone = np.bincount(of_hosts[of_hosts != NONE], minlength=len(names_of))
    whole = (gone > 0) & (gone == np.bincount(known, minlength=len(names_of)))
    single = lost[~np.append(whole, False)[of_hosts]]  # NONE, which is -1, takes the last
    hosts = np.flatnonzero(whole).tolist()
    return [names_of[row] for row in hosts], [nodes.ids[row] for row in single.tolist()]


class DrainWatch:
    """Follows how far some links are from being idle, for one watcher."""

    def __init__(self, request: pb.WatchDrainRequest) -> None:
        """Raises ``InputError`` if the request names no link and no switch."""
        if not request.links and not request.switches:
            raise refuse("request", "links", "none is named, and no switch: name one of them")
        self._request = request
        self._out_since: int | None = None
        """Version of the intent since which all links are out of service; None if they are not."""
        self._unused_since: int | None = None
        """First generation from which on no plan uses the links and each answers such an intent;
        None if there is none yet."""

    def look(
        self, fabric: Fabric, intent: int, committed: Committed | None, *, withdrawn: bool = False
    ) -> pb.DrainProgress:
        """Return the progress of the drain now.

        Args:
            fabric: The fabric of the intent.
            intent: Version of the intent, read no earlier than the fabric.
            committed: The newest plan, read no earlier than the version; None without a plan.
            withdrawn: Whether some switches ignore their entries.

        Raises:
            InputError: the fabric lacks one of the links or switches.
        """
        wanted = self._request
        rows = link_rows(fabric, wanted.links, wanted.switches, "links", "switches")
        out = bool((fabric.effective[rows] != State.UP).all())
        self._out_since = (intent if self._out_since is None else self._out_since) if out else None
        if committed is None:  # the first plan may put flows on any link that it may use
            return pb.DrainProgress(withdrawn=withdrawn)
        if committed.plan.fabric.structure is not fabric.structure:
            rows = _rows_there(committed.plan.fabric, wanted.links, wanted.switches)
        over = flows_over(committed.plan, rows, backups=True)
        paths = flows_over(committed.plan, rows, backups=False)
        settled, unsettled = committed.settled()
        answers = self._out_since is not None and committed.answered_version >= self._out_since
        if len(over) or not answers:
            self._unused_since = None
        elif self._unused_since is None:
            self._unused_since = committed.generation
        since = self._unused_since
        idle = since is not None and settled >= since and not withdrawn
        return pb.DrainProgress(
            generation=committed.generation,
            flow_count=len(over),
            settled_generation=settled,
            unsettled_switches=[] if idle else sorted(unsettled)[:NAMES_PER_ANSWER],
            idle=idle,
            unrouted_count=len(committed.plan.unrouted),
            planned=answers,
            path_count=len(paths),
            withdrawn=withdrawn,
        )
