"""Pairs whose path is lost move in two rounds of pushes, and no packet loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.plan import Plan
from heddle_controller.model.program import Program
from heddle_controller.plan.diff import changed_flows
from heddle_controller.plan.programs import entries_of
from heddle_controller.reconcile.rollout.answers import (
    acknowledged,
    first_ledger,
    found_whole,
    next_ledger,
)
from heddle_controller.reconcile.rollout.steps import Switches, agenda, steps_of
from heddle_controller.solve import Repairer, solve
from heddle_controller.state.records import Committed, PlanFacts, Programmed
from heddle_emulator.topology import three_tier
from tests.bench.workloads import between_switches, flows_of, shuffled
from tests.property.test_reconcile_detours import Knowing
from tests.property.test_reconcile_rollout import Rollout
from tests.support.depth import examples
from tests.support.reconcile_network import out_arcs, plan_on, random_path

SHORT = 0.7
"""The share of paths that are the shortest of six drawn. Most others are detours."""
MOST_MORE = 5
"""The most further single losses under which packets are walked."""

seeds = st.integers(0, 2**32)


class Mourning(Rollout):
    """A rollout in which links are lost for good, all switches know, and plans follow."""

    def __init__(self, seed: int) -> None:
        self.lost: frozenset[int] = frozenset()
        super().__init__(seed)
        self.worlds = [*self._worlds()]

    def committed(self) -> Committed:
        """A random plan of mostly short paths, as committed."""
        ways = [self._way(*pair) for pair in self.pairs]
        plan = plan_on(self.fabric, self.pairs, [[way] if way else [] for way in ways])
        program = Program(1, self.generation, self.generation, entries_of(plan))
        return Committed(plan, program, PlanFacts(), Programmed())

    def _way(self, source: int, destination: int) -> list[int]:
        found = [random_path(self.random, self.fabric, source, destination) for _ in range(6)]
        return min(found, key=len) if self.random.random() < SHORT else found[0]

    def _worlds(self) -> Iterator[Knowing]:
        """The network as it is, and after further losses."""
        links = range(self.fabric.link_count - len(self.switches))  # between switches
        more = self.random.sample(links, min(MOST_MORE, len(links)))
        for lost in (self.lost, *(self.lost | {row} for row in more)):
            fabric = self.fabric.with_links(dict.fromkeys(lost, State.DOWN))
            down = frozenset(self.link(row) for row in lost)
            yield Knowing(fabric, self.network.tables, down=down)

    def check(self) -> None:
        """Assert that no packet loops or vanishes, with and without the further losses."""
        for world in getattr(self, "worlds", ()):
            for source, destination in self.pairs:
                (first,) = out_arcs(world.fabric, source)
                if int(world.fabric.structure.head[first]) not in world.distance(destination):
                    continue
                trouble = world.trouble(source, destination, 1)
                assert not trouble, f"{source}->{destination}, {sorted(world.down)}: {trouble}"

    def lose(self) -> None:
        """Lose a link between switches, and begin the plan that follows."""
        links = range(self.fabric.link_count - len(self.switches))
        self.lost |= {self.random.choice(links)}
        self.fabric = self.fabric.with_links(dict.fromkeys(self.lost, State.DOWN))
        self.worlds = [*self._worlds()]
        self.supersede()


@settings(max_examples=examples(16))
@given(seeds)
@example(158)  # the old path is a detour
@example(361)  # the new path is a detour
def test_packets_arrive_half_way_through_plans_after_losses(seed: int) -> None:
    """Packets arrive while plans, after losses or without, replace others half-way."""
    rollout = Mourning(seed)
    rollout.finish()
    events: list[Callable[[], None]] = [rollout.answer] * 5 + [rollout.supersede, rollout.lose]
    for _ in range(25):
        rollout.send()
        event = rollout.random.choice(events)
        if rollout.under_way or event != rollout.answer:
            event()
    rollout.finish()


@settings(max_examples=15)
@given(seeds)
@example(0)
def test_a_lost_link_takes_at_most_two_rounds_of_pushes(seed: int) -> None:
    """A repair takes at most two rounds of pushes, also for flows across zones.

    Such a flow has three entries, and the first is written after the others.
    """
    random = Random(seed)
    fabric = three_tier(zones=3, leaves=4, spines=4, nics_per_leaf=2, cores=8, taper=2.0)
    nics = np.flatnonzero(fabric.structure.nodes.kind == NodeKind.NIC)
    numbers = np.random.default_rng(seed)
    flows = flows_of("x", nics, shuffled(nics, numbers, fabric.structure.nodes.zone[nics]))
    plan = solve(fabric, flows)
    after = Repairer(plan)
    link = random.choice(np.flatnonzero(between_switches(fabric)).tolist())
    mended = after.repair(fabric.with_links({link: State.DOWN}), flows)
    _is_two_rounds(plan, mended, fabric)


def _committed(plan: Plan, generation: int) -> Committed:
    entries = entries_of(plan)
    return Committed(plan, Program(1, generation, generation, entries), PlanFacts(), Programmed())


def _is_two_rounds(plan: Plan, mended: Plan, fabric: Fabric) -> None:
    over = np.flatnonzero(~mended.fabric.carries[plan.paths.arcs])
    lost = {*plan.paths.flow[np.searchsorted(plan.paths.first, over, side="right") - 1].tolist()}
    moved = {*changed_flows(plan, mended).tolist()}
    if not lost or moved - lost:  # others that had to make room go in their order
        return
    every = np.ones(fabric.node_count, dtype=np.bool_)
    switches = Switches(every, ~every)
    rows = np.flatnonzero(fabric.structure.nodes.kind != NodeKind.NIC).tolist()
    ledger = found_whole(first_ledger(_committed(plan, 1)), dict.fromkeys(rows, 1))
    ledger = next_ledger(ledger, _committed(mended, 2), ())
    for _ in range(2):
        ledger = acknowledged(
            ledger,
            [(step, ()) for step in steps_of(ledger, agenda(ledger, switches.stuck), switches)],
        )
    assert ledger.ok.all()
    assert not ledger.present.any()
