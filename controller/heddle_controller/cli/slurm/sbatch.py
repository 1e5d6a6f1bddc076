"""``heddle slurm sbatch``: runs a batch job on the idle nodes that suit its traffic best.

It chooses only if the nodes are idle now and the user has left the choice to Slurm. In every other
case, or if no controller answers, it calls ``sbatch`` with exactly the given words, and a note says
why.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from heddle.shape import Shape, shape_text
from heddle.v1 import placement_pb2 as pb
from heddle_controller.cli.client import Terms
from heddle_controller.cli.failure import Failure
from heddle_controller.cli.options import with_server
from heddle_controller.cli.output import echo
from heddle_controller.cli.slurm.shape import read_shape
from heddle_controller.model.errors import InputError
from heddle_controller.model.host_lists import expand_list

MAX_SCRIPT_BYTES = 4 << 20
CHOSEN_BY_USER = {
    "nodelist": "--nodelist names its nodes",
    "nodefile": "--nodefile names its nodes",
    "array": "the tasks of an array start one by one",
    "constraint": "Slurm knows which nodes meet --constraint",
    "reservation": "Slurm knows which nodes --reservation has",
    "dependency": "it starts later, when other nodes may be idle",
    "begin": "it starts later, when other nodes may be idle",
}
"""Options of sbatch that prevent a choice of nodes here, and why."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """What a batch job asks for, as far as it matters for the choice."""

    shape: Shape
    nodes: int
    partition: str
    exclude: tuple[str, ...]


@click.command(
    "sbatch",
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["--help"],
    },
)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SBATCH_WORDS...")
@with_server
def sbatch(client: Terms, words: tuple[str, ...]) -> None:
    """Call sbatch with the idle nodes that are best for the job's traffic.

    \b
    heddle slurm sbatch --nodes 16 --comment 'heddle: gpus=8 tp=8 pp=4' train.sh

    All options are sbatch's own; #SBATCH lines in the script count too. The controller recommends
    nodes for the shape of the job, beside all running jobs, and they become --nodelist. If too few
    nodes are idle, if the nodes are given already, or if no controller answers, Slurm chooses as
    usual, and a note says why.
    """  # noqa: D301 - click's mark for lines that stay as they are
    if client.json:
        raise Failure("sbatch prints what it prints: leave --json out")
    try:
        with client.failing():
            chosen = _chosen(client, words)
    except (Failure, InputError) as error:
        text = error.message if isinstance(error, Failure) else str(error)
        echo(f"note: Slurm chooses the nodes: {text}", err=True)
        chosen = ()
    more = (f"--nodelist={','.join(chosen)}",) if chosen else ()
    try:
        os.execvp("sbatch", ("sbatch", *more, *words))  # noqa: S606, S607 - the user's own sbatch
    except OSError as error:
        raise Failure(f"sbatch: {error.strerror}; run this where Slurm's commands are") from None


def _chosen(client: Terms, words: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes for a job, and print a note that says why."""
    wanted = _wanted(words)
    idle = [node for node in _idle(wanted.partition) if node not in wanted.exclude]
    if len(idle) < wanted.nodes:
        raise Failure(f"it wants {wanted.nodes} nodes, and {len(idle)} are idle")
    spec = pb.JobSpec()
    spec.CopyFrom(wanted.shape.spec)
    spec.hosts.extend(idle)
    found = client.api.recommend_placement(spec, wanted.nodes, count=1).placements
    if not found or len(found[0].hosts) != wanted.nodes or not set(found[0].hosts) <= set(idle):
        raise Failure("the controller answered with other nodes")
    echo(f"note: {wanted.nodes} of {len(idle)} idle nodes: {found[0].reason}", err=True)
    return tuple(found[0].hosts)


def _wanted(words: Sequence[str]) -> BatchJob:
    """Return what script and command line ask for; the command line takes precedence.

    Raises Failure if the nodes cannot be chosen here.
    """
    if ":" in words:
        raise Failure("the components of a heterogeneous job are not chosen together")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for short, name in (
        ("-N", "nodes"), ("-p", "partition"), ("-x", "exclude"), ("-w", "nodelist"),
        ("-F", "nodefile"), ("-a", "array"), ("-C", "constraint"), ("-d", "dependency"),
        ("-b", "begin"), ("-D", "chdir"),
    ):  # fmt: skip
        parser.add_argument(short, f"--{name}")
    parser.add_argument("--comment", default="")
    parser.add_argument("--reservation")
    at = _script_at(words)
    own = words if at is None else words[:at]
    asked = [] if at is None else list(_in_script(Path(words[at])))
    try:
        found, _ = parser.parse_known_args([*asked, *own])
    except argparse.ArgumentError as error:
        raise Failure(str(error)) from None
    for name, why in CHOSEN_BY_USER.items():
        if getattr(found, name):
            raise Failure(why)
    text = shape_text(found.comment)
    if text is None:
        raise Failure("its --comment has no shape, such as 'heddle: gpus=8 tp=8'")
    if not (found.nodes and found.nodes.isascii() and found.nodes.isdecimal()):
        raise Failure("it does not say how many nodes: give --nodes a number")
    try:
        exclude = tuple(expand_list(found.exclude)) if found.exclude else ()
    except ValueError as error:
        raise Failure(f"--exclude: {error}") from None
    shape = read_shape(text, found.chdir or os.getcwd(), os.getuid())  # noqa: PTH109 - a text
    return BatchJob(shape, int(found.nodes), found.partition or "", exclude)


def _script_at(words: Sequence[str]) -> int | None:
    """Return the index of the script: the first word that is a file with ``#!``, as for sbatch."""
    for at, word in enumerate(words):
        if not word.startswith("-") and _begins(Path(word)) == b"#!":
            return at
    return None


def _begins(path: Path) -> bytes:
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(2)
    except (OSError, ValueError):
        return b""


def _in_script(path: Path) -> Iterator[str]:
    """Yield the words of ``#SBATCH`` lines before the first command, as sbatch reads them."""
    with path.open("rb") as file:
        lines = file.read(MAX_SCRIPT_BYTES).decode(errors="replace").splitlines()
    for line in lines:
        if line.startswith("#SBATCH"):
            try:
                yield from shlex.split(line.removeprefix("#SBATCH"), comments=True)
            except ValueError as error:
                raise Failure(f"{path}: {line[:80]!r}: {error}") from None
        elif line.strip() and not line.startswith("#"):
            return


def _idle(partition: str) -> list[str]:
    """Return the nodes that are idle now, in Slurm's order."""
    command = ["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N"]
    if partition:
        command.append(f"--partition={partition}")
    try:
        told = subprocess.run(  # noqa: S603 - Slurm's own command
            command, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise Failure(f"sinfo: {said.strip()[:200]}") from None
    return list(dict.fromkeys(told.stdout.split()))
