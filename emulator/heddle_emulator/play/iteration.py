"""Iterations of jobs that run together: how long one takes, and the network's share of that.

An iteration is divided into slices. In each slice every GPU computes. Then come the exchanges that
it has to wait for, one kind after the other. Exchanges that overlap go on while the next slice
computes. The next iteration begins when all of it is done. All GPUs of a job are alike, so a slice
computes once for all of them, and an exchange is over when its slowest group is.

Planners get phases as follows. If no exchange overlaps with computing, exchanges are phases that
take turns: one for each kind of group, or, for jobs as users write them, the controller's own
division. If any exchange overlaps, all may run at the same time. Their rates are then in proportion
to what each has to send, so that no NIC is asked for more than its line rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.errors import InputError, refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.job import Gpus, Job, Parallelism
from heddle_controller.model.plan import Turn
from heddle_controller.traffic.groups import rank_groups, resolve_parallelism
from heddle_controller.traffic.jobs import shared_hosts
from heddle_controller.traffic.turns import STEPS, Cycle
from heddle_emulator.fluid.simulation import Timeline
from heddle_emulator.play.play import PLAIN, Played, Setting, play
from heddle_emulator.strategy.carried import Carried
from heddle_emulator.traffic.collective import KINDS, STAGES, all_to_all_v
from heddle_emulator.traffic.moves import Moves, Ranks
from heddle_emulator.traffic.script import Script, Writer, party_of, ranks_of
from heddle_emulator.traffic.workload import Exchange, Workload

NOBODY: Ints = np.empty(0, dtype=np.int64)
NO_TURNS: Mapping[str, Turn] = MappingProxyType({})
MOST_SAMPLES = 5e7
"""Most loads of links over time to keep, when finding out when jobs use which links."""
TINY = 1e-6


@dataclass(frozen=True, slots=True)
class Placed:
    """A workload on hosts, in rank order."""

    name: str
    workload: Workload
    hosts: tuple[str, ...]
    gpus_per_host: int = 8
    qps: int = 1
    pxn: bool | None = None
    gpus: tuple[Gpus, ...] = ()
    """The GPUs of each host, if the workload has parts of hosts."""

    @property
    def job(self) -> Job:
        """The job as a scheduler would place it."""
        return Job(
            self.name,
            self.hosts,
            self.gpus_per_host,
            self.workload.parallelism,
            traffic_class=self.workload.traffic_class,
            qps=self.qps,
            gpus=self.gpus,
        )


@dataclass(frozen=True, slots=True)
class Iteration:
    """The result for one job, a mean over its iterations."""

    name: str
    seconds: float
    compute_seconds: float

    @property
    def network_share(self) -> float:
        """The fraction of an iteration in which GPUs wait for the network, including NVLink."""
        return 1 - self.compute_seconds / self.seconds if self.seconds > 0 else 0.0


def iteration_script(
    fabric: Fabric,
    placed: Sequence[Placed],
    iterations: int = 1,
    turns: Mapping[str, Turn] = NO_TURNS,
) -> Script:
    """Write jobs that run together, each for so many iterations, from time 0 or by ``turns``.

    Raises:
        InputError: A host does not exist, two jobs share hosts or GPUs, or degrees do not fit.
    """
    if taken := list(shared_hosts(one.job for one in placed)):
        raise InputError("jobs", *taken)
    writer = Writer(fabric)
    for one in placed:
        write_iterations(fabric, writer, one, iterations, NOBODY, turn=turns.get(one.name))
    return writer.script()


def write_iterations(
    fabric: Fabric,
    writer: Writer,
    one: Placed,
    iterations: int,
    before: Ints,
    *,
    turn: Turn | None = None,
) -> Ints:
    """Write iterations of a job after ``before``; return the activity that ends each.

    With a turn, no iteration begins before its turn, and one that is late begins at once.

    Raises:
        InputError: A host does not exist, or degrees do not fit.
    """
    exchanges = _Exchanges(fabric, one, writer)
    ends = []
    for number in range(iterations):
        if turn is not None:
            begins = turn.shift_seconds + number * turn.pace_seconds
            clock = writer.compute(begins, NOBODY, f"{one.name}/turn")
            before = writer.meet(np.concatenate([before, clock]), f"{one.name}/turn")
        before = _iteration(writer, one, exchanges, before)
        ends.append(before)
    return np.concatenate([NOBODY, *ends])


def iterate(
    fabric: Fabric,
    placed: Sequence[Placed],
    carried: Carried,
    script: Script,
    setting: Setting = PLAIN,
    *,
    timeline: Timeline | None = None,
    turns: Mapping[str, Turn] = NO_TURNS,
) -> list[Iteration]:
    """Play a script of such jobs and return each job's result.

    ``timeline`` records how full links are. ``turns`` are those of the script. The time of a job
    with turns counts from its first turn to the turn after its last iteration.
    """
    played = play(fabric, script, carried, setting, timeline)
    return [_told(played, one, turns.get(one.name)) for one in placed]


def _told(played: Played, one: Placed, turn: Turn | None) -> Iteration:
    end = played.ends()[_end(one)]
    marks = np.flatnonzero(played.script.label == played.script.labels.index(_end(one)))
    seconds = end / len(marks)
    if turn is not None:
        seconds = max((end - turn.shift_seconds) / len(marks), turn.pace_seconds)
    return Iteration(one.name, seconds, one.workload.seconds)


def slower(one: Placed, part: float) -> Placed:
    """Return the job with its computing time increased by such a fraction."""
    told = one.workload
    return replace(one, workload=replace(told, seconds=told.seconds * (1 + part)))


def cycles_of(
    fabric: Fabric, placed: Sequence[Placed], carried: Carried, setting: Setting = PLAIN
) -> list[Cycle]:
    """Return the load of each job's iteration on links when it runs alone on its usual paths.

    The links are those that more than one job uses, each direction counted separately. The result
    is empty if a job takes no time or never ends.
    """
    writer, before = Writer(fabric), NOBODY
    for one in placed:
        before = write_iterations(fabric, writer, one, 1, before)
    script = writer.script()
    ends = play(fabric, script, carried, setting).ends()
    edges = np.array([0.0, *(ends[_end(one)] for one in placed)])
    if not np.isfinite(edges).all():
        return []
    seconds = np.diff(edges)
    if not (len(seconds) and seconds.min() > 0):
        return []
    arcs = 2 * fabric.link_count
    timeline = Timeline(max(seconds.min() / STEPS, edges[-1] * arcs / MOST_SAMPLES))
    play(fabric, script, carried, setting, timeline)
    loads = timeline.loads()[:, :arcs] / np.maximum(fabric.structure.capacity, TINY)
    cells = np.concatenate([np.zeros((1, arcs)), np.cumsum(loads, axis=0)])
    whole = np.diff(_summed(cells, edges / timeline.step_seconds), axis=0)
    cells = cells[:, np.count_nonzero(whole > TINY, axis=0) > 1]
    found = []
    for one, begin, length in zip(placed, edges[:-1], seconds, strict=True):
        at = (begin + np.arange(STEPS + 1) / STEPS * length) / timeline.step_seconds
        used = np.diff(_summed(cells, at), axis=0).T * timeline.step_seconds * (STEPS / length)
        used[used < TINY] = 0.0
        found.append(Cycle(one.name, float(length), used, float(one.qps)))
    return found


def _summed(cells: Floats, at: Floats) -> Floats:
    """Interpolate sums over whole steps at positions between steps."""
    at = np.minimum(at, len(cells) - 1)
    low = np.minimum(at.astype(np.int64), len(cells) - 2)
    found: Floats = cells[low] + (at - low)[:, None] * (cells[low + 1] - cells[low])
    return found


def _end(one: Placed) -> str:
    return f"{one.name}/end"


def _iteration(writer: Writer, one: Placed, exchanges: _Exchanges, before: Ints) -> Ints:
    """Write one iteration after ``before``; return the activity that ends it."""
    slices = one.workload.slices
    overlapping = [NOBODY for _ in one.workload.exchanges]
    begun = before
    for _ in range(slices):
        before = writer.compute(one.workload.seconds / slices, before, f"{one.name}/compute")
        computed = before
        for number, exchange in enumerate(one.workload.exchanges):
            if exchange.overlap:
                after = np.union1d(computed, overlapping[number])
                overlapping[number] = exchanges.write(number, after)
            elif exchange.beside:
                before = np.union1d(before, exchanges.write(number, begun))
            else:
                begun, before = before, exchanges.write(number, before)
    return writer.meet(np.concatenate([before, *overlapping]), _end(one))


class _Exchanges:
    """The exchanges of one job, computed once and written once per slice."""

    def __init__(self, fabric: Fabric, one: Placed, writer: Writer) -> None:
        self._one, self._writer = one, writer
        self._together = any(exchange.overlap for exchange in one.workload.exchanges)
        self._party = party_of(one.job, fabric)
        if not self._together:
            writer.declare(self._party, one.workload.phases)
        ranks = ranks_of(self._party, fabric, pxn=one.pxn)
        parallelism = resolve_parallelism(one.job)
        self._moves = [
            _moves(exchange, parallelism, ranks).repeated(exchange.times / one.workload.slices)
            for exchange in one.workload.exchanges
        ]

    def write(self, number: int, after: Ints) -> Ints:
        """Write one slice of an exchange; return the activity that is complete when it is."""
        exchange, moves = self._one.workload.exchanges[number], self._moves[number]
        if not len(moves):
            return after
        phase = "" if self._together else exchange.phase or exchange.group.value
        label = f"{self._party.name}/{exchange.group.value} {exchange.op}"
        rows = self._writer.exchange(self._party, moves, phase, after, label)
        return self._writer.meet(rows, label)


def _moves(exchange: Exchange, parallelism: Parallelism, ranks: Ranks) -> Moves:
    groups = rank_groups(parallelism, exchange.group)
    if groups.shape[1] == 1:
        groups = groups[:0]
    if exchange.op in STAGES:
        return STAGES[exchange.op](groups, ranks, exchange.size)
    if exchange.matrix is not None:
        ranks_told = len(exchange.matrix)
        if groups.shape[1] != ranks_told:
            reason = f"has {ranks_told} ranks, and the job {groups.shape[1]}; give it other hosts"
            raise refuse("matrix", "", reason)
        return all_to_all_v(groups, ranks, exchange.matrix)
    algorithms = KINDS[exchange.op].algorithms
    chosen = (
        algorithms[exchange.algorithm] if exchange.algorithm else next(iter(algorithms.values()))
    )
    return chosen(groups, ranks, exchange.size)
