"""What all runs of a drill in the lab share."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from heddle_emulator.drill.lab.control import LabClient
from heddle_emulator.drill.lab.fabric import LabFabric
from heddle_emulator.drill.scenario import Scenario
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.programs import Programs


@dataclass(frozen=True, slots=True, eq=False)
class LabContext:
    """The lab, its programs if it has any, and what breaks and mends it."""

    scenario: Scenario
    lab: Lab
    programs: Programs | None
    control: LabClient | None
    fabric: LabFabric

    def is_left_alone(self) -> bool:
        """Whether there is no controller that could plan anew."""
        programs = self.programs
        return programs is None or not any(programs.alive(one) for one in programs.replicas)

    def asks(self, measures: Collection[str]) -> bool:
        """Whether anything is expected of any of these."""
        return any(told.measure in measures for told in self.scenario.expectations)
