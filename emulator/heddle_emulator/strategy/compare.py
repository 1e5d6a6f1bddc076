"""Strategies side by side on one fabric and one set of flows, and their paths as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.content import write_content
from heddle_controller.model.files.plan_file import save_plan
from heddle_controller.model.flows import Flows
from heddle_controller.model.load import worst_by_tier
from heddle_controller.model.plan import Certificate, Paths, Plan
from heddle_emulator.strategy.carried import Outcome
from heddle_emulator.strategy.choose import choose
from heddle_emulator.strategy.least import least_utilization
from heddle_emulator.strategy.makespan import Sending


def save_outcome(folder: Path, name: str, outcome: Outcome) -> None:
    """Write NAME.csv, a row a flow, and NAME.json, its paths in the form of a plan.json.

    Where packets are sprayed or the fabric is a crossbar there are no paths, and no such file.

    Raises:
        InputError: a file cannot be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refuse(str(folder), "", f"cannot be made: {error.strerror}") from error
    stem = "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in name)
    write_content(folder / f"{stem}.csv", _rows(outcome).encode())
    if name not in {"spray", "ideal"}:
        save_plan(_plan(outcome), folder / f"{stem}.json")


def _rows(outcome: Outcome) -> str:
    flows, ends = outcome.carried.flows, outcome.ends
    told = [""] * len(flows) if ends is None else [repr(end) for end in ends.tolist()]
    columns = zip(flows.ids, outcome.rates.tolist(), told, strict=True)
    return "flow,gbps,seconds\n" + "".join(f"{a},{b!r},{c}\n" for a, b, c in columns)


def _plan(outcome: Outcome) -> Plan:
    carried, none = outcome.carried, np.empty(0, dtype=np.int64)
    empty = np.zeros(len(carried.paths) + 1, dtype=np.int64)
    paths = carried.paths
    backups = Paths(paths.flow, paths.first_qp, paths.last_qp, empty, none)
    lost = {int(row): "a QP of it gets nowhere" for row in np.flatnonzero(outcome.lost)}
    certificate = Certificate(max(worst_by_tier(outcome.fabric, outcome.loads).values(), default=0))
    return Plan(outcome.fabric, carried.flows, paths, backups, certificate, lost)


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
        ClientError, ControllerError: for "te", its controller did not answer.
    """
    bounds = [least_utilization(fabric, flows)]
    outcomes = {}
    for name in names:
        tell(name)
        choice = choose(name, fabric, flows, seed)
        bounds.append(choice.lower_bound)
        outcomes[name] = Outcome(fabric, choice.carried, sending or Sending())
    return Comparison(outcomes, max(bounds), seed)
