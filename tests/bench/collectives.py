"""Collectives in the fluid world: published experiments rebuilt, and every strategy beside them.

Eight all-reduces of two hosts each run at once over leaves of eight uplinks, as in Alibaba's C4P:
1:1, 2:1, and 1:1 with one uplink down. They are compared with the limit of the linear programme, in
which QPs may be divided into any fractions. Around a leaf this limit is a cut, and spraying attains
it.

All-gathers run over rings, trees or a full mesh, in one zone and across tapered zones. Where few
links join the zones, the mesh is slowest because every rank sends everything to every other.
All-to-alls of experts on rails run with PXN and without.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.job import Group, Parallelism
from heddle_emulator.fluid.wire import ROCE
from heddle_emulator.play.iteration import Iteration, Placed, iterate, iteration_script
from heddle_emulator.play.nccl import NcclRun, SizeResult, nccl_script, size_table
from heddle_emulator.play.play import Setting
from heddle_emulator.strategy import choose
from heddle_emulator.strategy.compare import least_utilization
from heddle_emulator.topology import clos, rail_optimised, three_tier
from heddle_emulator.traffic.workload import Exchange, Workload, workload
from tests.bench.rows import Row, Scale, quantile
from tests.bench.screen import Screen

GIB = 1 << 30
QPS = 32
CLOSE = 0.98
PAIRS = 8
ROCE_SETTING = Setting(ROCE)
STRATEGIES = ("ecmp", f"e-ecmp:{4 * QPS}", "greedy", "te", "spray", "ideal")
REDUCES = "eight all-reduces at once, bus bandwidth"
GATHERS = "all-gather under ECMP: ring, tree, mesh"


@dataclass(frozen=True, slots=True)
class Shape:
    """A fabric for the eight all-reduces."""

    name: str
    spines: int
    down: bool = False

    def fabric(self) -> Fabric:
        """Return two units of eight hosts and eight rails, with one uplink down if ``down``."""
        found = rail_optimised(units=2, servers=PAIRS, rails=8, spines=self.spines, parallel=1)
        if not self.down:
            return found
        (lost,) = found.find_links("u0-r0", "s0")
        return found.with_links({lost: State.DOWN})


SHAPES = (Shape("1:1", 8), Shape("2:1", 4), Shape("1:1, one of eight uplinks down", 8, down=True))


@dataclass(frozen=True, slots=True)
class Reduced:
    """Bus bandwidth of the slowest job by strategy, and the bound that no paths can exceed."""

    lines: dict[str, SizeResult]
    limit: float
    """In GB/s."""


def reduced(shape: Shape, names: tuple[str, ...], seed: int, qps: int = QPS) -> Reduced:
    """Run the eight all-reduces, in which host n of each unit form one job.

    All traffic between their NICs crosses the spines.
    """
    fabric = shape.fabric()
    hosts = [*fabric.structure.nics_of_host]
    groups = tuple((hosts[row], hosts[row + PAIRS]) for row in range(PAIRS))
    trial = NcclRun("all_reduce", groups, 8, qps=qps)
    found = size_table(fabric, trial, [GIB], names, seed=seed)
    whole = size_table(fabric, trial, [GIB], ["ideal"])["ideal"][0].busbw
    least = least_utilization(fabric, nccl_script(fabric, trial).flows)
    return Reduced({name: found[name][0] for name in names}, whole / max(least, 1.0))


def gathered(fabric: Fabric, algorithm: str, name: str, seed: int) -> float:
    """Return the seconds of eight parallel all-gathers of 1 GB, one for each GPU of a host."""
    gather = Exchange("all_gather", Group.DP, 1e9, algorithm=algorithm)
    told = Workload("gather", Parallelism(tp=8), 0.0, (gather,), slices=1)
    placed = Placed("gather", told, tuple(fabric.structure.nics_of_host), 8, 4, pxn=False)
    return _iteration(fabric, placed, name, seed).seconds


def experts(fabric: Fabric, name: str, seed: int, *, pxn: bool) -> Iteration:
    """Simulate an iteration of a mixture of experts over all hosts."""
    hosts = tuple(fabric.structure.nics_of_host)
    return _iteration(fabric, Placed("moe", workload("mixtral"), hosts, 8, 1, pxn), name, seed)


def _iteration(fabric: Fabric, placed: Placed, name: str, seed: int) -> Iteration:
    script = iteration_script(fabric, [placed])
    carried = choose(name, fabric, script.flows, seed).carried
    return iterate(fabric, [placed], carried, script, ROCE_SETTING)[0]


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return the rows of all-reduces, all-gathers and all-to-alls of experts."""
    quick = scale.name == "quick"
    seeds = 1 if quick else 5
    shapes = SHAPES[-1:] if quick else SHAPES
    parts = [partial(_reduces, shape, seeds) for shape in shapes]
    parts += [partial(_gathers, seeds), partial(_experts, 4 if quick else 30)]
    rows: list[Row] = []
    with screen.progress("collectives in the fluid world", len(parts)) as advance:
        for done, part in enumerate(parts):
            rows += part()
            advance(done + 1)
    return rows


def _reduces(shape: Shape, seeds: int) -> list[Row]:
    runs = [reduced(shape, STRATEGIES, seed) for seed in range(seeds)]
    rows = []
    for name in STRATEGIES:
        parts = [run.lines[name].busbw / run.limit for run in runs]
        busbw = quantile([run.lines[name].busbw for run in runs], 0.5)
        ours = name == "te"
        rows.append(
            Row(
                f"{REDUCES}, {shape.name}",
                "Heddle" if ours else name,
                f"{busbw:.1f} GB/s, {min(parts):.1%} of the limit at worst",
                f">= {CLOSE:.0%} of the limit" if ours else "",
                min(parts) >= CLOSE if ours else None,
                f"limit {runs[0].limit:.1f} GB/s, {QPS} QPs, {seeds} seeds" if ours else "",
                {"busbw": busbw, "part_of_limit": parts},
            )
        )
    return rows


def tapered() -> Fabric:
    """Return two zones of eight racks, joined by a seventh of their width."""
    return three_tier(zones=2, leaves=8, spines=16, nics_per_leaf=16, cores=16, taper=7.0)


def one_zone() -> Fabric:
    """Return sixteen racks with full bisection."""
    return clos(leaves=16, spines=16, nics_per_leaf=16)


def _gathers(seeds: int) -> list[Row]:
    rows = []
    for words, fabric in (("in a zone", one_zone()), ("across zones, 7:1", tapered())):
        for algorithm in ("ring", "tree", "mesh"):
            ideal = gathered(fabric, algorithm, "ideal", 0)
            found = [gathered(fabric, algorithm, "ecmp", seed) for seed in range(seeds)]
            median = quantile(found, 0.5)
            rows.append(
                Row(
                    f"{GATHERS}, {words}",
                    algorithm,
                    f"{median * 1e3:.1f} ms, {median / ideal:.2f} times the ideal",
                    data={"seconds": found, "ideal": ideal},
                )
            )
    return rows


def _experts(hosts: int) -> list[Row]:
    rows = []
    for words, parallel in (("spines 1:1", 2), ("spines 2:1", 1)):
        fabric = rail_optimised(
            units=1, servers=hosts, rails=8, spines=-(-hosts // 2), parallel=parallel
        )
        with_pxn, without = (experts(fabric, "ecmp", 0, pxn=pxn) for pxn in (True, False))
        faster = 1 - with_pxn.seconds / without.seconds
        rows.append(
            Row(
                f"experts' all-to-all on {hosts} hosts x 8 rails under ECMP",
                f"with PXN, {words}",
                f"iteration {faster:.1%} shorter: {with_pxn.seconds:.3f} s",
                note=f"without {without.seconds:.3f} s; network {with_pxn.network_share:.0%} of"
                f" an iteration, without {without.network_share:.0%}; published: 14 % faster",
                data={"with": with_pxn.seconds, "without": without.seconds},
            )
        )
    return rows
