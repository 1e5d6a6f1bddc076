"""Rounding shares to whole QPs loses none, doubles none and splits few flows."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.commodities import Commodities, commodities_of, whole_shares
from heddle_controller.solve.network import Network, attached
from heddle_emulator.topology import clos
from tests.support.solve_fabrics import KINDS, damaged
from tests.support.solve_flows import any_flows, flows_of

Columns = tuple[Ints, Ints, Ints]


class Rounded:
    """The rounded shares of some flows' commodities; the shares are random if not given."""

    def __init__(self, fabric: Fabric, flows: Flows, shares: Floats | None = None) -> None:
        self.flows = flows
        network = Network(fabric)
        routed = attached(network, flows)
        candidates = Candidates(network, 128)
        self.commodities: Commodities = commodities_of(network, candidates, flows, routed)
        routed[self.commodities.stuck] = False
        self.routed: list[int] = np.flatnonzero(routed).tolist()
        local = np.flatnonzero(routed & (self.commodities.of_flow < 0))
        if shares is None:
            random = np.random.default_rng(len(flows))
            shares = random.exponential(size=self.commodities.path_count)
            shares[random.random(len(shares)) < 0.3] = 0.0
        self.shares = shares
        self.paths: Paths
        self.left: Columns
        self.paths, self.left = whole_shares(flows, self.commodities, shares, local)

    def held(self, row: int) -> list[int]:
        """The QPs of a flow, on paths and left over, sorted."""
        columns = [(self.paths.flow, self.paths.first_qp, self.paths.last_qp), self.left]
        return sorted(
            qp
            for flow, first, last in columns
            for place in np.flatnonzero(flow == row).tolist()
            for qp in range(int(first[place]), int(last[place]) + 1)
        )

    def on_paths(self, commodity: int) -> dict[tuple[int, ...], int]:
        """The number of QPs of a commodity on each path."""
        found: dict[tuple[int, ...], int] = {}
        own = self.commodities.of_flow[self.paths.flow] == commodity
        for place in np.flatnonzero(own).tolist():
            way = tuple(self.paths.of(place).tolist())
            found[way] = found.get(way, 0) + int(self.paths.qp_count[place])
        return found


def pair(fabric: Fabric, count: int, qps: int) -> Flows:
    """``count`` equal flows between the same two leaves."""
    rows = [(f"l0-h0-n{i}", f"l1-h0-n{i}", 400.0, qps, "j", "") for i in range(count)]
    return flows_of(fabric, *rows)


def test_shares_become_qps() -> None:
    """By hand: two flows of four QPs in shares 1/2, 1/4, 1/4: four, two and two."""
    fabric = clos(leaves=2, spines=3, nics_per_leaf=2)
    rounded = Rounded(fabric, pair(fabric, 2, 4), np.array([0.5, 0.25, 0.25]))
    assert sorted(rounded.on_paths(0).values()) == [2, 2, 4]
    assert not len(rounded.left[0])
    whole = [row for row in range(2) if np.count_nonzero(rounded.paths.flow == row) == 1]
    assert len(whole) == 1


def test_what_makes_no_whole_qp_is_left_over() -> None:
    """By hand: one QP in thirds goes nowhere yet; four QPs in thirds leave one over."""
    fabric = clos(leaves=2, spines=3, nics_per_leaf=2)
    one = Rounded(fabric, pair(fabric, 1, 1), np.full(3, 1 / 3))
    assert one.on_paths(0) == {}
    assert [column.tolist() for column in one.left] == [[0], [0], [0]]
    four = Rounded(fabric, pair(fabric, 1, 4), np.full(3, 1 / 3))
    assert [*four.on_paths(0).values()] == [1, 1, 1]
    assert int((four.left[2] - four.left[1] + 1).sum()) == 1


def test_a_solver_short_of_a_whole_qp_is_taken_at_its_word() -> None:
    """Shares that miss a half by a thousandth count as halves."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2)
    rounded = Rounded(fabric, pair(fabric, 1, 4), np.array([0.4991, 0.5009]))
    assert [*rounded.on_paths(0).values()] == [2, 2]


def test_no_shares_at_all_leave_everything() -> None:
    """Without any shares, as from a solver that was stopped at once, all QPs are left over."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2)
    rounded = Rounded(fabric, pair(fabric, 2, 4), np.zeros(2))
    assert rounded.on_paths(0) == {}
    assert [rounded.held(row) for row in range(2)] == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_qps_are_partitioned(kind: str) -> None:
    """With any shares and flows, each QP is on one path or left over, and none is there twice."""
    for seed in range(15):
        rng = Random(seed)
        fabric = damaged(rng, KINDS[kind](rng))
        rounded = Rounded(fabric, any_flows(rng, fabric, 14))
        for row in range(len(rounded.flows)):
            due = [*range(int(rounded.flows.qps[row]))] if row in rounded.routed else []
            assert rounded.held(row) == due


@pytest.mark.parametrize("kind", KINDS)
def test_paths_carry_their_share_rounded_down(kind: str) -> None:
    """No path gets more than its share or a whole QP less, and flows are cut at few places."""
    for seed in range(15):
        rng = Random(seed)
        fabric = damaged(rng, KINDS[kind](rng))
        rounded = Rounded(fabric, any_flows(rng, fabric, 14))
        commodities = rounded.commodities
        for commodity in range(commodities.count):
            rows = np.flatnonzero(commodities.of_flow == commodity)
            low, high = commodities.first_path[commodity : commodity + 2].tolist()
            share = rounded.shares[low:high]
            carried = rounded.on_paths(commodity)
            for path in range(low, high) if share.sum() else ():
                exact = share[path - low] / share.sum() * int(rounded.flows.qps[rows].sum())
                found = carried.get(tuple(commodities.arcs_of(path).tolist()), 0)
                assert exact - 1 < found <= exact + 0.02
            pieces = int(
                np.isin(rounded.paths.flow, rows).sum() + np.isin(rounded.left[0], rows).sum()
            )
            assert pieces <= len(rows) + len(carried)
