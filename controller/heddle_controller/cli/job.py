"""``heddle job``: submit jobs, and see their states."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from heddle.names import value_name
from heddle.ports import ports_document
from heddle.text import some_of
from heddle.v1 import placement_pb2 as pb
from heddle.v1 import plan_pb2
from heddle.v1.common_pb2 import Turn
from heddle.v1.plan_pb2 import JobFare
from heddle_controller.cli.client import Terms
from heddle_controller.cli.completing import JOBS
from heddle_controller.cli.failure import UNROUTED, Failure, LazyGroup
from heddle_controller.cli.life import echo_jobs, job_state_word, job_view, shown_fares, worst_link
from heddle_controller.cli.options import (
    in_turn,
    last_part,
    wait_until_gone,
    waiting_options,
    with_client,
)
from heddle_controller.cli.output import echo, echo_json, echo_pairs, echo_table
from heddle_controller.cli.reservations import host_texts
from heddle_controller.cli.routes import turn_text
from heddle_controller.cli.watching import of_jobs, of_plans, watchable
from heddle_controller.serve.codec import times


@click.group(
    cls=LazyGroup,
    package="heddle_controller.cli",
    modules={
        "measure": "measure",
        "order": "submit",
        "place": "submit",
        "release": "reservations",
        "replace": "life",
        "reservations": "reservations",
        "reserve": "reservations",
        "resize": "life",
        "resume": "life",
        "submit": "submit",
        "suspend": "life",
    },
)
def job() -> None:
    """Submit jobs, place them, change them, and see their states."""


@job.command("list")
@with_client
@watchable(of_jobs, of_plans)
def list_jobs(client: Terms) -> None:
    """List jobs: their states, flows and plans, slowest flows and worst links."""
    echo_jobs(client, client.api.list_jobs())


@job.command("show")
@click.argument("name", shell_complete=JOBS)
@with_client
@watchable(of_jobs, of_plans)
def show(client: Terms, name: str) -> None:
    """Show one job."""
    one = client.api.get_job(name)
    fares = shown_fares(client, [one])
    if client.json:
        echo_json(job_view(one, fares))
        return
    fare = fares.get(last_part(one.name), JobFare())
    echo_pairs(
        {
            "job": last_part(one.name),
            "state": job_state_word(one),
            "reason": one.reason,
            "hosts": some_of(host_texts(one.spec.hosts, one.spec.gpus), 4),
            "gpus per host": one.spec.gpus_per_host or "",
            "parallelism": " ".join(
                f"{degree.name} {count}" for degree, count in one.spec.parallelism.ListFields()
            ),
            "collectives": "; ".join(map(_collective, one.spec.collectives)),
            "priority": f"{fare.weight or one.spec.priority:.4g}"
            if fare.weight or one.spec.priority
            else "",
            "FLOPs of a round": f"{flops:g}" if (flops := one.spec.flops_per_iteration) else "",
            "iteration": _iteration(one.spec),
            "turn": turn_text(turn) if (turn := _turn_of(client, one)) else "",
            "flows": one.flow_count,
            "unrouted": one.unrouted_count,
            "slowest flow": f"{fare.slowest.flow}, {fare.slowest.share:.1%} of what it asks for"
            if fare.slowest.flow
            else "",
            "worst link": worst_link(fare),
            "first plan": one.generation or "",
            "submitted": times.time_text(one.create_time),
            "since": times.time_text(one.state_time),
        }
    )


def _collective(one: pb.Collective) -> str:
    operation = value_name(
        pb.CollectiveOperation.DESCRIPTOR, one.operation, "COLLECTIVE_OPERATION_"
    ).lower()
    group = value_name(pb.GroupKind.DESCRIPTOR, one.group, "GROUP_KIND_").lower()
    return f"{operation} over {group}, {one.bytes} bytes{', overlapping' * one.overlap}"


def _iteration(spec: pb.JobSpec) -> str:
    """Describe the job's iteration; empty if the job does not give it."""
    if not spec.compute_seconds:
        return ""
    told = f"{spec.network_seconds:g} s of network" if spec.network_seconds else "its collectives"
    return f"{spec.compute_seconds:g} s of computing, {told}"


def _turn_of(client: Terms, one: pb.Job) -> Turn | None:
    """Return when the job should begin its iterations, if the plan has a recommendation."""
    if not (one.spec.compute_seconds and one.generation):
        return None
    plan = client.api.plans.GetPlan(plan_pb2.GetPlanRequest(name=client.plan))
    named = {turn.job: turn for turn in plan.certificate.turns.jobs}
    return named.get(last_part(one.name))


@job.command("ports")
@click.argument("name", shell_complete=JOBS)
@click.option(
    "--host", "hosts", multiple=True, metavar="HOST", help="Only QPs of this host; may be repeated."
)
@with_client
def ports(client: Terms, name: str, hosts: tuple[str, ...]) -> None:
    """Print the UDP source port that each QP of a job must use.

    A QP that uses another port follows the underlay. On a host, `heddle-agent host` writes the
    ports to a file for each job. --json prints {"fabric", "job", "generation", "flows": [{"flow",
    "source", "source_address", "destination", "destination_address", "ports": [QP 0's, QP 1's,
    ...]}]}.
    """
    document = ports_document(client.fabric, name, _all_ports(client, name, hosts))
    if client.json:
        echo_json(document)
        return
    rows = [
        (flow["flow"], flow["source"], flow["destination"], _ranges(flow["ports"]))
        for flow in document["flows"]
    ]
    echo_table(["flow", "source", "destination", "ports"], rows)


def _all_ports(client: Terms, name: str, hosts: tuple[str, ...]) -> Iterator[plan_pb2.JobPorts]:
    request = plan_pb2.GetJobPortsRequest(plan=client.plan, job=name, hosts=hosts, page_size=10_000)
    while True:
        answer = client.api.plans.GetJobPorts(request)
        yield answer.ports
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token


def _ranges(ports: list[int]) -> str:
    """Return ports as ranges such as ``49152-49155``; a range that wraps around gives two."""
    starts = [0, *(at for at in range(1, len(ports)) if ports[at] != ports[at - 1] + 1)]
    ends = [*(at - 1 for at in starts[1:]), len(ports) - 1]
    return " ".join(
        f"{ports[first]}-{ports[last]}" if last > first else str(ports[first])
        for first, last in zip(starts, ends, strict=True)
    )


@job.command("delete")
@click.argument("names", nargs=-1, required=True, shell_complete=JOBS)
@waiting_options
@with_client
def delete(client: Terms, names: tuple[str, ...], seconds: float | None, *, wait: bool) -> None:
    """End jobs and remove their routes."""
    versions = in_turn(client, names, client.api.delete_job, "deleted")
    if not client.json:
        echo(f"deleted {', '.join(names)}")
    if wait:
        version = max(versions) if all(versions) else 0
        wait_until_gone(client, version, seconds)
    if client.json:
        echo_json({"deleted": names, "gone": wait})


@job.command("watch")
@click.argument("names", nargs=-1, shell_complete=JOBS)
@click.option(
    "--until",
    type=click.Choice(["planned", "programmed"]),
    help="Exit when all jobs are in this state; without names, all jobs that exist at "
    "the start. Exit 3 if a job is degraded instead.",
)
@click.option("--seconds", type=float, help="Stop after this many seconds.")
@with_client
def watch(client: Terms, names: tuple[str, ...], until: str | None, seconds: float | None) -> None:
    """Print jobs and each change of their state."""
    waiting = Waiting(set(names), until) if until else None
    for event in client.api.watch_jobs(seconds):
        _echo_event(client, event, set(names))
        if waiting and waiting.done(event):
            sys.exit(UNROUTED if waiting.degraded else 0)
    if until:
        raise Failure(f"the jobs are not {until} after {seconds:g} s: see heddle job list")


def _echo_event(client: Terms, event: pb.JobEvent, wanted: set[str]) -> None:
    name = last_part(event.job.name or event.deleted)
    if wanted and name not in wanted:
        return
    if client.json:
        echo_json(event)
    elif event.HasField("job"):
        one = event.job
        tail = f": {one.reason}" if one.reason else ""
        plan = f" in plan {one.generation}" if one.generation else ""
        echo(f"{name} {job_state_word(one)}, {one.flow_count} flows{plan}{tail}")
    elif event.HasField("deleted"):
        echo(f"{name} deleted")


class Waiting:
    """The jobs that have not reached the wanted state yet."""

    def __init__(self, wanted: set[str], until: str) -> None:
        programmed: tuple[pb.JobState.ValueType, ...] = (pb.JOB_STATE_PROGRAMMED,)
        self._enough = programmed if until == "programmed" else (pb.JOB_STATE_PLANNED, *programmed)
        self._enough += (pb.JOB_STATE_SUSPENDED,)
        self._wanted = wanted
        self._all = not wanted
        self._synced = False
        self._states: dict[str, pb.JobState.ValueType] = {}

    @property
    def degraded(self) -> bool:
        """Whether one of the jobs is degraded."""
        return pb.JOB_STATE_DEGRADED in {self._states.get(name) for name in self._wanted}

    def done(self, event: pb.JobEvent) -> bool:
        """Take in an event; return whether all jobs are in the state, degraded or gone."""
        name = last_part(event.job.name or event.deleted)
        if event.HasField("job"):
            self._states[name] = event.job.state
            if self._all and not self._synced:
                self._wanted.add(name)
        elif event.HasField("deleted"):
            self._states.pop(name, None)
            self._wanted.discard(name)
        else:
            self._synced = True
            self._check_known()
        return self._synced and all(
            self._states.get(name) in (*self._enough, pb.JOB_STATE_DEGRADED)
            for name in self._wanted
        )

    def _check_known(self) -> None:
        if missing := sorted(self._wanted - self._states.keys()):
            raise Failure(f"there is no job {missing[0]!r}: see heddle job list")
