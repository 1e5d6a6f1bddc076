"""Questions and answers of the pipe: how each is packed at one end and unpacked at the other.

A question is a name, a fabric and what ``ask_...`` packs; ``answered`` does in the planning process
what is asked, and packs what ``take_...`` unpacks. Either packs in the order in which the other
unpacks: both mirrors go through the same steps.

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
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from heddle_controller.model.demand import Demands
from heddle_controller.model.flows import Flows
from heddle_controller.model.job import Iteration, Job
from heddle_controller.model.plan import Certificate, Plan, Turn
from heddle_controller.place.ask import Choices, PlacementAsk
from heddle_controller.planner.mirror import FabricMirror
from heddle_controller.planner.planning import Planned
from heddle_controller.planner.port import PlanAnswer, PlanningFailed, Trial, WhatIf
from heddle_controller.state.records import Intent

if TYPE_CHECKING:  # who only asks need not load what answers
    from heddle_controller.planner.core import PlanningCore

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Question(NamedTuple):
    """What is asked, about which fabric."""

    kind: str
    fabric: str
    packed: Any


class Failed(NamedTuple):
    """An answer that there is none, and why."""

    reason: str


def ask_plan(mirror: FabricMirror, intent: Intent, standing: Plan | None) -> Any:  # noqa: ANN401 - packed
    """The question for a plan."""
    return _pack_standing(mirror, standing), mirror.pack_intent(intent)


def ask_prepare(mirror: FabricMirror, standing: Plan) -> Any:  # noqa: ANN401 - packed
    """The question to make a repair ready."""
    return mirror.pack_plan(standing)


def ask_reoptimise(mirror: FabricMirror, standing: Plan, worth_moving: float) -> Any:  # noqa: ANN401
    """The question for a better plan."""
    return mirror.pack_plan(standing), worth_moving


def ask_turns(mirror: FabricMirror, standing: Plan, iterations: Sequence[Iteration]) -> Any:  # noqa: ANN401
    """The question when jobs had best begin their iterations."""
    return mirror.pack_plan(standing), tuple(iterations)


def ask_what_if(
    mirror: FabricMirror, intent: Intent, supposed: Intent, standing: Plan | None
) -> Any:  # noqa: ANN401
    """The question for a supposed plan."""
    before = _pack_standing(mirror, standing)
    return before, mirror.pack_intent(intent), mirror.pack_intent(supposed)


def ask_of_job(
    mirror: FabricMirror, intent: Intent, what: PlacementAsk | Job, standing: Plan | None
) -> Any:  # noqa: ANN401
    """The question where a job could run, or how it would fare there."""
    return _pack_standing(mirror, standing), mirror.pack_intent(intent), what


def take_choices(_: FabricMirror, packed: Any) -> Choices:  # noqa: ANN401 - packed
    """The answer to "choose"."""
    found: Choices = packed
    return found


def take_trial(_: FabricMirror, packed: Any) -> Trial:  # noqa: ANN401 - packed
    """The answer to "try" and "settle"."""
    found: Trial = packed
    return found


def take_plan(mirror: FabricMirror, packed: Any) -> PlanAnswer:  # noqa: ANN401 - packed
    """The answer to ``ask_plan``."""
    planned, refused = packed
    return PlanAnswer(None if planned is None else _unpack_planned(mirror, planned), refused)


def take_reoptimised(mirror: FabricMirror, packed: Any) -> Planned | Certificate | None:  # noqa: ANN401
    """The answer to ``ask_reoptimise``."""
    if packed is None or isinstance(packed, Certificate):
        return packed
    return _unpack_planned(mirror, packed)


def take_turns(_: FabricMirror, packed: Any) -> tuple[Turn, ...]:  # noqa: ANN401 - packed
    """The answer to ``ask_turns``."""
    found: tuple[Turn, ...] = packed
    return found


def take_what_if(mirror: FabricMirror, packed: Any) -> WhatIf:  # noqa: ANN401 - packed
    """The answer to ``ask_what_if``."""
    before, after, comparison = packed
    return WhatIf(mirror.unpack_plan(before), mirror.unpack_plan(after), comparison)


def answered(core: PlanningCore, mirror: FabricMirror, question: Question) -> Any:  # noqa: ANN401 - packed
    """What the planning process answers.

    Raises:
        PlanningFailed: both mirrors know what was asked all the same.
        Exception: that is not so any more.
    """
    kind, fabric, packed = question
    if kind == "plan":
        standing = _unpack_standing(mirror, packed[0])
        answer = _or_failed(core.plan, mirror.unpack_intent(packed[1]), standing)
        planned = answer.planned
        return None if planned is None else _pack_planned(mirror, planned), answer.refused
    if kind == "prepare":
        return core.prepare(fabric, mirror.unpack_plan(packed))
    if kind in {"reoptimise", "turns"}:
        function: Callable[..., object] = core.turns if kind == "turns" else core.reoptimise
        found = _or_failed(function, mirror.unpack_plan(packed[0]), packed[1])
        return _pack_planned(mirror, found) if isinstance(found, Planned) else found
    standing = _unpack_standing(mirror, packed[0])
    intent = mirror.unpack_intent(packed[1])
    if kind == "choose":
        return _or_failed(core.choose, intent, packed[2], standing)
    if kind in {"try", "settle"}:
        settled = kind == "settle"
        return _or_failed(core.try_job, intent, packed[2], standing, settled=settled)
    supposed = mirror.unpack_intent(packed[2])
    what_if = _or_failed(core.what_if, intent, supposed, standing)
    before, after = mirror.pack_plan(what_if.before), mirror.pack_plan(what_if.after)
    return before, after, what_if.comparison


def _or_failed(
    function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
) -> Result:
    try:
        return function(*args, **kwargs)
    except MemoryError:
        raise  # a process that has run out of memory is of no more use
    except Exception as error:
        raise PlanningFailed(f"{type(error).__name__}: {error}") from error


def _pack_standing(mirror: FabricMirror, standing: Plan | None) -> Any:  # noqa: ANN401 - packed
    return None if standing is None else (mirror.pack_plan(standing),)


def _unpack_standing(mirror: FabricMirror, packed: Any) -> Plan | None:  # noqa: ANN401 - packed
    return None if packed is None else mirror.unpack_plan(packed[0])


def _pack_planned(mirror: FabricMirror, planned: Planned) -> Any:  # noqa: ANN401 - packed
    entries = mirror.pack_entries(planned.entries)
    return mirror.pack_plan(planned.plan), entries, planned.changed_count


def _unpack_planned(mirror: FabricMirror, packed: Any) -> Planned:  # noqa: ANN401 - packed
    plan, entries, changed_count = packed
    held = mirror.unpack_entries(entries)
    return Planned(mirror.unpack_plan(plan), held, changed_count)


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
