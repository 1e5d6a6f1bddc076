"""Strategies by the names that the command line and scenarios give them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_emulator.strategy.greedy import greedy_paths
from heddle_emulator.strategy.pinned import Pinned
from heddle_emulator.strategy.pinning import DModK, Static
from heddle_emulator.switches import Switches
from heddle_emulator.walk import Forwarding, Measurement, measure

MOST_QPS = 1024

Choice: TypeAlias = Callable[[Fabric, Flows, int], Forwarding]
"""From a fabric, flows and a seed to what sends their packets on."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """Chooses paths for flows in some way; the same for the same seed."""

    choice: Choice
    qps: int | None = None
    """QPs that every flow is made to have; None leaves what it has."""

    def __call__(self, fabric: Fabric, flows: Flows, seed: int) -> Measurement:
        """Walk the packets and measure what comes of it."""
        flows = self.sent(flows)
        return measure(fabric, flows, self.choice(fabric, flows, seed))

    def sent(self, flows: Flows) -> Flows:
        """The flows as they are sent."""
        return flows if self.qps is None else flows.with_qps(self.qps)


PLAIN: Mapping[str, Choice] = {
    "ecmp": lambda fabric, _, seed: Switches(fabric, seed),
    "static": lambda fabric, _, seed: Static(fabric, seed),
    "dmodk": lambda fabric, _, __: DModK(fabric),
    "greedy": lambda fabric, flows, _: Pinned(fabric, flows, greedy_paths(fabric, flows)),
}


def strategy(name: str) -> Strategy:
    """The strategy of a name: "ecmp", "static", "dmodk", "greedy", or "e-ecmp:32" for 32 QPs.

    Raises:
        InputError: no strategy has that name.
    """
    if name in PLAIN:
        return Strategy(PLAIN[name])
    spread = re.fullmatch(r"e-ecmp:([0-9]{1,4})", name)
    if spread is None:
        known = f"give {', '.join(PLAIN)}, or e-ecmp:Q with Q QPs a flow"
        raise refuse("strategy", name, f"is not known; {known}")
    qps = int(spread[1])
    if not 0 < qps <= MOST_QPS:
        raise refuse("strategy", name, f"has {qps} QPs a flow; give 1 to {MOST_QPS}")
    return Strategy(PLAIN["ecmp"], qps)
