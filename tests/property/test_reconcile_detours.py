"""Links die in the middle of a rollout, every switch knows, and no packet loops.

Switches may hold any mix of two or more plans. Packets arrive on what is left of the fabric, over
entries whose paths carry and over the underlay, which has converged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from heddle_agent.fib import Link
from heddle_controller.model.fabric import State
from tests.property.test_reconcile_rollout import Rollout
from tests.support.depth import examples
from tests.support.reconcile_network import QPS, Network, out_arcs
from tests.support.reconcile_switches import Way

FIRST_PORT = 49152
MOST_LOSSES = 12


@dataclass
class Knowing(Network):
    """Switches that know exactly which links are down, over an underlay that knows it too."""

    down: frozenset[Link] = frozenset()

    def falls(self, switch: str, way: Way) -> bool:
        """Whether a link on an entry's path is down, so that the entry is not used."""
        return bool(self.down & {Link.between(switch, way[0].node, way[0].key), *way[2]})


class Losing(Rollout):
    """A rollout that walks packets after every operation, under each of several losses."""

    def __init__(self, seed: int) -> None:
        self.losses: list[tuple[int, ...]] = []
        super().__init__(seed)
        links = range(self.fabric.link_count - len(self.switches))  # between switches
        every = [(), *((row,) for row in links), *combinations(links, 2)]
        self.losses = self.random.sample(every, min(MOST_LOSSES, len(every)))
        self.worlds = [*self._worlds()]

    def _worlds(self) -> Iterator[Knowing]:
        for lost in self.losses:
            fabric = self.fabric.with_links(dict.fromkeys(lost, State.DOWN))
            down = frozenset(self.link(row) for row in lost)
            yield Knowing(fabric, self.network.tables, down=down)

    def check(self) -> None:
        """Assert that no packet loops or vanishes under any of the losses."""
        super().check()
        if not self.losses:
            return
        for world in self.worlds:
            head = world.fabric.structure.head
            for source, destination in self.pairs:
                (first,) = out_arcs(world.fabric, source)
                if int(head[first]) not in world.distance(destination):
                    continue
                for port in range(FIRST_PORT, FIRST_PORT + QPS):
                    trouble = world.trouble(source, destination, port)
                    lost = sorted(world.down)
                    assert not trouble, f"{source}->{destination}:{port}, lost {lost}: {trouble}"


seeds = st.integers(0, 2**32)


@settings(max_examples=examples(12))
@given(seeds)
@example(205002)  # QPs that part: an entry and one beyond it went in the same turn
def test_no_loss_sends_packets_back(seed: int) -> None:
    """No loss makes packets loop between three random plans, each finished before the next."""
    rollout = Losing(seed)
    for _ in range(2):
        rollout.finish()
        rollout.supersede()
    rollout.finish()


@settings(max_examples=examples(12))
@given(seeds)
@example(214)  # what may be held was lifted above what was whole
@example(19328)  # QPs part beyond an entry for both, to which one of them comes on a way round
def test_no_loss_sends_packets_back_half_way(seed: int) -> None:
    """No loss makes packets loop while plans supersede others half-way."""
    rollout = Losing(seed)
    events: list[Callable[[], None]] = [rollout.answer, rollout.answer, rollout.supersede]
    for _ in range(25):
        rollout.send()
        event = rollout.random.choice(events)
        if rollout.under_way or event == rollout.supersede:
            event()
    rollout.finish()
