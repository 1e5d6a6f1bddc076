"""Strategies by the names that the command line and scenarios give them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_emulator.strategy.greedy import greedy
from heddle_emulator.strategy.hashing import e_ecmp, ecmp
from heddle_emulator.strategy.pinning import dmodk, static
from heddle_emulator.walk import Measurement

MOST_QPS = 1024


class Strategy(Protocol):
    """Chooses paths for flows in some way, and measures what comes of it."""

    def __call__(self, fabric: Fabric, flows: Flows, seed: int) -> Measurement:
        """The same for the same seed."""


PLAIN: Mapping[str, Strategy] = {"ecmp": ecmp, "static": static, "dmodk": dmodk, "greedy": greedy}


def strategy(name: str) -> Strategy:
    """The strategy of a name: "ecmp", "static", "dmodk", "greedy", or "e-ecmp:32" for 32 QPs.

    Raises:
        InputError: no strategy has that name.
    """
    if name in PLAIN:
        return PLAIN[name]
    spread = re.fullmatch(r"e-ecmp:([0-9]{1,4})", name)
    if spread is None:
        known = f"give {', '.join(PLAIN)}, or e-ecmp:Q with Q QPs a flow"
        raise refuse("strategy", name, f"is not known; {known}")
    qps = int(spread[1])
    if not 0 < qps <= MOST_QPS:
        raise refuse("strategy", name, f"has {qps} QPs a flow; give 1 to {MOST_QPS}")

    def run(fabric: Fabric, flows: Flows, seed: int) -> Measurement:
        return e_ecmp(fabric, flows, seed, qps)

    return run
