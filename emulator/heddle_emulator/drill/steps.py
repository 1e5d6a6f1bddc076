"""Apply the steps of a scenario to the fabric under test.

Steps name cables as people do. ``StepRunner`` works out which links are meant, describes the step
in words, and calls the fabric to do it. The fabric is in virtual time, of real kernels, or of
agents in this process. It decides what follows from a step, and when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_emulator.drill.scenario import (
    ALL,
    CONTROLLER,
    Bundle,
    CableName,
    Hop,
    Point,
    Step,
    StepKind,
    Target,
)
from heddle_emulator.fleet.orders import Orders
from heddle_emulator.report.evidence import Mark

_TIER = {NodeKind.LEAF: 1, NodeKind.SPINE: 2, NodeKind.CORE: 3}
_REPAIRS = frozenset(
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
_HARMLESS = frozenset({StepKind.DRAIN, StepKind.SUBMIT, StepKind.FINISH, StepKind.SKEW})


class StepError(RuntimeError):
    """A step cannot be done. The message is one line."""


def check_death(orders: Orders) -> None:
    """Check that a controller that was ordered to die at a point of its work has done so.

    Raises:
        StepError: no controller came to that point, so the drill tested nothing.
    """
    if orders.deadly:
        raise StepError(f"no controller came to the point {orders.deadly}, at which to die")


class FabricUnderTest:
    """A fabric that steps are done to.

    Links are given as rows of the fabric. A program is ``CONTROLLER``, or the id of the switch
    whose agent is meant. Each method returns once the step is done; its effects may come later.
    A fabric that cannot do a step does not override its method. Scenarios that need such a step are
    refused before they run.
    """

    @property
    def fabric(self) -> Fabric:
        """The fabric as it was built, without any faults."""
        raise NotImplementedError

    @property
    def broken(self) -> Sequence[int]:
        """Rows of links that are cut, silent or degraded."""
        raise NotImplementedError

    def way(self, probe: str) -> Sequence[int]:
        """Return the link rows that packets of a probe take, from the sending NIC on."""
        raise NotImplementedError

    async def begin(self, step: Step, mark: Mark, words: str, target: str) -> None:
        """Record that a step is done now. ``words`` describe it, ``target`` names its targets."""
        raise NotImplementedError

    async def cut(self, links: Sequence[int]) -> None:
        """Take the carrier away from links."""
        raise NotImplementedError

    async def silence(self, links: Sequence[int], share: float) -> None:
        """Make links lose a share of all packets, both ways. They keep their carrier."""
        raise NotImplementedError

    async def degrade(self, links: Sequence[int], gbps: float) -> None:
        """Make links carry only ``gbps`` each way."""
        raise NotImplementedError

    async def mend(self, links: Sequence[int]) -> None:
        """Make links whole again."""
        raise NotImplementedError

    async def crash(self, switch: str) -> None:
        """Take power from a switch: its agent and table are gone, and all its cables go dark."""
        raise NotImplementedError

    async def reboot(self, switch: str) -> None:
        """Bring a crashed switch back with an empty table."""
        raise NotImplementedError

    async def kill(self, program: str, point: Point | None) -> None:
        """Kill a program at once, or the controller when it reaches ``point`` in its work."""
        raise NotImplementedError

    async def start(self, program: str, *, empty: bool) -> None:
        """Start a program again. With ``empty``, an agent starts with an empty table."""
        raise NotImplementedError

    async def hang(self, program: str) -> None:
        """Stop a program without ending it, as SIGSTOP does."""
        raise NotImplementedError

    async def resume(self, program: str) -> None:
        """Let a program continue that hangs, as SIGCONT does."""
        raise NotImplementedError

    async def slow(self, switch: str, seconds: float) -> None:
        """Make an agent react ``seconds`` later to everything; 0 ends this."""
        raise NotImplementedError

    async def part(self, one: str, other: str, *, apart: bool) -> None:
        """Separate two nodes on the management network, or connect them again.

        The two come in the same order each time, ``CONTROLLER`` first.
        """
        raise NotImplementedError

    async def fail_store(self, *, down: bool) -> None:
        """Make the controller's store fail, or work again."""
        raise NotImplementedError

    async def skew(self, program: str, seconds: float) -> None:
        """Set a program's clock ahead by ``seconds``, or back if negative."""
        raise NotImplementedError

    async def drain(self, switch: str, *, drained: bool) -> None:
        """Tell the controller to drain a switch, or to use it again."""
        raise NotImplementedError

    async def change_jobs(self) -> None:
        """Tell the controller the flows of the jobs that run now."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step with its links and description worked out, so that doing it takes no time."""

    step: Step
    links: Sequence[int]
    words: str
    target: str


@dataclass(frozen=True, slots=True)
class StepRunner:
    """Does steps on one fabric."""

    under_test: FabricUnderTest

    async def do(self, step: Step) -> None:
        """Do a step now."""
        await self.do_prepared(self.prepare(step))

    def prepare(self, step: Step) -> PreparedStep:
        """Work out the links of a step. A hop becomes the cable that it is now.

        Raises:
            StepError: the path of a probe has fewer hops than the step names.
        """
        links = sorted({row for target in step.targets for row in self._links(target)})
        target = ", ".join(self._in_words(target) for target in step.targets)
        return PreparedStep(step, links, in_words(step, target), target)

    async def do_prepared(self, prepared: PreparedStep) -> None:
        """Do a prepared step now; "all" means the links that are broken at this moment."""
        step, test = prepared.step, self.under_test
        await test.begin(step, mark_of(step), prepared.words, prepared.target)
        links = test.broken if ALL in step.targets else prepared.links
        match step.kind:
            case StepKind.CUT:
                await test.cut(links)
            case StepKind.SILENCE:
                await test.silence(links, step.share)
            case StepKind.DEGRADE:
                await test.degrade(links, step.gbps)
            case StepKind.MEND:
                await test.mend(links)
            case StepKind.PART | StepKind.JOIN:
                names = sorted(map(str, step.targets))
                one, other = sorted(names, key=lambda name: name != CONTROLLER)
                await test.part(one, other, apart=step.kind is StepKind.PART)
            case StepKind.FAIL | StepKind.RESTORE:
                await test.fail_store(down=step.kind is StepKind.FAIL)
            case StepKind.REPLACE | StepKind.SUBMIT | StepKind.FINISH:
                await test.change_jobs()
            case _:
                for target in step.targets:
                    await self._to_node(step, str(target))

    async def _to_node(self, step: Step, node: str) -> None:
        """Do a step on a switch or on a program."""
        test = self.under_test
        match step.kind:
            case StepKind.CRASH:
                await test.crash(node)
            case StepKind.REBOOT:
                await test.reboot(node)
            case StepKind.KILL:
                await test.kill(node, step.point)
            case StepKind.START:
                await test.start(node, empty=step.empty)
            case StepKind.HANG:
                await test.hang(node)
            case StepKind.RESUME:
                await test.resume(node)
            case StepKind.SLOW:
                await test.slow(node, step.by)
            case StepKind.SKEW:
                await test.skew(node, step.by)
            case StepKind.DRAIN | StepKind.UNDRAIN:
                await test.drain(node, drained=step.kind is StepKind.DRAIN)
            case _:
                raise StepError(f"{step.kind.value} is unrolled when a scenario is read")

    def _links(self, target: Target) -> Sequence[int]:
        if isinstance(target, Hop):
            return [self._hop(target)]
        return cables(self.under_test.fabric, target)

    def _hop(self, hop: Hop) -> int:
        way = self.under_test.way(hop.probe)
        if not 1 <= hop.number <= len(way):
            raise StepError(f"{hop}: its path has {len(way)} hops")
        return int(way[hop.number - 1])

    def _in_words(self, target: Target) -> str:
        """Return the name of a target: of cables, the links that they are now."""
        fabric = self.under_test.fabric
        match target:
            case Hop():
                return f"{fabric.link_name(self._hop(target))} ({target})"
            case CableName():
                return ", ".join(map(fabric.link_name, cables(fabric, target)))
        return str(target)


def mark_of(step: Step) -> Mark:
    """Return whether a step breaks something, mends it, or does neither."""
    if step.kind in _REPAIRS:
        return Mark.MEND
    return Mark.OTHER if step.kind in _HARMLESS else Mark.FAULT


def in_words(step: Step, target: str) -> str:
    """Return a description of a step in words."""
    more = {
        StepKind.SILENCE: f", losing {step.share:.0%} of packets",
        StepKind.DEGRADE: f" to {step.gbps:g} Gbit/s",
        StepKind.SLOW: f" by {step.by * 1e3:g} ms",
        StepKind.SKEW: f" by {step.by:g} s",
        StepKind.REPLACE: f" with {step.other}",
    }
    point = f" at its next {step.point.value}" if step.point else ""
    return f"{step.kind.value} {target}{more.get(step.kind, '')}{point}"


def cables(fabric: Fabric, target: Target) -> Sequence[int]:
    """Return the link rows of a cable or bundle; empty for other targets and unknown names."""
    if isinstance(target, CableName):
        return fabric.find_links(target.a, target.b, target.key)
    if isinstance(target, Bundle):
        return _bundle(fabric, target)
    return ()


def _bundle(fabric: Fabric, bundle: Bundle) -> Sequence[int]:
    """Return link rows between switches with exactly one end in the zone, or at the switch."""
    structure = fabric.structure
    inside = np.zeros(fabric.node_count, dtype=np.bool_)
    if bundle.of in structure.index:
        inside[structure.index[bundle.of]] = True
    elif bundle.of in structure.zone_names:
        inside = structure.nodes.zone == structure.zone_names.index(bundle.of)
    kind, links = structure.nodes.kind, structure.links
    between = (kind[links.a] != NodeKind.NIC) & (kind[links.b] != NodeKind.NIC)
    chosen = between & (inside[links.a] != inside[links.b])
    if bundle.upwards:
        tier = _tiers(kind)
        low = np.where(inside[links.a], links.a, links.b)
        high = links.a + links.b - low
        chosen &= tier[high] > tier[low]
    rows: list[int] = np.flatnonzero(chosen).tolist()
    return rows


def _tiers(kind: Ints) -> Ints:
    return np.array([_TIER.get(NodeKind(int(one)), 0) for one in kind], dtype=np.int64)


def switches(fabric: Fabric) -> frozenset[str]:
    """Return the ids of all switches."""
    nodes = fabric.structure.nodes
    rows = np.flatnonzero(nodes.kind != NodeKind.NIC)
    return frozenset(nodes.ids[row] for row in rows.tolist())
