"""Steps of a drill done in the lab.

Whatever takes time is done beforehand, so that a fault strikes when it is due, and several of one
moment strike right after each other. A cable is cut at its upper end: the lower end loses its
carrier, as in a fabric. A silent cable drops what comes in at both ends, whatever it is, and
keeps its carrier.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from heddle_controller.model.fabric import Fabric, State
from heddle_emulator.drill.lab_paths import Way
from heddle_emulator.drill.scenario import ALL, CONTROLLER, CableName, Hop, Kind, Step, Target
from heddle_emulator.netns import tools
from heddle_emulator.netns.errors import LabError
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.layout import MGMT
from heddle_emulator.netns.programs import Programs


@dataclass(slots=True)
class Faults:
    """What is broken in a lab, and how to break and mend it."""

    lab: Lab
    programs: Programs | None
    cut: set[int] = field(default_factory=set)
    """Link rows."""
    silent: set[int] = field(default_factory=set)

    def prepare(self) -> None:
        """Open what faults will need."""
        for cable in self.lab.layout.cables:
            self.lab.link_switch(self.lab.far_end(cable.link).namespace)

    def rows(self, step: Step, ways: dict[str, Way]) -> list[int]:
        """Link rows that a step speaks of; ``ways`` are those of probes.

        Raises:
            LabError: a probe's way has no such hop.
        """
        if ALL in step.targets:
            return sorted(self.cut | self.silent)
        return [row for target in step.targets for row in self._row(target, ways)]

    def _row(self, target: Target, ways: dict[str, Way]) -> Sequence[int]:
        if isinstance(target, Hop):
            way = ways[target.probe]
            if not 1 <= target.number <= len(way):
                raise LabError(f"{target}: its way has {len(way)} hops")
            return [way[target.number - 1]]
        if isinstance(target, CableName):
            return self.lab.layout.fabric.find_links(target.a, target.b, target.key)
        return []

    def do(self, step: Step, rows: Sequence[int]) -> int:
        """Do a step; the nanosecond just before it began to take effect."""
        begin = time.time_ns()
        if step.kind is Kind.CUT:
            for row in rows:
                self.lab.set_link(row, up=False)
            self.cut.update(rows)
        elif step.kind is Kind.SILENCE:
            for row in rows:
                self._set_silence(row, silent=True)
            self.silent.update(rows)
        elif step.kind is Kind.MEND:
            self.mend(rows)
        elif step.kind is Kind.KILL:
            self._kill(step)
        else:
            self._start(step)
        return begin

    def mend(self, rows: Sequence[int]) -> None:
        """Make cables whole again."""
        for row in set(rows) & self.cut:
            self.lab.set_link(row, up=True)
        for row in set(rows) & self.silent:
            self._set_silence(row, silent=False)
        self.cut -= set(rows)
        self.silent -= set(rows)

    def present(self) -> Fabric:
        """The fabric as it is: a silent cable still has its carrier, so BGP may keep it."""
        return self.lab.layout.fabric.with_links(dict.fromkeys(self.cut, State.DOWN))

    def _set_silence(self, row: int, *, silent: bool) -> None:
        for port in self.lab.layout.cables[row].ends:
            table = f"netdev heddle_silence_{port.name.replace('-', '_')}"
            hook = f'type filter hook ingress device "{port.name}" priority -500; policy drop;'
            script = f"table {table} {{\nchain silence {{ {hook}\n}}\n}}\n"
            script = script if silent else f"delete table {table}\n"
            tools.run_inside(self.lab.spaces[port.namespace], ["nft", "-f", "-"], script)

    def _kill(self, step: Step) -> None:
        for node in self._nodes(step):
            self._programs().signal(node, signal.SIGKILL)

    def _start(self, step: Step) -> None:
        for node in self._nodes(step):
            if node == MGMT:
                self._programs().start_controller()
                self._programs().wait_ready()
            else:
                self._programs().start_agent(node)

    def _nodes(self, step: Step) -> list[str]:
        return [MGMT if target == CONTROLLER else str(target) for target in step.targets]

    def _programs(self) -> Programs:
        if self.programs is None:
            raise LabError("this lab has no programs to kill or start")
        return self.programs
