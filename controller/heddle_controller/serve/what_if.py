"""A change that is only supposed: the intent as it would be, and what its plan would do.

Nothing here writes. The supposed intent is checked as a real one would be, then
planned by the planner that the loop asks too, so that the answer is what would
happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from heddle.v1 import plan_pb2 as pb
from heddle_controller.model.demand import resolve
from heddle_controller.model.errors import Problem, refuse
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.job import Job
from heddle_controller.planner.port import WhatIf
from heddle_controller.reconcile.admission import JobFlows, admit_job
from heddle_controller.serve.codec import common, names
from heddle_controller.serve.codec import demand as demand_codec
from heddle_controller.serve.codec import job as job_codec
from heddle_controller.serve.codec import plan as plan_codec
from heddle_controller.state.errors import FailedPrecondition
from heddle_controller.state.records import (
    Committed,
    DemandRecord,
    Intent,
    JobFacts,
    JobRecord,
    JobState,
)

MAX_TOLD = 1000
"""Flows named in an answer."""
MAX_JOBS = 1000
"""Jobs supposed at once."""
SUPPOSED = "what-if"
"""Name of the demand set that holds supposed flows."""


def suppose(intent: Intent, request: pb.WhatIfRequest, flows_of_job: JobFlows) -> Intent:
    """The intent with the changes of a request.

    Raises:
        InputError: a link, switch, job or flow that is unknown or malformed.
        FailedPrecondition: a supposed job has hosts that another one uses.
    """
    if len(request.jobs) > MAX_JOBS:
        reason = f"there are {len(request.jobs)}: suppose {MAX_JOBS} at most"
        raise refuse("request", "jobs", reason)
    fabric = _fabric(intent.fabric, request)
    jobs = {record.job.name: record for record in intent.jobs}
    for i, name in enumerate(request.deleted_jobs):
        if jobs.pop(_last(name), None) is None:
            reason = f"there is no job {_last(name)!r}: name one of heddle job list"
            raise refuse("request", f"deleted_jobs[{i}]", reason)
    for i, message in enumerate(request.jobs):
        name = names.check_id(_last(message.name), f"jobs[{i}].name")
        job = job_codec.job_from_pb(name, message.spec, f"jobs[{i}].spec")
        admit_job(fabric, job, flows_of_job)
        jobs.pop(name, None)
        check_free(job, jobs.values())
        jobs[name] = JobRecord(job, "", intent.change_time, JobFacts("", JobState.ACCEPTED))
    return replace(
        intent,
        fabric=fabric,
        jobs=tuple(jobs[name] for name in sorted(jobs)),
        demands=(*intent.demands, *_demands(intent, fabric, request)),
    )


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _fabric(fabric: Fabric, request: pb.WhatIfRequest) -> Fabric:
    links: dict[int, State] = {}
    for i, change in enumerate(request.links):
        row = common.find_link(fabric, change.link, f"links[{i}].link")
        links[row] = common.state_from_pb(change.admin_state, f"links[{i}].admin_state")
    nodes: dict[int, State] = {}
    for i, switch in enumerate(request.switches):
        node = fabric.structure.index.get(switch.node, -1)
        if node == -1 or fabric.structure.nodes.kind[node] == NodeKind.NIC:
            reason = f"{switch.node!r} is not a switch of the fabric: see heddle fabric show"
            raise refuse("request", f"switches[{i}].node", reason)
        nodes[node] = common.state_from_pb(switch.admin_state, f"switches[{i}].admin_state")
    return fabric.with_links(links).with_nodes(nodes)


def check_free(job: Job, others: Iterable[JobRecord]) -> None:
    """Nothing, where no other job has its hosts. Raises ``FailedPrecondition``."""
    others = [other for other in others if other.job.name != job.name]
    used = {host: other.job.name for other in others for host in other.job.hosts}
    taken = [
        Problem(f"host {host!r}", f"is in use by job {used[host]!r}; suppose that deleted too")
        for host in job.hosts
        if host in used
    ]
    if taken:
        raise FailedPrecondition(f"job {job.name!r}", *taken)


def _demands(intent: Intent, fabric: Fabric, request: pb.WhatIfRequest) -> Iterator[DemandRecord]:
    if request.demands:
        demands = demand_codec.demands_from_pb(request.demands)
        resolve(demands, fabric, origin="request")
        yield DemandRecord(SUPPOSED, demands, "", intent.change_time)


def what_if_to_pb(fabric: str, committed: Committed | None, found: WhatIf) -> pb.WhatIfResponse:
    """Both plans, what would move, and what would have no path."""
    old, new = found.before, found.after
    if committed is None:
        before = plan_codec.plan_to_pb(fabric, old)
    else:
        before = plan_codec.summary_to_pb(fabric, committed)
    after = plan_codec.plan_to_pb(fabric, new)
    after.changed_count = len(found.comparison.moved)
    ids = new.flows.ids
    unrouted_before = {old.flows.ids[row] for row in old.unrouted}
    lost = [row for row in sorted(new.unrouted) if ids[row] not in unrouted_before]
    routes = plan_codec.Routes(new, np.zeros(len(new.flows), dtype=np.int64))
    return pb.WhatIfResponse(
        before=before,
        after=after,
        moved_flows=[ids[row] for row in found.comparison.moved[:MAX_TOLD].tolist()],
        unrouted=[routes.route(row) for row in lost[:MAX_TOLD]],
    )
