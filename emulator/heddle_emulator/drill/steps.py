"""Steps of a scenario, done to whatever fabric is under test.

A step names cables as people do. ``StepRunner`` works out which links these are, says what is done
and to what, and has the fabric do it: one in virtual time, one of real kernels, or one of agents in
this process. What follows from a step, and when, is the fabric's affair.
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
    """A step cannot be done, in one line."""


class FabricUnderTest:
    """What steps are done to. Links are rows of the fabric; a program is a switch's or CONTROLLER.

    Each call returns once the step is done, which is before all that follows from it. A fabric
    that cannot do a step leaves the call as it is here; scenarios that need it are refused before.
    """

    @property
    def fabric(self) -> Fabric:
        """As it was built."""
        raise NotImplementedError

    @property
    def broken(self) -> Sequence[int]:
        """Links that are cut, silent or degraded."""
        raise NotImplementedError

    def way(self, probe: str) -> Sequence[int]:
        """The links that packets of a probe take, from its NIC on."""
        raise NotImplementedError

    async def begin(self, step: Step, mark: Mark, words: str, target: str) -> None:
        """Note that a step is done now: what it is, and to what, in words."""
        raise NotImplementedError

    async def cut(self, links: Sequence[int]) -> None:
        """Take the carrier away."""
        raise NotImplementedError

    async def silence(self, links: Sequence[int], share: float) -> None:
        """Lose a share of all packets, both ways, and keep the carrier."""
        raise NotImplementedError

    async def degrade(self, links: Sequence[int], gbps: float) -> None:
        """Carry less, each way."""
        raise NotImplementedError

    async def mend(self, links: Sequence[int]) -> None:
        """Be whole again."""
        raise NotImplementedError

    async def crash(self, switch: str) -> None:
        """Lose power: the agent and its table are gone, all cables of the switch are dark."""
        raise NotImplementedError

    async def reboot(self, switch: str) -> None:
        """Come back with an empty table."""
        raise NotImplementedError

    async def kill(self, program: str, point: Point | None) -> None:
        """SIGKILL, at once or when a controller comes to a point of its work."""
        raise NotImplementedError

    async def start(self, program: str, *, empty: bool) -> None:
        """Start again, an agent perhaps over an empty table."""
        raise NotImplementedError

    async def hang(self, program: str) -> None:
        """SIGSTOP."""
        raise NotImplementedError

    async def resume(self, program: str) -> None:
        """SIGCONT."""
        raise NotImplementedError

    async def slow(self, switch: str, seconds: float) -> None:
        """Have an agent need so much more for everything; 0 ends that."""
        raise NotImplementedError

    async def part(self, one: str, other: str, *, apart: bool) -> None:
        """Have two not reach each other by the management network, or reach each other again."""
        raise NotImplementedError

    async def fail_store(self, *, down: bool) -> None:
        """Have the store be away, or back."""
        raise NotImplementedError

    async def skew(self, program: str, seconds: float) -> None:
        """Put a clock ahead."""
        raise NotImplementedError

    async def drain(self, switch: str, *, drained: bool) -> None:
        """Tell the controller that a switch takes no new paths, or does again."""
        raise NotImplementedError

    async def change_jobs(self) -> None:
        """Tell the controller of the flows of the jobs that run now."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step whose links and words are known, so that doing it takes no time."""

    step: Step
    links: Sequence[int]
    words: str
    target: str


@dataclass(frozen=True, slots=True)
class StepRunner:
    """Does steps to one fabric."""

    under_test: FabricUnderTest

    async def do(self, step: Step) -> None:
        """Do a step now."""
        await self.do_prepared(self.prepare(step))

    def prepare(self, step: Step) -> PreparedStep:
        """Work out what a step is done to; of hops, what they are now.

        Raises:
            StepError: a probe's packets do not go so far.
        """
        links = sorted({row for target in step.targets for row in self._links(target)})
        target = ", ".join(self._in_words(target) for target in step.targets)
        return PreparedStep(step, links, in_words(step, target), target)

    async def do_prepared(self, prepared: PreparedStep) -> None:
        """Do a step now, to just the links that were found; of "all", those broken now."""
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
                one, other = sorted(map(str, step.targets), key=lambda name: name != CONTROLLER)
                await test.part(one, other, apart=step.kind is StepKind.PART)
            case StepKind.FAIL | StepKind.RESTORE:
                await test.fail_store(down=step.kind is StepKind.FAIL)
            case StepKind.REPLACE | StepKind.SUBMIT | StepKind.FINISH:
                await test.change_jobs()
            case _:
                for target in step.targets:
                    await self._to_node(step, str(target))

    async def _to_node(self, step: Step, node: str) -> None:
        """Do a step to a switch, or to a program."""
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
        """What a step is done to; of a hop also which cable that is now."""
        if isinstance(target, Hop):
            return f"{self.under_test.fabric.link_name(self._hop(target))} ({target})"
        return str(target)


def mark_of(step: Step) -> Mark:
    """Whether a step breaks something, mends it, or neither."""
    if step.kind in _REPAIRS:
        return Mark.MEND
    return Mark.OTHER if step.kind in _HARMLESS else Mark.FAULT


def in_words(step: Step, target: str) -> str:
    """A step and what it is done to, as people say it."""
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
    """Link rows of a cable or bundle by name; none where there is no such, or for hops."""
    if isinstance(target, CableName):
        return fabric.find_links(target.a, target.b, target.key)
    if isinstance(target, Bundle):
        return _bundle(fabric, target)
    return ()


def _bundle(fabric: Fabric, bundle: Bundle) -> Sequence[int]:
    """Cables between switches that have one end in a zone, or at a switch."""
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
    """Ids of all switches."""
    nodes = fabric.structure.nodes
    rows = np.flatnonzero(nodes.kind != NodeKind.NIC)
    return frozenset(nodes.ids[row] for row in rows.tolist())
