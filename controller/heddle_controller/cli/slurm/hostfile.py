"""``heddle slurm hostfile``: writes the order in which srun should put ranks on hosts.

srun fails if SLURM_HOSTFILE does not name a file with hosts. So inside an allocation a file is
always written. If no order is known, it has Slurm's own, and a note on standard error says why.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from heddle.client import NotFound
from heddle.shape import Shape
from heddle.v1 import placement_pb2 as pb
from heddle_controller.cli.client import Terms
from heddle_controller.cli.failure import Failure
from heddle_controller.cli.options import POSITIVE, with_client
from heddle_controller.cli.output import echo, echo_json
from heddle_controller.cli.slurm.allocation import Allocation, allocation
from heddle_controller.cli.slurm.shape import allocated_gpus, read_shape, with_gpus
from heddle_controller.model.errors import InputError

ANSWER = 5.0
"""Seconds within which Slurm must say which GPUs a job has."""
_DIGITS = 6
"""Most digits of a node's number of GPUs."""


@click.command("hostfile")
@click.option(
    "--shape",
    metavar="WORDS",
    help="Shape of the job, as in its comment: 'gpus=8 tp=8 pp=4', or @FILE. Used if the "
    "controller does not know the job. [default: one all-reduce]",
)
@click.option(
    "--tasks-per-node",
    type=POSITIVE,
    help="Ranks on each host. [default: the tasks that the job's options ask for, or one]",
)
@click.option("--het-group", type=click.IntRange(min=0), help="Component of a heterogeneous job.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Folder in which each job gets its own folder. [default: heddle-slurm-UID in TMPDIR]",
)
@with_client
def hostfile(
    client: Terms,
    shape: str | None,
    tasks_per_node: int | None,
    het_group: int | None,
    folder: Path | None,
) -> None:
    """Write the hosts of this allocation in rank order, and print the file's name.

    \b
    export SLURM_HOSTFILE=$(heddle slurm hostfile)
    srun python train.py

    The file names each host once for each of its ranks. The order is that of the job that the
    prolog submitted. If the controller does not know the job, it recommends an order for --shape.
    If that fails too, the file has Slurm's own order, because srun needs a file, and a note says
    why.
    """  # noqa: D301 - click's mark for lines that stay as they are
    mine = allocation(os.environ, het_group)
    hosts = _ordered(client, mine, shape)
    tasks = dict(zip(mine.hosts, mine.tasks or [1] * len(mine.hosts), strict=True))
    lines = [host for host in hosts for _ in range(tasks_per_node or tasks[host])]
    name = f"hostfile-{tasks_per_node}" if tasks_per_node else "hostfile"
    path = _write(_folder(folder, mine), name, lines)
    if client.json:
        echo_json({"file": str(path), "hosts": list(hosts)})
    else:
        echo(str(path))


def _ordered(client: Terms, mine: Allocation, shape: str | None) -> Sequence[str]:
    """Return the hosts in rank order, or in Slurm's order if that cannot be found out."""
    try:
        with client.failing():
            told = _shape(shape) if shape else Shape(pb.JobSpec())
            told.spec.hosts.extend(mine.hosts)
            return _asked(client, mine, told)
    except (Failure, InputError) as error:
        text = error.message if isinstance(error, Failure) else str(error)
        echo(f"note: no rank order, Slurm's own is kept: {text}", err=True)
        return mine.hosts


def _shape(text: str) -> Shape:
    return read_shape(text, os.getcwd(), os.getuid(), gpus_told=True)  # noqa: PTH109 - a text


def _asked(client: Terms, mine: Allocation, shape: Shape) -> Sequence[str]:
    """Return the controller's rank order for the job, or for the shape."""
    spec, replaces = shape.spec, mine.name
    try:
        known = client.api.get_job(mine.name).spec.hosts
        if sorted(known) == sorted(mine.hosts):
            return known
    except NotFound:
        replaces = ""
    if shape.order == "slurm":
        return mine.hosts
    gpus = allocated_gpus(mine.number, mine.hosts, ANSWER)
    if not gpus and not spec.gpus_per_host:
        spec.gpus_per_host = _gpus_on_node()
    with_gpus(spec, gpus, mine.hosts)
    found = client.api.order_ranks(spec, replaces=replaces).hosts
    if sorted(found) != sorted(mine.hosts):
        raise Failure("the controller answered with other hosts")
    return found


def _gpus_on_node() -> int:
    """Return the number of GPUs that Slurm gives for this node; at least one."""
    gpus = os.environ.get("SLURM_GPUS_ON_NODE", "")
    if not (gpus.isascii() and gpus.isdecimal()):
        return 1
    if len(gpus) > _DIGITS:
        raise Failure(f"SLURM_GPUS_ON_NODE is {gpus[:20]}, which no node has")
    return max(int(gpus), 1)


def _folder(root: Path | None, mine: Allocation) -> Path:
    """Return a folder for this start of the job that nobody else can write to."""
    user = os.getuid()
    root = (root or Path(tempfile.gettempdir()) / f"heddle-slurm-{user}").absolute()
    path = root / mine.attempt
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for one in (root, path):
            found = one.lstat()
            if found.st_uid != user or found.st_mode & 0o022:
                raise Failure(f"folder {one} may be written by others: give another with --folder")
    except OSError as error:
        cure = f"folder {path}: {error.strerror}; give another with --folder"
        raise Failure(cure) from None
    return path


def _write(folder: Path, name: str, lines: Sequence[str]) -> Path:
    path = folder / name
    fresh = folder / f".{name}.{os.getpid()}"
    try:
        fresh.write_text("".join(f"{line}\n" for line in lines))
        fresh.replace(path)
    except OSError as error:
        raise Failure(f"file {path}: {error.strerror}; give another folder with --folder") from None
    return path
