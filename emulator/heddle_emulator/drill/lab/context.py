"""What all runs of a drill in the lab share, and paths of probes once they stay as they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass

from heddle_emulator.drill.lab.control import LabClient
from heddle_emulator.drill.lab.fabric import LabFabric
from heddle_emulator.drill.lab.probes import Pathfinder, ProbeStreams, Way, sendings
from heddle_emulator.drill.scenario import Scenario, Variant
from heddle_emulator.netns import LabError
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.programs import Programs
from heddle_emulator.netns.steering import SteeringHosts


@dataclass(slots=True, eq=False)
class LabContext:
    """The lab, its programs if it has any, and what breaks and mends it."""

    scenario: Scenario
    lab: Lab
    programs: Programs | None
    control: LabClient | None
    fabric: LabFabric
    steering: SteeringHosts | None = None
    """Of the variant that runs, where switches only hash."""

    def is_left_alone(self) -> bool:
        """Whether there is no controller that could plan anew."""
        programs = self.programs
        return programs is None or not any(programs.alive(one) for one in programs.replicas)

    def asks(self, measures: Collection[str]) -> bool:
        """Whether anything is expected of any of these."""
        return any(told.measure in measures for told in self.scenario.expectations)


STEADY_SECONDS = 0.3
"""Ways that are the same after so long stay."""
LAB_PATIENCE = 60.0


class Steady:
    """Finds ways before each run, and remembers those of the first run of each variant."""

    def __init__(self, context: LabContext) -> None:
        self._context = context
        self._paths = Pathfinder(context.lab)
        self._home: dict[str, dict[str, Way]] = {}
        """Ways in the first run of each variant."""

    async def find(self, variant: Variant) -> tuple[list[ProbeStreams], dict[str, Way]]:
        """The streams of all probes and their ways.

        Agents far from a cable that is back learn of it last, and turn their flows back then. So
        ways are looked at until they are those of the first run, where no controller could have
        chosen others meanwhile. On a busy machine BGP or BFD may lose a neighbour for a moment:
        that is waited for as well.

        Raises:
            LabError: some probe has no way, or not the one it had, for as long as we wait.
        """
        context, before = self._context, dict[str, Way]()
        deadline = time.monotonic() + LAB_PATIENCE
        while True:
            try:
                sending, ways = sendings(
                    context.scenario, variant, context.lab, self._paths, context.steering
                )
            except LabError:
                if time.monotonic() > deadline:
                    raise
            else:
                home = self._home.get(variant.name, ways) if context.is_left_alone() else ways
                if ways == before == home:
                    self._home.setdefault(variant.name, ways)
                    return sending, ways
                if time.monotonic() > deadline:
                    raise LabError(
                        "flows do not go back to the paths that they had before the faults"
                    )
                before = ways
            await asyncio.sleep(STEADY_SECONDS)
