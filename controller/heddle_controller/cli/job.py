"""``heddle job``: submit jobs, and see their states."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from heddle.ports import ports_document
from heddle.text import some_of
from heddle.v1 import placement_pb2 as pb
from heddle.v1 import plan_pb2
from heddle.v1.common_pb2 import Turn
from heddle.v1.plan_pb2 import JobFare
from heddle_controller.cli.client import Terms
from heddle_controller.cli.completing import JOBS
from heddle_controller.cli.failure import UNROUTED, CommandGroup, Failure
from heddle_controller.cli.life import (
    echo_jobs,
    job_state_word,
    job_view,
    replace,
    resize,
    resume,
    shown_fares,
    suspend,
    worst_link,
)
from heddle_controller.cli.measure import measure
from heddle_controller.cli.options import (
    INPUT_FILE,
    in_turn,
    last_part,
    wait_until_gone,
    waiting_options,
    with_client,
)
from heddle_controller.cli.output import echo, echo_json, echo_pairs, echo_table
from heddle_controller.cli.place import (
    host_texts,
    one_job,
    place,
    release,
    reservations,
    reserve,
)
from heddle_controller.cli.routes import turn_text
from heddle_controller.cli.watching import of_jobs, of_plans, watchable
from heddle_controller.serve.codec import job as codec
from heddle_controller.serve.codec import times
from heddle_controller.traffic.jobs_file import load_jobs


@click.group(cls=CommandGroup)
def job() -> None:
    """Submit jobs, place them, change them, and see their states."""


for _command in (
    *(place, reserve, reservations, release),
    *(measure, replace, resize, suspend, resume),
):
    job.add_command(_command)


@job.command("submit")
@click.argument("file", type=INPUT_FILE)
@click.option("--replace", "update", is_flag=True, help="Update jobs that exist already.")
@click.option(
    "--only",
    multiple=True,
    metavar="JOB",
    help="Submit only this job of the file; may be repeated.",
)
@click.option(
    "--reservation", default="", metavar="NAME", help="Use the hosts of this reservation."
)
@with_client
def submit(
    client: Terms, file: Path, only: tuple[str, ...], reservation: str, *, update: bool
) -> None:
    """Submit the jobs of a jobs.yaml; stop at the first that is refused."""
    jobs = load_jobs(file)
    if missing := set(only) - {one.name for one in jobs}:
        raise Failure(f"{file}: there is no job {min(missing)!r}")
    wanted = [one for one in jobs if not only or one.name in only]
    if reservation and len(wanted) > 1:
        raise Failure(f"{file}: has several jobs: say which redeems the reservation by --only")
    specs = {one.name: one for one in wanted}

    def send(name: str) -> pb.Job:
        spec = codec.job_to_pb(specs[name])
        return client.api.submit_job(name, spec, replace=update, reservation=reservation)

    echo_jobs(client, in_turn(client, specs, send, "submitted"))


@job.command("order")
@click.argument("file", type=INPUT_FILE)
@click.option("--only", metavar="JOB", help="Name of the job, if the file has several.")
@with_client
def order(client: Terms, file: Path, only: str | None) -> None:
    """Print the hosts of a job of a jobs.yaml in the best rank order for the fabric.

    Each order is scored with a plan beside all running jobs. Nothing changes. If the job exists
    already, the order is for its replacement.
    """
    one, spec = one_job(file, only)
    name = one.name
    submitted = {last_part(one.name) for one in client.api.list_jobs()}
    answer = client.api.order_ranks(spec, replaces=name if name in submitted else "")
    if client.json:
        echo_json(answer)
        return
    for host in host_texts(answer.hosts, answer.gpus):
        echo(host)
    was, now = answer.alphabetical, answer.score
    echo(
        f"worst link {was.max_utilization:.3f} -> {now.max_utilization:.3f}, slowest flow "
        f"{was.slowest_flow:.3f} -> {now.slowest_flow:.3f}, network "
        f"{was.network_seconds:.4g} s -> {now.network_seconds:.4g} s at once, "
        f"{was.least_network_seconds:.4g} s -> {now.least_network_seconds:.4g} s at best, against "
        "alphabetical order",
        err=True,
    )


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
    degrees = codec.job_from_pb(name, one.spec).parallelism
    echo_pairs(
        {
            "job": last_part(one.name),
            "state": job_state_word(one),
            "reason": one.reason,
            "hosts": some_of(host_texts(one.spec.hosts, one.spec.gpus), 4),
            "gpus per host": one.spec.gpus_per_host or "",
            "parallelism": " ".join(
                f"{degree} {getattr(degrees, degree)}"
                for degree in codec.DEGREES
                if getattr(degrees, degree)
            ),
            "collectives": "; ".join(
                f"{c.operation} over {c.group}, {c.bytes} bytes{', overlapping' * c.overlap}"
                for c in codec.job_from_pb(name, one.spec).collectives
            ),
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
