"""Flows on paths while a plan is being made: loads kept up to date move by move.

The unit of the search is the *chunk*: some QPs of one flow, together on one path.
Chunks are rows of plain lists, because the search touches few of them; loads are
arrays, because it looks at many arcs at a time. Only the choice is kept here, the
arcs between the terminals of a flow; the arcs of single-homed NICs are fixed.

Load follows the rule of ``model.load``. Flows of a job with one phase, or with
none, simply add up. Jobs of several phases keep a small table of their own.

From an assignment to the arrays of a plan.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, stable_order, starts
from heddle_controller.model.flows import ANY_PHASE, Flows
from heddle_controller.model.plan import Paths
from heddle_controller.solve.network import Network
from heddle_controller.solve.phases import PhaseTable, copied, phase_tables

_NONE: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """One change, with what is needed to take it back."""

    chunk: int
    old_path: Ints
    split_from: int | None = None
    """The chunk that this one was cut off from; None where it was moved."""


class Assignment:
    """Which chunk runs over which arcs, and the load that results."""

    def __init__(self, network: Network, flows: Flows) -> None:
        self.network = network
        self.flows = flows
        self.load: Floats = np.zeros(network.arc_count + 1)
        """Gbit/s on each arc and, last, on the padding, which weighs nothing."""
        self.flow: list[int] = []
        self.first_qp: list[int] = []
        self.last_qp: list[int] = []
        self.path: list[Ints] = []
        self.unit: Floats = flows.gbps / flows.qps
        """Gbit/s of one QP of each flow."""
        self._tables: dict[int, PhaseTable] = phase_tables(flows, len(self.load))
        self._shared: set[int] = set()
        """Jobs whose table another assignment has as well: it is copied before it changes."""
        none = np.zeros(network.arc_count + 2, dtype=np.int64), _NONE
        self._base: tuple[tuple[Ints, Ints], tuple[Ints, Ints]] = none, none
        """Where the chunks of each arc begin, and the chunks of all: as they were loaded, and as
        they were last put in."""
        self._members: dict[int, list[int]] = {}
        """Chunks on each arc that changed since then, ascending."""
        self._own: set[int] = set()
        """Arcs whose list no copy has as well; others are copied before they change."""
        self.touched: set[int] = set()
        """Chunks moved or made since loading."""
        self.journal: list[MoveRecord] = []
        """Changes that ``roll_back`` can take back; whoever starts a trial clears it."""

    def copy(self) -> Assignment:
        """Another with the same chunks and loads, changed apart from this one.

        It has some columns of its own; the table of a job and the members of an arc are copied
        once they change in either.
        """
        self._shared, self._own = set(self._tables), set()
        return copied(
            self,
            *("load", "flow", "first_qp", "last_qp", "path", "touched", "journal"),
            *("_tables", "_shared", "_members", "_own"),
        )

    def load_chunks(self, inner: Paths) -> None:
        """Takes in many chunks at once, each with the arcs of its choice; only the first time."""
        flow, owner, arcs = inner.flow, inner.owner(), inner.arcs
        self.flow, self.first_qp = flow.tolist(), inner.first_qp.tolist()
        self.last_qp = inner.last_qp.tolist()
        self.path = [arcs[low:high] for low, high in pairwise(inner.first.tolist())]
        self._take_load(inner, owner)
        self._base = self._by_arc(arcs, owner), self._base[1]

    def _take_load(self, inner: Paths, owner: Ints) -> None:
        """Adds the load of many paths at once."""
        flow, arcs = inner.flow, inner.arcs
        gbps = (self.unit[flow] * inner.qp_count)[owner]
        linear = np.ones(len(flow), dtype=np.bool_)
        if self._tables:
            linear = ~np.isin(self.flows.job[flow], list(self._tables)) | (
                self.flows.phase[flow] == ANY_PHASE
            )
        keep = linear[owner]
        np.add.at(self.load, arcs[keep], gbps[keep])
        rest = np.flatnonzero(~keep)
        rest = rest[stable_order(self.flows.job[flow[owner[rest]]])]
        used = flow[owner[rest]]
        first = np.flatnonzero(np.diff(self.flows.job[used], prepend=NONE))
        for low, high in pairwise([*first.tolist(), len(rest)]):
            rows, phases = rest[low:high], self.flows.phase[used[low:high]]
            table = self._own_table(int(self.flows.job[used[low]]))
            table.load(arcs[rows], phases, gbps[rows], self.load)

    def extend(self, flows: Flows) -> None:
        """Takes on flows that stand behind those known; see ``phases.only_appended``."""
        known = len(self.flows)
        come = flows.take(np.arange(known, len(flows), dtype=np.int64))
        self.flows, self.unit = flows, np.append(self.unit, come.gbps / come.qps)
        self._tables |= phase_tables(come, len(self.load))

    def put(self, chunks: list[int], inner: Paths) -> None:
        """Gives chunks that have no path one each, many at once; cannot be rolled back."""
        self._take_load(inner, inner.owner())
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
        """Chunks, each on the arc beside it, as ``_base`` has them."""
        counts = np.bincount(arcs, minlength=self.network.arc_count + 1)
        return starts(counts), chunks[stable_order(arcs)]

    def _joined(self) -> tuple[Ints, Ints]:
        """Both parts of ``_base`` in one."""
        arcs = [np.repeat(np.arange(len(first) - 1), np.diff(first)) for first, _ in self._base]
        chunks = [chunks for _, chunks in self._base]
        return self._by_arc(np.concatenate(arcs), np.concatenate(chunks))

    def members(self, arc: int) -> list[int]:
        """Chunks on an arc, ascending; the caller's own list."""
        known = self._members.get(arc)
        return self._loaded(arc) if known is None else known.copy()

    def _loaded(self, arc: int) -> list[int]:
        members: list[int] = []
        for first, chunks in self._base:
            members += chunks[first[arc] : first[arc + 1]].tolist()
        members.sort()  # what is sorted takes no time
        return members

    def _own_members(self, arc: int) -> list[int]:
        """The chunks on an arc, to be changed."""
        if arc not in self._own:
            self._own.add(arc)
            self._members[arc] = self.members(arc)
        return self._members[arc]

    def gbps(self, chunk: int) -> float:
        """Rate of a chunk."""
        return self.unit_of(chunk) * self.qps(chunk)

    def qps(self, chunk: int) -> int:
        """QPs in a chunk."""
        return self.last_qp[chunk] - self.first_qp[chunk] + 1

    def utilization(self) -> Floats:
        """Load over capacity of every arc and the padding (0)."""
        return self.load * self.network.per_gbps

    def utilization_of(self, arc: int) -> float:
        """Load over capacity of one arc."""
        return float(self.load[arc] * self.network.per_gbps[arc])

    def unit_of(self, chunk: int) -> float:
        """Gbit/s of one QP of a chunk."""
        return float(self.unit[self.flow[chunk]])

    def used_after_move(self, chunk: int, qps: int, paths: Ints) -> Floats:
        """Utilisation along each path if so many QPs of a chunk moved there.

        ``paths`` and the answer have shape (paths, hops).
        """
        flow, old = self.flow[chunk], self.path[chunk]
        gbps = self.unit_of(chunk) * qps
        self.add(flow, -gbps, old)
        after = self.load_with(flow, gbps, paths) * self.network.per_gbps[paths]
        self.add(flow, gbps, old)
        return after

    def load_with(self, flow: int, gbps: float, arcs: Ints) -> Floats:
        """Load of arcs (any shape) if they carried that much more of a flow."""
        table = self._table(flow)
        loads: Floats = self.load[arcs]
        if table is None:
            return loads + gbps
        return loads + table.increase(arcs, int(self.flows.phase[flow]), gbps)

    def add(self, flow: int, gbps: float, path: Ints) -> None:
        """Puts load on a path; negative takes it off."""
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
        """The table of a job that has one, to be changed."""
        if job in self._shared:
            self._shared.discard(job)
            self._tables[job] = self._tables[job].copy()
        return self._tables[job]

    def place(self, flow: int, first_qp: int, last_qp: int) -> int:
        """Makes a new chunk, without a path yet, and returns its row."""
        self.flow.append(flow)
        self.first_qp.append(first_qp)
        self.last_qp.append(last_qp)
        self.path.append(np.empty(0, dtype=np.int64))
        self.touched.add(len(self.flow) - 1)
        return len(self.flow) - 1

    def place_whole(self, flows: list[int]) -> None:
        """Makes a new chunk of all QPs for each of many flows, without paths yet."""
        known = len(self.flow)
        self.flow += flows
        self.first_qp += [0] * len(flows)
        self.last_qp += (self.flows.qps[flows] - 1).tolist()
        self.path += [np.empty(0, dtype=np.int64)] * len(flows)
        self.touched.update(range(known, len(self.flow)))

    def split(self, chunk: int, qps: int) -> int:
        """Cuts the last ``qps`` QPs off a chunk; the new one stays on the same path."""
        path, last = self.path[chunk], self.last_qp[chunk]
        piece = self.place(self.flow[chunk], last - qps + 1, last)
        self.path[piece] = path
        self.last_qp[chunk] = last - qps
        self.touched.add(chunk)
        self._join(piece, path)
        self.journal.append(MoveRecord(piece, path, chunk))
        return piece

    def move(self, chunk: int, path: Ints) -> None:
        """Moves a whole chunk to a path."""
        flow, gbps, old = self.flow[chunk], self.gbps(chunk), self.path[chunk]
        self.add(flow, -gbps, old)
        self.add(flow, gbps, path)
        self._change_path(chunk, path)
        self.touched.add(chunk)
        self.journal.append(MoveRecord(chunk, old))

    def roll_back(self, length: int) -> None:
        """Takes changes back, newest first, until ``length`` are left in the journal."""
        while len(self.journal) > length:
            step = self.journal.pop()
            if step.split_from is not None:
                self.last_qp[step.split_from] = self.last_qp[step.chunk]
                self._leave(step.chunk, step.old_path)
                for column in (self.flow, self.first_qp, self.last_qp, self.path):
                    column.pop()
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


_AT_ONCE = 4096
"""Pieces of an array that are joined in one go."""


def exported_paths(assignment: Assignment, *, renumber: bool) -> Paths:
    """All paths with the NIC arcs at both ends.

    ``renumber`` joins the QPs of a flow that share a path and numbers them anew;
    otherwise each QP keeps its number, so that a repair moves no other.
    """
    everything = list(range(len(assignment.flow)))
    inner = merged_chunks(assignment, everything, renumber=renumber)
    return with_nics(assignment.network, assignment.flows, inner)


def merged_chunks(assignment: Assignment, chunks: list[int], *, renumber: bool) -> Paths:
    """Chunks as paths between terminals, by flow and QP; neighbours of one path joined."""
    whole = len(chunks) == len(assignment.flow)
    columns = (assignment.flow, assignment.first_qp, assignment.last_qp)
    flow, first_qp, last_qp = (
        np.array(column if whole else [column[c] for c in chunks], dtype=np.int64)
        for column in columns
    )
    order = np.lexsort((first_qp, flow))
    flow, first_qp, last_qp = flow[order], first_qp[order], last_qp[order]
    inner = [assignment.path[chunks[place]] for place in order.tolist()]
    split = np.flatnonzero(np.bincount(flow, minlength=1)[flow] > 1) if len(flow) else flow
    if len(split):
        keep = _merge(flow, first_qp, last_qp, inner, split, renumber=renumber)
        flow, first_qp, last_qp = flow[keep], first_qp[keep], last_qp[keep]
        inner = [path for path, kept in zip(inner, keep.tolist(), strict=True) if kept]
    lengths = np.array([len(path) for path in inner], dtype=np.int64)
    return Paths(flow, first_qp, last_qp, starts(lengths), concatenated(inner))


def concatenated(pieces: Sequence[Ints]) -> Ints:
    """All pieces, one after the other.

    Not tens of thousands in one go: whoever wants the interpreter would wait for all of them.
    """
    empty = np.empty(0, dtype=np.int64)
    parts = (pieces[at : at + _AT_ONCE] for at in range(0, len(pieces), _AT_ONCE))
    return np.concatenate([empty, *(np.concatenate(part) for part in parts)])


def _merge(
    flow: Ints,
    first_qp: Ints,
    last_qp: Ints,
    inner: list[Ints],
    split: Ints,
    *,
    renumber: bool,
) -> Bools:
    """Joins rows of equal flow and path among ``split``; marks the rows that stay."""
    keep = np.ones(len(flow), dtype=np.bool_)
    if renumber:
        holder: dict[tuple[int, bytes], int] = {}
        for row in split.tolist():
            name = (int(flow[row]), inner[row].tobytes())
            if name in holder:
                last_qp[holder[name]] += last_qp[row] - first_qp[row] + 1
                keep[row] = False
            else:
                holder[name] = row
        for before, row in pairwise(split[keep[split]].tolist()):
            if flow[before] == flow[row]:
                size = last_qp[row] - first_qp[row]
                first_qp[row] = last_qp[before] + 1
                last_qp[row] = first_qp[row] + size
        return keep
    last = int(split[0])
    for row in split[1:].tolist():
        if flow[row] == flow[last] and np.array_equal(inner[row], inner[last]):
            last_qp[last] = last_qp[row]
            keep[row] = False
        else:
            last = row
    return keep


def with_nics(network: Network, flows: Flows, inner: Paths, keep: Bools | None = None) -> Paths:
    """Paths with the arcs of single-homed NICs put before and after.

    Rows not marked by ``keep`` stay without arcs.
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
