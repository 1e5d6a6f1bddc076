"""Backups that the N-1 certificate counts, against the entries that switches hold."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from heddle_controller.model.arrays import NONE
from heddle_controller.model.fabric import State
from heddle_controller.model.plan import Plan
from heddle_controller.plan.programs import entries_of
from heddle_controller.solve import after_losses, solve
from heddle_controller.solve.losses.moves import arc_tables, turning
from heddle_emulator.topology import clos, three_tier
from tests.support.depth import examples
from tests.support.plan_chance import random_fabric, with_failures
from tests.support.solve_flows import any_flows, flows_of


def _backups_in_switches(plan: Plan) -> dict[tuple[int, int], set[int]]:
    """For each pair of NICs, the switches whose entry has a backup."""
    entries = entries_of(plan)
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    for row in np.flatnonzero(entries.backup != NONE).tolist():
        pair = int(entries.source[row]), int(entries.destination[row])
        found[pair].add(int(entries.switch[row]))
    return found


def _turns(plan: Plan, row: int) -> bool:
    """Whether the certificate counts the backup of a path."""
    rows = np.array([row])
    turns, _ = turning(plan, rows, *arc_tables(plan, rows))
    return bool(turns[0])


def _of_one_way(plan: Plan) -> dict[int, tuple[int, int]]:
    """Paths that have a backup and are the only path of their NIC pair, each with the pair."""
    flow = plan.paths.flow
    pairs = [
        *zip(plan.flows.source[flow].tolist(), plan.flows.destination[flow].tolist(), strict=True)
    ]
    return {
        row: pair
        for row, pair in enumerate(pairs)
        if len(plan.backups.of(row)) and pairs.count(pair) == 1
    }


@pytest.mark.deep
@settings(max_examples=examples(12), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["two tiers", "zones", "graph"]))
def test_a_backup_counts_where_an_entry_turns_to_it(seed: int, kind: str) -> None:
    """Exactly the backups that an entry turns to count. Detours have no entry."""
    rng = Random(seed)
    whole = {
        "two tiers": lambda: clos(
            leaves=rng.randint(2, 4), spines=rng.randint(2, 4), nics_per_leaf=2
        ),
        "zones": lambda: three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=2, cores=2),
        "graph": lambda: random_fabric(rng),
    }[kind]()
    fabric = with_failures(rng, whole, 0.15)
    plan = solve(fabric, any_flows(rng, fabric, 12))
    held, tail = _backups_in_switches(plan), fabric.structure.tail
    for row, pair in _of_one_way(plan).items():
        way, spare = plan.paths.of(row).tolist(), plan.backups.of(row).tolist()
        leaves = next((int(tail[a]) for a, b in zip(way, spare, strict=False) if a != b), NONE)
        expected = way[0] == spare[0] and leaves in held[pair]
        note(f"{row}: {way} {spare}")
        assert _turns(plan, row) is expected


@pytest.mark.parametrize("round_", [False, True])
def test_a_way_round_is_left_out(*, round_: bool) -> None:
    """A backup that must pass a third leaf has no entry, so a loss strands the flow.

    With all links up, another spine carries the whole flow.
    """
    fabric = clos(leaves=3, spines=3, nics_per_leaf=1, nics_per_host=1)
    if round_:
        down = [*fabric.find_links("l1", "s1"), *fabric.find_links("l0", "s2")]
        fabric = fabric.with_links(dict.fromkeys(down, State.DOWN))
    flows = flows_of(fabric, ("l0-h0-n0", "l1-h0-n0", 400.0, 1, "j", ""))
    plan = solve(fabric, flows)
    assert len(plan.backups.arcs) == (6 if round_ else 4)
    assert _turns(plan, 0) is not round_
    link, switch = after_losses(plan)
    for one in (link, switch):
        assert (one.slowest_flow, one.stranded) == ((0.0, 1) if round_ else (1.0, 0))
