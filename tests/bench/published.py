"""Two published figures, reproduced: the imbalance of hashing, and a failure of static pinning.

A thousand hashed flows on sixteen links put 1.23 times the mean on the fullest of them. Static
pinning goes by a server's place in its rack. It is free of collisions until server 4 of a job is
replaced by server 5, which has the same place as server 3. From then on half of the uplinks are
idle and the jobs run at half speed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heddle_controller.model.arrays import Floats
from heddle_controller.model.fabric import NodeKind
from heddle_emulator.play.nccl import NcclRun, size_table
from heddle_emulator.strategy import strategy
from heddle_emulator.topology import clos
from tests.bench.rows import Row, Scale, spread
from tests.bench.screen import Screen
from tests.bench.workloads import flows_of

BALANCE = "1,000 hashed flows on 16 links, most to mean"
PUBLISHED, NEAR = 1.23, 0.02
LINKS, FLOWS, NICS = 16, 1000, 200
PINNED = "two jobs of two servers, server 4 replaced by 5"
STRATEGIES = ("ecmp", "static", "te")
MIB = 1 << 20


def imbalance(draws: int) -> Floats:
    """Return flows on the fullest uplink divided by the mean, one per draw, shape (draws,)."""
    fabric = clos(leaves=2, spines=LINKS, nics_per_leaf=NICS)
    structure = fabric.structure
    up = np.flatnonzero(
        (structure.tail == structure.index["l0"])
        & (structure.nodes.kind[structure.head] == NodeKind.SPINE)
    )
    nics = fabric.rows_of_kind(NodeKind.NIC)
    found = []
    for seed in range(draws):
        random = np.random.default_rng(seed)
        source, destination = nics[random.integers([[0], [NICS]], [[NICS], [2 * NICS]], (2, FLOWS))]
        flows = flows_of("hashed", source, destination)
        loads = strategy("ecmp")(fabric, replace(flows, gbps=np.ones(FLOWS)), seed).loads[up]
        found.append(loads.max() / loads.mean())
    return np.array(found)


def replaced(last: int) -> dict[str, float]:
    """Return the part of a crossbar's bandwidth that two jobs get, by strategy.

    Servers 1 and 3 run one job, servers 2 and ``last`` the other.
    """
    fabric = clos(leaves=3, spines=8, nics_per_leaf=8, nics_per_host=4)
    servers = [*fabric.structure.nics_of_host]
    jobs = ((servers[0], servers[2]), (servers[1], servers[last - 1]))
    found = size_table(fabric, NcclRun("all_reduce", jobs, 4), [MIB], [*STRATEGIES, "ideal"])
    whole = found["ideal"][0].busbw
    return {name: found[name][0].busbw / whole for name in STRATEGIES}


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return a row for the hash, and one for each strategy."""
    draws = 20 if scale.name == "quick" else 300
    with screen.progress("published figures", 3) as advance:
        ratios = imbalance(draws)
        advance(1)
        before = replaced(4)
        advance(2)
        after = replaced(5)
        advance(3)
    mean = float(ratios.mean())
    rows = [
        Row(
            BALANCE,
            "ECMP",
            f"{mean:.3f} on average over {draws} draws",
            f"{PUBLISHED} ± {NEAR}",
            abs(mean - PUBLISHED) <= NEAR,
            data=spread(ratios),
        )
    ]
    return rows + [_row(name, before[name], after[name]) for name in STRATEGIES]


def _row(name: str, before: float, after: float) -> Row:
    ours = name == "te"
    return Row(
        PINNED,
        "Heddle" if ours else name,
        f"{after:.0%} of a crossbar's bandwidth, with server 4 {before:.0%}",
        "100%" if ours else "",
        min(before, after) >= 1 - 1e-9 if ours else None,
        data={"before": before, "after": after},
    )
