"""Steps of a drill done in the fluid world: what each changes, and who comes to know of it when.

A step changes cables, switches, programs or jobs at once. What follows is put on the agenda:
agents see it after ``detect``, BGP knows after ``bgp`` more, and only then do agents believe a
link that is back; datagrams and pushes are under way for as long as ``control`` says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from heddle_emulator.drill.fluid.control import PATIENCE
from heddle_emulator.drill.fluid.stage import FluidStage
from heddle_emulator.drill.places import cables
from heddle_emulator.drill.scenario import ALL, CONTROLLER, Hop, Step, StepKind, Target
from heddle_emulator.drill.words import in_words
from heddle_emulator.report.evidence import Mark

_ENDS = frozenset(
    {
        StepKind.MEND,
        StepKind.START,
        StepKind.UNDRAIN,
        StepKind.REBOOT,
        StepKind.RESUME,
        StepKind.JOIN,
        StepKind.RESTORE,
    }
)
"""Steps that make something whole."""
_QUIET = frozenset({StepKind.DRAIN, StepKind.SUBMIT, StepKind.FINISH, StepKind.SKEW})
"""Steps that break nothing."""


class Steps:
    """Does steps in one stage."""

    def __init__(self, stage: FluidStage) -> None:
        self.stage = stage
        self._do: dict[StepKind, Callable[[Step], Awaitable[None]]] = {
            StepKind.CUT: self._cut,
            StepKind.SILENCE: self._silence,
            StepKind.DEGRADE: self._degrade,
            StepKind.MEND: self._mend,
            StepKind.CRASH: self._crash,
            StepKind.REBOOT: self._reboot,
            StepKind.KILL: self._kill,
            StepKind.START: self._start,
            StepKind.HANG: self._hang,
            StepKind.RESUME: self._resume,
            StepKind.SLOW: self._slow,
            StepKind.PART: self._part,
            StepKind.JOIN: self._join,
            StepKind.FAIL: self._fail,
            StepKind.RESTORE: self._restore,
            StepKind.SKEW: self._skew,
            StepKind.DRAIN: self._drain,
            StepKind.UNDRAIN: self._drain,
            StepKind.REPLACE: self._jobs,
            StepKind.SUBMIT: self._jobs,
            StepKind.FINISH: self._jobs,
        }

    async def do(self, step: Step) -> None:
        """Do a step now."""
        targets = ", ".join(self._in_words(target) for target in step.targets)
        mark = Mark.MEND if step.kind in _ENDS else Mark.FAULT
        mark = Mark.OTHER if step.kind in _QUIET else mark
        self.stage.log.tell(self.stage.now, mark, in_words(step, targets), targets)
        await self._do[step.kind](step)

    def _in_words(self, target: Target) -> str:
        """What a step is done to; of a hop also which cable that is now."""
        if isinstance(target, Hop):
            return f"{self.stage.fabric.link_label(self.stage.hop(target))} ({target})"
        return str(target)

    def rows(self, step: Step) -> list[int]:
        """Link rows that a step speaks of."""
        if ALL in step.targets:
            return self.stage.cables.broken
        return sorted({row for target in step.targets for row in self._row(target)})

    def _row(self, target: Target) -> Sequence[int]:
        if isinstance(target, Hop):
            return [self.stage.hop(target)]
        return cables(self.stage.fabric, target)

    async def _cut(self, step: Step) -> None:
        rows = self.rows(step)
        self.stage.cables.cut.update(rows)
        self.changed(rows, self.stage.control.detect)

    async def _silence(self, step: Step) -> None:
        rows = self.rows(step)
        self.stage.cables.silent.update(dict.fromkeys(rows, step.share))
        self.changed(rows, self.stage.control.silent)

    async def _degrade(self, step: Step) -> None:
        self.stage.cables.degraded.update(dict.fromkeys(self.rows(step), step.gbps))
        self.stage.turning = True

    async def _mend(self, step: Step) -> None:
        rows = self.rows(step)
        self.stage.cables.mend(rows)
        self.changed(rows, self.stage.control.detect)

    async def _crash(self, step: Step) -> None:
        for row in self._switches(step):
            await self.stage.fleet.crash(row)
            links = self.stage.fleet.links_at(row)
            self.stage.cables.power(links, on=False)
            self.changed(links, self.stage.control.detect, but=row)

    async def _reboot(self, step: Step) -> None:
        for row in self._switches(step):
            links = self.stage.fleet.links_at(row)
            self.stage.cables.power(links, on=True)
            self.changed(links, self.stage.control.detect, but=row)
            await self.stage.fleet.start(row, PATIENCE, empty=True)
            self.stage.provoke()

    async def _kill(self, step: Step) -> None:
        for target in step.targets:
            if target != CONTROLLER:
                await self.stage.fleet.crash(self.stage.row_of(target))
            elif step.point is not None:
                self.stage.conductor.controller.orders.die_at(step.point.value)
            else:
                await self.stage.conductor.kill_controller()

    async def _start(self, step: Step) -> None:
        for target in step.targets:
            if target == CONTROLLER:
                await self.stage.conductor.start_controller()
            else:
                row = self.stage.row_of(target)
                await self.stage.fleet.start(row, PATIENCE, empty=step.empty)
        self.stage.turning = True
        self.stage.provoke()

    async def _hang(self, step: Step) -> None:
        for target in step.targets:
            if target == CONTROLLER:
                self.stage.conductor.controller.hang()
            else:
                self.stage.fleet.hang(self.stage.row_of(target))

    async def _resume(self, step: Step) -> None:
        for target in step.targets:
            if target == CONTROLLER:
                self.stage.conductor.controller.resume()
                await self.stage.conductor.catch_up()
            else:
                await self.stage.fleet.resume(self.stage.row_of(target))
        self.stage.turning = True
        self.stage.provoke(reports=True)

    async def _slow(self, step: Step) -> None:
        for row in self._switches(step):
            self.stage.slow[row] = step.by

    async def _part(self, step: Step) -> None:
        one, other = (str(target) for target in step.targets)
        if CONTROLLER in step.targets:
            await self.stage.fleet.alone[other if one == CONTROLLER else one].cut()
        else:
            self.stage.fleet.air.cut.add(frozenset((one, other)))

    async def _join(self, step: Step) -> None:
        one, other = (str(target) for target in step.targets)
        if CONTROLLER in step.targets:
            self.stage.fleet.alone[other if one == CONTROLLER else one].join()
            self.stage.provoke(reports=True)
        else:
            self.stage.fleet.air.cut.discard(frozenset((one, other)))

    async def _fail(self, _: Step) -> None:
        self.stage.conductor.controller.orders.store_down(down=True)
        self.stage.conductor.store_is_down = True

    async def _restore(self, _: Step) -> None:
        self.stage.conductor.controller.orders.store_down(down=False)
        self.stage.conductor.store_is_down = False
        await self.stage.conductor.catch_up()
        self.stage.provoke(reports=True)

    async def _skew(self, step: Step) -> None:
        for target in step.targets:
            if target == CONTROLLER:
                self.stage.conductor.controller.orders.skew(step.by)
            else:
                self.stage.fleet.skew[self.stage.row_of(target)] = step.by

    async def _drain(self, step: Step) -> None:
        for target in step.targets:
            drained = step.kind is StepKind.DRAIN
            await self.stage.conductor.drain(str(target), drained=drained)
        self.stage.provoke()

    async def _jobs(self, _: Step) -> None:
        self.stage.turning = True
        await self.stage.conductor.want(self.stage.wanted())
        self.stage.provoke()

    def _switches(self, step: Step) -> list[int]:
        return [self.stage.row_of(target) for target in step.targets]

    def changed(self, rows: Iterable[int], delay: float, but: int = -1) -> None:
        """Links may carry or not carry from now on; agents at their ends see it later.

        One that carries again is believed to once BGP uses it again, as agents do.
        """
        stage, world = self.stage, self.stage.fleet.world
        stage.turning = True
        rows = [row for row in rows if stage.cables.carries(row) != bool(world.carries[2 * row])]
        told = delay + stage.control.bgp
        if rows:
            stage.agenda.put(stage.now + told, stage.converge)
        for up, seen in ((False, delay), (True, told)):
            own = [row for row in rows if stage.cables.carries(row) == up]
            if own:
                stage.fleet.change(own, up=up)
                self._seen(own, seen, but)

    def _seen(self, rows: Sequence[int], delay: float, but: int) -> None:
        """Agents at the ends of links, but one, see how they are after so many seconds."""
        stage, links = self.stage, self.stage.fabric.structure.links
        ends = {int(end) for row in rows for end in (links.a[row], links.b[row])}
        ends = (ends & stage.fleet.agents.keys()) - {but}
        for extra in sorted({stage.slow.get(end, 0.0) for end in ends}):
            seeing = {end for end in ends if stage.slow.get(end, 0.0) == extra}
            stage.agenda.put(stage.now + delay + extra, partial(stage.see, rows, seeing))
