"""What everything in a fluid drill happens to: cables, agents, the controller, traffic, time."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_emulator.drill.fluid.agenda import Agenda
from heddle_emulator.drill.fluid.control import Conductor
from heddle_emulator.drill.fluid.course import Course
from heddle_emulator.drill.fluid.log import Log
from heddle_emulator.drill.fluid.traffic import Traffic
from heddle_emulator.drill.scenario import Hop, Scenario
from heddle_emulator.fault.cables import Cables
from heddle_emulator.fleet import StagedFleet
from heddle_emulator.netns.errors import LabError
from heddle_emulator.report.evidence import Mark

LONG_AGO = -1e3
"""When set-up is done: all that comes of it is over before the run begins."""
FEW = 4


class FluidStage:
    """One run's; time is virtual, in seconds."""

    def __init__(self, scenario: Scenario, traffic: Traffic, conductor: Conductor) -> None:
        self.scenario, self.traffic, self.conductor = scenario, traffic, conductor
        self.control = scenario.control
        self.fabric: Fabric = scenario.fabric
        self.cables = Cables()
        self.agenda = Agenda()
        self.log = Log()
        self.now = LONG_AGO
        self.slow: dict[int, float] = {}
        """Seconds that an agent, by row, needs more."""
        self.turning = False
        """Whether links, tables or wants have changed at this moment."""
        self.course: Course | None = None
        self.provoked: set[str] = set()
        """What the controller may act upon: a "report", a "call", a "push" that was answered."""

    @property
    def fleet(self) -> StagedFleet:
        """The agents."""
        return self.conductor.fleet

    def wanted(self) -> Flows:
        """Flows that the controller is to plan now."""
        active = self.traffic.active(max(self.now, 0.0))
        active[self.traffic.told :] = False
        return self.traffic.flows.take(np.flatnonzero(active))

    def provoke(self, *, reports: bool = False) -> None:
        """Something has happened that the controller may act upon, on hearing it or at once."""
        self.provoked.add("report" if reports else "call")

    def row_of(self, target: object) -> int:
        """Node row of a switch."""
        return self.fabric.structure.index[str(target)]

    def hop(self, hop: Hop) -> int:
        """The cable on the way of a probe's first QP.

        Raises:
            LabError: its way has no such hop.
        """
        assert self.course is not None
        ways, rows = self.course.turns[-1].ways, self.traffic.groups[hop.probe]
        qp = int(self.traffic.first_qp[rows[0]])
        arcs = ways.arcs[ways.first[qp] : ways.first[qp + 1]]
        if not 1 <= hop.number <= len(arcs):
            raise LabError(f"{hop}: its way has {len(arcs)} hops")
        return int(arcs[hop.number - 1]) >> 1

    async def see(self, rows: Sequence[int], ends: Collection[int]) -> None:
        """Agents see how their links are."""
        names = sorted(self.fabric.structure.nodes.ids[end] for end in ends)
        await self.fleet.see(rows, ends)
        shown = ", ".join(names[:FEW]) + (" and others" if len(names) > FEW else "")
        self.log.tell(self.now, Mark.DETECTED, f"{shown} see it", shown)
        self.log.seen.append(self.now)
        self.log.told.append(self.now + self.control.report)
        self.turning = True
        self.provoke(reports=True)

    async def converge(self) -> None:
        """BGP has told every switch of the links as they are now."""
        self.fleet.converge()
        self.turning = True
        self.log.tell(self.now, Mark.OTHER, "BGP has converged")
