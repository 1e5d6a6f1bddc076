"""The table that nccl-tests prints, for every strategy: a collective's speed by its size.

Time is that of the slowest communicator, if several run at once. Algorithm bandwidth is size over
time. Bus bandwidth is that times the factor of nccl-tests for the operation: what a rank carries,
and so what the hardware limits, whatever the number of ranks. Several ranks may share a NIC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from heddle_controller.model.arrays import Floats
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.plan import no_paths
from heddle_emulator.play.play import PLAIN, Setting, least_seconds, play
from heddle_emulator.strategy.carried import Carried, whole
from heddle_emulator.strategy.choose import Choice, choose, require_all
from heddle_emulator.traffic.collective import KINDS, Algorithm, all_to_all_v
from heddle_emulator.traffic.matrix import most_moved, most_sent
from heddle_emulator.traffic.script import GIGA, Party, Script, Writer, nics_of_ranks, ranks_of

BOUND = "bound"
"""Name in the table of the limit of all plans of whole QPs."""


@dataclass(frozen=True, slots=True)
class NcclRun:
    """A collective to run."""

    op: str
    groups: tuple[tuple[str, ...], ...]
    """Hosts of each communicator, in rank order; all communicators run at once."""
    gpus_per_host: int = 8
    algorithm: str = ""
    """Empty means the operation's default."""
    qps: int = 1
    pxn: bool | None = None
    matrix: Floats | None = field(default=None, compare=False)
    """Of an all-to-all: bytes by sender and receiver.

    A size is then that of the rank that sends most, and all others are in proportion.
    """

    @property
    def ranks(self) -> int:
        """Number of ranks of each communicator."""
        return len(self.groups[0]) * self.gpus_per_host

    @property
    def factor(self) -> float:
        """Bus bandwidth over algorithm bandwidth."""
        if self.matrix is not None:
            return most_moved(self.matrix) / most_sent(self.matrix)
        return KINDS[self.op].factor(self.ranks)


@dataclass(frozen=True, slots=True)
class SizeResult:
    """The result for one size."""

    size: int
    """Bytes."""
    seconds: float
    algbw: float
    """GB/s, as nccl-tests counts it."""
    busbw: float
    """GB/s."""
    busbw_mean: float
    """GB/s, the mean over communicators."""


def nccl_script(fabric: Fabric, trial: NcclRun) -> Script:
    """Return the script of a collective of one byte in every communicator at once.

    Raises:
        InputError: An operation, algorithm or host does not exist, or the algorithm does not work
            with
            this number of ranks.
    """
    algorithm = _algorithm(trial)
    if not trial.groups or len({len(hosts) for hosts in trial.groups}) != 1:
        raise refuse("nccl", "groups", "differ in their number of hosts; give them equal ones")
    if trial.ranks < 2:  # noqa: PLR2004 - one has nobody to talk to
        raise refuse("nccl", "hosts", "give 2 GPUs or more to a communicator")
    every = [host for hosts in trial.groups for host in hosts]
    nics_of_ranks(fabric, every, [(0,)] * len(every))
    gpus = tuple(range(trial.gpus_per_host))
    writer = Writer(fabric)
    nobody = np.empty(0, dtype=np.int64)
    for number, hosts in enumerate(trial.groups):
        nics = nics_of_ranks(fabric, hosts, [gpus] * len(hosts))
        of_host = np.repeat(np.arange(len(hosts), dtype=np.int64), len(gpus))
        party = Party(f"c{number}", nics, of_host, trial.qps)
        group = np.arange(len(nics), dtype=np.int64)[None, :]
        moves = algorithm(group, ranks_of(party, fabric, pxn=trial.pxn), 1.0)
        writer.exchange(party, moves, trial.op, nobody, party.name)
    return writer.script()


def _algorithm(trial: NcclRun) -> Algorithm:
    """Return the algorithm of a trial."""
    matrix = trial.matrix
    if matrix is None:
        return algorithm_of(trial.op, trial.algorithm)
    if trial.op != "alltoall" or trial.algorithm:
        raise refuse("nccl", "matrix", "is of --op alltoall, with no --algorithm")
    if len(matrix) != trial.ranks:
        told = f"{len(trial.groups[0]) if trial.groups else 0} hosts of {trial.gpus_per_host} GPUs"
        reason = f"has {len(matrix)} ranks, and {told} have {trial.ranks}; give others"
        raise refuse("nccl", "matrix", reason)
    part = matrix / most_sent(matrix)
    return lambda groups, ranks, size: all_to_all_v(groups, ranks, part * size)


def algorithm_of(op: str, name: str) -> Algorithm:
    """Return an algorithm of an operation; an empty name means the operation's default.

    Raises:
        InputError: One of them is not known.
    """
    if op not in KINDS:
        raise refuse("nccl", "op", f"{op!r} is not known; give one of {', '.join(KINDS)}")
    known = KINDS[op].algorithms
    if name and name not in known:
        reason = f"{name!r} does no {op}; give one of {', '.join(known)}"
        raise refuse("nccl", "algorithm", reason)
    return known[name] if name else next(iter(known.values()))


def size_table(
    fabric: Fabric,
    trial: NcclRun,
    sizes: Sequence[int],
    names: Sequence[str],
    *,
    seed: int = 0,
    setting: Setting = PLAIN,
    tell: Callable[[str], None] = lambda _: None,
    chosen: Callable[[str, Carried], None] = lambda _, __: None,
) -> dict[str, list[SizeResult]]:
    """Return a line for each size by strategy, and last the bound if a strategy proves one.

    ``chosen`` is called with the paths of each strategy, if any flows leave their host.

    Raises:
        InputError: See ``nccl_script``; or a plan leaves flows without a path.
        HeddleError, ControllerError, TimeoutError: For "te".
    """
    script = nccl_script(fabric, trial)
    found, bound = {}, 0.0
    for name in names:
        tell(name)
        choice = choose(name, fabric, script.flows, seed) if len(script.flows) else None
        if choice is not None:
            require_all(name, choice.carried)
            chosen(name, choice.carried)
        found[name] = lines(fabric, trial, script, choice, sizes=sizes, setting=setting)
        bound = max(bound, choice.lower_bound if choice else 0.0)
    if bound > 0:
        for size in sizes:
            least = least_seconds(fabric, script.scaled(size), bound, setting.wire)
            found.setdefault(BOUND, []).append(_line(trial, size, np.array([least])))
    return found


def lines(
    fabric: Fabric,
    trial: NcclRun,
    script: Script,
    choice: Choice | None,
    *,
    sizes: Sequence[int],
    setting: Setting = PLAIN,
) -> list[SizeResult]:
    """Return a line for each size; ``choice`` is None if nothing leaves its host."""
    carried = choice.carried if choice else whole(script.flows, no_paths())
    found = []
    for size in sizes:
        played = play(fabric, script.scaled(size), carried, setting)
        seconds = np.array([*played.ends().values()])
        found.append(_line(trial, size, seconds))
    return found


def _line(trial: NcclRun, size: int, seconds: Floats) -> SizeResult:
    slowest = float(seconds.max())
    each = np.divide(size / GIGA, seconds, out=np.full(len(seconds), np.inf), where=seconds > 0)
    slow = float(each.min())
    return SizeResult(size, slowest, slow, slow * trial.factor, float(each.mean()) * trial.factor)
