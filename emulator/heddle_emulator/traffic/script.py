"""What jobs do: the flows that need paths, and the activities that send over them.

A script knows nothing of paths. A strategy is asked to carry its flows, and then ``play`` turns the
script and the paths into a schedule of the fluid world. One script may hold many jobs, and many
collectives of a job.

Flows of one phase between the same NICs are one flow. Demands are chosen for the case that all
flows of a phase send at once: no NIC is asked for more than its line rate, and no NIC finishes
later than the one with most to send or receive. With equal parts, a demand is the NIC's line rate
divided by the number of flows on it.

The last functions place the ranks of a job on NICs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import ANY_PHASE, Flows, TrafficClass, concatenate, no_flows
from heddle_controller.model.job import Gpus, Job
from heddle_emulator.traffic.moves import Moves, Ranks
from heddle_emulator.traffic.table import line_rates

BITS, GIGA = 8.0, 1e9


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """Activities, one per row; their moves; and the flows that moves between hosts use."""

    flows: Flows
    seconds: Floats
    """Seconds that each activity computes before it sends, shape (activities,)."""
    steps: Ints
    """Messages that follow one another in each activity, shape (activities,)."""
    times: Floats
    """How often each activity is repeated in sequence; ``steps`` counts all repetitions."""
    label: Ints
    """Index into ``labels`` of each activity."""
    labels: tuple[str, ...]
    before: Ints
    after: Ints
    activity: Ints
    """The activity of each move."""
    flow: Ints
    """Row of each move's flow; ``NONE`` within a host."""
    sender: Ints
    """GPU that each move leaves; the GPUs of all jobs are numbered consecutively."""
    receiver: Ints
    gbit: Floats
    """Size of each move, without headers."""
    brings: Ints
    """With ``goes``, pairs of moves; see ``Moves``."""
    goes: Ints
    gpus: int
    """Number of GPUs of all jobs together."""

    def __len__(self) -> int:
        return len(self.seconds)

    def scaled(self, factor: float) -> Script:
        """Return the script with sizes multiplied by ``factor``; demands of flows stay the same."""
        return replace(self, gbit=self.gbit * factor)


@dataclass(frozen=True, slots=True, eq=False)
class Party:
    """A job as scripts see it: its ranks, where they are, and how its flows are sent."""

    name: str
    nics: Ints
    """NIC row of each rank."""
    hosts: Ints
    """Host of each rank, numbered from 0, ascending."""
    qps: int = 1
    weight: float = 1.0
    traffic_class: TrafficClass = TrafficClass.BANDWIDTH


class Writer:
    """Writes a script, activity by activity; ``script`` returns the result."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._line = line_rates(fabric)
        self._count = 0
        self._gpus = self._moves = 0
        self._first_gpu: dict[str, int] = {}
        self._labels: dict[str, int] = {}
        self._sets: dict[tuple[str, str], tuple[int, Party]] = {}
        self._columns: dict[str, list[Ints]] = {}
        self._seconds: list[Floats] = []
        self._times: list[Floats] = []
        self._gbit: list[Floats] = []

    def declare(self, party: Party, phases: Sequence[str]) -> None:
        """Name the phases of a job before they are used; flows come in that order."""
        for phase in phases:
            self._sets.setdefault((party.name, phase), (len(self._sets), party))

    def compute(self, seconds: float, after: Ints, label: str = "compute") -> Ints:
        """Add an activity that takes ``seconds`` and sends nothing; return its row."""
        row = self._activities(np.array([seconds]), np.zeros(1, dtype=np.int64), label)
        self._times.append(np.ones(1))
        self._wait(row, after)
        return row

    def meet(self, after: Ints, label: str = "meet") -> Ints:
        """Add an activity that takes no time and waits for all of ``after``; return its row."""
        return self.compute(0.0, after, label)

    def exchange(self, party: Party, moves: Moves, phase: str, after: Ints, label: str) -> Ints:
        """Add a collective, whose activities wait for all of ``after``; return their rows.

        Flows with an empty ``phase`` may run at any time.
        """
        rows = self._activities(np.zeros(len(moves)), moves.steps, label)
        self._times.append(np.full(len(moves), max(moves.times, 1.0)))
        if len(after) > 1:
            after = self.meet(after, label)
        first = np.setdiff1d(np.arange(len(moves)), moves.after)
        self._wait(rows[first], after)
        self._pairs(rows[moves.before], rows[moves.after])
        offset = self._first_gpu.setdefault(party.name, self._gpus)
        self._gpus = max(self._gpus, offset + len(party.nics))
        self._put("brings", self._moves + moves.brings)
        self._put("goes", self._moves + moves.goes)
        self._moves += len(moves.activity)
        self._put("activity", rows[moves.activity])
        self._put("sender", offset + moves.source)
        self._put("receiver", offset + moves.destination)
        self._put("code", self._codes(party, moves, phase))
        self._gbit.append(moves.bytes * BITS / GIGA)
        return rows

    def script(self) -> Script:
        """Return all that was written."""
        gbit = np.concatenate([np.empty(0), *self._gbit])
        code = self._column("code")
        crossing = code != NONE
        codes, row = np.unique(code[crossing], return_inverse=True)
        flow = np.full(len(code), NONE, dtype=np.int64)
        flow[crossing] = row
        sent = np.bincount(row, weights=gbit[crossing], minlength=len(codes)).astype(np.float64)
        return Script(
            flows=self._flows(codes, sent),
            seconds=np.concatenate([np.empty(0), *self._seconds]),
            steps=self._column("steps"),
            times=np.concatenate([np.empty(0), *self._times]),
            label=self._column("label"),
            labels=tuple(self._labels),
            before=self._column("before"),
            after=self._column("after"),
            activity=self._column("activity"),
            flow=flow,
            sender=self._column("sender"),
            receiver=self._column("receiver"),
            gbit=gbit,
            brings=self._column("brings"),
            goes=self._column("goes"),
            gpus=self._gpus,
        )

    def _codes(self, party: Party, moves: Moves, phase: str) -> Ints:
        """Return a code of each move's set of flows and NICs; ``NONE`` within a host."""
        number, _ = self._sets.setdefault((party.name, phase), (len(self._sets), party))
        host = party.hosts[moves.source], party.hosts[moves.destination]
        nics = self._fabric.node_count
        ends = party.nics[moves.source] * nics + party.nics[moves.destination]
        return np.where(host[0] == host[1], NONE, number * nics**2 + ends)

    def _flows(self, codes: Ints, sent: Floats) -> Flows:
        """Return a flow for each code; ``sent`` is the Gbit of each."""
        number, source, destination = self._told(codes)
        rate = _rates(self._line, number, (source, destination), sent)
        parts = [no_flows()]
        for (name, phase), (place, party) in self._sets.items():
            own = np.flatnonzero(number == place)
            ends = source[own], destination[own]
            parts.append(self._flows_of(name, phase, party, ends, rate[own]))
        return concatenate(parts)

    def _told(self, codes: Ints) -> tuple[Ints, Ints, Ints]:
        """Return set, source and destination of each code."""
        nics = self._fabric.node_count
        return codes // nics**2, codes // nics % nics, codes % nics

    def _flows_of(
        self, name: str, phase: str, party: Party, ends: tuple[Ints, Ints], rate: Floats
    ) -> Flows:
        count, ids = len(rate), self._fabric.structure.nodes.ids
        pairs = zip(ends[0].tolist(), ends[1].tolist(), strict=True)
        return Flows(
            ids=tuple(f"{name}/{phase or 'any'}/{ids[a]}->{ids[b]}" for a, b in pairs),
            source=ends[0],
            destination=ends[1],
            gbps=rate,
            job=np.zeros(count, dtype=np.int64),
            phase=np.full(count, 0 if phase else ANY_PHASE, dtype=np.int64),
            qps=np.full(count, party.qps, dtype=np.int64),
            traffic_class=np.full(count, int(party.traffic_class), dtype=np.int64),
            weight=np.full(count, party.weight),
            job_names=(name,),
            phase_names=(phase,) if phase else (),
        )

    def _activities(self, seconds: Floats, steps: Ints, label: str) -> Ints:
        rows = np.arange(self._count, self._count + len(steps), dtype=np.int64)
        self._count += len(steps)
        number = self._labels.setdefault(label, len(self._labels))
        self._seconds.append(seconds)
        self._put("steps", steps)
        self._put("label", np.full(len(steps), number, dtype=np.int64))
        return rows

    def _wait(self, rows: Ints, after: Ints) -> None:
        self._pairs(np.repeat(after, len(rows)), np.tile(rows, len(after)))

    def _pairs(self, before: Ints, after: Ints) -> None:
        self._put("before", before)
        self._put("after", after)

    def _put(self, name: str, values: Ints) -> None:
        self._columns.setdefault(name, []).append(values)

    def _column(self, name: str) -> Ints:
        return np.concatenate([np.empty(0, dtype=np.int64), *self._columns.get(name, [])])


def _rates(line: Floats, number: Ints, ends: tuple[Ints, Ints], sent: Floats) -> Floats:
    """Return Gbit/s of each flow: its Gbit over the time that its busier NIC needs for its set."""
    seconds = np.zeros(len(sent))
    for end in ends:
        key = number * len(line) + end
        _, place = np.unique(key, return_inverse=True)
        seconds = np.maximum(seconds, np.bincount(place, weights=sent)[place] / line[end])
    return np.divide(sent, seconds, out=np.zeros(len(sent)), where=seconds > 0)


def nics_of_ranks(fabric: Fabric, hosts: Sequence[str], gpus: Sequence[Gpus]) -> Ints:
    """Return the NIC row of each rank: GPU ``i`` of a host uses its NIC ``i``, modulo its NICs.

    Args:
        fabric: The fabric with the hosts.
        hosts: Hosts in rank order.
        gpus: The GPUs of each host that have ranks.

    Raises:
        InputError: A host is not in the fabric, or is named twice.
    """
    known = fabric.structure.nics_of_host
    for place, host in enumerate(hosts):
        if host not in known:
            raise refuse("hosts", host, "is not a host with NICs in the fabric")
        if host in hosts[:place]:
            raise refuse("hosts", host, "is named twice")
    nics = [
        known[host][gpu % len(known[host])]
        for host, part in zip(hosts, gpus, strict=True)
        for gpu in part
    ]
    return np.array(nics, dtype=np.int64)


def gpus_of(job: Job) -> list[Gpus]:
    """Return the GPUs of each host on which ranks of a job run."""
    return list(job.gpus) or [tuple(range(job.gpus_per_host))] * len(job.hosts)


def party_of(job: Job, fabric: Fabric) -> Party:
    """Return a job on its hosts.

    Raises:
        InputError: A host is not in the fabric, or is named twice.
    """
    gpus = gpus_of(job)
    hosts = np.repeat(np.arange(len(gpus), dtype=np.int64), [len(part) for part in gpus])
    nics = nics_of_ranks(fabric, job.hosts, gpus)
    return Party(job.name, nics, hosts, job.qps, job.priority or 1.0, job.traffic_class)


def ranks_of(party: Party, fabric: Fabric, *, pxn: bool | None = None) -> Ranks:
    """Return where a party's ranks sit; with ``pxn`` None, PXN is used if its NICs have rails."""
    rail = fabric.structure.rails[party.nics]
    railed = bool((rail != NONE).any())
    return Ranks(party.hosts, rail if railed and pxn is not False else None)
