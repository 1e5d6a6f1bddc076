"""Flows on paths while a plan is being made, with loads that are updated move by move.

The unit of search is the *chunk*: some QPs of one flow, together on one path. Chunks are rows of
plain lists, because search touches few of them. Loads are arrays, because search looks at many arcs
at a time. Paths here lead from terminal to terminal. The arcs of NICs with one link are fixed, and
are added when an assignment becomes the paths of a plan (``exported_paths``).

Load follows the rule of ``phased_loads``. Flows of a job with one phase, or none, simply add up.
Jobs with several phases have a small table each.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, stable_order, starts
from heddle_controller.model.flows import ANY_PHASE, Flows
from heddle_controller.model.kept import KeptFlows
from heddle_controller.model.plan import Paths, no_paths, phased_loads
from heddle_controller.solve.network import Network
from heddle_controller.solve.phases import PhaseTable, add_loads, copied, phase_tables

_NONE: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """One change of an assignment, with what is needed to undo it."""

    chunk: int
    old_path: Ints
    split_from: int | None = None
    """The chunk that this one was cut off from; None if this one was moved."""


class _Ways(dict[int, Ints]):
    """Arcs by chunk. Those of chunks as they were loaded are found when they are asked for."""

    def __init__(self, loaded: Paths) -> None:
        super().__init__()
        self._loaded = loaded
        self._first: list[int] = loaded.first.tolist()

    def __missing__(self, chunk: int) -> Ints:
        return self._loaded.arcs[self._first[chunk] : self._first[chunk + 1]]

    def copy(self) -> _Ways:
        """Return a copy that changes independently."""
        other = _Ways(no_paths())
        other._loaded, other._first = self._loaded, self._first
        other.update(self)
        return other


class Assignment:
    """Which chunk uses which arcs, and the load that results."""

    def __init__(self, network: Network, flows: Flows) -> None:
        self.network = network
        self.flows = flows
        self.load: Floats = np.zeros(network.arc_count + 1)
        """Gbit/s on each arc and, last, on the padding, where it is always 0."""
        self.flow: list[int] = []
        self.first_qp: list[int] = []
        self.last_qp: list[int] = []
        self.unit: Floats = flows.gbps / flows.qps
        """Gbit/s of one QP of each flow."""
        self._tables: dict[int, PhaseTable] = phase_tables(flows, len(self.load))
        self._shared: set[int] = set()
        """Jobs whose table belongs to another assignment, too. It is copied before it changes."""
        self._loaded = no_paths()
        self.path = _Ways(self._loaded)
        """Arcs of each chunk. It holds those of chunks that changed since loading."""
        self._members: dict[int, list[int]] = {}
        """Chunks, ascending, on each arc whose chunks changed after they were loaded or put in."""
        self._own: set[int] = set()
        """Arcs whose list in ``_members`` no copy shares. Other lists are copied before they
        change."""
        self.touched: set[int] = set()
        """Chunks that were moved or made since loading."""
        self.journal: list[MoveRecord] = []
        """Changes that ``roll_back`` can undo. Clear it before a trial."""

    @cached_property
    def _base(self) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
        """Chunks by arc, in two parts: those loaded or put in earlier, and those put in last.

        Each part is a pair: where the chunks of each arc begin, shape (arcs + 2,), and the chunks,
        arc by arc.
        """
        loaded = self._loaded
        none = np.zeros(self.network.arc_count + 2, dtype=np.int64), _NONE
        return self._by_arc(loaded.arcs, loaded.owner()), none

    def prepare(self) -> None:
        """Build indexes now, so that the first change is as quick as later ones."""
        _ = self._base

    def chunks(self) -> Paths:
        """Return all chunks with their paths between terminals, row for row."""
        loaded = self._loaded
        if not self.path:
            return loaded
        rows = sorted(self.path)
        ways = [self.path[row] for row in rows]
        known = np.ones(len(self.flow), dtype=np.bool_)
        known[rows] = False
        lengths = _patched(np.diff(loaded.first), rows, [len(way) for way in ways], len(known))
        flow, first_qp, last_qp = (
            _patched(before, rows, [column[row] for row in rows], len(known))
            for before, column in (
                (loaded.flow, self.flow),
                (loaded.first_qp, self.first_qp),
                (loaded.last_qp, self.last_qp),
            )
        )
        stays = np.repeat(known, lengths)
        arcs = np.empty(len(stays), dtype=np.int64)
        arcs[stays] = loaded.arcs[np.repeat(known[: len(loaded)], np.diff(loaded.first))]
        arcs[~stays] = concatenated(ways)
        return Paths(flow, first_qp, last_qp, starts(lengths), arcs)

    def copy(self) -> Assignment:
        """Return another assignment with the same chunks and loads; each changes independently.

        The tables of jobs and the lists of an arc's chunks are shared until one of the two changes
        them.
        """
        self._shared, self._own = set(self._tables), set()
        return copied(
            self,
            *("load", "flow", "first_qp", "last_qp", "path", "touched", "journal"),
            *("_tables", "_shared", "_members", "_own"),
        )

    def load_chunks(self, inner: Paths) -> None:
        """Load many chunks with paths between terminals at once, into an empty assignment."""
        self._hold(inner)
        self._take_load(inner)

    def _hold(self, inner: Paths) -> None:
        self.flow, self.first_qp = inner.flow.tolist(), inner.first_qp.tolist()
        self.last_qp = inner.last_qp.tolist()
        self._loaded, self.path = inner, _Ways(inner)

    def _take_load(self, inner: Paths) -> None:
        """Add the load of many paths at once."""
        gbps = (self.unit[inner.flow] * inner.qp_count)[inner.owner()]
        add_loads(self.flows, inner, gbps, self.load, (self._tables, self._own_table))

    def extend(self, flows: Flows) -> None:
        """Replace the flows by these, which append others to them; see ``phases.only_appended``."""
        known = len(self.flows)
        come = flows.take(np.arange(known, len(flows), dtype=np.int64))
        self.flows, self.unit = flows, np.append(self.unit, come.gbps / come.qps)
        self._tables |= phase_tables(come, len(self.load))

    def keep(self, kept: KeptFlows, inner: Paths, arcs: Ints) -> None:
        """Take on other flows, of which those that are kept stay on their paths.

        Args:
            kept: The flows that are kept.
            inner: All chunks of these flows, with the paths that they have, between terminals.
            arcs: The arcs that flows use which are not kept, or which put another load there. These
                loads are added up again, so that no rounding error is left where nothing else is.
        """
        self._keep_tables(kept, inner)
        flows = kept.after
        self.flows, self.unit = flows, flows.gbps / flows.qps
        near = np.zeros(self.network.arc_count, dtype=np.bool_)
        near[arcs] = True
        uses = np.flatnonzero(near[inner.arcs])
        row = inner.owner()[uses]
        flow = inner.flow[row]
        together = inner.gbps(flows, row), flows.job[flow], flows.phase[flow]
        self.load[arcs] = phased_loads(len(near), inner.arcs[uses], *together)[arcs]
        self._members, self._own = {}, set()
        self.touched.clear()
        self.journal.clear()
        self._hold(inner)
        self.__dict__.pop("_base", None)

    def _keep_tables(self, kept: KeptFlows, inner: Paths) -> None:
        """Make the tables of jobs with other flows again, and number the others anew."""
        before, flows, jobs = kept.before, kept.after, kept.job
        fresh = np.zeros(len(flows.job_names) + 1, dtype=np.bool_)
        fresh[flows.job[kept.came]] = fresh[flows.job[kept.altered]] = True
        stays = (kept.row != NONE) & (jobs[before.job] == flows.job[kept.row])
        fresh[jobs[before.job[~stays]]] = True
        fresh[NONE] = True  # for jobs that have no more flows
        same = [job for job in self._tables if not fresh[jobs[job]]]
        tables = {int(jobs[job]): self._tables[job].renumbered(kept.phase) for job in same}
        self._shared = {int(jobs[job]) for job in self._shared.intersection(same)}
        own = fresh[flows.job]
        made = phase_tables(flows.take(np.flatnonzero(own)), len(self.load))
        if made:
            some = inner.take(np.flatnonzero(own[inner.flow]))
            gbps, load = some.gbps(flows, some.owner()), np.zeros_like(self.load)
            add_loads(flows, some, gbps, load, (made, made.__getitem__))
        self._tables = tables | made

    def put(self, chunks: list[int], inner: Paths) -> None:
        """Give each of many chunks without a path its path at once. This cannot be rolled back."""
        self._take_load(inner)
        arcs = inner.arcs
        for chunk, (low, high) in zip(chunks, pairwise(inner.first.tolist()), strict=True):
            self.path[chunk] = arcs[low:high]
        self.touched.update(chunks)
        joining = np.array(chunks, dtype=np.int64)[inner.owner()]
        if len(self._base[1][1]):
            self._base = self._joined(), self._base[1]
        self._base = self._base[0], self._by_arc(arcs, joining)
        for arc in self._members.keys() & set(arcs.tolist()) if self._members else ():
            members = self._own_members(arc)
            first, put_in = self._base[1]
            members += put_in[first[arc] : first[arc + 1]].tolist()
            members.sort()

    def _by_arc(self, arcs: Ints, chunks: Ints) -> tuple[Ints, Ints]:
        """Return chunks, each on the parallel arc, sorted as the parts of ``_base`` are."""
        counts = np.bincount(arcs, minlength=self.network.arc_count + 1)
        return starts(counts), chunks[stable_order(arcs)]

    def _joined(self) -> tuple[Ints, Ints]:
        """Return both parts of ``_base`` as one."""
        arcs = [np.repeat(np.arange(len(first) - 1), np.diff(first)) for first, _ in self._base]
        chunks = [chunks for _, chunks in self._base]
        return self._by_arc(np.concatenate(arcs), np.concatenate(chunks))

    def members(self, arc: int) -> list[int]:
        """Return the chunks on an arc, ascending, as a new list that the caller may change."""
        known = self._members.get(arc)
        return self._as_put_in(arc) if known is None else known.copy()

    def _as_put_in(self, arc: int) -> list[int]:
        members: list[int] = []
        for first, chunks in self._base:
            members += chunks[first[arc] : first[arc + 1]].tolist()
        members.sort()  # takes no time if it is sorted already
        return members

    def _own_members(self, arc: int) -> list[int]:
        """Return the list of chunks on an arc for changes in place."""
        if arc not in self._own:
            self._own.add(arc)
            self._members[arc] = self.members(arc)
        return self._members[arc]

    def gbps(self, chunk: int) -> float:
        """Return the rate of a chunk in Gbit/s."""
        return self.unit_of(chunk) * self.qps(chunk)

    def qps(self, chunk: int) -> int:
        """Return the number of QPs in a chunk."""
        return self.last_qp[chunk] - self.first_qp[chunk] + 1

    def utilization(self) -> Floats:
        """Return load over capacity of every arc and of the padding (0), shape (arcs + 1,)."""
        return self.load * self.network.per_gbps

    def utilization_of(self, arc: int) -> float:
        """Return load over capacity of one arc."""
        return float(self.load[arc] * self.network.per_gbps[arc])

    def unit_of(self, chunk: int) -> float:
        """Return the rate of one QP of a chunk in Gbit/s."""
        return float(self.unit[self.flow[chunk]])

    def used_after_move(self, chunk: int, qps: int, paths: Ints) -> Floats:
        """Return the utilisation along each path if ``qps`` QPs of a chunk moved there.

        ``paths`` and the result have shape (paths, hops).
        """
        own = (paths[..., None] == self.path[chunk]).any(axis=-1)
        more = self.load_with(self.flow[chunk], self.unit_of(chunk) * qps, paths)
        after: Floats = np.where(own, self.load[paths], more) * self.network.per_gbps[paths]
        return after

    def load_with(self, flow: int, gbps: float, arcs: Ints) -> Floats:
        """Return the load of arcs (any shape) if they carried ``gbps`` more of a flow."""
        table = self._table(flow)
        loads: Floats = self.load[arcs]
        if table is None:
            return loads + gbps
        return loads + table.increase(arcs, int(self.flows.phase[flow]), gbps)

    def load_without(self, flow: int, gbps: float, path: Ints) -> Floats:
        """Return the load of arcs that carry a flow if they carried ``gbps`` less of it."""
        table = self._table(flow)
        loads: Floats = self.load[path]
        if table is None:
            return loads - gbps
        return loads - table.decrease(path, int(self.flows.phase[flow]), gbps)

    @property
    def takes_turns(self) -> bool:
        """Whether some job has flows in several phases."""
        return bool(self._tables)

    def add(self, flow: int, gbps: float, path: Ints) -> None:
        """Add load of a flow to a path; a negative rate removes load."""
        if self._table(flow) is None:
            self.load[path] += gbps
        else:
            table = self._own_table(int(self.flows.job[flow]))
            self.load[path] += table.change(path, int(self.flows.phase[flow]), gbps)
        self.load[self.network.pad] = 0.0

    def _table(self, flow: int) -> PhaseTable | None:
        if not self._tables or self.flows.phase[flow] == ANY_PHASE:
            return None
        return self._tables.get(int(self.flows.job[flow]))

    def _own_table(self, job: int) -> PhaseTable:
        """Return the table of a job that has one, for changes in place."""
        if job in self._shared:
            self._shared.discard(job)
            self._tables[job] = self._tables[job].copy()
        return self._tables[job]

    def place(self, flow: int, first_qp: int, last_qp: int) -> int:
        """Make a new chunk, without a path, and return its row."""
        self.flow.append(flow)
        self.first_qp.append(first_qp)
        self.last_qp.append(last_qp)
        self.path[len(self.flow) - 1] = _NONE
        self.touched.add(len(self.flow) - 1)
        return len(self.flow) - 1

    def place_whole(self, flows: list[int]) -> None:
        """Make a new chunk of all QPs for each of many flows, without paths."""
        known = len(self.flow)
        self.flow += flows
        self.first_qp += [0] * len(flows)
        self.last_qp += (self.flows.qps[flows] - 1).tolist()
        self.path |= dict.fromkeys(range(known, len(self.flow)), _NONE)
        self.touched.update(range(known, len(self.flow)))

    def split(self, chunk: int, qps: int) -> int:
        """Cut the last ``qps`` QPs off a chunk as a new chunk on the same path; return its row."""
        path, last = self.path[chunk], self.last_qp[chunk]
        piece = self.place(self.flow[chunk], last - qps + 1, last)
        self.path[piece] = self.path[chunk] = path
        self.last_qp[chunk] = last - qps
        self.touched.add(chunk)
        self._join(piece, path)
        self.journal.append(MoveRecord(piece, path, chunk))
        return piece

    def move(self, chunk: int, path: Ints) -> None:
        """Move a whole chunk to a path."""
        flow, gbps, old = self.flow[chunk], self.gbps(chunk), self.path[chunk]
        self.add(flow, -gbps, old)
        self.add(flow, gbps, path)
        self._change_path(chunk, path)
        self.touched.add(chunk)
        self.journal.append(MoveRecord(chunk, old))

    def roll_back(self, length: int) -> None:
        """Undo changes, the newest first, until ``length`` are left in the journal."""
        while len(self.journal) > length:
            step = self.journal.pop()
            if step.split_from is not None:
                self.last_qp[step.split_from] = self.last_qp[step.chunk]
                self._leave(step.chunk, step.old_path)
                for column in (self.flow, self.first_qp, self.last_qp):
                    column.pop()
                del self.path[step.chunk]
                self.touched.discard(step.chunk)
                continue
            flow, gbps = self.flow[step.chunk], self.gbps(step.chunk)
            self.add(flow, -gbps, self.path[step.chunk])
            self.add(flow, gbps, step.old_path)
            self._change_path(step.chunk, step.old_path)

    def _change_path(self, chunk: int, path: Ints) -> None:
        self._leave(chunk, self.path[chunk])
        self.path[chunk] = path
        self._join(chunk, path)

    def _leave(self, chunk: int, path: Ints) -> None:
        for arc in path.tolist():
            members = self._own_members(arc)
            del members[bisect_left(members, chunk)]

    def _join(self, chunk: int, path: Ints) -> None:
        for arc in path.tolist():
            insort(self._own_members(arc), chunk)


def exported_paths(assignment: Assignment, *, renumber: bool) -> Paths:
    """Return all paths with the NIC arcs at both ends.

    With ``renumber``, QPs of a flow that share a path are joined, and the flow's QPs are numbered
    anew. Otherwise each QP keeps its number, so that a repair moves no other QP.
    """
    inner = merged_chunks(assignment, renumber=renumber)
    return with_nics(assignment.network, assignment.flows, inner)


def merged_chunks(
    assignment: Assignment, chunks: list[int] | None = None, *, renumber: bool
) -> Paths:
    """Return chunks (None: all) as paths between terminals, ordered by flow and QP.

    With ``renumber``, all chunks of a flow with the same path are joined and its QPs are numbered
    anew. Otherwise only neighbours in that order are joined.
    """
    paths = assignment.chunks() if chunks is None else _some_chunks(assignment, chunks)
    order = np.lexsort((paths.first_qp, paths.flow))
    if (order[1:] < order[:-1]).any():
        paths = paths.take(order)
    return _joined(paths, renumber=renumber)


def _some_chunks(assignment: Assignment, chunks: list[int]) -> Paths:
    flow, first_qp, last_qp = (
        np.array([column[chunk] for chunk in chunks], dtype=np.int64)
        for column in (assignment.flow, assignment.first_qp, assignment.last_qp)
    )
    ways = [assignment.path[chunk] for chunk in chunks]
    lengths = np.array([len(way) for way in ways], dtype=np.int64)
    return Paths(flow, first_qp, last_qp, starts(lengths), concatenated(ways))


def _patched(column: Ints, rows: list[int], values: list[int], size: int) -> Ints:
    """Return a column of ``size`` rows that has other values in some rows."""
    patched = np.zeros(size, dtype=np.int64)
    patched[: len(column)] = column
    patched[rows] = values
    return patched


def concatenated(pieces: Sequence[Ints]) -> Ints:
    """Return all pieces as one array, which is empty if there are none."""
    return np.concatenate([np.empty(0, dtype=np.int64), *pieces])


def _joined(paths: Paths, *, renumber: bool) -> Paths:
    """Join paths of one flow with equal arcs: all of them with ``renumber``, else neighbours.

    Paths are ordered by flow and QP.
    """
    split = np.flatnonzero(np.bincount(paths.flow, minlength=1)[paths.flow] > 1)
    if not len(split):
        return paths
    some = paths.take(split)
    lengths = np.diff(some.first)
    wide = np.full((len(some), int(lengths.max())), NONE, dtype=np.int64)
    wide[np.arange(wide.shape[1]) < lengths[:, None]] = some.arcs
    order = np.lexsort((*wide.T, some.flow)) if renumber else np.arange(len(some))
    flow, wide = some.flow[order], wide[order]
    new = np.ones(len(some), dtype=np.bool_)
    new[1:] = (flow[1:] != flow[:-1]) | (wide[1:] != wide[:-1]).any(axis=1)
    first = np.flatnonzero(new)
    # Of joined paths the first row stays, with the QPs of all.
    kept, last = order[first], order[np.append(first[1:], len(some)) - 1]
    first_qp, last_qp = some.first_qp[kept], some.last_qp[last]
    if renumber:
        size = np.add.reduceat(some.qp_count[order], first)
        back = np.argsort(kept)
        kept, size, flow = kept[back], size[back], some.flow[kept[back]]
        before = np.cumsum(size) - size
        head = np.searchsorted(flow, flow)
        first_qp = some.first_qp[kept[head]] + before - before[head]
        last_qp = first_qp + size - 1
    stays = np.ones(len(paths), dtype=np.bool_)
    stays[split] = False
    stays[split[kept]] = True
    columns = paths.first_qp.copy(), paths.last_qp.copy()
    columns[0][split[kept]], columns[1][split[kept]] = first_qp, last_qp
    joined = Paths(paths.flow, *columns, paths.first, paths.arcs)
    return joined if stays.all() else joined.take(np.flatnonzero(stays))


def with_nics(network: Network, flows: Flows, inner: Paths, keep: Bools | None = None) -> Paths:
    """Return paths with the arcs of NICs with one link added at both ends.

    Rows that ``keep`` does not mark get no NIC arcs; None adds them to all.
    """
    kept = np.ones(len(inner), dtype=np.bool_) if keep is None else keep
    out = np.where(kept, network.nic_arc[flows.source[inner.flow]], NONE)
    into = np.where(kept, network.nic_arc[flows.destination[inner.flow]], NONE)
    before, after = out != NONE, into != NONE
    first = starts(np.diff(inner.first) + before + after)
    arcs = np.empty(int(first[-1]), dtype=np.int64)
    within = np.ones(len(arcs), dtype=np.bool_)
    heads, tails = first[:-1][before], first[1:][after] - 1
    arcs[heads], arcs[tails] = out[before], into[after] ^ 1
    within[heads], within[tails] = False, False
    arcs[within] = inner.arcs
    return Paths(inner.flow, inner.first_qp, inner.last_qp, first, arcs)


def inner_paths(network: Network, paths: Paths) -> Paths:
    """Return paths without the arcs of single-homed NICs, as an assignment keeps them."""
    inner = ~of_sole_links(network)[paths.arcs]
    first = np.append(0, np.cumsum(inner))[paths.first]
    return Paths(paths.flow, paths.first_qp, paths.last_qp, first, paths.arcs[inner])


def of_sole_links(network: Network) -> Bools:
    """Mark both arcs of the usable link of each single-homed NIC, which ``with_nics`` puts back.

    The result has shape (arcs,).
    """
    sole = network.nic_arc[network.nic_arc != NONE]
    marked = np.zeros(network.arc_count, dtype=np.bool_)
    marked[sole] = True
    marked[sole ^ 1] = True
    return marked
