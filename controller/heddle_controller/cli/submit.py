"""``heddle job submit``, ``order`` and ``place``, which read a jobs.yaml."""

from __future__ import annotations

from pathlib import Path

import click

from heddle.v1 import placement_pb2 as pb
from heddle_controller.cli.client import Terms
from heddle_controller.cli.failure import Failure
from heddle_controller.cli.life import echo_jobs
from heddle_controller.cli.options import (
    INPUT_FILE,
    NOT_NEGATIVE,
    POSITIVE,
    in_turn,
    last_part,
    with_client,
)
from heddle_controller.cli.output import echo, echo_json, progress
from heddle_controller.cli.reservations import SECONDS, expanded, gpus_option, host_texts
from heddle_controller.model.job import Job
from heddle_controller.serve.codec import job as codec
from heddle_controller.traffic.jobs_file import load_jobs


@click.command("submit")
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


@click.command("order")
@click.argument("file", type=INPUT_FILE)
@click.option("--only", metavar="JOB", help="Name of the job, if the file has several.")
@with_client
def order(client: Terms, file: Path, only: str | None) -> None:
    """Print the hosts of a job of a jobs.yaml in the best rank order for the fabric.

    Each order is scored with a plan beside all running jobs. Nothing changes. If the job exists
    already, the order is for its replacement.
    """
    one, spec = _one_job(file, only)
    name = one.name
    submitted = {last_part(one.name) for one in client.api.list_jobs()}
    with progress("comparing rank orders"):
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


@click.command("place")
@click.argument("file", type=INPUT_FILE)
@click.option("--only", metavar="JOB", help="Name of the job, if the file has several.")
@click.option(
    "--hosts",
    "host_count",
    type=POSITIVE,
    help="Number of hosts. Default: as many as the file names.",
)
@click.option(
    "--among",
    multiple=True,
    metavar="HOSTS",
    help="Choose among these hosts, such as n[001-128],n200; may be repeated. Default: all hosts.",
)
@click.option(
    "--exclude", multiple=True, metavar="HOSTS", help="Do not use these hosts; may be repeated."
)
@click.option(
    "--among-gpus",
    metavar="GPUS",
    help="Allow parts of hosts: GPUs of each host that the job may use, such as 0-7.",
)
@click.option("--same-zone", is_flag=True, help="Choose all hosts in one zone.")
@click.option(
    "--per-leaf", type=NOT_NEGATIVE, default=0, help="Choose at most this many hosts of each leaf."
)
@click.option("--isolated", is_flag=True, help="Share no link with another job.")
@click.option("--count", type=NOT_NEGATIVE, default=0, help="How many choices to show. Default: 5.")
@click.option("--reserve", metavar="NAME", help="Reserve the hosts of the best choice.")
@click.option(
    "--seconds",
    type=POSITIVE,
    default=SECONDS,
    show_default=True,
    help="With --reserve: how long the reservation lasts, in seconds.",
)
@with_client
def place(
    client: Terms,
    file: Path,
    *,
    only: str | None,
    host_count: int | None,
    among: tuple[str, ...],
    exclude: tuple[str, ...],
    among_gpus: str | None,
    same_zone: bool,
    per_leaf: int,
    isolated: bool,
    count: int,
    reserve: str | None,
    seconds: int,
) -> None:
    """Choose hosts for a job of a jobs.yaml; print the best choice in rank order.

    The hosts in the file only say how many the job needs; with --hosts it may name none. Each
    choice is scored with a plan of this job beside all running jobs. Hosts that jobs use are left
    out, also those that this job uses already, and so are reserved hosts. The hosts go to standard
    output; the choices and the reasons go to standard error. --json prints everything.
    """
    if reserve == "":
        raise Failure("--reserve: it is empty; give the reservation a name")
    one, spec = _one_job(file, only, host_count or 0)
    if not one.gpus_per_host:
        why = "takes different numbers of GPUs of its hosts, so no others can stand in for them"
        raise Failure(f"{file}: job {one.name!r} {why}: order its ranks by heddle job order")
    wanted = len(one.hosts) if host_count is None else host_count
    spec.ClearField("hosts")
    spec.ClearField("gpus")
    spec.hosts.extend(expanded(among))
    spec.gpus.extend(gpus_option(among_gpus))
    with progress("comparing choices of hosts"):
        answer = client.api.recommend_placement(
            spec,
            wanted,
            same_zone=same_zone,
            max_hosts_per_leaf=per_leaf,
            isolated=isolated,
            exclude=expanded(exclude),
            count=count,
        )
    best = answer.placements[0]
    if reserve:
        client.api.reserve_placement(reserve, list(best.hosts), seconds, gpus=best.gpus)
    if client.json:
        echo_json(answer)
        return
    for host in host_texts(best.hosts, best.gpus):
        echo(host)
    for row, choice in enumerate(answer.placements, 1):
        echo(f"{row}: {_score(choice.score)}: {choice.reason}", err=True)
    echo(f"first fit: {_score(answer.first_fit)}", err=True)


def _score(found: pb.JobScore) -> str:
    return (
        f"network {found.network_seconds:.4g} s at once, {found.least_network_seconds:.4g} s at "
        f"best, slowest flow {found.slowest_flow:.3f}, "
        f"worst link {found.max_utilization:.3f}"
    )


def _one_job(file: Path, only: str | None, hosts_if_none: int = 0) -> tuple[Job, pb.JobSpec]:
    """Return the job of a file that is meant; Failure if it is missing or ambiguous."""
    found = [one for one in load_jobs(file, hosts_if_none) if only in (None, one.name)]
    if len(found) != 1:
        there = "has no such job" if not found else "has several jobs: say which by --only"
        raise Failure(f"{file}: {there}")
    return found[0], codec.job_to_pb(found[0])
