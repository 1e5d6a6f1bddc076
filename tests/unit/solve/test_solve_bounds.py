"""Arc prices prove bounds that match another solver's optimum and are never above it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from heddle_controller.model.arrays import Floats
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.solve.bounds.cuts import cut_bound
from heddle_controller.solve.bounds.prices import price_bounds, unrestricted_bounds
from heddle_controller.solve.bounds.relaxation import Relaxation, no_phased_arcs
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.commodities import Commodities, commodities_of
from heddle_controller.solve.network import Network, attached
from heddle_controller.solve.options import Options
from heddle_emulator.topology import clos, three_tier
from tests.support.depth import examples, fresh_seeds
from tests.support.solve_checks import between_switches, relax
from tests.support.solve_fabrics import EACH, KINDS, SINGLE_HOMED, damaged, of_records
from tests.support.solve_flows import any_flows, flows_of
from tests.support.solve_reference import (
    arcs_of_tier,
    least_over_all_paths,
    least_over_paths,
)
from tests.unit.solve.solve_quality import candidate_ways

ONE_TIER = [kind for kind in SINGLE_HOMED if kind not in {"planes", "mesh"}]


class Priced:
    """A relaxation solved with the planner's code."""

    def __init__(self, fabric: Fabric, flows: Flows) -> None:
        self.fabric, self.flows = fabric, flows
        self.network = Network(fabric)
        routed = attached(self.network, flows)
        candidates = Candidates(self.network, 128)
        self.commodities: Commodities = commodities_of(self.network, candidates, flows, routed)
        routed[self.commodities.stuck] = False
        scale = cut_bound(self.network, flows, routed).tiers
        deadline = Options().deadline()
        self.relaxation: Relaxation = relax(self.network, self.commodities, scale, deadline)
        self.rows: list[int] = np.flatnonzero(routed).tolist()

    def bounds(self) -> tuple[Floats, float]:
        """Bounds proven by prices over the candidates: of each tier, and of the whole."""
        return price_bounds(self.network, self.commodities, self.relaxation)

    def overall(self) -> float:
        """The bound of the whole over the candidates."""
        return self.bounds()[1]

    def anywhere(self) -> float:
        """The bound of the whole over all paths."""
        return unrestricted_bounds(self.network, self.commodities, self.relaxation)[1]

    def exact(self, tier: str | None = None) -> float:
        """The optimum over the candidates between switches, or in a tier, by HiGHS."""
        arcs = arcs_of_tier(self.fabric, tier) if tier else between_switches(self.fabric)
        ways = candidate_ways(self.fabric, self.flows)
        return least_over_paths(self.fabric, self.flows, ways, self.rows, arcs)


def drawn(kind: str, seed: int) -> Priced:
    """A random case; its fabric is damaged if the seed is odd."""
    rng = Random(seed)
    fabric = KINDS[kind](rng)
    fabric = damaged(rng, fabric) if seed % 2 else fabric
    return Priced(fabric, any_flows(rng, fabric))


def test_a_flow_is_spread_over_all_spines() -> None:
    """By hand: 400 Gbit/s over four spines of 400 Gbit/s is a quarter on each."""
    fabric = clos(leaves=2, spines=4, nics_per_leaf=1)
    flows = flows_of(fabric, ("l0-h0-n0", "l1-h0-n0", 400.0, 1, "j", ""))
    assert Priced(fabric, flows).overall() == pytest.approx(0.25, abs=2e-4)


def test_speeds_are_filled_in_proportion() -> None:
    """By hand: 400 over 100 + 300 fills both; one more flow of 200 to another leaf 1.5 times."""
    nodes = [{"id": n, "kind": "nic"} for n in "abc"]
    nodes += [{"id": f"l{i}", "kind": "leaf"} for i in range(3)]
    nodes += [{"id": f"s{i}", "kind": "spine"} for i in range(2)]
    edges = [("a", "l0"), ("b", "l1"), ("c", "l2")]
    edges += [(f"l{i}", s) for i in range(3) for s in ("s0", "s1", "s1", "s1")]
    fabric = of_records(nodes, edges)
    one = flows_of(fabric, ("a", "b", 400.0, 1, "j", ""))
    assert Priced(fabric, one).overall() == pytest.approx(1.0, abs=1e-3)
    two = flows_of(fabric, ("a", "b", 400.0, 1, "j", ""), ("a", "c", 200.0, 1, "j", ""))
    assert Priced(fabric, two).overall() == pytest.approx(1.5, abs=2e-3)


def test_a_hole_binds_where_no_cut_does() -> None:
    """By hand: a and b share just one spine, so do b and c; each spine takes one flow whole.

    The flow between a and c has a spine of its own too. No leaf is over-subscribed, so
    no cut around one proves more than a half.
    """
    nodes = [{"id": n, "kind": "nic"} for n in "abc"]
    nodes += [{"id": f"l{n}", "kind": "leaf"} for n in "abc"]
    nodes += [{"id": f"s{i}", "kind": "spine"} for i in range(3)]
    edges = [(n, f"l{n}") for n in "abc"]
    edges += [("la", "s0"), ("lb", "s0"), ("lb", "s1"), ("lc", "s1"), ("lc", "s2"), ("la", "s2")]
    fabric = of_records(nodes, edges)
    flows = flows_of(fabric, *((x, y, 100.0, 2, "j", "") for x, y in ("ab", "bc", "ca")))
    cut = cut_bound(Network(fabric), flows, np.ones(3, dtype=np.bool_))
    assert cut.tiers.tolist() == [1.0, 0.5]
    assert Priced(fabric, flows).overall() == pytest.approx(1.0, abs=1e-3)


def test_phases_take_turns_in_prices_too() -> None:
    """By hand: two phases of 400 over two spines are a half; with 200 at any time, 0.75."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=1)
    ends = ("l0-h0-n0", "l1-h0-n0")
    turns = [(*ends, 400.0, 1, "j", "p"), (*ends, 400.0, 1, "j", "q")]
    assert Priced(fabric, flows_of(fabric, *turns)).overall() == pytest.approx(0.5, abs=5e-4)
    more = flows_of(fabric, *turns, (*ends, 200.0, 1, "j", ""))
    assert Priced(fabric, more).overall() == pytest.approx(0.75, abs=1e-3)


def test_tiers_are_bound_each_for_itself() -> None:
    """By hand: 1:2 at the cores; four flows of 400 between zones fill leaves once, cores twice."""
    fabric = three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=2, cores=2, taper=2.0)
    ends = [(f"z0-l{a}-h0-n{b}", f"z1-l{a}-h0-n{b}") for a in range(2) for b in range(2)]
    flows = flows_of(fabric, *((*pair, 400.0, 1, "j", "") for pair in ends))
    tiers, overall = Priced(fabric, flows).bounds()
    found = dict(zip(fabric.structure.tiers, tiers.tolist(), strict=True))
    assert found["leaf-spine"] == pytest.approx(1.0, abs=1e-3)
    assert found["spine-core"] == pytest.approx(2.0, abs=2e-3)
    assert overall == pytest.approx(2.0, abs=2e-3)


@pytest.mark.deep
@pytest.mark.parametrize("kind", ONE_TIER)
def test_the_bound_is_the_optimum_of_another_solver(kind: str) -> None:
    """With choice in one tier only, prices prove HiGHS' optimum to a thousandth and never more."""
    for seed in range(examples(4, 12)):
        priced = drawn(kind, seed)
        exact, found = priced.exact(), priced.overall()
        assert found <= exact + 1e-6
        assert found >= exact * (1 - 1e-3)


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["planes", "mesh", "homed-twice"])
def test_no_tier_is_bound_above_its_optimum(kind: str) -> None:
    """With choice in several tiers, no tier's bound is above the optimum for that tier alone."""
    for seed in fresh_seeds(4, EACH):
        priced = drawn(kind, seed)
        tiers, _ = priced.bounds()
        for name, bound in zip(priced.fabric.structure.tiers, tiers.tolist(), strict=True):
            assert bound <= priced.exact(name) + 1e-6


@pytest.mark.deep
@pytest.mark.parametrize("kind", SINGLE_HOMED)
def test_the_bound_over_all_paths_holds_for_all_paths(kind: str) -> None:
    """The bound is never above the optimum of divisible flows over all paths."""
    for seed in fresh_seeds(4, EACH):
        priced = drawn(kind, seed)
        arcs = between_switches(priced.fabric)
        exact = least_over_all_paths(priced.fabric, priced.flows, priced.rows, arcs)
        assert 0.0 <= priced.anywhere() <= exact + 1e-6


def test_any_prices_prove_a_bound() -> None:
    """Random prices, not only the solver's, never prove more than the optimum."""
    random = np.random.default_rng(7)
    for kind in ONE_TIER:
        priced = drawn(kind, 2)
        flat = priced.flows.phase < 0
        flows = priced.flows.take(np.flatnonzero(flat))
        priced = Priced(priced.fabric, flows)
        exact = priced.exact()
        inner = np.append(between_switches(priced.fabric), False)
        for _ in range(20):
            prices = np.where(inner, random.exponential(size=len(inner)), 0.0)
            drawn_prices = Relaxation(
                priced.relaxation.shares,
                prices[priced.commodities.use_arc],
                prices,
                no_phased_arcs(),
            )
            _, found = price_bounds(priced.network, priced.commodities, drawn_prices)
            assert found <= exact + 1e-9


def test_nothing_to_carry_is_bound_by_nothing() -> None:
    """No flows, or only neighbours on a leaf: the bound is 0."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2)
    for rows in ([], [("l0-h0-n0", "l0-h0-n1", 400.0, 1, "j", "")]):
        priced = Priced(fabric, flows_of(fabric, *rows))
        assert priced.overall() == 0.0
        assert priced.anywhere() == 0.0
    assert fabric.structure.nodes.kind.max() == NodeKind.SPINE
