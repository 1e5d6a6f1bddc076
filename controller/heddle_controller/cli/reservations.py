"""``heddle job reserve``, ``reservations`` and ``release``: keep hosts for a job."""

from __future__ import annotations

from collections.abc import Sequence

import click

from heddle.gpus import gpu_ranges, parse_gpus
from heddle.v1 import placement_pb2 as pb
from heddle_controller.cli.client import Terms
from heddle_controller.cli.completing import RESERVATIONS
from heddle_controller.cli.failure import Failure
from heddle_controller.cli.options import POSITIVE, last_part, with_client
from heddle_controller.cli.output import echo, echo_json, echo_table
from heddle_controller.cli.watching import of_jobs, watchable
from heddle_controller.model.host_lists import expand_list
from heddle_controller.serve.codec import times

SECONDS = 300
"""How long a reservation lasts unless told otherwise."""


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


@click.command("reserve")
@click.argument("name")
@click.argument("hosts", nargs=-1, required=True)
@click.option(
    "--seconds",
    type=POSITIVE,
    default=SECONDS,
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
