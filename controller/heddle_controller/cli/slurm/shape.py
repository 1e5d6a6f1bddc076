"""The shape of a Slurm job: the words of its comment, or a file that the comment names."""

from __future__ import annotations

import os
import stat

from heddle.shape import Shape, ShapeError, parse_shape
from heddle_controller.cli.failure import Failure

MAX_FILE_BYTES = 64 << 10


def shape_of(words: str, *, gpus_told: bool = False) -> Shape:
    """The shape that some words tell; see ``parse_shape``.

    Raises:
        Failure: naming the word and the cure.
    """
    try:
        return parse_shape(words, gpus_told=gpus_told)
    except ShapeError as error:
        raise Failure(str(error)) from None


def read_shape(text: str, folder: str, user: int, *, gpus_told: bool = False) -> Shape:
    """The shape of a comment's text: words, or ``@FILE`` with such words and ``#`` comments.

    Args:
        text: What stands behind ``heddle:``.
        folder: Where the file is looked for.
        user: Whose the file has to be: this program may read more than its user may.
        gpus_told: As ``parse_shape`` has it.

    Raises:
        Failure: the file cannot be read, or the words are no shape.
    """
    if not text.startswith("@"):
        return shape_of(text, gpus_told=gpus_told)
    path = os.path.join(folder, text[1:].strip())  # noqa: PTH118 - a text of somebody else's
    lines = _content(path, user).splitlines()
    words = " ".join(line.partition("#")[0] for line in lines)
    return shape_of(words, gpus_told=gpus_told)


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
