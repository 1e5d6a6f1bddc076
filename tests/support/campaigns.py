"""A campaign small enough for a test, and an executor that needs no fabric."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from heddle_emulator.campaign.campaign import Campaign
from heddle_emulator.campaign.results import begun
from heddle_emulator.campaign.trials import Drawing
from heddle_emulator.topology import clos
from heddle_emulator.traffic import flows_between

FABRIC = clos(leaves=4, spines=4, nics_per_leaf=4)
FLOWS = flows_between(FABRIC, "shift", qps=4)
TOLD = {
    "fabric": {"clos": {"leaves": 4, "spines": 4, "nics_per_leaf": 4}},
    "demands": [{"pattern": "shift", "qps": 4}],
}


def small(failures: int = 12, drawing: Drawing | None = None) -> Campaign:
    """Return a campaign on four leaves, four spines and sixteen NICs."""
    return Campaign("small", FABRIC, FLOWS, drawing or Drawing(), failures, told=TOLD)


@dataclass
class Player:
    """An executor that invents a result for every trial and notes which trials it was given."""

    faults: frozenset[int] = frozenset()
    """Numbers of trials that fail."""
    ends_after: int = 1_000_000
    """Results after which it is interrupted."""
    given: list[int] = field(default_factory=list)

    def map(self, make: Callable[[], Any], trials: Sequence[Any]) -> Iterator[Any]:
        """Implement ``Executor.map``, from last to first, because the order is not promised."""
        assert isinstance(make, partial)
        (campaign,) = make.args
        for count, trial in enumerate(reversed(trials)):
            if count == self.ends_after:
                raise KeyboardInterrupt
            self.given.append(trial.number)
            result = begun(trial, campaign.fabric)
            fault = "no plan was held in time" if trial.number in self.faults else ""
            yield replace(result, slowest=1 / (1 + trial.number), fault=fault)
