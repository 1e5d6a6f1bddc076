"""What both ends of the pipe remember of one fabric, so that only changes are sent.

Each end has a mirror and packs and unpacks in the same order as the other. So after a value was
packed at one end and unpacked at the other, both remember it. A fabric is sent as the states that
changed, an intent as the jobs and demand sets that are new, a plan as the arcs that differ, and
entries as the rows that came and went. A value that is the same object as the last one at one end
is also the same object at the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from heddle_controller.model.fabric import Fabric, Structure
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import (
    Certificate,
    NicPorts,
    Paths,
    Plan,
    changed_places,
    keep_places,
)
from heddle_controller.model.port_paths import PortPaths
from heddle_controller.model.program import Edit, Entries
from heddle_controller.plan.entry_edits import edited_entries, known_edit
from heddle_controller.state.records import DemandRecord, Intent, JobRecord, Overlay, Rollback

Array = npt.NDArray[Any]
_MOST = 1 / 4
"""Share of the elements that may differ. If more do, all elements are sent."""
STRUCTURE = ("name", "nodes", "links", "zone_names", "host_names")
"""Arguments of ``Structure``."""
WHOSE = ("flow", "first_qp", "last_qp")
"""Columns that say which flow and QPs a path belongs to."""


class _Elements(NamedTuple):
    """The elements of an array that differ from before: where they are, and their values."""

    places: Array
    values: Array


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
    paths: Paths | _Elements
    """All paths, or the arcs that differ."""
    backups: Paths | _Elements
    """All backups, or the arcs that differ."""
    shared: bool
    """Whether paths and backups share their ``WHOSE`` columns as the same objects."""
    certificate: Certificate
    unrouted: dict[int, str]
    notes: tuple[str, ...]
    nic_ports: NicPorts | None


class _PackedEdit(NamedTuple):
    """Entries as changes: rows gone from those of before, rows that came, and these entries."""

    gone: Array
    came: Array
    rows: Entries


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
        same = known is not None and (
            known.fabric.structure is plan.fabric.structure and known.flows.same_as(plan.flows)
        )
        before = known if same else None
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
        if packed.flows is None:
            assert known is not None  # its flows were sent before
            flows, before = known.flows, known
        else:
            flows, before = packed.flows, None
        paths = _unpacked_paths(packed.paths, before.paths if before else None)
        backups = _unpacked_paths(packed.backups, before.backups if before else None)
        if packed.shared:
            backups = _sharing(backups, paths)
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

    def pack_entries(self, entries: Entries) -> Entries | _PackedEdit | None:
        """Return entries packed for sending; None stands for those sent last."""
        known, self._entries = self._entries, entries
        if known is entries:
            return None
        edit = known_edit(known, entries, stages=True) if known is not None else None
        if edit is None or len(edit.came) > _MOST * len(entries):
            columns = (getattr(entries, one.name) for one in fields(Entries) if one.compare)
            return Entries(*columns)  # without their origin, which the other end does not need
        return _PackedEdit(edit.gone, edit.came, entries.take(edit.came))

    def unpack_entries(self, packed: Entries | _PackedEdit | None) -> Entries:
        """Return entries that were sent."""
        if isinstance(packed, Entries):
            self._entries = packed
            return packed
        assert self._entries is not None  # they were sent before
        if packed is not None:
            gone, came, rows = packed
            self._entries = edited_entries(self._entries, Edit(gone, came), rows)
        return self._entries


def _packed_paths(now: Paths, was: Paths | None) -> Paths | _Elements:
    places = None if was is None else changed_places(was, now)
    if places is None or len(places) > _MOST * len(now.arcs):
        return now
    return _Elements(places, now.arcs[places])


def _unpacked_paths(packed: Paths | _Elements, was: Paths | None) -> Paths:
    if isinstance(packed, Paths):
        return packed
    assert was is not None  # the other end had it when it packed these
    if not len(packed.places):
        return was
    arcs = was.arcs.copy()
    arcs[packed.places] = packed.values
    now = replace(was, arcs=arcs)
    keep_places(was, now, packed.places)
    return now


def _sharing(backups: Paths, paths: Paths) -> Paths:
    """Return backups that share the ``WHOSE`` columns of the paths as the same objects."""
    if all(getattr(backups, one) is getattr(paths, one) for one in WHOSE):
        return backups
    return replace(backups, **{one: getattr(paths, one) for one in WHOSE})


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
