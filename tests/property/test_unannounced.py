"""Unannounced flows are found from the rates that switches report."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.demand import resolve
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import flow_id
from heddle_controller.model.plan import Plan, no_paths
from heddle_controller.reconcile.unannounced import (
    GROWS,
    MOST_UNANNOUNCED,
    PairRates,
    Unannounced,
    UnannouncedTerms,
)
from heddle_emulator.topology import clos, dual_tor
from tests.support.depth import examples

SHARE, INTERVAL = 0.1, 10.0
TERMS = UnannouncedTerms(SHARE, INTERVAL)
LINE = 400.0
Rates = dict[tuple[str, str], float]


def small() -> Fabric:
    """Four leaves with four NICs each."""
    return clos(leaves=4, spines=2, nics_per_leaf=4, nics_per_host=1)


def told(fabric: Fabric, rates: Rates) -> PairRates:
    """The rates of pairs as one switch reports them."""
    index = fabric.structure.index
    source, destination = (
        np.array([index[pair[end]] for pair in rates], dtype=np.int64) for end in (0, 1)
    )
    return PairRates(fabric.structure, source, destination, np.array([*rates.values()]))


def nics_of(fabric: Fabric) -> list[str]:
    """The ids of the fabric's NICs."""
    structure = fabric.structure
    return [structure.nodes.ids[row] for row in np.flatnonzero(structure.nic_line > 0)]


def leaf_of(nic: str) -> str:
    """The leaf of a NIC in ``small``: "l0-h1-n0" is on "l0"."""
    return nic.partition("-")[0]


class Drawn:
    """Rates of random pairs over time, which every leaf reports once an interval."""

    def __init__(self, fabric: Fabric, seed: int) -> None:
        self.fabric, self.seed = fabric, seed
        self.chance = random.Random(seed)
        self.states = Unannounced(TERMS)
        drawn = [self.chance.sample(nics_of(fabric), 2) for _ in range(12)]
        self.pairs = [(one, other) for one, other in drawn]
        self.now = 0.0
        self.sent: list[Rates] = []

    def interval(self) -> None:
        """Pass one interval, in which each pair goes on, stops, begins or changes."""
        before = self.sent[-1] if self.sent else {}
        rates: Rates = {}
        for one, other in dict.fromkeys(self.pairs):
            if self.chance.random() < 0.5:
                rates[one, other] = before.get((one, other), 0.0)
            else:
                share = self.chance.choice([0.0, 0.04, 0.049, 0.06, 0.1, 0.2, 0.9])
                rates[one, other] = share * LINE
        self.sent.append({pair: rate for pair, rate in rates.items() if rate})
        self.now += INTERVAL
        for leaf in sorted({leaf_of(nic) for nic in nics_of(self.fabric)}):
            mine = {pair: rate for pair, rate in self.sent[-1].items() if leaf_of(pair[0]) == leaf}
            self.states.report(leaf, told(self.fabric, mine), self.now, self.now)

    def within_line(self, row: int) -> Rates:
        """The rates of an interval, scaled down to the line rate of each sending NIC."""
        rates = self.sent[row] if abs(row) <= len(self.sent) else {}
        total: dict[str, float] = {}
        for (one, _), rate in rates.items():
            total[one] = total.get(one, 0.0) + rate
        return {pair: rate * min(1.0, LINE / total[pair[0]]) for pair, rate in rates.items()}


@settings(max_examples=examples(20))
@given(st.integers(0, 2**32 - 1))
def test_what_sends_much_is_found_and_what_does_not_is_forgotten(seed: int) -> None:
    """A pair is found by one interval at a tenth of line rate, forgotten after two quiet ones.

    What is planned for a pair is never much less than what it sends.
    """
    drawn = Drawn(small(), seed)
    for _ in range(12):
        drawn.interval()
        newest, before = drawn.within_line(-1), drawn.within_line(-2)
        found = drawn.states.flows.gbps
        for pair in dict.fromkeys(drawn.pairs):
            now, then = newest.get(pair, 0.0), before.get(pair, 0.0)
            what = f"{pair} sent {then} and {now}, seed {seed}"
            if now >= SHARE * LINE:
                assert pair in found, what
            if max(now, then) < SHARE * LINE / 2:
                assert pair not in found, what
            if pair in found:
                assert now <= GROWS * found[pair] * (1 + 1e-9), what


@settings(max_examples=examples(20))
@given(st.integers(0, 2**32 - 1))
def test_no_nic_is_planned_for_more_than_its_links_carry(seed: int) -> None:
    """Whatever agents report, no NIC is planned to send or receive more than its links carry."""
    chance, fabric = random.Random(seed), small()
    states, structure = Unannounced(TERMS), fabric.structure
    for step in range(20):
        leaf = f"l{chance.randrange(4)}"
        mine = [nic for nic in nics_of(fabric) if leaf_of(nic) == leaf]
        rates: Rates = {}
        for _ in range(chance.randrange(40)):
            source = chance.choice(mine)
            other = chance.choice([nic for nic in nics_of(fabric) if nic != source])
            rates[source, other] = chance.choice([1e-3, 39.0, 41.0, 400.0, 1e9])
        states.report(leaf, told(fabric, rates), float(step), float(step))
        record = states.flows.record(structure)
        if record is None:
            continue
        demands = record.demands
        assert demands.ids == tuple(map(flow_id, demands.source, demands.destination))
        for ends in (demands.source, demands.destination):
            rows = np.array([structure.index[nic] for nic in ends])
            carried = np.bincount(rows, demands.gbps, minlength=fabric.node_count)
            assert (carried <= structure.nic_line * (1 + 1e-9)).all(), seed
        per_nic = max(sum(pair[0] == nic for pair in rates) for nic in nics_of(fabric))
        assert max(map(demands.source.count, demands.source)) <= 2 * max(per_nic, 1 / SHARE)


def test_a_rate_that_swings_moves_nothing() -> None:
    """A rate up to five quarters of the planned one moves nothing, nor do single low intervals."""
    fabric, states = small(), Unannounced(TERMS)
    pair = ("l0-h0-n0", "l1-h0-n0")
    rates = [200.0, 110.0, 240.0, 60.0, 249.0, 30.0, 150.0]
    changed = [
        states.report("l0", told(fabric, {pair: rate}), INTERVAL * step, 0.0)
        for step, rate in enumerate(rates)
    ]
    assert changed == [True, *[False] * 6]
    assert states.flows.gbps == {pair: 200.0}
    assert states.report("l0", told(fabric, {pair: 260.0}), 80.0, 0.0)
    assert states.flows.gbps == {pair: 260.0}


def test_of_too_many_the_largest_are_found() -> None:
    """At most ``MOST_UNANNOUNCED`` are found; a clearly larger one replaces the smallest."""
    fabric = clos(leaves=30, spines=2, nics_per_leaf=10, nics_per_host=1)
    states, nics = Unannounced(TERMS), nics_of(fabric)
    pairs = {(nic, nics[(row + 10) % len(nics)]): 50.0 + (row % 7) for row, nic in enumerate(nics)}
    for leaf in sorted({leaf_of(nic) for nic in nics}):
        mine = {pair: rate for pair, rate in pairs.items() if leaf_of(pair[0]) == leaf}
        states.report(leaf, told(fabric, mine), 1.0, 1.0)
    assert len(states.flows.gbps) == MOST_UNANNOUNCED
    missing = min(pairs.keys() - states.flows.gbps.keys())
    more = {pair: rate for pair, rate in pairs.items() if leaf_of(pair[0]) == leaf_of(missing[0])}
    states.report(leaf_of(missing[0]), told(fabric, more | {missing: 60.0}), 2.0, 2.0)
    assert missing not in states.flows.gbps
    states.report(leaf_of(missing[0]), told(fabric, more | {missing: 300.0}), 3.0, 3.0)
    assert states.flows.gbps[missing] == 300.0
    assert len(states.flows.gbps) == MOST_UNANNOUNCED


def test_both_switches_of_a_nic_are_added_up() -> None:
    """Rates over two leaves of a NIC add up; the flow is forgotten when both are quiet.

    The leader that comes next takes the flow over, and no report that says the same changes it.
    """
    fabric = dual_tor(pairs=2, spines=2, nics_per_pair=2, nics_per_host=1)
    structure, states = fabric.structure, Unannounced(TERMS)
    (one, other), ids = nics_of(fabric)[::2][:2], structure.nodes.ids
    first, arcs = structure.out
    row = structure.index[one]
    leaves = [ids[node] for node in structure.head[arcs[first[row] : first[row + 1]]]]
    assert len(leaves) == 2
    line = float(structure.nic_line[row])
    part = {(one, other): 0.06 * line}
    assert not states.report(leaves[0], told(fabric, part), 1.0, 1.0)
    assert states.report(leaves[1], told(fabric, part), 1.0, 1.0)
    assert states.flows.gbps == {(one, other): pytest.approx(0.12 * line)}
    record = states.flows.record(structure)
    assert record is not None
    flows, next_leader = resolve(record.demands, fabric, origin="found"), Unannounced(TERMS)
    next_leader.adopt(Plan(fabric, flows, no_paths(), no_paths()), 1.5, 1.5)
    assert not any(next_leader.report(leaf, told(fabric, part), 2.0, 2.0) for leaf in leaves)
    assert next_leader.flows.gbps == states.flows.gbps
    for now in (2.0, 3.0):
        for leaf in leaves:
            assert states.flows.gbps
            states.report(leaf, told(fabric, {}), now, now)
    assert not states.flows.gbps


def test_who_is_silent_for_long_counts_no_more() -> None:
    """The rates of a switch that reports no more are dropped at another's next report."""
    fabric, states = small(), Unannounced(TERMS)
    states.report("l0", told(fabric, {("l0-h0-n0", "l1-h0-n0"): 100.0}), 0.0, 0.0)
    assert not states.report("l1", told(fabric, {}), 3 * INTERVAL, 0.0)
    assert states.report("l1", told(fabric, {}), 3 * INTERVAL + 1, 0.0)
    assert not states.flows.gbps


def test_nothing_is_found_where_it_is_switched_off() -> None:
    """With a share of 0, the default, no flow is found."""
    fabric, states = small(), Unannounced()
    assert not states.report("l0", told(fabric, {("l0-h0-n0", "l1-h0-n0"): 400.0}), 0.0, 0.0)
    assert states.flows.record(fabric.structure) is None


def test_nics_that_a_fabric_lacks_are_left_out() -> None:
    """After the fabric lost NICs, their flows are left out of the demands."""
    fabric, states = small(), Unannounced(TERMS)
    rates = {("l0-h0-n0", "l1-h0-n0"): 100.0, ("l0-h1-n0", "l3-h0-n0"): 100.0}
    states.report("l0", told(fabric, rates), 0.0, 0.0)
    fewer = clos(leaves=2, spines=2, nics_per_leaf=4, nics_per_host=1)
    record = states.flows.record(fewer.structure)
    assert record is not None
    assert record.demands.destination == ("l1-h0-n0",)
    states.report("l0", told(fewer, {}), 1.0, 0.0)
    states.report("l0", told(fewer, {}), 2.0, 0.0)
    assert not states.flows.gbps
