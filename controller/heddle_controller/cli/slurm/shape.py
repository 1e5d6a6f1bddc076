"""The shape of a Slurm job: the words of its comment, or of a file that the comment names.

Also finds out which GPUs of its nodes a job has, from ``scontrol -d show job``. Slurm knows the
numbers of GPUs if gres.conf names their files. A job that asked for no GPUs, or whose GPUs have no
numbers, is assumed to have whole nodes.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
from collections.abc import Sequence

from heddle.gpus import parse_gpus
from heddle.shape import Shape, ShapeError, parse_shape
from heddle.v1 import placement_pb2 as pb
from heddle_controller.cli.failure import Failure
from heddle_controller.model.host_lists import expand_list

MAX_FILE_BYTES = 64 << 10


def shape_of(words: str, *, gpus_told: bool = False) -> Shape:
    """Return the shape that some words describe; see ``parse_shape``.

    Raises:
        Failure: A word is wrong; the message names it and the cure.
    """
    try:
        return parse_shape(words, gpus_told=gpus_told)
    except ShapeError as error:
        raise Failure(str(error)) from None


def read_shape(text: str, folder: str, user: int, *, gpus_told: bool = False) -> Shape:
    """Return the shape of a comment: words, or ``@FILE`` with such words and ``#`` comments.

    Args:
        text: The text after ``heddle:``.
        folder: Folder that a relative path of the file starts from.
        user: Id of the user who must own the file, because this program may read more than the
            user may.
        gpus_told: As for ``parse_shape``.

    Raises:
        Failure: The file cannot be read, or the words describe no shape.
    """
    if not text.startswith("@"):
        return shape_of(text, gpus_told=gpus_told)
    path = os.path.join(folder, text[1:].strip())  # noqa: PTH118 - a text of somebody else's
    lines = _content(path, user).splitlines()
    words = " ".join(line.partition("#")[0] for line in lines)
    return shape_of(words, gpus_told=gpus_told)


def _content(path: str, user: int) -> str:
    """Return the text of a small regular file of the user; Failure for any other file."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "its name has a zero byte"
        raise Failure(f"file {path[:200]!r}: {why} on {socket.gethostname()}") from None
    try:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != user:
            raise Failure(f"file {path[:200]!r} is no plain file of the user whose job it is")
        content = os.read(opened, MAX_FILE_BYTES + 1)
    finally:
        os.close(opened)
    if len(content) > MAX_FILE_BYTES:
        raise Failure(f"file {path[:200]!r} is larger than {MAX_FILE_BYTES >> 10} KiB: no shape is")
    try:
        return content.decode("utf-8-sig")  # editors of Windows put a mark at the start
    except UnicodeDecodeError:
        raise Failure(f"file {path[:200]!r} is not UTF-8 text: no shape is") from None


_NODES = re.compile(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_INDICES = re.compile(r"(?:^|[,)])gpu(?::[^:,()]+)?:[0-9]+\(IDX:([0-9,-]+)\)")


def allocated_gpus(job: str, hosts: Sequence[str], seconds: float) -> list[pb.HostGpus]:
    """Return the GPUs that a job has of each host; empty unless Slurm numbers all of them.

    Args:
        job: Id of the job.
        hosts: Nodes of the job.
        seconds: Time limit for Slurm's answer.

    Raises:
        Failure: Slurm does not answer in time: the job may have any GPUs.
    """
    command = ["scontrol", "--details", "--oneliner", "show", "job", job]
    try:
        told = subprocess.run(  # noqa: S603 - Slurm's own command
            command, capture_output=True, text=True, check=True, timeout=seconds
        ).stdout
    except subprocess.TimeoutExpired:
        raise Failure(f"scontrol did not say in {seconds:.1f} s which GPUs the job has") from None
    except (OSError, subprocess.SubprocessError):
        return []
    found = told_gpus(job, told)
    if not all(host in found for host in hosts):
        return []
    return [pb.HostGpus(gpus=found[host]) for host in hosts]


def told_gpus(job: str, told: str) -> dict[str, tuple[int, ...]]:
    """Return the GPUs of each node from scontrol's output, which has a line per component."""
    found: dict[str, tuple[int, ...]] = {}
    for line in told.splitlines():
        if not line.startswith(f"JobId={job} "):
            continue
        for nodes, gres in _NODES.findall(line):
            indices = ",".join(_INDICES.findall(gres))
            if indices:
                try:
                    found |= dict.fromkeys(expand_list(nodes), parse_gpus(indices))
                except ValueError:
                    return {}
    return found


def with_gpus(spec: pb.JobSpec, gpus: Sequence[pb.HostGpus], hosts: Sequence[str]) -> None:
    """Enter into a specification which GPUs its hosts give, if Slurm tells.

    If a job has more GPUs of a host than the shape says, such as a job with whole nodes, the first
    ones are used.

    Raises:
        Failure: The shape asks for more GPUs than there are, or nobody says how many.
    """
    if not gpus and not spec.gpus_per_host:
        raise Failure(
            "the shape has no gpus, and Slurm gives the job none that it numbers: write how many "
            "GPUs each host gives, as gpus=8"
        )
    if not gpus or spec.gpus:
        return
    told = spec.gpus_per_host
    for host, part in zip(hosts, gpus, strict=True):
        if len(part.gpus) < told:
            raise Failure(
                f"the shape says gpus={told}, and Slurm gives the job {len(part.gpus)} of {host}: "
                "leave gpus out, or ask for as many by --gpus-per-node"
            )
    parts = [pb.HostGpus(gpus=part.gpus[: told or None]) for part in gpus]
    one = len({tuple(part.gpus) for part in parts}) == 1
    spec.gpus.extend(parts[:1] if one else parts)
