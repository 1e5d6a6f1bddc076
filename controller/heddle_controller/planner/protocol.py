"""Questions and answers of the pipe, and how each is packed at one end and unpacked at the other.

A question names a method of ``PlanningCore``, which ``answered`` calls in the planning process.
Plans, intents and entries are packed by the mirrors, everything else as it is.

The messages go over one socket between two processes of one machine. Each is pickled by protocol 5.
Large arrays in it are written once into a nameless file in memory, which is sealed and sent along.
The receiver maps the file read-only, so that nothing is copied again. Long columns of names travel
as one text, because pickle handles each name by itself and would hold up the event loop. Both ends
are the same program, and nobody else holds the socket, so nothing from outside is ever unpickled.
"""

from __future__ import annotations

import fcntl
import io
import mmap
import os
import pickle
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from heddle_controller.model.demand import Demands
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Plan
from heddle_controller.model.program import Entries
from heddle_controller.planner.mirror import FabricMirror
from heddle_controller.planner.planning import Planned
from heddle_controller.planner.port import PlanAnswer, PlanningFailed, WhatIf
from heddle_controller.state.records import Intent


class Question(NamedTuple):
    """A call of a method of the core: its name, the fabric, and its packed arguments by name."""

    method: str
    fabric: str
    given: dict[str, Any]


class Failed(NamedTuple):
    """An answer that says why the question has none."""

    reason: str


class Mirrored(NamedTuple):
    """A value of which only what the other end lacks is sent, or a value that contains such."""

    kind: type[Any]
    packed: Any


def mirrored(mirror: FabricMirror, value: object) -> Any:  # noqa: ANN401 - packed
    """Return a value packed by the mirror; both ends must handle values in the same order."""
    match value:
        case Plan():
            return Mirrored(Plan, mirror.pack_plan(value))
        case Intent():
            return Mirrored(Intent, mirror.pack_intent(value))
        case Entries():
            return Mirrored(Entries, mirror.pack_entries(value))
        case PlanAnswer() | Planned() | WhatIf():
            parts = [mirrored(mirror, getattr(value, one.name)) for one in fields(value)]
            return Mirrored(type(value), parts)
    return value


def restored(mirror: FabricMirror, value: Any) -> Any:  # noqa: ANN401 - of any kind
    """Return a value that was packed by ``mirrored``."""
    if not isinstance(value, Mirrored):
        return value
    if value.kind is Plan:
        return mirror.unpack_plan(value.packed)
    if value.kind is Intent:
        return mirror.unpack_intent(value.packed)
    if value.kind is Entries:
        return mirror.unpack_entries(value.packed)
    return value.kind(*[restored(mirror, one) for one in value.packed])


def ask(mirror: FabricMirror, method: str, fabric: str, given: Mapping[str, object]) -> Question:
    """Return a question to send."""
    return Question(method, fabric, {name: mirrored(mirror, one) for name, one in given.items()})


def answered(core: object, mirror: FabricMirror, question: Question) -> Any:  # noqa: ANN401 - packed
    """Call the method that a question names and return its packed answer.

    Raises:
        PlanningFailed: the method failed. The mirrors of both ends still agree.
        Exception: anything else. The mirrors may no longer agree, so the process must end.
    """
    given = {name: restored(mirror, one) for name, one in question.given.items()}
    try:
        found = getattr(core, question.method)(**given)
    except MemoryError:
        raise  # a process that has run out of memory is of no more use
    except Exception as error:
        raise PlanningFailed(f"{type(error).__name__}: {error}") from error
    return mirrored(mirror, found)


_LARGE = 16_384
"""Bytes from which an array goes into shared memory."""
_HEADER = struct.Struct("<QI")
"""Bytes of the pickle, and the number of arrays beside it. The sizes of the arrays follow."""
MANY, SAMPLE = 1024, 64
"""Least number of names of a column that is sent as one text, and how many of them are sampled. A
column that repeats a few names is pickled fast as it is."""
_NUMBERS = "biuf"
"""Kinds of numpy's types of numbers."""
BETWEEN = "\0"
"""Separates the names of a column that is sent as one text."""
SIZE = 8
"""Bytes of the size of one array in a message."""
ALIGNED = 64
"""Arrays begin at multiples of this number of bytes in the shared file."""
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def packed(message: object) -> tuple[bytes, int | None]:
    """Return the bytes to send, and the file to send with the first of them, or None."""
    large: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < _LARGE:
            return True
        large.append(view)
        return False

    written = io.BytesIO()
    _Pickler(written, protocol=5, buffer_callback=keep).dump(message)
    body = written.getvalue()
    sizes = struct.pack(f"<{len(large)}Q", *(view.nbytes for view in large))
    return _HEADER.pack(len(body), len(large)) + sizes + body, _shared(large) if large else None


class _Text(NamedTuple):
    """A column of names, joined by ``BETWEEN``."""

    names: str


class _Pickler(pickle.Pickler):
    """A pickler that joins the long columns of names in flows and demands.

    It names the types of numbers. With a type that was pickled itself, ``ufunc.at`` takes thirty
    times as long.
    """

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - as pickle has it
        """Return how to rebuild flows, demands and arrays; all else is pickled as usual."""
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in _NUMBERS or not value.flags.c_contiguous:
                return NotImplemented
            return _array, (pickle.PickleBuffer(value.data), value.dtype.str, value.shape)
        if not isinstance(value, Demands | Flows):
            return NotImplemented
        columns = [_joined(getattr(value, one.name)) for one in fields(value)]
        return _made_again, (type(value), columns)


def _array(
    buffer: bytes | bytearray | memoryview, numbers: str, shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    return np.frombuffer(buffer, numbers).reshape(shape)


def _joined(column: Any) -> Any:  # noqa: ANN401 - a column, whatever it holds
    if not isinstance(column, tuple) or len(column) < MANY:
        return column
    if len(set(column[:SAMPLE])) <= SAMPLE // 2:
        return column
    text = BETWEEN.join(column)
    return _Text(text) if text.count(BETWEEN) == len(column) - 1 else column


def _made_again(kind: Callable[..., Demands | Flows], columns: Sequence[Any]) -> Demands | Flows:
    whole = (tuple(one.names.split(BETWEEN)) if isinstance(one, _Text) else one for one in columns)
    return kind(*whole)


def _shared(views: Sequence[memoryview]) -> int:
    """Return a sealed file in memory that holds the arrays one after another."""
    file = os.memfd_create("heddle-planner", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    at = 0
    for view in views:
        written = 0
        while written < view.nbytes:
            written += os.pwrite(file, view[written:], at + written)
        at = _aligned(at + view.nbytes)
    os.ftruncate(file, at)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
    return file


def _aligned(at: int) -> int:
    return -(-at // ALIGNED) * ALIGNED


class Unpacker:
    """Puts messages together from the bytes and files that arrive."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._file: int | None = None

    def feed(self, data: bytes, files: Sequence[int]) -> None:
        """Take in bytes and files that have arrived, at most one file at a time."""
        self._bytes += data
        if files:
            (self._file,) = files

    def message(self) -> tuple[Any] | None:
        """Return the message in a tuple, or None if it is not complete; one comes at a time."""
        if len(self._bytes) < _HEADER.size:
            return None
        length, count = _HEADER.unpack_from(self._bytes)
        begin = _HEADER.size + count * SIZE
        if len(self._bytes) < begin + length:
            return None
        sizes = struct.unpack_from(f"<{count}Q", self._bytes, _HEADER.size)
        body = bytes(self._bytes[begin : begin + length])
        del self._bytes[: begin + length]
        return (pickle.loads(body, buffers=self._mapped(sizes)),)  # noqa: S301 - see the module

    def _mapped(self, sizes: Sequence[int]) -> list[memoryview]:
        if self._file is None:
            return []
        file, self._file = self._file, None
        whole = memoryview(mmap.mmap(file, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ))
        os.close(file)
        views, at = [], 0
        for size in sizes:
            views.append(whole[at : at + size])
            at = _aligned(at + size)
        return views

    def close(self) -> None:
        """Close a file that no message has used."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def received(end: socket.socket, unpacker: Unpacker) -> bool:
    """Read what has arrived, once; return False if the other end has closed the socket."""
    data, files, _, _ = socket.recv_fds(end, 1 << 18, 1)
    unpacker.feed(data, files)
    return bool(data)
