"""Strategies side by side on one fabric and one set of flows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_emulator.strategy.carried import Outcome
from heddle_emulator.strategy.choose import choose
from heddle_emulator.strategy.least import least_utilization
from heddle_emulator.strategy.makespan import Sending


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Outcomes by name, in the order asked for."""

    outcomes: dict[str, Outcome]
    lower_bound: float
    """No way of carrying all the flows has a worst utilisation below this."""
    seed: int

    def record(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "strategies": {
                name: {
                    "max_utilization": outcome.max_utilization,
                    "slowest_flow": outcome.slowest_flow,
                    "makespan_seconds": outcome.makespan_seconds,
                    "lost_flows": outcome.lost_flows,
                    "tiers": outcome.worst,
                }
                for name, outcome in self.outcomes.items()
            },
            "lower_bound": self.lower_bound,
            "seed": self.seed,
        }


def compare(
    fabric: Fabric,
    flows: Flows,
    names: Sequence[str],
    seed: int,
    tell: Callable[[str], None] = lambda _: None,
    *,
    sending: Sending | None = None,
) -> Comparison:
    """Try each strategy; ``tell`` hears which one begins.

    Raises:
        HeddleError, ControllerError: for "te", its controller did not answer.
    """
    bounds = [least_utilization(fabric, flows)]
    outcomes = {}
    for name in names:
        tell(name)
        choice = choose(name, fabric, flows, seed)
        bounds.append(choice.lower_bound)
        outcomes[name] = Outcome(fabric, choice.carried, sending or Sending())
    return Comparison(outcomes, max(bounds), seed)
