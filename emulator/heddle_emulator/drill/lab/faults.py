"""Steps of a drill done in the lab.

Whatever takes time is done beforehand, so that a fault strikes when it is due, and several of one
moment strike right after each other. A cable is cut at its upper end: the lower end loses its
carrier, as in a fabric. A silent cable drops what comes in at both ends, all of it or a part, and
keeps its carrier. Who hangs is stopped by a signal, who is slow is stopped again and again; two
that are parted drop each other's packets on the management network. A switch without power has no
agent, no entries and only dark cables; its routing daemons live on, so that booting takes no time
but the agent's own.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from heddle_agent.fib.linux import clean
from heddle_controller.model.fabric import Fabric, State
from heddle_emulator.drill.lab.paths import Way
from heddle_emulator.drill.lab.starved import Starved
from heddle_emulator.drill.places import cables
from heddle_emulator.drill.scenario import ALL, CONTROLLER, Hop, Step, StepKind, Target
from heddle_emulator.fleet.orders import Orders
from heddle_emulator.netns import tools
from heddle_emulator.netns.errors import LabError
from heddle_emulator.netns.kernel import inside
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.layout import MGMT
from heddle_emulator.netns.programs import Programs

GRAINS = 10_000
"""Shares of packets are told apart by parts of so many."""


@dataclass(slots=True)
class Faults:
    """What is broken in a lab, and how to break and mend it."""

    lab: Lab
    programs: Programs | None
    cut: set[int] = field(default_factory=set)
    """Link rows."""
    silent: set[int] = field(default_factory=set)
    degraded: set[int] = field(default_factory=set)
    hung: set[str] = field(default_factory=set)
    """Nodes whose program is stopped."""
    starved: dict[str, Starved] = field(default_factory=dict)
    """Programs that are given little time, by node."""
    parted: set[tuple[str, str]] = field(default_factory=set)
    crashed: dict[str, list[int]] = field(default_factory=dict)
    """Switches without power, and the cables that went dark with them."""

    def prepare(self) -> None:
        """Open what faults will need."""
        for cable in self.lab.layout.cables:
            self.lab.link_switch(self.lab.far_end(cable.link).namespace)

    def rows(self, step: Step, ways: dict[str, Way]) -> list[int]:
        """Link rows that a step speaks of; ``ways`` are those of probes. Of "all", those of now.

        Raises:
            LabError: a probe's way has no such hop.
        """
        if ALL in step.targets:
            return self._broken()
        return [row for target in step.targets for row in self._row(target, ways)]

    def _row(self, target: Target, ways: dict[str, Way]) -> Sequence[int]:
        if isinstance(target, Hop):
            way = ways[target.probe]
            if not 1 <= target.number <= len(way):
                raise LabError(f"{target}: its way has {len(way)} hops")
            return [way[target.number - 1]]
        return cables(self.lab.layout.fabric, target)

    def do(self, step: Step, rows: Sequence[int]) -> int:
        """Do a step; the nanosecond just before it began to take effect."""
        begin = time.time_ns()
        if step.kind is StepKind.CUT:
            for row in rows:
                self.lab.set_link(row, up=False)
            self.cut.update(rows)
        elif step.kind is StepKind.SILENCE:
            for row in rows:
                self._set_silence(row, share=step.share)
            self.silent.update(rows)
        elif step.kind is StepKind.DEGRADE:
            for row in rows:
                self.lab.set_speed(row, step.gbps)
            self.degraded.update(rows)
        elif step.kind is StepKind.MEND:
            self.mend(self._broken() if ALL in step.targets else rows)
        else:
            self._to_programs(step)
        return begin

    def _to_programs(self, step: Step) -> None:
        """What befalls programs, or what lies between them."""
        match step.kind:
            case StepKind.FAIL | StepKind.RESTORE | StepKind.SKEW:
                self._order(step)
            case StepKind.KILL:
                self._kill(step)
            case StepKind.START:
                self._start(step)
            case StepKind.CRASH:
                for node in self._nodes(step):
                    self._crash(node)
            case StepKind.REBOOT:
                for node in self._nodes(step):
                    self._reboot(node)
            case StepKind.HANG | StepKind.RESUME | StepKind.SLOW:
                self._stop_or_go(step)
            case _:
                one, other = sorted(self._nodes(step))
                self._part(one, other, apart=step.kind is StepKind.PART)

    def mend(self, rows: Sequence[int]) -> None:
        """Make cables whole again."""
        for row in set(rows) & self.cut:
            self.lab.set_link(row, up=True)
        for row in set(rows) & self.silent:
            self._set_silence(row, share=0.0)
        for row in set(rows) & self.degraded:
            self.lab.set_speed(row, self.lab.layout.cables[row].gbps)
        self.cut -= set(rows)
        self.silent -= set(rows)
        self.degraded -= set(rows)

    def _broken(self) -> list[int]:
        return sorted(self.cut | self.silent | self.degraded)

    def set_right(self) -> None:
        """Mend all cables, and whatever keeps programs from working or from each other."""
        self.mend(self._broken())
        for node in list(self.starved):
            self._slow(node, 0.0)
        for node in list(self.hung):
            self._hang(node, hangs=False)
        for one, other in list(self.parted):
            self._part(one, other, apart=False)
        for node in list(self.crashed):
            self._reboot(node)
        if self.programs is not None and self.programs.orders is not None:
            self.programs.orders.clear()

    def close(self) -> None:
        """Stop whatever still works at breaking things; what is broken stays so."""
        for node in list(self.starved):
            self.starved.pop(node).end()

    def revive(self, left: Collection[str]) -> bool:
        """Start again whatever has died, save for these nodes; whether there was anything."""
        programs = self._programs()
        revived = programs.revive() if MGMT not in left else []
        for switch in self.lab.layout.switches:
            if switch not in left and not programs.alive(switch):
                programs.start_agent(switch)
                revived.append(switch)
        return bool(revived)

    def check(self) -> None:
        """Go on only if whoever was to die at a point of its work did: else nothing was tried.

        Raises:
            LabError: no controller came to that point.
        """
        orders = self.programs.orders if self.programs is not None else None
        if orders is not None and orders.deadly:
            raise LabError(f"no controller came to the point {orders.deadly}, at which to die")

    def present(self) -> Fabric:
        """The fabric as it is: a silent cable still has its carrier, so BGP may keep it."""
        return self.lab.layout.fabric.with_links(dict.fromkeys(self.cut, State.DOWN))

    def _set_silence(self, row: int, *, share: float) -> None:
        """Drop such a share of what comes in at both ends; 0 drops nothing any more."""
        lost = "policy drop;"
        if share < 1:
            lost = f"policy accept; numgen random mod {GRAINS} < {round(share * GRAINS)} drop"
        for port in self.lab.layout.cables[row].ends:
            table = f"netdev heddle_silence_{_word(port.name)}"
            hook = f'type filter hook ingress device "{port.name}" priority -500; {lost}'
            script = f"table {table} {{\nchain silence {{ {hook}\n}}\n}}\n"
            script = script if share else f"delete table {table}\n"
            self._filter(port.namespace, script)

    def _stop_or_go(self, step: Step) -> None:
        """Of several controllers the one that leads stops, and any that has goes on."""
        for node in self._nodes(step):
            if step.kind is StepKind.SLOW:
                self._slow(node, step.by)
            elif step.kind is StepKind.HANG:
                self._hang(self._who(node), hangs=True)
            else:
                of_many = self._programs().replicas if node == MGMT else (node,)
                for one in self.hung.intersection(of_many):
                    self._hang(one, hangs=False)

    def _who(self, node: str) -> str:
        """Whose program is meant: of several controllers the one that leads."""
        return self._programs().leader if node == MGMT else node

    def _hang(self, node: str, *, hangs: bool) -> None:
        self._programs().signal(node, signal.SIGSTOP if hangs else signal.SIGCONT)
        (self.hung.add if hangs else self.hung.discard)(node)

    def _slow(self, node: str, seconds: float) -> None:
        """Give an agent little time; 0 seconds ends that."""
        if node in self.starved:
            self.starved.pop(node).end()
        if seconds:
            self.starved[node] = Starved(self._programs().processes[node], seconds)

    def _part(self, one: str, other: str, *, apart: bool) -> None:
        """Have one of two drop what it would send to the other, and what comes from there."""
        at, away = (other, one) if one == MGMT else (one, other)
        address = self.lab.layout.management(away)
        table = f"ip heddle_part_{_word(away)}"
        hook = "type filter hook {} priority -500; policy accept; ip {} {} drop"
        script = (
            f"table {table} {{\nchain in {{ {hook.format('input', 'saddr', address)}\n}}\n"
            f"chain out {{ {hook.format('output', 'daddr', address)}\n}}\n}}\n"
        )
        self._filter(at, script if apart else f"delete table {table}\n")
        (self.parted.add if apart else self.parted.discard)((one, other))

    def _filter(self, node: str, script: str) -> None:
        tools.run_inside(self.lab.spaces[node], ["nft", "-f", "-"], script)

    def _kill(self, step: Step) -> None:
        for node in self._nodes(step):
            if step.point is not None:
                self._orders().die_at(step.point.value)
            else:
                self._programs().signal(self._who(node), signal.SIGKILL)

    def _start(self, step: Step) -> None:
        for node in self._nodes(step):
            if node == MGMT:
                self._programs().revive()
            else:
                if step.empty:
                    self._forget(node)
                self._programs().start_agent(node)

    def _order(self, step: Step) -> None:
        if step.kind is StepKind.SKEW:
            self._orders().skew(step.by)
        else:
            self._orders().store_down(down=step.kind is StepKind.FAIL)

    def _crash(self, node: str) -> None:
        self._programs().kill(node)
        links = self.lab.layout.fabric.structure.links
        row = self.lab.layout.fabric.structure.index[node]
        own = np.flatnonzero((links.a == row) | (links.b == row)).tolist()
        self.crashed[node] = [link for link in own if link not in self.cut]
        for link in self.crashed[node]:
            self.lab.set_link(link, up=False)
        self.cut.update(self.crashed[node])
        self._forget(node)

    def _reboot(self, node: str) -> None:
        self.mend(self.crashed.pop(node))
        self._programs().start_agent(node)

    def _forget(self, node: str) -> None:
        """Have the kernel of a switch hold nothing of an agent's."""
        inside(self.lab.spaces[node], clean)

    def _nodes(self, step: Step) -> list[str]:
        return [MGMT if target == CONTROLLER else str(target) for target in step.targets]

    def _orders(self) -> Orders:
        orders = self._programs().orders
        if orders is None:
            raise LabError("this lab's controller takes no orders to fail")
        return orders

    def _programs(self) -> Programs:
        if self.programs is None:
            raise LabError("this lab has no programs to kill or start")
        return self.programs


def _word(name: str) -> str:
    """A name as nftables takes it."""
    return name.replace("-", "_").replace(".", "_")
