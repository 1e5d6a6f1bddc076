"""What travels through the pipe to a planning process: questions, answers, and how each is packed.

A question names a method of ``PlanningCore``, which ``answered`` calls in the planning process.
Plans, intents and entries are packed by mirrors, everything else as it is.

Each end has a mirror of each fabric, and packs and unpacks in the same order as the other. So after
a value was packed at one end and unpacked at the other, both remember it, and only changes are
sent. A fabric is sent as the states that changed, an intent as the jobs and demand sets that are
new, and paths and entries as the rows that came and went. A value that is the
same object as the last one at one end is also the same object at the other.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from heddle_controller.model.arrays import Ints
from heddle_controller.model.demand import Demands
from heddle_controller.model.edits import Edit
from heddle_controller.model.fabric import Fabric, Structure
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import (
    WHOSE,
    Certificate,
    NicPorts,
    Paths,
    Plan,
    edit_of,
    edited_paths,
    in_parallel,
)
from heddle_controller.model.port_paths import PortPaths
from heddle_controller.model.program import Entries, edited_entries, known_edit
from heddle_controller.planner.planning import Planned
from heddle_controller.planner.port import PlanAnswer, PlanningFailed, WhatIf
from heddle_controller.state.records import DemandRecord, Intent, JobRecord, Overlay, Rollback

Array = npt.NDArray[Any]
_MOST = 1 / 4
"""Share of the elements that may differ. If more do, all elements are sent."""
STRUCTURE = ("name", "nodes", "links", "zone_names", "host_names")
"""Arguments of ``Structure``."""


class _Elements(NamedTuple):
    """The elements of an array that differ from before: where they are, and their values."""

    places: Array
    values: Array


_Rows = TypeVar("_Rows", Entries, Paths)


class _PackedEdit(NamedTuple, Generic[_Rows]):
    """A table as changes: rows gone from the one before, rows that came, and these rows."""

    gone: Ints
    came: Ints
    rows: _Rows


class _PackedFabric(NamedTuple):
    structure: tuple[Any, ...] | None
    """Arguments of ``Structure``; None if it is the same as before."""
    link_state: Array | _Elements
    node_state: Array | _Elements


class _PackedIntent(NamedTuple):
    name: str
    version: int
    change_time: float
    revision: int
    fabric: _PackedFabric
    jobs: list[int | JobRecord]
    """For each job its place among the jobs of before, or a new job."""
    demands: list[int | DemandRecord]
    """For each demand set its place among those of before, or a new set."""
    overlay: Overlay
    rollback: Rollback | None
    port_paths: tuple[PortPaths | None] | None
    """The port paths in a tuple; None if they are the same as before."""


class _PackedPlan(NamedTuple):
    fabric: _PackedFabric
    flows: Flows | None
    """None if they are the same as before."""
    paths: Paths | _PackedEdit[Paths] | None
    """All paths, or what differs; None if they are the same as before."""
    backups: Paths | _PackedEdit[Paths] | None
    """The same of the backups."""
    shared: bool
    """Whether paths and backups share their ``WHOSE`` columns as the same objects."""
    certificate: Certificate
    unrouted: dict[int, str]
    notes: tuple[str, ...]
    nic_ports: NicPorts | None


_Record = TypeVar("_Record", JobRecord, DemandRecord)


class FabricMirror:
    """What this end and the other remember of one fabric."""

    def __init__(self) -> None:
        self._fabric: Fabric | None = None
        self._jobs: tuple[JobRecord, ...] = ()
        self._demands: tuple[DemandRecord, ...] = ()
        self._port_paths: PortPaths | None = None
        """Those of the last intent. The port paths that a plan was made with are not sent."""
        self._plan: Plan | None = None
        self._entries: Entries | None = None

    def pack_fabric(self, fabric: Fabric) -> _PackedFabric:
        """Return a fabric packed for sending."""
        known, self._fabric = self._fabric, fabric
        if known is None or known.structure is not fabric.structure:
            structure = tuple(getattr(fabric.structure, name) for name in STRUCTURE)
            return _PackedFabric(structure, fabric.link_state, fabric.node_state)
        return _PackedFabric(
            None,
            _changed(fabric.link_state, known.link_state),
            _changed(fabric.node_state, known.node_state),
        )

    def unpack_fabric(self, packed: _PackedFabric) -> Fabric:
        """Return a fabric that was sent."""
        known = self._fabric
        if packed.structure is not None:
            structure = Structure(*packed.structure)
            assert isinstance(packed.link_state, np.ndarray)
            assert isinstance(packed.node_state, np.ndarray)
            known = Fabric(structure, packed.link_state, packed.node_state)
        else:
            assert known is not None  # it was sent before
            assert isinstance(packed.link_state, _Elements)
            assert isinstance(packed.node_state, _Elements)
            known = known.with_links(_states(packed.link_state))
            known = known.with_nodes(_states(packed.node_state))
        self._fabric = known
        return known

    def pack_intent(self, intent: Intent) -> _PackedIntent:
        """Return an intent packed for sending."""
        jobs = _records(intent.jobs, self._jobs)
        demands = _records(intent.demands, self._demands)
        self._jobs, self._demands = intent.jobs, intent.demands
        ports, known = intent.fabric.port_paths, self._port_paths
        self._port_paths = ports
        return _PackedIntent(
            intent.name,
            intent.version,
            intent.change_time,
            intent.revision,
            self.pack_fabric(intent.fabric),
            jobs,
            demands,
            intent.overlay,
            intent.rollback,
            None if ports is known else (ports,),
        )

    def unpack_intent(self, packed: _PackedIntent) -> Intent:
        """Return an intent that was sent."""
        jobs = tuple(self._jobs[o] if isinstance(o, int) else o for o in packed.jobs)
        demands = tuple(self._demands[o] if isinstance(o, int) else o for o in packed.demands)
        self._jobs, self._demands = jobs, demands
        if packed.port_paths is not None:
            (self._port_paths,) = packed.port_paths
        fabric = self.unpack_fabric(packed.fabric)
        if self._port_paths is not None:
            fabric = replace(fabric, port_paths=self._port_paths)
        return Intent(
            packed.name,
            packed.version,
            packed.change_time,
            packed.revision,
            fabric,
            jobs,
            demands,
            packed.overlay,
            packed.rollback,
        )

    def holds(self, plan: Plan) -> bool:
        """Return whether this is the plan that was sent or received last."""
        return self._plan is plan

    def pack_plan(self, plan: Plan) -> _PackedPlan | None:
        """Return a plan packed for sending; None stands for the plan sent last."""
        known, self._plan = self._plan, plan
        if known is plan:
            return None
        fabric = self.pack_fabric(plan.fabric)
        before = known
        if known is not None and known.fabric.structure is not plan.fabric.structure:
            before = None
        same = before is not None and before.flows.same_as(plan.flows)
        if before is not None and not same and not plan.flows.begins_with(before.flows):
            before = None
        return _PackedPlan(
            fabric,
            None if same else plan.flows,
            _packed_paths(plan.paths, before.paths if before else None),
            _packed_paths(plan.backups, before.backups if before else None),
            all(getattr(plan.paths, one) is getattr(plan.backups, one) for one in WHOSE),
            plan.certificate,
            plan.unrouted,
            plan.notes,
            plan.nic_ports,
        )

    def unpack_plan(self, packed: _PackedPlan | None) -> Plan:
        """Return a plan that was sent."""
        known = self._plan
        if packed is None:
            assert known is not None  # it was sent before
            return known
        fabric = self.unpack_fabric(packed.fabric)
        flows = packed.flows
        if flows is None:
            assert known is not None  # its flows were sent before
            flows = known.flows
        paths = _unpacked_paths(packed.paths, known.paths if known else None)
        backups = _unpacked_paths(packed.backups, known.backups if known else None)
        if packed.shared:
            backups = in_parallel(backups, paths)
        self._plan = Plan(
            fabric,
            flows,
            paths,
            backups,
            packed.certificate,
            packed.unrouted,
            packed.notes,
            packed.nic_ports,
        )
        return self._plan

    def pack_entries(self, entries: Entries) -> Entries | _PackedEdit[Entries] | None:
        """Return entries packed for sending; None stands for those sent last."""
        known, self._entries = self._entries, entries
        if known is entries:
            return None
        edit = known_edit(known, entries, stages=True) if known is not None else None
        if edit is None or len(edit.came) > _MOST * len(entries):
            columns = (getattr(entries, one.name) for one in fields(Entries) if one.compare)
            return Entries(*columns)  # without their origin, which the other end does not need
        return _PackedEdit(edit.gone, edit.came, entries.take(edit.came))

    def unpack_entries(self, packed: Entries | _PackedEdit[Entries] | None) -> Entries:
        """Return entries that were sent."""
        if isinstance(packed, Entries):
            self._entries = packed
            return packed
        assert self._entries is not None  # they were sent before
        if packed is not None:
            gone, came, rows = packed
            self._entries = edited_entries(self._entries, Edit(gone, came), rows)
        return self._entries


def _packed_paths(now: Paths, was: Paths | None) -> Paths | _PackedEdit[Paths] | None:
    if now is was:
        return None
    edit = edit_of(was, now) if was is not None else None
    if edit is None or len(edit.came) > _MOST * len(now):
        return now
    return _PackedEdit(edit.gone, edit.came, now.take(edit.came))


def _unpacked_paths(packed: Paths | _PackedEdit[Paths] | None, was: Paths | None) -> Paths:
    if isinstance(packed, Paths):
        return packed
    assert was is not None  # the other end had it when it packed these
    if packed is None:
        return was
    return edited_paths(was, Edit(packed.gone, packed.came), packed.rows)


def _changed(now: Array, was: Array) -> _Elements:
    places = np.empty(0, np.int64) if now is was else np.flatnonzero(now != was)
    return _Elements(places, now[places])


def _states(elements: _Elements) -> dict[int, Any]:
    return dict(zip(elements.places.tolist(), elements.values.tolist(), strict=True))


def _records(records: Iterable[_Record], known: Iterable[_Record]) -> list[int | _Record]:
    """Return known records as their place among ``known``, and others as they are.

    Records with the same name and etag are the same. Records that are only supposed, as in a
    what-if question, have no etag and are never known.
    """
    places = {_key(one): place for place, one in enumerate(known) if one.etag}
    return [places.get(_key(one), one) for one in records]


def _key(record: JobRecord | DemandRecord) -> tuple[str, str]:
    name = record.job.name if isinstance(record, JobRecord) else record.name
    return name, record.etag


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
