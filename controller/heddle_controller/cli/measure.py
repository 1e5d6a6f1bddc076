"""``heddle job measure``: compares what NCCL Inspector measured with what a job declares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from heddle_controller.cli.client import Terms
from heddle_controller.cli.completing import JOBS
from heddle_controller.cli.failure import Failure
from heddle_controller.cli.options import with_client
from heddle_controller.cli.output import echo, echo_json, echo_table
from heddle_controller.model.job import Group
from heddle_controller.serve.codec import job as codec
from heddle_controller.traffic.inspector import load_measured
from heddle_controller.traffic.measured import (
    LEFT_OUT,
    MeasuredCollective,
    compare_measured,
    corrected,
)


@click.command("measure")
@click.argument("name", shell_complete=JOBS)
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
@click.option(
    "--iterations",
    type=click.IntRange(min=1),
    help="Number of recorded iterations. The bytes of a collective are then the sum over "
    "one iteration. Default: the mean of its calls.",
)
@click.option(
    "--communicator",
    "communicators",
    multiple=True,
    metavar="NAME=KIND",
    help="Kind of a communicator, given by name or id: tp, pp, dp, cp, ep, world, or "
    "none to ignore it. May be repeated. Others are recognised by their ranks and "
    "hosts.",
)
@click.option("--apply", "apply", is_flag=True, help="Update the job with the measured bytes.")
@with_client
def measure(
    client: Terms,
    name: str,
    files: tuple[Path, ...],
    iterations: int | None,
    communicators: tuple[str, ...],
    *,
    apply: bool,
) -> None:
    """Compare a job's collectives with the measurements of NCCL Inspector.

    FILE is the output of NCCL Inspector: JSON lines or Prometheus text, plain or gzip, or a folder
    of such files. --apply updates the job with the measured bytes, in one step. Nothing changes
    without --apply, or if a file cannot be read or belongs to another job.
    """
    found = client.api.get_job(name)
    job = codec.job_from_pb(name, found.spec)
    rows = compare_measured(job, load_measured(files), _kinds(communicators), iterations or 0)
    if apply:
        after = codec.job_to_pb(replace(job, collectives=corrected(rows))).collectives
        client.api.correct_job(name, list(found.spec.collectives), list(after))
    if client.json:
        echo_json([_plain(row) for row in rows])
        return
    columns = ["operation", "group", "calls", "told bytes", "measured bytes", "difference", "bus"]
    echo_table(columns, [_cells(row) for row in rows])
    if not job.collectives:
        echo(f"{name} tells no collectives: these are implied, and their bytes nominal", err=True)
    changes = sum(row.bytes not in (None, row.told.bytes) for row in rows)
    done = f"{name} has them from now on" if apply else "nothing was changed: --apply does"
    echo(f"{changes} of {len(rows)} differ; {done}", err=True)


def _kinds(communicators: tuple[str, ...]) -> dict[str, str]:
    """Return the kind of each communicator that the options name."""
    kinds = {}
    known = [*(group.value for group in Group), LEFT_OUT]
    for text in communicators:
        name, equals, kind = text.rpartition("=")
        if not (name and equals and kind in known):
            raise Failure(f"--communicator {text!r}: write NAME=KIND, of {', '.join(known)}")
        kinds[name] = kind
    return kinds


def _cells(row: MeasuredCollective) -> tuple[object, ...]:
    told = row.told
    if row.bytes is None:
        return told.operation, told.group, "-", told.bytes, "not measured", "-", "-"
    difference = f"{row.bytes / told.bytes - 1:+.1%}"
    bus = f"{row.bus_gbps:.1f} Gbit/s"
    return told.operation, told.group, row.calls or "-", told.bytes, row.bytes, difference, bus


def _plain(row: MeasuredCollective) -> dict[str, object]:
    return {
        "operation": row.told.operation.value,
        "group": row.told.group.value,
        "calls": row.calls,
        "told_bytes": row.told.bytes,
        "measured_bytes": row.bytes,
        "bus_gbps": row.bus_gbps,
    }
