"""``heddle job replace``, ``resize``, ``suspend``, ``resume``: what becomes of a job that runs."""

from __future__ import annotations

import click

from heddle.client import SUSPENDED, TimedOut
from heddle.v1 import placement_pb2 as pb
from heddle_controller.cli.client import Terms
from heddle_controller.cli.failure import Failure
from heddle_controller.cli.jobs_table import echo_jobs
from heddle_controller.cli.options import last_part, waiting_options, with_client
from heddle_controller.cli.place import expanded, gpus_option

_RESERVATION = click.option(
    "--reservation", default="", metavar="NAME", help="Use the hosts of this reservation."
)


@click.command("replace")
@click.argument("name")
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
        gone, come = expanded((old,)), expanded((new,))
        if not (old and equals and new) or len(gone) != len(come):
            raise Failure(f"{pair!r}: write OLD=NEW, with as many hosts on either side")
        if twice := [host for host in gone if host in wanted]:
            raise Failure(f"{pair!r}: {twice[0]!r} is replaced twice: name each host once")
        wanted |= dict(zip(gone, come, strict=True))
    echo_jobs(client, [client.api.replace_hosts(name, wanted, reservation=reservation)])


@click.command("resize")
@click.argument("name")
@click.option("--add", multiple=True, metavar="HOSTS", help="Hosts to add; may be repeated.")
@click.option("--remove", multiple=True, metavar="HOSTS", help="Hosts to remove; may be repeated.")
@click.option(
    "--gpus",
    metavar="GPUS",
    help="GPUs of each added host, such as 0-3, for a job that uses parts of hosts. "
    "Default: the same GPUs as on its other hosts.",
)
@click.option(
    "--dp",
    type=click.IntRange(min=1),
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
@click.argument("names", nargs=-1, required=True)
@waiting_options
@with_client
def suspend(client: Terms, names: tuple[str, ...], seconds: float | None, *, wait: bool) -> None:
    """Suspend jobs: their flows leave the plan, but they keep their hosts.

    `heddle job resume` resumes a job. To free its hosts, delete it.
    """
    jobs = [client.api.suspend_job(name) for name in names]
    if wait:
        jobs = _at_rest(client, jobs, seconds)
    echo_jobs(client, jobs)


def _at_rest(client: Terms, jobs: list[pb.Job], seconds: float | None) -> list[pb.Job]:
    """The jobs, once no switch holds an entry of them."""
    try:
        found = client.api.wait_until(SUSPENDED, jobs, seconds)
        client.api.wait_until_settled(max(job.generation for job in found), seconds)
    except TimedOut as error:
        told = ", ".join(last_part(job.name) for job in jobs)
        raise Failure(f"{told}: suspended, but {error.message}") from error
    return found


@click.command("resume")
@click.argument("names", nargs=-1, required=True)
@with_client
def resume(client: Terms, names: tuple[str, ...]) -> None:
    """Resume suspended jobs."""
    echo_jobs(client, [client.api.resume_job(name) for name in names])
