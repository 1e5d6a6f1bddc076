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
from typing import Never

import click

from heddle.client import InvalidRequest
from heddle.shape import Shape, shape_text
from heddle.v1 import placement_pb2 as pb
from heddle.v1.fabric_pb2 import GetFabricRequest
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
    "hold": "it starts later, when other nodes may be idle",
    "clusters": "--clusters names another cluster",
}
"""Options of sbatch that prevent a choice of nodes here, and why."""
TOGETHER = "the components of a heterogeneous job are not chosen together"
CHOSEN_BY_HEDDLE = "; nodes by heddle"
"""Mark after the shape in a job's comment: deploy/slurm/epilog frees a job of its nodes by it."""
VARIABLES = {
    "partition": ("SBATCH_PARTITION",),
    "array": ("SBATCH_ARRAY_INX",),
    "constraint": ("SBATCH_CONSTRAINT",),
    "reservation": ("SBATCH_RESERVATION",),
    "clusters": ("SBATCH_CLUSTERS", "SLURM_CLUSTERS"),
}
"""Variables that sbatch reads: they come before the script's options, and after the command's."""

READY = ("idle", "idle~", "idle#")
"""States of idle nodes in sinfo: running, powered down until a job needs it, and powering up."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """What a batch job asks for, as far as it matters for the choice."""

    shape: Shape
    nodes: int
    partition: str
    """Name of its partition; empty for Slurm's default."""
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
    nodes for the shape of the job, beside all running jobs, and they become --nodelist until the
    job starts again. A mark at the end of its comment says so to the epilog. If too few nodes are
    idle, if the nodes are given already, if the job may not run on them, or if no
    controller answers, Slurm chooses as usual, and a note says why.
    """  # noqa: D301 - click's mark for lines that stay as they are
    if client.json:
        raise Failure("sbatch prints what it prints: leave --json out")
    try:
        with client.failing():
            chosen = _chosen(client, words)
    except (Failure, InputError) as error:
        text = error.message if isinstance(error, Failure) else str(error)
        echo(f"note: Slurm chooses the nodes: {text}", err=True)
    else:
        words = _pinned(words, chosen)
    try:
        os.execvp("sbatch", ("sbatch", *words))  # noqa: S606, S607 - the user's own sbatch
    except OSError as error:
        raise Failure(f"sbatch: {error.strerror}; run this where Slurm's commands are") from None


def _chosen(client: Terms, words: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes for a job, and print a note that says why."""
    wanted = _wanted(words)
    idle = [node for node in _idle(wanted.partition) if node not in wanted.exclude]
    try:
        best = _best(client, wanted, idle)
    except InvalidRequest as error:
        if not any(one.field.startswith("spec.hosts") for one in error.violations):
            raise
        fabric = client.api.fabrics.GetFabric(GetFabricRequest(name=client.fabric))
        hosts = {node.host for node in fabric.nodes}
        idle = [node for node in idle if node in hosts]
        best = _best(client, wanted, idle)
    _check_allowed(best.hosts, words)
    echo(f"note: {wanted.nodes} of {len(idle)} idle nodes: {best.reason}", err=True)
    return tuple(best.hosts)


def _best(client: Terms, wanted: BatchJob, idle: Sequence[str]) -> pb.Placement:
    """Return the controller's choice among idle nodes; Failure if there are too few."""
    if len(idle) < wanted.nodes:
        raise Failure(f"it wants {wanted.nodes} nodes, and {len(idle)} are idle")
    spec = pb.JobSpec()
    spec.CopyFrom(wanted.shape.spec)
    spec.hosts.extend(idle)
    found = client.api.recommend_placement(spec, wanted.nodes, count=1).placements
    if not found or len(found[0].hosts) != wanted.nodes or not set(found[0].hosts) <= set(idle):
        raise Failure("the controller answered with other nodes")
    return found[0]


def _pinned(words: Sequence[str], nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the words of sbatch with the nodes and the mark, which replace the user's own."""
    at = _script_at(words)
    at = len(words) if at is None else at
    at -= "--" in words[:at]
    comment = _options(words).comment + CHOSEN_BY_HEDDLE
    return (*words[:at], f"--nodelist={','.join(nodes)}", f"--comment={comment}", *words[at:])


def _check_allowed(nodes: Sequence[str], words: Sequence[str]) -> None:
    """Ask Slurm whether the job may run on these nodes; Failure if not, with Slurm's reason.

    Only Slurm knows which nodes have the memory, the GPUs or the features that the job asks for.
    """
    told = _told(["sbatch", "--test-only", *_pinned(words, nodes)])
    if told.returncode:
        said = (told.stderr.strip().splitlines() or ["no reason told"])[-1]
        raise Failure(f"on the best nodes the job may not run: {said[:200]}")


def _told(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Return what a command of Slurm's says."""
    try:
        return subprocess.run(  # noqa: S603 - Slurm's own command
            command, capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Failure(f"{command[0]}: {str(error)[:200]}") from None


def _wanted(words: Sequence[str]) -> BatchJob:
    """Return what the job asks for.

    Raises Failure if the nodes cannot be chosen here.
    """
    found = _options(words)
    for name, why in CHOSEN_BY_USER.items():
        if getattr(found, name):
            raise Failure(why)
    partition = found.partition or ""
    if "," in partition:
        raise Failure("it may start in any of several partitions")
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
    return BatchJob(shape, int(found.nodes), partition, exclude)


class _Parser(argparse.ArgumentParser):
    """Reads options as sbatch does: their names may be shortened."""

    def error(self, message: str) -> Never:
        """Raise Failure: argparse would end the program."""
        raise Failure(message)


def _options(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of the script, of sbatch's variables and of the command line.

    The last of these that gives an option takes precedence.
    """
    at = _script_at(words)
    own = words if at is None else words[:at]
    if ":" in own:
        raise Failure(TOGETHER)
    parser = _Parser(add_help=False)
    for short, name in (
        ("-N", "nodes"), ("-p", "partition"), ("-x", "exclude"), ("-w", "nodelist"),
        ("-F", "nodefile"), ("-a", "array"), ("-C", "constraint"), ("-d", "dependency"),
        ("-b", "begin"), ("-D", "chdir"), ("-M", "clusters"),
    ):  # fmt: skip
        parser.add_argument(short, f"--{name}")
    parser.add_argument("--comment", default="")
    parser.add_argument("-H", "--hold", action="store_true")
    parser.add_argument("--reservation")
    parser.add_argument("--wrap")
    # Letters without a value, because others may follow them in one word.
    parser.add_argument("-O", "-Q", "-s", "-v", "-W", dest="letters", action="store_true")
    asked = [] if at is None else list(_in_script(Path(words[at])))
    given = [
        f"--{name}={os.environ[variable]}"
        for name, variables in VARIABLES.items()
        for variable in variables
        if os.environ.get(variable)
    ]
    found, _ = parser.parse_known_args([*asked, *given, *own])
    if at is None and found.wrap is None:
        raise Failure(
            "none of its words is a script that can be read: give a file that begins with '#!'"
        )
    return found


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
    """Yield the words of ``#SBATCH`` lines before the first command, as sbatch reads them.

    Raises Failure if they describe a heterogeneous job.
    """
    with path.open("rb") as file:
        lines = file.read(MAX_SCRIPT_BYTES).decode(errors="replace").splitlines()
    for line in lines:
        if line.startswith("#SBATCH"):
            try:
                words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            except ValueError as error:
                raise Failure(f"{path}: {line[:80]!r}: {error}") from None
            if words in (["hetjob"], ["packjob"]):
                raise Failure(TOGETHER)
            yield from words
        elif line.strip() and not line.lstrip().startswith("#"):
            return


def _idle(partition: str) -> list[str]:
    """Return the nodes of a partition on which Slurm may start a job now, in Slurm's order.

    Without a name it is Slurm's default partition, which sinfo marks by a ``*``. ``--states=idle``
    would include drained and reserved nodes, and nodes that Slurm has planned for another job.
    """
    command = ["sinfo", "--noheader", "--Node", "--format=%N %P %T"]
    if partition:
        command.append(f"--partition={partition}")
    told = _told(command)
    if told.returncode:
        raise Failure(f"sinfo: {told.stderr.strip()[:200]}")
    rows = [line.split() for line in told.stdout.splitlines()]
    return [node for node, of, state in rows if state in READY and (partition or of.endswith("*"))]
