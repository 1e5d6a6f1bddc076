"""Questions and answers of the pipe: how each is packed at one end and unpacked at the other.

A question names a method of ``PlanningCore``, which ``answered`` calls in the planning process.
Plans, intents and entries travel by way of the mirrors, all else as it is.

Messages between two processes of one machine: one socket, large arrays in shared memory.

A message is pickled by protocol 5. What is large in it, arrays of some kilobytes and more, is
written once into a nameless file in memory that travels beside the message, is sealed, and is
mapped by whoever receives it: read-only, and not copied again. Long columns of names travel as one
text: pickle takes each name by itself, and who packs keeps the event loop waiting. Both ends are
the same program, and nobody else holds the socket: nothing that comes from outside is ever
unpickled.
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

from heddle_controller.model.demand import Demands
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Plan
from heddle_controller.model.program import Entries
from heddle_controller.planner.mirror import FabricMirror
from heddle_controller.planner.planning import Planned
from heddle_controller.planner.port import PlanAnswer, PlanningFailed, WhatIf
from heddle_controller.state.records import Intent


class Question(NamedTuple):
    """A method of the core, about which fabric, and what it is given by name, packed."""

    method: str
    fabric: str
    given: dict[str, Any]


class Failed(NamedTuple):
    """An answer that there is none, and why."""

    reason: str


class Mirrored(NamedTuple):
    """A value of which only what the other end lacks travels, or that has such values in it."""

    kind: type[Any]
    packed: Any


def mirrored(mirror: FabricMirror, value: object) -> Any:  # noqa: ANN401 - packed
    """A value to send; both ends pack and unpack the same values in the same order."""
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
    """A value that was sent."""
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
    """A question to send."""
    return Question(method, fabric, {name: mirrored(mirror, one) for name, one in given.items()})


def answered(core: object, mirror: FabricMirror, question: Question) -> Any:  # noqa: ANN401 - packed
    """What the planning process answers with its core.

    Raises:
        PlanningFailed: both mirrors know what was asked all the same.
        Exception: that is not so any more.
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
"""Bytes from which an array goes in shared memory."""
_HEADER = struct.Struct("<QI")
"""Bytes of the pickle, and number of arrays beside it, whose sizes follow."""
MANY, SAMPLE = 1024, 64
"""Names of a column that travels as one text, at least, and those of them that are looked at: a
column of few names again and again is pickled fast as it is."""
BETWEEN = "\0"
SIZE = 8
ALIGNED = 64
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def packed(message: object) -> tuple[bytes, int | None]:
    """The bytes to send, and the file that goes with the first of them, if there is one."""
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
    """A column of names, joined."""

    names: str


class _Pickler(pickle.Pickler):
    """Joins the long columns of names that flows and demands have."""

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - as pickle has it
        """How to make these again; all else as ever."""
        if not isinstance(value, Demands | Flows):
            return NotImplemented
        columns = [_joined(getattr(value, one.name)) for one in fields(value)]
        return _made_again, (type(value), columns)


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
    """A sealed file in memory that holds these one after another."""
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
    """Puts messages together from bytes and files as they come."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._file: int | None = None

    def feed(self, data: bytes, files: Sequence[int]) -> None:
        """More has come."""
        self._bytes += data
        if files:
            (self._file,) = files

    def message(self) -> tuple[Any] | None:
        """The message, if it is whole; one comes at a time."""
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
        """Let go of a file that nobody asked for."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def received(end: socket.socket, unpacker: Unpacker) -> bool:
    """Read once what is there; False where the other end is gone."""
    data, files, _, _ = socket.recv_fds(end, 1 << 18, 1)
    unpacker.feed(data, files)
    return bool(data)
