"""``heddle job place`` and reservations: choose hosts for a job, and keep them for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from heddle.gpus import gpu_ranges, parse_gpus
from heddle.v1 import placement_pb2 as pb
from heddle_controller.cli.client import Terms
from heddle_controller.cli.completing import RESERVATIONS
from heddle_controller.cli.failure import Failure
from heddle_controller.cli.options import (
    INPUT_FILE,
    NOT_NEGATIVE,
    POSITIVE,
    last_part,
    with_client,
)
from heddle_controller.cli.output import echo, echo_json, echo_table
from heddle_controller.cli.watching import of_jobs, watchable
from heddle_controller.model.host_lists import expand_list
from heddle_controller.model.job import Job
from heddle_controller.serve.codec import job as codec
from heddle_controller.serve.codec import times
from heddle_controller.traffic.jobs_file import load_jobs

_SECONDS = 300


def one_job(file: Path, only: str | None, hosts_if_none: int = 0) -> tuple[Job, pb.JobSpec]:
    """Return the job of a file that is meant; Failure if it is missing or ambiguous."""
    found = [one for one in load_jobs(file, hosts_if_none) if only in (None, one.name)]
    if len(found) != 1:
        there = "has no such job" if not found else "has several jobs: say which by --only"
        raise Failure(f"{file}: {there}")
    return found[0], codec.job_to_pb(found[0])


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
    default=_SECONDS,
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
    one, spec = one_job(file, only, host_count or 0)
    if not one.gpus_per_host:
        why = "takes different numbers of GPUs of its hosts, so no others can stand in for them"
        raise Failure(f"{file}: job {one.name!r} {why}: order its ranks by heddle job order")
    wanted = len(one.hosts) if host_count is None else host_count
    spec.ClearField("hosts")
    spec.ClearField("gpus")
    spec.hosts.extend(expanded(among))
    spec.gpus.extend(gpus_option(among_gpus))
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


def gpus_option(text: str | None) -> list[pb.HostGpus]:
    """Return the GPUs of each host that an option gives; empty if it is not given."""
    try:
        return [pb.HostGpus(gpus=parse_gpus(text))] if text else []
    except ValueError as error:
        raise Failure(str(error)) from None


def host_texts(hosts: Sequence[str], gpus: Sequence[pb.HostGpus]) -> list[str]:
    """Return hosts as text, each with its GPUs: ``n1 GPUs 0-3``."""
    if not gpus:
        return list(hosts)
    parts = list(gpus) * (len(hosts) if len(gpus) == 1 else 1)
    return [f"{host} GPUs {gpu_ranges(part.gpus)}" for host, part in zip(hosts, parts, strict=True)]


def expanded(texts: Sequence[str]) -> list[str]:
    """Return the hosts in host lists such as ``n[001-016],n020``."""
    try:
        return [host for text in texts for host in expand_list(text)]
    except ValueError as error:
        raise Failure(str(error)) from error


def _score(found: pb.JobScore) -> str:
    return (
        f"network {found.network_seconds:.4g} s at once, {found.least_network_seconds:.4g} s at "
        f"best, slowest flow {found.slowest_flow:.3f}, "
        f"worst link {found.max_utilization:.3f}"
    )


@click.command("reserve")
@click.argument("name")
@click.argument("hosts", nargs=-1, required=True)
@click.option(
    "--seconds",
    type=POSITIVE,
    default=_SECONDS,
    show_default=True,
    help="How long the reservation lasts, in seconds.",
)
@click.option("--gpus", metavar="GPUS", help="Reserve only these GPUs of each host, such as 0-3.")
@with_client
def reserve(
    client: Terms, name: str, hosts: tuple[str, ...], seconds: int, gpus: str | None
) -> None:
    """Reserve free hosts, such as n[001-016], for a job that comes later.

    The reservation ends when its time is over, when a job uses it (`heddle job submit --reservation
    NAME`), or with `heddle job release`.
    """
    parts = gpus_option(gpus)
    _echo(client, [client.api.reserve_placement(name, expanded(hosts), seconds, gpus=parts)])


@click.command("reservations")
@with_client
@watchable(of_jobs, look=True)
def reservations(client: Terms) -> None:
    """List the current reservations."""
    _echo(client, client.api.list_reservations())


@click.command("release")
@click.argument("name", shell_complete=RESERVATIONS)
@with_client
def release(client: Terms, name: str) -> None:
    """End a reservation early."""
    client.api.release_placement(name)
    if client.json:
        echo_json({"released": name})
    else:
        echo(f"released {name}")


def _echo(client: Terms, found: list[pb.Reservation]) -> None:
    if client.json:
        echo_json(found)
        return
    rows = [
        (
            last_part(one.name),
            len(one.hosts),
            host_texts(one.hosts[:1], one.gpus[:1])[0],
            times.time_text(one.end_time),
        )
        for one in found
    ]
    echo_table(["reservation", "hosts", "first", "until"], rows)
