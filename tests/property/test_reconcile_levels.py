"""Removing left-over entries of any plans from the highest level down loses no packet."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heddle_agent.fib import Link
from heddle_controller.model.fabric import State
from heddle_controller.model.flows import FIRST_SOURCE_PORT
from heddle_controller.model.program import Entries
from heddle_controller.plan.programs import entries_of
from heddle_controller.reconcile.rollout.inventory import levels
from heddle_controller.reconcile.rollout.paths import joined_entries
from tests.property.test_reconcile_detours import Knowing
from tests.property.test_reconcile_rollout import random_plan
from tests.support.depth import examples
from tests.support.reconcile_network import (
    QPS,
    Network,
    out_arcs,
    plan_on,
    random_fabric,
    random_path,
)
from tests.support.reconcile_switches import SwitchTable, match_of, way_of

seeds = st.integers(0, 2**32)


class Left:
    """A random network whose switches hold some entries of several plans for one pair.

    At most ``losses`` of its links are down, and all switches know which.
    """

    def __init__(self, seed: int, losses: int = 0) -> None:
        self.random = Random(seed)
        switches = self.random.randint(2, 7)
        self.fabric = random_fabric(self.random, switches, switches)
        self.ids = self.fabric.structure.nodes.ids
        self.pair = self.random.choice(
            [(one, two) for one in range(switches, 2 * switches) for two in range(switches, one)]
        )
        self.network = Network(self.fabric, {one: SwitchTable() for one in self.ids[:switches]})
        self.entries = self._drawn()
        for row in range(len(self.entries)):
            table = self.network.tables[self.ids[int(self.entries.switch[row])]]
            table.entries[match_of(self.fabric, self.entries, row)] = way_of(
                self.fabric, self.entries, row
            )

        links = self.fabric.structure.links
        between = range(self.fabric.link_count - switches)
        most = self.random.randint(0, min(losses, len(between)))
        lost = self.random.sample(between, most)
        self.fabric = self.fabric.with_links(dict.fromkeys(lost, State.DOWN))
        down = frozenset(
            Link.between(self.ids[links.a[row]], self.ids[links.b[row]], str(links.key[row]))
            for row in lost
        )
        self.network = Knowing(self.fabric, self.network.tables, down=down)

    def arrives(self) -> bool:
        """Whether any path joins the pair."""
        source, destination = self.pair
        (first,) = out_arcs(self.fabric, source)
        return int(self.fabric.structure.head[first]) in self.network.distance(destination)

    def _drawn(self) -> Entries:
        """Draw some entries of several plans, at most one for each switch and match."""
        plans = [random_plan(self.random, self.fabric, [self.pair]) for _ in range(4)]
        every = joined_entries([entries_of(plan) for plan in plans])
        rows: dict[tuple[object, ...], int] = {}
        for row in self.random.sample(range(len(every)), len(every)):
            if self.random.random() < 0.7:
                rows[int(every.switch[row]), *match_of(self.fabric, every, row)] = row
        return joined_entries([every.take(np.array(sorted(rows.values()), dtype=np.int64))])

    def trouble(self) -> str:
        """What goes wrong with packets of the pair; empty if all arrive."""
        ports = range(FIRST_SOURCE_PORT, FIRST_SOURCE_PORT + QPS)
        found = (self.network.trouble(*self.pair, port) for port in ports)
        return next((trouble for trouble in found if trouble), "")

    def delete(self, row: int) -> None:
        """Remove one entry from its switch."""
        table = self.network.tables[self.ids[int(self.entries.switch[row])]]
        del table.entries[match_of(self.fabric, self.entries, row)]


@settings(max_examples=examples(60))
@given(seeds)
@example(2491)  # an entry for any port goes before one for a port
def test_from_the_highest_level_on(seed: int) -> None:
    """Packets keep arriving, whichever entry of a level is removed first."""
    check_levels(Left(seed))


@settings(max_examples=examples(60))
@given(seeds)
@example(4620)
@example(17942)  # two entries that do not lead to each other as long as no link is lost
def test_from_the_highest_level_on_around_lost_links(seed: int) -> None:
    """Packets keep arriving, although the underlay leads some of them back."""
    check_levels(Left(seed, losses=3))


def check_levels(left: Left) -> None:
    """Remove all entries, level by level, and walk packets after each."""
    if not left.arrives() or left.trouble():
        return
    level = levels(left.entries, left.fabric)
    order = left.random.sample(range(len(level)), len(level))
    for row in sorted(order, key=lambda row: -int(level[row])):
        left.delete(row)
        assert not left.trouble(), f"after {left.ids[left.entries.switch[row]]} of {level.tolist()}"


@settings(max_examples=examples(20))
@given(seeds)
def test_a_way_falls_level_by_level(seed: int) -> None:
    """Along the path of a plan, levels fall from entry to entry."""
    left = Left(seed)
    plan = random_plan(left.random, left.fabric, [left.pair])
    if len(plan.paths) != 1:
        return
    entries = entries_of(plan)
    level = levels(entries, left.fabric)
    assert (np.diff(level[np.argsort(-entries.stage)]) < 0).all()


@settings(max_examples=examples(60))
@given(seeds)
def test_a_way_keeps_its_order_whatever_is_lost(seed: int) -> None:
    """Levels fall along a path, whichever links are down.

    Lost links may be repaired before the entries are removed, so the order must not depend on them.
    """
    random = Random(seed)
    switches = random.randint(2, 7)
    fabric = random_fabric(random, switches, switches)
    source, destination = random.sample(range(switches, 2 * switches), 2)
    way = random_path(random, fabric, source, destination)
    entries = entries_of(plan_on(fabric, [(source, destination)], [[way]]))
    links = range(fabric.link_count - switches)  # between switches
    lost = random.sample(links, random.randint(0, len(links)))
    level = levels(entries, fabric.with_links(dict.fromkeys(lost, State.DOWN)))
    met = {int(entries.switch[row]): int(level[row]) for row in range(len(entries))}
    order = [met[tail] for tail in fabric.structure.tail[way].tolist() if tail in met]
    assert order == sorted(set(order), reverse=True), (seed, lost, order)
