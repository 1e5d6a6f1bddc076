"""Iterations of jobs, side by side: how long one takes, and how much of that is the network.

An iteration is divided into slices. In each, every GPU computes; then come the
exchanges that it has to wait for, one kind after the other; those that overlap go on
while the next slice computes. The next iteration begins when all of it is done. All
GPUs of a job are alike, so a slice computes once for all of them, and an exchange is
over when its slowest group is.

What planners are told: exchanges are phases that take turns, by kinds of groups and, in jobs
as users write them, by the controller's own division, where none overlaps with computing.
Where any does, all may meet, and ask for rates by what each has to send, so that no NIC
is asked for more than its line.
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
from heddle_controller.traffic.checks import shared_hosts
from heddle_controller.traffic.groups import rank_groups, resolve_parallelism
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
"""Loads of links over time that are kept to see when jobs use which."""
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
    """Of each host, where the workload has parts of hosts."""

    @property
    def job(self) -> Job:
        """The same as a scheduler would place it."""
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
    """What came of one job, a mean over its iterations."""

    name: str
    seconds: float
    compute_seconds: float

    @property
    def network_share(self) -> float:
        """The part of an iteration in which GPUs wait for the network, NVLink counted."""
        return 1 - self.compute_seconds / self.seconds if self.seconds > 0 else 0.0


def iteration_script(
    fabric: Fabric,
    placed: Sequence[Placed],
    iterations: int = 1,
    turns: Mapping[str, Turn] = NO_TURNS,
) -> Script:
    """Jobs side by side, each so many iterations, all beginning at once or by ``turns``.

    Raises:
        InputError: hosts that are not there, hosts or GPUs in two jobs, degrees that do not fit.
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
    """Write iterations of a job after ``before``; returns the activity that ends each.

    With a turn, no iteration begins before it, and one that is late begins at once.

    Raises:
        InputError: hosts that are not there, degrees that do not fit.
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
    """Play a script of such jobs, and tell of each; ``timeline`` hears how full links are.

    ``turns`` are those of the script. A job's time counts from its first turn.
    """
    played = play(fabric, script, carried, setting, timeline)
    shifts = {name: turn.shift_seconds for name, turn in turns.items()}
    return [_told(played, one, shifts.get(one.name, 0.0)) for one in placed]


def _told(played: Played, one: Placed, begun: float) -> Iteration:
    ends = played.ends()
    marks = np.flatnonzero(played.script.label == played.script.labels.index(_end(one)))
    return Iteration(one.name, (ends[_end(one)] - begun) / len(marks), one.workload.seconds)


def slower(one: Placed, part: float) -> Placed:
    """The same job, computing longer by such a part."""
    told = one.workload
    return replace(one, workload=replace(told, seconds=told.seconds * (1 + part)))


def cycles_of(
    fabric: Fabric, placed: Sequence[Placed], carried: Carried, setting: Setting = PLAIN
) -> list[Cycle]:
    """What an iteration of each job is when it is alone, on the paths that it has beside others.

    Links are both ways of those that more than one job uses. None where a job takes no time, or
    never ends.
    """
    writer, before = Writer(fabric), NOBODY
    for one in placed:
        before = write_iterations(fabric, writer, one, 1, before)
    script = writer.script()
    ends = play(fabric, script, carried, setting).ends()
    edges = np.array([0.0, *(ends[_end(one)] for one in placed)])
    seconds = np.diff(edges)
    if not (len(seconds) and seconds.min() > 0 and np.isfinite(edges).all()):
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
    """Sums up to steps and parts of steps, by sums up to whole steps."""
    at = np.minimum(at, len(cells) - 1)
    low = np.minimum(at.astype(np.int64), len(cells) - 2)
    found: Floats = cells[low] + (at - low)[:, None] * (cells[low + 1] - cells[low])
    return found


def _end(one: Placed) -> str:
    return f"{one.name}/end"


def _iteration(writer: Writer, one: Placed, exchanges: _Exchanges, before: Ints) -> Ints:
    """One iteration after ``before``; returns the activity that ends it."""
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
    """The exchanges of one job, worked out once and written once a slice."""

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
        """One slice of an exchange; returns what is complete when it is."""
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
