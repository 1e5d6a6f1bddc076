"""The rollout's core at random: no packet is lost on the way from any plan to any other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heddle_agent.fib import Link
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import FIRST_SOURCE_PORT
from heddle_controller.model.plan import Plan
from heddle_controller.model.program import COLUMNS, Entries, Program, no_entries
from heddle_controller.plan.programs import entries_of
from heddle_controller.reconcile.ports import (
    AgentSession,
    FailureReason,
    OperationFailure,
    Push,
)
from heddle_controller.reconcile.rollout.answers import (
    HeldState,
    acknowledged,
    first_ledger,
    introduced,
    next_ledger,
    unanswered,
)
from heddle_controller.reconcile.rollout.ledger import Ledger
from heddle_controller.reconcile.rollout.steps import (
    Step,
    Switches,
    agenda,
    operations_of,
    steps_of,
)
from heddle_controller.state.records import Committed, PlanFacts, Programmed
from tests.support.depth import examples
from tests.support.edits import as_edit
from tests.support.reconcile_network import QPS, Network, plan_on, random_fabric, random_path
from tests.support.reconcile_switches import SwitchTable

seeds = st.integers(0, 2**32)


def random_plan(random: Random, fabric: Fabric, pairs: list[tuple[int, int]]) -> Plan:
    """A plan of random paths for most of the pairs: one or two paths, or none."""
    return plan_on(fabric, pairs, [random_ways(random, fabric, *pair) for pair in pairs])


def random_ways(random: Random, fabric: Fabric, source: int, destination: int) -> list[list[int]]:
    """Draw no path, one, or two that pass the switches they share in the same order."""
    first, second = (random_path(random, fabric, source, destination) for _ in range(2))
    ways = random.choice([[], [first], [first], [first, second]])
    agree = _shared(fabric, first, second) == _shared(fabric, second, first)
    return ways if agree else ways[:1]


def _shared(fabric: Fabric, one: list[int], other: list[int]) -> list[int]:
    tail = fabric.structure.tail
    others = {int(tail[arc]) for arc in other}
    return [int(tail[arc]) for arc in one if int(tail[arc]) in others]


@dataclass
class Sent:
    """A push under way."""

    step: Step
    push: Push
    obsolete: bool = False
    """Whether it belongs to a plan before the current one."""


class Rollout:
    """The rollout's core driven at random, with every packet walked after every operation."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        switches = self.random.randint(2, 7)
        self.fabric = random_fabric(self.random, switches, switches)
        nics = range(switches, 2 * switches)
        drawn = (self.random.sample(nics, 2) for _ in range(self.random.randint(1, 4)))
        self.pairs = list(dict.fromkeys((one, other) for one, other in drawn))
        self.ids = self.fabric.structure.nodes.ids
        self.network = Network(self.fabric, {node: SwitchTable() for node in self.ids[:switches]})
        self.switches = range(switches)
        self.away: set[int] = set()
        self.under_way: dict[int, Sent] = {}
        self.generation = 1
        self.careless = False
        """Packets may be lost because links are dead, so they are not walked."""
        self.entries = no_entries()
        """Entries of the newest plan."""
        self.ledger = first_ledger(self.committed())
        self.reconnect(*self.switches)

    def committed(self) -> Committed:
        """A random plan as committed. Its entries know how they derive from the last ones."""
        plan = self.drawn_plan()
        self.entries = as_edit(self.entries, entries_of(plan))
        program = Program(1, self.generation, self.generation, self.entries)
        return Committed(plan, program, PlanFacts(), Programmed())

    def drawn_plan(self) -> Plan:
        """Another plan of the same flows."""
        return random_plan(self.random, self.fabric, self.pairs)

    def link(self, row: int) -> Link:
        """The name of a link."""
        links = self.fabric.structure.links
        ends = (self.ids[links.a[row]], self.ids[links.b[row]])
        return Link.between(*ends, str(links.key[row]))

    def check(self) -> None:
        """Assert that no packet loops or vanishes."""
        if self.careless:
            return
        for source, destination in self.pairs:
            for port in range(QPS):
                at = FIRST_SOURCE_PORT + port
                trouble = self.network.trouble(source, destination, at)
                assert not trouble, f"{source}->{destination} port {at}: {trouble}"

    def expected(self) -> Switches:
        """Which switches are ready for a push, and which are away and stuck."""
        ready = np.zeros(self.fabric.node_count, dtype=np.bool_)
        ready[list(self.switches)] = True
        ready[[*self.under_way, *self.away]] = False
        stuck = np.zeros_like(ready)
        stuck[list(self.away)] = True
        return Switches(ready, stuck)

    def send(self) -> bool:
        """Send all pushes that are due, and return whether any are under way."""
        switches = self.expected()
        ready = switches.ready
        steps = steps_of(self.ledger, agenda(self.ledger, switches.stuck), switches)
        operations = operations_of(self.ledger, steps)
        for step, (sets, deletes) in zip(steps, operations, strict=True):
            assert ready[step.switch]
            ready[step.switch] = False
            push = Push(
                step.mode,
                1,
                self.generation,
                self.fabric,
                sets,
                deletes,
                step.sweep,
                step.completes,
            )
            self.under_way[step.switch] = Sent(step, push)
        return bool(self.under_way)

    def take(self, sent: Sent, failing: list[int]) -> None:
        """Apply a push to its switch, checking packets after each operation."""
        for _ in self.network.tables[self.ids[sent.step.switch]].take(sent.push, failing):
            self.check()

    def answer(self, fail: float = 0.0) -> None:
        """Let one switch apply its push, with random failures, and acknowledge it."""
        sent = self.under_way.pop(self.random.choice(sorted(self.under_way)))
        table = self.network.tables[self.ids[sent.step.switch]]
        crowded = table.crowded(sent.push)
        operations = range(len(sent.push.sets) + len(sent.push.deletes))
        broken = [row for row in operations if self.random.random() < fail and row not in crowded]
        self.take(sent, crowded + broken)
        if not sent.obsolete:
            failures = [OperationFailure(row, FailureReason.TABLE_FULL) for row in crowded]
            failures += [OperationFailure(row, FailureReason.BACKEND) for row in broken]
            self.ledger = acknowledged(self.ledger, [(sent.step, failures)])

    def supersede(self) -> None:
        """Commit another plan, whatever is under way."""
        self.generation += 1
        steps = [sent.step for sent in self.under_way.values() if not sent.obsolete]
        self.ledger = next_ledger(self.ledger, self.committed(), steps)
        for sent in self.under_way.values():
            sent.obsolete = True

    def retry(self) -> None:
        """Retry what failed."""
        self.ledger = self.ledger.retried()

    def disconnect(self) -> None:
        """Disconnect a switch. Its last push is either applied or lost."""
        switch = self.random.choice(self.switches)
        self.away.add(switch)
        sent = self.under_way.pop(switch, None)
        if sent is None:
            return
        if self.random.random() < 0.5:
            self.take(sent, [])
        if not sent.obsolete:
            self.ledger = unanswered(self.ledger, [sent.step])

    def return_one(self) -> None:
        """Bring back one of the switches that are away."""
        if self.away:
            self.reconnect(self.random.choice(sorted(self.away)))

    def reconnect(self, *switches: int) -> None:
        """Bring switches back, each with what it holds."""
        self.away -= set(switches)
        self.ledger = introduced(self.ledger, [HeldState(self.session(one)) for one in switches])

    def session(self, switch: int) -> AgentSession:
        """The session with which a switch introduces itself."""
        table = self.network.tables[self.ids[switch]]
        return AgentSession(
            id=self.random.getrandbits(60),
            fabric="f",
            switch=self.ids[switch],
            instance="i",
            software_version="0",
            capabilities=frozenset(),
            table_size=table.size,
            highest_epoch=table.fence[0],
            generation=table.whole,
            table_digest=table.digest(),
        )

    def finish(self) -> None:
        """Run the rollout to its end, in bounded steps, and assert that it reaches the plan."""
        if self.away:
            self.reconnect(*self.away)
        self.ledger = self.ledger.retried()
        for _ in range(500):
            if not self.send():
                break
            self.answer()
        assert not self.under_way, "the rollout does not end"
        assert self.network.holds(self.ledger.target)
        held = self.ledger.knowledge.generation[list(self.switches)]
        assert (held == self.generation).all()
        # A switch hears nothing of a plan that changes none of its entries.
        assert all(0 < t.whole <= self.generation for t in self.network.tables.values())


@settings(max_examples=examples(8))
@given(seeds)
def test_no_packet_is_lost_on_the_way(seed: int) -> None:
    """No packet loops or vanishes at any operation, from one random plan to the next.

    Each rollout ends with exactly the planned entries in every switch and nothing left to send.
    """
    rollout = Rollout(seed)
    for _ in range(3):
        rollout.finish()
        assert not rollout.send()
        rollout.supersede()
    rollout.finish()


@settings(max_examples=examples(8))
@given(seeds)
@example(2049)  # what may be held was lifted above what was whole
def test_superseded_half_way(seed: int) -> None:
    """Plans that supersede others half-way lose no packet."""
    rollout = Rollout(seed)
    events: list[Callable[[], None]] = [rollout.answer, rollout.answer, rollout.supersede]
    for _ in range(30):
        rollout.send()
        event = rollout.random.choice(events)
        if rollout.under_way or event == rollout.supersede:
            event()
    rollout.finish()


@settings(max_examples=examples(8))
@given(seeds)
@example(311263606)  # a switch found whole while the way behind it is still the old one
def test_switches_that_come_and_go(seed: int) -> None:
    """No packet is lost when switches leave amid pushes, return, or refuse entries.

    When all are back and refuse nothing, each holds exactly what is planned.
    """
    rollout = Rollout(seed)
    events: list[Callable[[], None]] = [
        rollout.answer,
        rollout.answer,
        lambda: rollout.answer(fail=0.3),
        rollout.supersede,
        rollout.disconnect,
        rollout.return_one,
        rollout.retry,
    ]
    for _ in range(40):
        rollout.send()
        event = rollout.random.choice(events)
        if rollout.under_way or event not in (events[0], events[2]):
            event()
    rollout.finish()


@settings(max_examples=examples(8))
@given(seeds)
@example(9008)  # what may be held was lifted above what was whole
def test_tables_with_little_room(seed: int) -> None:
    """Where new entries do not fit beside old ones, room is made and no packet is lost.

    Once there is room for all, each switch holds exactly what is planned.
    """
    rollout = Rollout(seed)
    for table in rollout.network.tables.values():
        table.size = rollout.random.randint(1, 4)
    for _ in range(40):
        rollout.send()
        event = rollout.random.choice([rollout.answer, rollout.answer, rollout.supersede])
        if rollout.under_way or event == rollout.supersede:
            event()
    for table in rollout.network.tables.values():
        assert len(table.entries) <= table.size
        table.size = 0
    rollout.finish()


@settings(max_examples=examples(8))
@given(seeds)
def test_no_flow_stays_on_a_dead_path(seed: int) -> None:
    """When links die, no reachable switch keeps an entry that leads over a dead link.

    Some switches are away. When they are back, everything is as planned.
    """
    rollout = Rollout(seed)
    rollout.finish()
    links = range(rollout.fabric.link_count - len(rollout.switches))  # between switches
    dead = rollout.random.sample(links, rollout.random.randint(1, min(3, len(links))))
    rollout.fabric = rollout.fabric.with_links(dict.fromkeys(dead, State.DOWN))
    rollout.network = Network(rollout.fabric, rollout.network.tables)
    rollout.away = set(rollout.random.sample(rollout.switches, rollout.random.randint(0, 2)))
    rollout.careless = True
    rollout.supersede()
    for _ in range(200):
        if not rollout.send():
            break
        rollout.answer()
    lost = {rollout.link(row) for row in dead}
    for switch in set(rollout.switches) - rollout.away:
        name = rollout.ids[switch]
        for match, (hop, _, risks, _) in rollout.network.tables[name].entries.items():
            over = {Link.between(name, hop.node, hop.key), *risks}
            assert not over & lost, f"{name} sends {match} over {over & lost}"
    rollout.finish()


@settings(max_examples=examples(8))
@given(seeds)
def test_tables_that_just_hold_either_plan(seed: int) -> None:
    """A new plan is reached although a table has no room for both the old plan and the new.

    Flows that cannot be moved otherwise go to the underlay first.
    """
    rollout = Rollout(seed)
    rollout.finish()
    for _ in range(3):
        rollout.supersede()
        wanted = np.bincount(rollout.ledger.target.switch, minlength=rollout.fabric.node_count)
        for switch in rollout.switches:
            table = rollout.network.tables[rollout.ids[switch]]
            table.size = max(int(wanted[switch]), len(table.entries), 1)
        rollout.finish()


class Gradual(Rollout):
    """A rollout whose plans keep some pairs; each ledger is compared with one of all pairs."""

    ways: list[list[list[int]]]

    def drawn_plan(self) -> Plan:
        """Another plan, in which each pair has new paths or keeps those that it has."""
        before = getattr(self, "ways", [None for _ in self.pairs])
        self.ways = [
            random_ways(self.random, self.fabric, *pair)
            if old is None or self.random.random() < 0.3
            else old
            for pair, old in zip(self.pairs, before, strict=True)
        ]
        return plan_on(self.fabric, self.pairs, self.ways)

    def supersede(self) -> None:
        """Commit another plan, and assert that the ledger agrees with one made of all pairs."""
        before = self.ledger.widened()
        under_way = [sent.step for sent in self.under_way.values() if not sent.obsolete]
        super().supersede()
        plan, target = self.ledger.plan, self.ledger.target
        entries = replace(target, switch=target.switch.copy(), made=None)  # of unknown origin
        program = Program(1, self.generation, self.generation, entries)
        committed = Committed(plan, program, PlanFacts(), Programmed())
        whole = next_ledger(before, committed, under_way)
        assert len(whole.desired) == len(whole.target)
        assert self.pushes(self.ledger) == self.pushes(whole)

    def send(self) -> bool:
        """Send what is due, and assert that a ledger of all pairs would send the same."""
        assert self.pushes(self.ledger) == self.pushes(self.ledger.widened())
        return super().send()

    def pushes(self, ledger: Ledger) -> list[tuple[object, ...]]:
        """All pushes that are due, and what the ledger knows of the switches."""
        switches = self.expected()
        due = agenda(ledger, switches.stuck)
        steps = steps_of(ledger, due, switches)
        operations = operations_of(ledger, steps)
        knowledge = ledger.knowledge
        known = tuple(
            tuple(getattr(knowledge, one.name).tolist()) for one in fields(type(knowledge))
        )
        return [known, (*due.blocked.tolist(),), (*due.pending.tolist(),)] + [
            (step.switch, step.mode, step.sweep, step.completes, *map(content, both))
            for step, both in zip(steps, operations, strict=True)
        ]


def content(entries: Entries) -> tuple[tuple[int, ...], ...]:
    """The content of entries without their stages, sorted."""
    return tuple(
        sorted(
            (
                *(int(getattr(entries, name)[row]) for name in COLUMNS if name != "stage"),
                *entries.risk_links[entries.risk_first[row] : entries.risk_first[row + 1]].tolist(),
            )
            for row in range(len(entries))
        )
    )


@pytest.mark.deep
@settings(max_examples=examples(12))
@given(seeds)
def test_a_ledger_of_few_pairs_says_what_one_of_all_says(seed: int) -> None:
    """A ledger of few pairs sends and knows the same as one made anew of all pairs.

    Plans differ little, pushes are lost or fail, and switches come and go.
    """
    rollout = Gradual(seed)
    rollout.finish()
    events: list[Callable[[], None]] = [
        rollout.answer,
        rollout.answer,
        rollout.answer,
        lambda: rollout.answer(fail=0.2),
        rollout.supersede,
        rollout.disconnect,
        rollout.return_one,
        rollout.retry,
    ]
    for _ in range(30):
        rollout.send()
        event = rollout.random.choice(events)
        if rollout.under_way or event not in (events[0], events[3]):
            event()
    rollout.finish()
