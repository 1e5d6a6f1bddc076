"""``heddle job replace``, ``resize``, ``suspend`` and ``resume``: changes of a running job.

Also prints jobs as a table: their states, slowest flows and worst links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from heddle.client import SUSPENDED, TimedOut
from heddle.names import value_name
from heddle.v1 import placement_pb2 as pb
from heddle.v1.plan_pb2 import JobFare
from heddle_controller.cli.client import Terms
from heddle_controller.cli.completing import JOBS
from heddle_controller.cli.failure import Failure
from heddle_controller.cli.options import (
    POSITIVE,
    in_turn,
    last_part,
    ref_text,
    waiting_options,
    with_client,
)
from heddle_controller.cli.output import document_of, echo_json, echo_table
from heddle_controller.cli.reservations import expanded, gpus_option
from heddle_controller.serve.codec import times

_COLUMNS = [
    "job",
    "state",
    "hosts",
    "flows",
    "unrouted",
    "slowest",
    "worst link",
    "first plan",
    "since",
]
_Json = dict[str, object]


def echo_jobs(client: Terms, jobs: Sequence[pb.Job]) -> None:
    """Print jobs, one per line, with what each gets from the network."""
    fares = shown_fares(client, jobs)
    if client.json:
        echo_json([job_view(one, fares) for one in jobs])
    else:
        echo_table(
            [*_COLUMNS, "reason"], [_row(one, fares.get(last_part(one.name))) for one in jobs]
        )


def shown_fares(client: Terms, jobs: Sequence[pb.Job]) -> dict[str, JobFare]:
    """Return by name what jobs get in the newest plan, if that plan is of their specification."""
    planned = [last_part(one.name) for one in jobs if one.state != pb.JOB_STATE_ACCEPTED]
    told = client.api.list_job_fares(planned[0] if len(planned) == 1 else "") if planned else {}
    return {name: told[name] for name in planned if name in told}


def job_view(one: pb.Job, fares: Mapping[str, JobFare]) -> _Json:
    """Return a job as JSON, with its share of the network in the newest plan if it has one."""
    told: _Json = document_of(one)
    fare = fares.get(last_part(one.name))
    if fare is not None:
        told["fare"] = document_of(fare)
    return told


def _row(one: pb.Job, fare: JobFare | None) -> tuple[object, ...]:
    return (
        last_part(one.name),
        job_state_word(one),
        len(one.spec.hosts),
        one.flow_count,
        one.unrouted_count,
        f"{fare.slowest.share:.3f}" if fare else "",
        worst_link(fare) if fare else "",
        one.generation or "",
        times.time_text(one.state_time),
        one.reason,
    )


def worst_link(fare: JobFare) -> str:
    """Return the fullest link that the job's flows use, and its utilization; empty if none."""
    if not fare.HasField("worst_link"):
        return ""
    return f"{ref_text(fare.worst_link)} {fare.worst_utilization:.3f}"


def job_state_word(one: pb.Job) -> str:
    """Return the word for the job's state: PROGRAMMED, DEGRADED and so on."""
    return value_name(pb.JobState.DESCRIPTOR, one.state, "JOB_STATE_")


_RESERVATION = click.option(
    "--reservation", default="", metavar="NAME", help="Use the hosts of this reservation."
)


@click.command("replace")
@click.argument("name", shell_complete=JOBS)
@click.argument("hosts", nargs=-1, required=True, metavar="OLD=NEW...")
@_RESERVATION
@with_client
def replace(client: Terms, name: str, hosts: tuple[str, ...], reservation: str) -> None:
    """Replace hosts of a job: `heddle job replace llama n4=n5`.

    All hosts are replaced in one step. If a new host is in use, nothing changes. A new host takes
    the ranks of the old one and uses the same GPUs. Lists are matched in order:
    n[004-007]=n[012-015].
    """
    wanted: dict[str, str] = {}
    for pair in hosts:
        old, equals, new = pair.partition("=")
        sides = (old, new) if old and equals and new else ()
        gone, come = expanded(sides[:1]), expanded(sides[1:])
        if not sides or len(gone) != len(come):
            raise Failure(f"{pair!r}: write OLD=NEW, with as many hosts on either side")
        if twice := [host for host in gone if host in wanted]:
            raise Failure(f"{pair!r}: {twice[0]!r} is replaced twice: name each host once")
        wanted |= dict(zip(gone, come, strict=True))
    echo_jobs(client, [client.api.replace_hosts(name, wanted, reservation=reservation)])


@click.command("resize")
@click.argument("name", shell_complete=JOBS)
@click.option(
    "--add",
    multiple=True,
    metavar="HOSTS",
    help="Hosts to add, such as n4,n[006-008]; may be repeated.",
)
@click.option("--remove", multiple=True, metavar="HOSTS", help="Hosts to remove; may be repeated.")
@click.option(
    "--gpus",
    metavar="GPUS",
    help="GPUs of each added host, such as 0-3, for a job that uses parts of hosts. "
    "Default: the same GPUs as on its other hosts.",
)
@click.option(
    "--dp",
    type=POSITIVE,
    help="Number of replicas. Default: it follows from the number of ranks.",
)
@_RESERVATION
@with_client
def resize(
    client: Terms,
    name: str,
    *,
    add: tuple[str, ...],
    remove: tuple[str, ...],
    gpus: str | None,
    dp: int | None,
    reservation: str,
) -> None:
    """Grow or shrink a job: `heddle job resize llama --add n[016-031]`.

    The job changes in one step. New hosts get the last ranks. The number of replicas (dp) changes,
    the other degrees stay. `heddle job order` prints the best rank order.
    """
    job = client.api.resize_job(
        name,
        add=expanded(add),
        remove=expanded(remove),
        gpus=gpus_option(gpus),
        dp=dp or 0,
        reservation=reservation,
    )
    echo_jobs(client, [job])


@click.command("suspend")
@click.argument("names", nargs=-1, required=True, shell_complete=JOBS)
@waiting_options
@with_client
def suspend(client: Terms, names: tuple[str, ...], seconds: float | None, *, wait: bool) -> None:
    """Suspend jobs: their flows leave the plan, but they keep their hosts.

    `heddle job resume` resumes a job. To free its hosts, delete it.
    """
    jobs = in_turn(client, names, client.api.suspend_job, "suspended")
    if wait:
        jobs = _at_rest(client, jobs, seconds)
    echo_jobs(client, jobs)


def _at_rest(client: Terms, jobs: list[pb.Job], seconds: float | None) -> list[pb.Job]:
    """Return the jobs once no switch holds an entry of them."""
    try:
        found = client.api.wait_until(SUSPENDED, jobs, seconds)
        client.api.wait_until_settled(max(job.generation for job in found), seconds)
    except TimedOut as error:
        told = ", ".join(last_part(job.name) for job in jobs)
        raise Failure(f"{told}: suspended, but {error.message}") from error
    return found


@click.command("resume")
@click.argument("names", nargs=-1, required=True, shell_complete=JOBS)
@with_client
def resume(client: Terms, names: tuple[str, ...]) -> None:
    """Resume suspended jobs."""
    echo_jobs(client, in_turn(client, names, client.api.resume_job, "resumed"))
