"""Strategies side by side on one fabric and one set of flows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from heddle_controller.model.errors import InputError, refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_emulator.strategy.carried import Carried, Outcome, whole
from heddle_emulator.strategy.least import least_utilization
from heddle_emulator.strategy.limits import ideal, spray
from heddle_emulator.strategy.names import PLAIN, strategy
from heddle_emulator.strategy.pinned import Pinned
from heddle_emulator.strategy.te import te
from heddle_emulator.walk import walk

LIMITS: dict[str, Callable[[Fabric, Flows], Carried]] = {"spray": spray, "ideal": ideal}
TE = "te"
DEFAULT = ("ecmp", "e-ecmp:32", "static", "dmodk", "greedy", TE, "spray", "ideal")


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


def names_of(text: str) -> tuple[str, ...]:
    """The strategies of a list such as "ecmp,te", each once.

    Raises:
        InputError: there is none, or one is not known.
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise refuse("strategies", text, f"names none; give some of {', '.join(DEFAULT)}")
    for name in names:
        if name not in LIMITS and name != TE:
            try:
                strategy(name)
            except InputError as error:
                known = ", ".join([*PLAIN, "e-ecmp:Q", TE, *LIMITS])
                raise refuse("strategies", name, f"is not known; give some of {known}") from error
    return names


def compare(
    fabric: Fabric,
    flows: Flows,
    names: Sequence[str],
    seed: int,
    tell: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Try each strategy; ``tell`` hears which one begins.

    Raises:
        ClientError, ControllerError: for "te", its controller did not answer.
    """
    bounds = [least_utilization(fabric, flows)]
    outcomes = {}
    for name in names:
        tell(name)
        carried = _carried(name, fabric, flows, seed, bounds)
        outcomes[name] = Outcome(fabric, carried)
    return Comparison(outcomes, max(bounds), seed)


def _carried(name: str, fabric: Fabric, flows: Flows, seed: int, bounds: list[float]) -> Carried:
    if name in LIMITS:
        return LIMITS[name](fabric, flows)
    if name == TE:
        planned = te(fabric, flows)
        if len(set(planned.paths.flow.tolist())) == len(flows):
            bounds.append(planned.lower_bound)
        # Walked like the others, so that what is compared is what packets do.
        return whole(flows, walk(fabric, flows, Pinned(fabric, flows, planned.paths)).paths())
    found = strategy(name)
    sent = found.sent(flows)
    return whole(sent, walk(fabric, sent, found.choice(fabric, sent, seed)).paths())
