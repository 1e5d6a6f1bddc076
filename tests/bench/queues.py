"""How far the fluid world is from packets in queues, by the number of full links in a row.

Each case is a small fabric, a pattern, and three ways of choosing paths for the same flows. Each is
simulated in the fluid world, with fair rates and with queues that fill. It is also simulated QP by
QP on the same paths in queues of packets (``tests/support/packet_queues.py``): with PFC and no
other control, with a window that shrinks when packets are marked, and with a rate that marks
reduce. The tiers are the most over-full links, including those of NICs, that any QP of the case
crosses: none, one, or more.

Beside the errors there are two counts: how often packets and the fluid world disagree which of two
ways is faster, by more than a hundredth in both, and how often packets find Heddle's way slower
than another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, arc_loads
from heddle_controller.solve import solve
from heddle_emulator.fluid.queues import APART, ControlName
from heddle_emulator.fluid.wire import Wire
from heddle_emulator.strategy import Outcome, choose, whole
from heddle_emulator.strategy.makespan import Sending
from heddle_emulator.topology import clos, three_tier
from heddle_emulator.traffic import flows_between
from tests.bench.rows import Row, Scale, spread
from tests.bench.screen import Screen
from tests.support.packet_queues import Control, LineRate, PacketNetwork, Pfc, Rated, Windowed

TITLE = "fluid world beside packets in queues: makespan"
PACKET, HOP_SECONDS, MARK = 4096.0, 6e-7, 100_000.0
SIZE = 8e6
RUNS = 4
LINE = 400.0
NEAR, FAR, SAME = 0.05, 0.15, 0.01
WAYS = ("te", "greedy", "ecmp")
TIERS = ("no link over-full", "one over-full link", "two or more in a row")
FIRST_SEED = 1_000
CONTROLS: Mapping[ControlName, Callable[[PacketNetwork, list[int]], Control]] = {
    "pfc": lambda _, __: LineRate(),
    "window": lambda net, path: Windowed(PACKET, net.filling(path)),
    "rate": lambda _, __: Rated(LINE),
}


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Drawn flows on the paths of one way of choosing them."""

    fabric: Fabric
    flows: Flows
    paths: Paths
    size: float = SIZE
    """Bytes of each flow."""

    @property
    def tier(self) -> int:
        """Most over-full links that a QP crosses, where 2 stands for two or more."""
        loads = arc_loads(2 * self.fabric.link_count, self.flows, self.paths)
        full = loads > self.fabric.structure.capacity * (1 + 1e-9)
        met = np.bincount(self.paths.owner(), weights=full[self.paths.arcs])
        return min(int(met.max(initial=0)), 2)

    def fluid(self, queues: ControlName | None = None) -> float:
        """Return the seconds until all is sent, at fair rates or with queues."""
        wire = Wire(int(PACKET), hop_seconds=HOP_SECONDS, store_and_forward=True)
        sending = Sending(np.full(len(self.flows), self.size), wire, queues=queues)
        seconds = Outcome(self.fabric, whole(self.flows, self.paths), sending).makespan_seconds
        return float("inf") if seconds is None else seconds

    def packets(self, control: ControlName) -> float:
        """Return the same for packets, as the mean of ``RUNS`` runs.

        Chance moves a single run by up to a tenth.
        """
        return float(np.mean([self._packets(control, seed) for seed in range(RUNS)]))

    def _packets(self, control: ControlName, seed: int) -> float:
        """Simulate one run, in which each QP begins a few microseconds late, as NICs do."""
        random = np.random.default_rng(seed)
        net = PacketNetwork(
            self.fabric.structure.capacity.tolist(),
            delay=HOP_SECONDS,
            packet=PACKET,
            pfc=Pfc(),
            mark=MARK,
        )
        qps = self.flows.qps[self.paths.flow]
        for row in range(len(self.paths)):
            path = self.paths.of(row).tolist()
            for _ in range(int(self.paths.qp_count[row])):
                size, late = self.size / int(qps[row]), float(random.uniform(0.0, APART))
                net.send(path, size, CONTROLS[control](net, path), start=late)
        return net.run()


def drawn(seed: int) -> dict[str, Case]:
    """Return a case for each way of choosing paths."""
    random = np.random.default_rng(seed)
    if random.random() < 1 / 2:
        fabric = clos(leaves=4, spines=int(random.choice([2, 4])), nics_per_leaf=4)
    else:
        fabric = three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=4, cores=2, taper=2.0)
    pattern = str(random.choice(["permutation", "uniform", "shift"]))
    flows = flows_between(fabric, pattern, seed=seed, qps=int(random.choice([1, 2, 4])), gbps=LINE)
    found = {"te": solve(fabric, flows).paths}
    for way in WAYS[1:]:
        found[way] = choose(way, fabric, flows, seed).carried.paths
    return {way: Case(fabric, flows, paths) for way, paths in found.items()}


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return rows of errors by tier and of wrong signs, for each control and fluid world."""
    draws = [drawn(FIRST_SEED + seed) for seed in range(scale.gap_seeds)]
    fair = [{way: case.fluid() for way, case in draw.items()} for draw in draws]
    rows = []
    with screen.progress(TITLE, len(CONTROLS) * len(draws)) as advance:
        for number, control in enumerate(CONTROLS):
            packets, queues = [], []
            for at, draw in enumerate(draws):
                packets.append({way: case.packets(control) for way, case in draw.items()})
                queues.append({way: case.fluid(control) for way, case in draw.items()})
                advance(number * len(draws) + at + 1)
            for world, said in (("fair rates", fair), ("queues", queues)):
                rows += _errors(f"{control}, {world}", draws, said, packets)
                rows.append(_signs(f"{control}, {world}", said, packets))
            rows.append(_lost(control, packets))
    return rows


def _errors(
    control: str,
    draws: list[dict[str, Case]],
    fluid: list[dict[str, float]],
    packets: list[dict[str, float]],
) -> list[Row]:
    by_tier: dict[int, list[float]] = {}
    for draw, said, came in zip(draws, fluid, packets, strict=True):
        for way, case in draw.items():
            by_tier.setdefault(case.tier, []).append(came[way] / said[way])
    rows = []
    for tier, ratios in sorted(by_tier.items()):
        off = np.abs(np.array(ratios) - 1)
        near = float(np.mean(off <= NEAR))
        rows.append(
            Row(
                TITLE,
                f"{control}, {TIERS[tier]}",
                f"{near:.0%} within {NEAR:.0%}; packets take {min(ratios):.2f} to"
                f" {max(ratios):.2f} of what fluid says",
                f"95 % within {NEAR:.0%}, none beyond {FAR:.0%}",
                bool(near >= 1 - NEAR and off.max() <= FAR),
                f"{len(ratios)} cases",
                {"ratios": spread(ratios)},
            )
        )
    return rows


def _signs(control: str, fluid: list[dict[str, float]], packets: list[dict[str, float]]) -> Row:
    """Count the pairs of ways for which packets and the fluid world disagree which is faster."""
    wrong = pairs = 0
    for said, came in zip(fluid, packets, strict=True):
        for one, other in combinations(WAYS, 2):
            pairs += 1
            a, b = said[one] / said[other] - 1, came[one] / came[other] - 1
            wrong += int(a * b < 0 and min(abs(a), abs(b)) > SAME)
    return Row(
        TITLE,
        f"{control}, which way is faster",
        f"{wrong} of {pairs} pairs told wrong",
        "0",
        wrong == 0,
        f"of {', '.join(WAYS)}; by more than {SAME:.0%} in both worlds",
        {"wrong": wrong, "pairs": pairs},
    )


def _lost(control: str, packets: list[dict[str, float]]) -> Row:
    """Count the cases in which packets find another way faster than Heddle's."""
    ratios = [min(came[way] for way in WAYS[1:]) / came[WAYS[0]] for came in packets]
    lost = sum(ratio < 1 - SAME for ratio in ratios)
    return Row(
        TITLE,
        f"{control}, te beside the better of {' and '.join(WAYS[1:])}, in packets",
        f"slower in {lost} of {len(ratios)} cases, at worst {min(ratios):.2f}; mean"
        f" {float(np.mean(ratios)):.2f}",
        f"never by more than {SAME:.0%}",
        lost == 0,
        data={"ratios": spread(ratios)},
    )
