"""The shape of a job in words, short enough for ``sbatch --comment`` or an annotation.

    heddle: gpus=8 tp=8 pp=4 all_reduce=dp:2GiB send_recv=pp:64MiB class=latency

Users of schedulers write it. Blanks or commas separate the words. ``gpus`` is required: it says how
many GPUs each host gives, or which ones (``gpus=0-3,6``) where jobs share hosts. If no operation is
named, the parallelism implies them, as in jobs.yaml. The controller checks whether the job fits the
fabric.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from heddle.gpus import parse_gpus
from heddle.sizes import size_of
from heddle.text import integer, meant, number
from heddle.v1 import common_pb2
from heddle.v1 import placement_pb2 as pb

MARK = re.compile(r"(?:^|[\s;,])heddle:([^;]*)", re.IGNORECASE)
BETWEEN = re.compile(r"\s+|,(?![0-9])")
"""What separates words. A comma before a digit separates the numbers of a list."""
NOMINAL_BYTES = 1 << 30
LARGEST = 1 << 32
DEGREES = ("tp", "pp", "dp", "cp", "ep")
NUMBERS = {
    "priority": "priority",
    "flops": "flops_per_iteration",
    "compute_seconds": "compute_seconds",
    "network_seconds": "network_seconds",
}
KEYS = ("gpus", *DEGREES, "qps", *NUMBERS, "class", "order")


def _words(enum: object, prefix: str) -> dict[str, int]:
    """Return the words of a wire enum with their numbers, without the "unspecified" value."""
    named: dict[str, int] = dict(getattr(enum, "items")())  # noqa: B009 - of every wire enum
    return {name.removeprefix(prefix).lower(): value for name, value in named.items() if value}


OPERATIONS = _words(pb.CollectiveOperation, "COLLECTIVE_OPERATION_")
GROUPS = _words(pb.GroupKind, "GROUP_KIND_")
ALGORITHMS = _words(pb.CollectiveAlgorithm, "COLLECTIVE_ALGORITHM_")
CLASSES = _words(common_pb2.TrafficClass, "TRAFFIC_CLASS_")


class ShapeError(ValueError):
    """The words do not describe a shape. The message names the word and the cure."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a job says about itself."""

    spec: pb.JobSpec
    """The job's specification, without hosts."""
    order: str = ""
    """The order of hosts for its ranks: ``slurm``, ``best``, or empty if the shape does not say."""


def shape_text(comment: str) -> str | None:
    """Return the text after ``heddle:`` in a comment, up to a semicolon; None without that mark.

    The case of the mark does not matter.
    """
    found = MARK.search(comment)
    return found[1].strip() if found else None


def parse_shape(text: str, *, gpus_told: bool = False) -> Shape:
    """Return the shape that the words describe.

    Args:
        text: The words.
        gpus_told: Whether the GPUs are known from elsewhere, so that ``gpus`` may be left out.

    Raises:
        ShapeError: A word is wrong; the message names the word and the cure.
    """
    spec = pb.JobSpec()
    order = ""
    seen: set[str] = set()
    for word in filter(None, BETWEEN.split(text)):
        key, equals, value = word.partition("=")
        key = key.lower().replace("-", "_")
        if not equals or not value:
            raise ShapeError(
                f"{word[:80]!r} is no word of a shape: write KEY=VALUE, such as gpus=8"
            )
        if key in OPERATIONS:
            spec.collectives.append(_collective(word, key, value))
            continue
        if key not in KEYS:
            hint = meant(key, KEYS, (*KEYS, *OPERATIONS))
            raise ShapeError(f"{word[:80]!r}: unknown key; {hint}")
        if key in seen:
            raise ShapeError(f"{word[:80]!r}: {key} is there twice; keep one of them")
        seen.add(key)
        if key == "order":
            _choice(word, value, {"slurm": 1, "best": 0})
            order = value.lower()
        else:
            _set(spec, word, key, value)
    if "gpus" not in seen and not gpus_told:
        raise ShapeError("the shape has no gpus: write how many GPUs each host gives, as gpus=8")
    return Shape(spec, order)


def _set(spec: pb.JobSpec, word: str, key: str, value: str) -> None:
    if key == "class":
        spec.traffic_class = common_pb2.TrafficClass.ValueType(_choice(word, value, CLASSES))
    elif key in NUMBERS:
        try:
            told = number(value)
        except ValueError as error:
            raise ShapeError(f"{word[:80]!r}: {error}") from None
        if told <= 0:
            raise ShapeError(f"{word[:80]!r}: give a number above 0")
        setattr(spec, NUMBERS[key], told)
    elif key == "gpus" and ("-" in value or "," in value):
        try:
            part = parse_gpus(value)
        except ValueError as error:
            raise ShapeError(f"{word[:80]!r}: {error}") from None
        spec.gpus.add(gpus=part)
        spec.gpus_per_host = len(part)
    elif key in DEGREES:
        setattr(spec.parallelism, key, _whole(word, value))
    else:
        setattr(spec, {"gpus": "gpus_per_host"}.get(key, key), _whole(word, value))


def _whole(word: str, value: str) -> int:
    try:
        found = integer(value)
    except ValueError as error:
        raise ShapeError(f"{word[:80]!r}: {error}") from None
    if not 1 <= found < LARGEST:
        raise ShapeError(f"{word[:80]!r}: give an integer from 1 to {LARGEST - 1}")
    return found


def _choice(word: str, value: str, choices: dict[str, int]) -> int:
    found = choices.get(value.lower().replace("-", "_"))
    if found is None:
        raise ShapeError(f"{word[:80]!r}: give one of {', '.join(choices)}")
    return found


def _collective(word: str, operation: str, value: str) -> pb.Collective:
    """Return the collective of a value such as ``dp:2GiB:tree:overlap``; only a group is needed."""
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
            raise ShapeError(f"{word[:80]!r}: {part[:40]!r} is none of {cure}")
    return found
