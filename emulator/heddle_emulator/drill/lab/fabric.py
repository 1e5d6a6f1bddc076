"""The fabric of a lab, and how it is broken and mended.

Whatever takes time is done in advance, so that a fault strikes when it is due, and faults of one
moment strike right after each other. A cable is cut at its upper end, and the lower end loses its
carrier, as in a real fabric. A silent cable drops all or a part of what arrives at both ends, and
keeps its carrier. A program that hangs is stopped by a signal, and a slow one is stopped again and
again. If two nodes are parted, one drops all packets from and to the other on the management
network. A switch without power has no agent, no entries and only dark cables. Its routing daemons
live on, so that booting takes only the time of the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heddle_agent.fib.linux import clean_kernel
from heddle_controller.model.fabric import Fabric, State
from heddle_emulator.drill.cables import Cables
from heddle_emulator.drill.lab.control import LabClient
from heddle_emulator.drill.lab.probes import Way
from heddle_emulator.drill.scenario import CONTROLLER, Point, Step
from heddle_emulator.drill.steps import FabricUnderTest, check_death
from heddle_emulator.fleet.orders import Orders
from heddle_emulator.netns import LabError, tools
from heddle_emulator.netns.kernel import inside
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.layout import MGMT
from heddle_emulator.netns.programs import Programs
from heddle_emulator.report.evidence import Mark

GRAINS = 10_000
"""Resolution of the share of packets that a silent cable loses."""
GOES_ON_SECONDS = 0.01
"""How long a slow program runs between two stops."""
DEATH_SECONDS = 20.0
"""How long a controller that was ordered to die may take until it comes to that point."""
_LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class DoneStep:
    """A step that was done; ``when`` is in nanoseconds of the wall clock."""

    when: int
    step: Step
    mark: Mark
    words: str
    target: str


class LabFabric(FabricUnderTest):
    """The fabric for all runs of a drill. Without ``programs`` it has BGP alone."""

    def __init__(self, lab: Lab, programs: Programs | None, control: LabClient | None) -> None:
        self.lab, self.control = lab, control
        self._programs = programs
        self._doomed = False
        """Whether a controller was ordered to die at a point of its work, and none started since.
        """
        self.cables = Cables()
        self.hung: set[str] = set()
        """Nodes whose program hangs."""
        self.throttled: dict[str, ThrottledProcess] = {}
        """Slow programs by node."""
        self.parted: set[tuple[str, str]] = set()
        self.crashed: set[str] = set()
        """Switches without power."""
        self.ways: Mapping[str, Way] = {}
        """Paths of probes in the present run, by name."""
        self.done: list[DoneStep] = []
        """Steps done in the present run."""
        for cable in lab.layout.cables:  # opened now, so that no fault waits for it
            lab.link_switch(lab.far_end(cable.link).namespace)

    @property
    def fabric(self) -> Fabric:
        """Implement ``FabricUnderTest.fabric``."""
        return self.lab.layout.fabric

    @property
    def broken(self) -> Sequence[int]:
        """Implement ``FabricUnderTest.broken``."""
        return self.cables.broken

    def way(self, probe: str) -> Sequence[int]:
        """Implement ``FabricUnderTest.way``: the path that was found when the run began."""
        return self.ways[probe]

    async def begin(self, step: Step, mark: Mark, words: str, target: str) -> None:
        """Implement ``FabricUnderTest.begin``."""
        self.done.append(DoneStep(time.time_ns(), step, mark, words, target))

    async def cut(self, links: Sequence[int]) -> None:
        """Implement ``FabricUnderTest.cut``."""
        before = self.cables.without_carrier
        self.cables.cut.update(links)
        self._carriers(before)

    async def silence(self, links: Sequence[int], share: float) -> None:
        """Implement ``FabricUnderTest.silence``."""
        for row in links:
            self._set_silence(row, share=share)
        self.cables.silent.update(dict.fromkeys(links, share))

    async def degrade(self, links: Sequence[int], gbps: float) -> None:
        """Implement ``FabricUnderTest.degrade``."""
        for row in links:
            self.lab.set_speed(row, gbps)
        self.cables.degraded.update(dict.fromkeys(links, gbps))

    async def mend(self, links: Sequence[int]) -> None:
        """Implement ``FabricUnderTest.mend``."""
        before = self.cables.without_carrier
        silent = self.cables.silent.keys() & set(links)
        degraded = self.cables.degraded.keys() & set(links)
        self.cables.mend(links)
        self._carriers(before)
        for row in silent:
            self._set_silence(row, share=0.0)
        for row in degraded:
            self.lab.set_speed(row, self.lab.layout.cables[row].gbps)

    async def crash(self, switch: str) -> None:
        """Implement ``FabricUnderTest.crash``."""
        self.programs.kill(switch)
        self._power(switch, on=False)
        self.crashed.add(switch)
        self._forget(switch)

    async def reboot(self, switch: str) -> None:
        """Implement ``FabricUnderTest.reboot``."""
        self.crashed.discard(switch)
        self._power(switch, on=True)
        self.programs.start_agent(switch)

    async def kill(self, program: str, point: Point | None) -> None:
        """Implement ``FabricUnderTest.kill``."""
        if point is not None:
            self._orders.die_at(point.value)
            self._doomed = True
        else:
            self.programs.signal(self._leading(program), signal.SIGKILL)

    async def start(self, program: str, *, empty: bool) -> None:
        """Implement ``FabricUnderTest.start``: a controller serves when this returns."""
        await asyncio.to_thread(self._start, program, empty=empty)

    def _start(self, program: str, *, empty: bool) -> None:
        if program == CONTROLLER:
            self._await_death()
            self.programs.revive()
            return
        if empty:
            self._forget(program)
        self.programs.start_agent(program)

    def _await_death(self) -> None:
        """Wait for a controller that was ordered to die. A busy machine may bring it there late."""
        deadline = time.monotonic() + DEATH_SECONDS
        while self._doomed and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            self._doomed = all(map(self.programs.alive, self.programs.replicas))
        self._doomed = False

    async def hang(self, program: str) -> None:
        """Implement ``FabricUnderTest.hang``."""
        node = self._leading(program)
        self.programs.signal(node, signal.SIGSTOP)
        self.hung.add(node)

    async def resume(self, program: str) -> None:
        """Implement ``FabricUnderTest.resume``: all controllers that hang continue."""
        nodes = self.programs.replicas if program == CONTROLLER else (program,)
        for node in self.hung.intersection(nodes):
            self.programs.signal(node, signal.SIGCONT)
            self.hung.discard(node)

    async def slow(self, switch: str, seconds: float) -> None:
        """Implement ``FabricUnderTest.slow``."""
        if switch in self.throttled:
            self.throttled.pop(switch).end()
        if seconds:
            self.throttled[switch] = ThrottledProcess(self.programs.processes[switch], seconds)

    async def part(self, one: str, other: str, *, apart: bool) -> None:
        """Make one of two nodes drop all packets to and from the other, or stop doing so."""
        at, away = (other, MGMT) if one == CONTROLLER else (one, other)
        address = self.lab.layout.management(away)
        table = f"ip heddle_part_{_word(away)}"
        hook = "type filter hook {} priority -500; policy accept; ip {} {} drop"
        script = (
            f"table {table} {{\nchain in {{ {hook.format('input', 'saddr', address)}\n}}\n"
            f"chain out {{ {hook.format('output', 'daddr', address)}\n}}\n}}\n"
        )
        self._filter(at, script if apart else f"delete table {table}\n")
        (self.parted.add if apart else self.parted.discard)((one, other))

    async def fail_store(self, *, down: bool) -> None:
        """Implement ``FabricUnderTest.fail_store``."""
        self._orders.store_down(down=down)

    async def skew(self, program: str, seconds: float) -> None:  # noqa: ARG002 - a controller's
        """Skew the clock of the controllers. Switches always have the clock of the machine."""
        self._orders.skew(seconds)

    async def drain(self, switch: str, *, drained: bool) -> None:
        """Implement ``FabricUnderTest.drain``."""
        if self.control is None:
            raise LabError("this lab has no controller to tell of a drained switch")
        await self.control.drain(switch, drained=drained)

    async def set_right(self) -> None:
        """Mend all cables, and undo all faults of programs and switches."""
        await self.mend(self.broken)
        for switch in list(self.throttled):
            await self.slow(switch, 0.0)
        for node in list(self.hung):
            self.programs.signal(node, signal.SIGCONT)
            self.hung.discard(node)
        for one, other in list(self.parted):
            await self.part(one, other, apart=False)
        for switch in list(self.crashed):
            await self.reboot(switch)
        if self._programs is not None and self._programs.orders is not None:
            self._programs.orders.clear()
        self._doomed = False

    def close(self) -> None:
        """End the threads that slow programs down. All other faults stay."""
        for node in list(self.throttled):
            self.throttled.pop(node).end()

    def revive(self, left: Collection[str]) -> bool:
        """Start ended programs again, except on nodes in ``left``; return whether any had ended."""
        revived = self.programs.revive() if MGMT not in left else []
        for switch in self.lab.layout.switches:
            if switch not in left and not self.programs.alive(switch):
                self.programs.start_agent(switch)
                revived.append(switch)
        return bool(revived)

    def check(self) -> None:
        """Check that a controller that was ordered to die at a point of its work has done so.

        Raises:
            StepError: no controller came to that point, so the drill tested nothing.
        """
        if self._programs is not None and self._programs.orders is not None:
            check_death(self._programs.orders)

    def present(self) -> Fabric:
        """Return the fabric with dark cables down. Silent ones are up, as they have a carrier."""
        return self.fabric.with_links(dict.fromkeys(self.cables.without_carrier, State.DOWN))

    @property
    def programs(self) -> Programs:
        """The programs of the lab.

        Raises:
            LabError: the lab has none.
        """
        if self._programs is None:
            raise LabError("this lab has no programs to kill or start")
        return self._programs

    @property
    def _orders(self) -> Orders:
        orders = self.programs.orders
        if orders is None:
            raise LabError("this lab's controller takes no orders to fail")
        return orders

    def _leading(self, program: str) -> str:
        """Return the node of a program; ``CONTROLLER`` means the controller that leads."""
        return self.programs.leader if program == CONTROLLER else program

    def _carriers(self, before: Iterable[int]) -> None:
        """Apply changed carriers; ``before`` are the rows of cables that had none until now."""
        old, new = set(before), self.cables.without_carrier
        for row in sorted(new - old):
            self.lab.set_link(row, up=False)
        for row in sorted(old - new):
            self.lab.set_link(row, up=True)

    def _power(self, switch: str, *, on: bool) -> None:
        links, row = self.fabric.structure.links, self.fabric.structure.index[switch]
        before = self.cables.without_carrier
        own = np.flatnonzero((links.a == row) | (links.b == row)).tolist()
        self.cables.power(own, on=on)
        self._carriers(before)

    def _set_silence(self, row: int, *, share: float) -> None:
        """Drop a share of the packets that arrive at both ends of a cable; 0 ends this."""
        lost = "policy drop;"
        if share < 1:
            lost = f"policy accept; numgen random mod {GRAINS} < {round(share * GRAINS)} drop"
        for port in self.lab.layout.cables[row].ends:
            table = f"netdev heddle_silence_{_word(port.name)}"
            hook = f'type filter hook ingress device "{port.name}" priority -500; {lost}'
            script = f"table {table} {{\nchain silence {{ {hook}\n}}\n}}\n"
            script = script if share else f"delete table {table}\n"
            self._filter(port.namespace, script)

    def _filter(self, node: str, script: str) -> None:
        tools.run_inside(self.lab.spaces[node], ["nft", "-f", "-"], script)

    def _forget(self, switch: str) -> None:
        """Remove everything that an agent wrote into the kernel of a switch."""
        inside(self.lab.spaces[switch], clean_kernel)


class ThrottledProcess:
    """A process that is stopped for some seconds again and again, until ``end``.

    Each message to it waits until it continues, so it reacts up to that much later. From outside
    it looks like an overloaded switch. Signals are used because a kernel cannot be told to slow
    down one program.
    """

    def __init__(self, process: int, seconds: float) -> None:
        self._process, self._seconds = process, seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"throttled {process}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let the process continue for good."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            try:
                while not self._over.is_set():
                    os.kill(self._process, signal.SIGSTOP)
                    self._over.wait(self._seconds)
                    os.kill(self._process, signal.SIGCONT)
                    self._over.wait(GOES_ON_SECONDS)
            finally:
                os.kill(self._process, signal.SIGCONT)


def _word(name: str) -> str:
    """Return a name in a form that nftables accepts."""
    return name.replace("-", "_").replace(".", "_")
