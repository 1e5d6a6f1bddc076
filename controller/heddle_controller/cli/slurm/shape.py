"""The shape of a job in words, short enough for ``sbatch --comment``.

    heddle: gpus=8 tp=8 pp=4 all_reduce=dp:2GiB send_recv=pp:64MiB class=latency

Words are parted by blanks or commas. ``gpus`` has to be there. Operations that are not named follow
from the parallelism, as in jobs.yaml. What the words mean for a fabric is the controller's to
check.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from difflib import get_close_matches

from heddle.text import integer, number
from heddle.v1 import common_pb2
from heddle.v1 import placement_pb2 as pb
from heddle_controller.cli.failure import Failure
from heddle_controller.model.sizes import size_of

MARK = re.compile(r"(?:^|[\s;,])heddle:([^;]*)")
MAX_FILE_BYTES = 64 << 10
NOMINAL_BYTES = 1 << 30
LARGEST = 1 << 32
DEGREES = ("tp", "pp", "dp", "cp", "ep")
KEYS = ("gpus", *DEGREES, "qps", "priority", "class", "order")


def _words(enum: object, prefix: str) -> dict[str, int]:
    """The words of a wire enum; that for "not said" is none of them."""
    named: dict[str, int] = dict(getattr(enum, "items")())  # noqa: B009 - of every wire enum
    return {name.removeprefix(prefix).lower(): value for name, value in named.items() if value}


OPERATIONS = _words(pb.CollectiveOperation, "COLLECTIVE_OPERATION_")
GROUPS = _words(pb.GroupKind, "GROUP_KIND_")
ALGORITHMS = _words(pb.CollectiveAlgorithm, "COLLECTIVE_ALGORITHM_")
CLASSES = _words(common_pb2.TrafficClass, "TRAFFIC_CLASS_")


@dataclass(frozen=True, slots=True)
class Shape:
    """What a job says of itself."""

    spec: pb.JobSpec
    """Without hosts."""
    keeps_order: bool
    """Whether its ranks go over the hosts in Slurm's order, and not in the order that is best."""


def shape_text(comment: str) -> str | None:
    """What stands behind ``heddle:`` in a comment, up to a semicolon; None without that word."""
    found = MARK.search(comment)
    return found[1].strip() if found else None


def parse_shape(text: str) -> Shape:
    """The shape that some words tell.

    Raises:
        Failure: naming the word and the cure.
    """
    spec = pb.JobSpec()
    keeps_order = False
    seen: set[str] = set()
    for word in text.replace(",", " ").split():
        key, equals, value = word.partition("=")
        key = key.lower().replace("-", "_")
        if not equals or not value:
            raise Failure(f"{word[:80]!r} is no word of a shape: write KEY=VALUE, such as gpus=8")
        if key in OPERATIONS:
            spec.collectives.append(_collective(word, key, value))
            continue
        if key not in KEYS:
            close = get_close_matches(key, (*KEYS, *OPERATIONS), n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(KEYS)}"
            raise Failure(f"{word[:80]!r}: unknown key; {hint}")
        if key in seen:
            raise Failure(f"{word[:80]!r}: {key} is there twice; keep one of them")
        seen.add(key)
        if key == "order":
            keeps_order = _choice(word, value, {"slurm": 1, "best": 0}) == 1
        else:
            _set(spec, word, key, value)
    if "gpus" not in seen:
        raise Failure("the shape has no gpus: write how many GPUs each host gives, as gpus=8")
    return Shape(spec, keeps_order)


def _set(spec: pb.JobSpec, word: str, key: str, value: str) -> None:
    if key == "class":
        spec.traffic_class = common_pb2.TrafficClass.ValueType(_choice(word, value, CLASSES))
    elif key == "priority":
        try:
            spec.priority = number(value)
        except ValueError as error:
            raise Failure(f"{word[:80]!r}: {error}") from None
        if spec.priority <= 0:
            raise Failure(f"{word[:80]!r}: give a number above 0")
    elif key in DEGREES:
        setattr(spec.parallelism, key, _whole(word, value))
    else:
        setattr(spec, {"gpus": "gpus_per_host"}.get(key, key), _whole(word, value))


def _whole(word: str, value: str) -> int:
    try:
        found = integer(value)
    except ValueError as error:
        raise Failure(f"{word[:80]!r}: {error}") from None
    if not 1 <= found < LARGEST:
        raise Failure(f"{word[:80]!r}: give an integer, 1 or more")
    return found


def _choice(word: str, value: str, choices: dict[str, int]) -> int:
    found = choices.get(value.lower().replace("-", "_"))
    if found is None:
        raise Failure(f"{word[:80]!r}: give one of {', '.join(choices)}")
    return found


def _collective(word: str, operation: str, value: str) -> pb.Collective:
    """Of ``dp:2GiB:tree:overlap``; all but the group may be left out."""
    group, *more = value.split(":")
    found = pb.Collective(
        operation=pb.CollectiveOperation.ValueType(OPERATIONS[operation]),
        group=pb.GroupKind.ValueType(_choice(word, group, GROUPS)),
        bytes=NOMINAL_BYTES,
    )
    for part in more:
        size = size_of(part)
        if part == "overlap":
            found.overlap = True
        elif part in ALGORITHMS:
            found.algorithm = pb.CollectiveAlgorithm.ValueType(ALGORITHMS[part])
        elif size is not None and 1 <= size < 1 << 62 and size == int(size):
            found.bytes = int(size)
        else:
            cure = f"bytes such as 64MiB, {', '.join(ALGORITHMS)}, or overlap"
            raise Failure(f"{word[:80]!r}: {part[:40]!r} is none of {cure}")
    return found


def read_shape(text: str, folder: str, user: int) -> Shape:
    """The shape of a comment's text: words, or ``@FILE`` with such words and ``#`` comments.

    Args:
        text: What stands behind ``heddle:``.
        folder: Where the file is looked for.
        user: Whose the file has to be: this program may read more than its user may.

    Raises:
        Failure: the file cannot be read, or the words are no shape.
    """
    if not text.startswith("@"):
        return parse_shape(text)
    path = os.path.join(folder, text[1:].strip())  # noqa: PTH118 - a text of somebody else's
    lines = _content(path, user).splitlines()
    return parse_shape(" ".join(line.partition("#")[0] for line in lines))


def _content(path: str, user: int) -> str:
    """A small plain file of a user's; nothing else is opened for longer than a look."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "its name has a zero byte"
        raise Failure(f"file {path[:200]!r}: {why}; it is read where slurmctld runs") from None
    with open(opened, "rb") as file:  # noqa: PTH123 - a descriptor
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != user:
            raise Failure(f"file {path[:200]!r} is no plain file of the user whose job it is")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise Failure(f"file {path[:200]!r} is larger than {MAX_FILE_BYTES >> 10} KiB: no shape is")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Failure(f"file {path[:200]!r} is not UTF-8 text: no shape is") from None
