"""The difference of two programs turns the first into the second, with no needless change."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.model.files.fabric_file import fabric_document, parse_fabric
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.model.program import Entries, no_entries
from heddle_controller.plan.diff import changed_flows, difference
from heddle_controller.plan.programs import entries_of
from tests.support.plan_chance import random_fabric, random_plan, with_failures

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)


def held(entries: Entries) -> dict[tuple[int, ...], tuple[Any, ...]]:
    """The content of each entry, by switch and match."""
    found = {}
    for row in range(len(entries)):
        match = tuple(
            int(getattr(entries, name)[row])
            for name in ("switch", "source", "destination", "source_port", "destination_port")
        )
        backup = int(entries.backup[row])
        found[match] = (int(entries.primary[row]), backup, tuple(entries.risks(row).tolist()))
    return found


def two_plans(seed: int) -> tuple[Plan, Plan]:
    """Two plans of one structure, with different links down."""
    rng = Random(seed)
    fabric = random_fabric(rng)
    first = random_plan(rng, with_failures(rng, fabric))
    return first, random_plan(rng, with_failures(rng, fabric))


@given(SEEDS)
def test_difference_makes_the_old_into_the_new(seed: int) -> None:
    """Deletes and sets turn the old entries into the new ones."""
    old, new = map(entries_of, two_plans(seed))
    sets, deletes = difference(old, new)
    table = held(old)
    for match in held(old.take(deletes)):
        del table[match]
    table |= held(new.take(sets))
    assert table == held(new)


@given(SEEDS)
def test_difference_is_the_least(seed: int) -> None:
    """No unchanged entry is set, and no entry is deleted that is set or stays."""
    old, new = map(entries_of, two_plans(seed))
    sets, deletes = difference(old, new)
    before, after = held(old), held(new)
    assert all(before.get(match) != content for match, content in held(new.take(sets)).items())
    assert not set(held(old.take(deletes))) & set(after)


@given(SEEDS)
def test_equal_programs_do_not_differ(seed: int) -> None:
    """A program does not differ from itself, and differs from an empty one in every entry."""
    entries = entries_of(two_plans(seed)[0])
    everything = list(range(len(entries)))
    same = difference(entries, entries.take(np.arange(len(entries))))
    assert [rows.tolist() for rows in same] == [[], []]
    assert [rows.tolist() for rows in difference(no_entries(), entries)] == [everything, []]
    assert [rows.tolist() for rows in difference(entries, no_entries())] == [[], everything]


def ways(plan: Plan) -> dict[str, list[tuple[int, ...]]]:
    """The arcs of each QP, by flow id."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for path in range(len(plan.paths)):
        way = tuple(plan.paths.of(path).tolist())
        of_flow = found.setdefault(plan.flows.ids[plan.paths.flow[path]], [])
        of_flow.extend([way] * int(plan.paths.qp_count[path]))
    return found


@given(SEEDS)
def test_changed_flows_are_those_with_a_qp_elsewhere(seed: int) -> None:
    """Exactly the flows that had a path and have a QP on other links, or none, count as changed."""
    rng = Random(seed)
    fabric = random_fabric(rng)
    old = random_plan(rng, with_failures(rng, fabric))
    drawn = random_plan(rng, fabric)
    some = _some_flows(rng, drawn)
    new = Plan(some.fabric, some.flows.with_qps(4), some.paths, some.backups)
    before, after = ways(old), ways(new)
    # Only the QPs at which the path changes from one QP to the next are compared: more QPs on
    # the same path are no move.
    expected = [
        row
        for row, flow in enumerate(new.flows.ids)
        if flow in before and _runs(before[flow]) != _runs(after.get(flow, []))
    ]
    assert changed_flows(old, new).tolist() == expected


def _some_flows(rng: Random, plan: Plan) -> Plan:
    """The plan with all of its flows, with some, or with some in another order."""
    count = len(plan.flows)
    rows = rng.sample(range(count), rng.choice([count, rng.randint(0, count)]))
    chosen = np.array(rows if rng.random() < 0.3 else sorted(rows), dtype=np.int64)

    def taken(paths: Paths) -> Paths:
        of_flow = [np.flatnonzero(paths.flow == row) for row in chosen.tolist()]
        some = paths.take(np.concatenate([*of_flow, chosen[:0]]))
        return replace(some, flow=np.repeat(np.arange(len(chosen)), list(map(len, of_flow))))

    return Plan(plan.fabric, plan.flows.take(chosen), taken(plan.paths), taken(plan.backups))


def _runs(told: list[tuple[int, ...]]) -> list[tuple[int, tuple[int, ...]]]:
    return [(qp, way) for qp, way in enumerate(told) if qp == 0 or told[qp - 1] != way]


@given(SEEDS)
def test_a_plan_read_for_another_reading_of_the_fabric_is_unchanged(seed: int) -> None:
    """Reversed links and another row order change no flow, since ids and keys stay."""
    rng = Random(seed)
    plan = random_plan(rng, random_fabric(rng))
    turned = _turned(plan)
    assert changed_flows(plan, turned).tolist() == []
    assert changed_flows(turned, plan).tolist() == []


def _turned(plan: Plan) -> Plan:
    """The same plan on the same fabric, with its links reversed and in reverse order."""
    document = fabric_document(plan.fabric)
    for edge in document["edges"]:
        edge["source"], edge["target"] = edge["target"], edge["source"]
    document["edges"].reverse()
    fabric = parse_fabric(document, "test")
    last = 2 * plan.fabric.link_count - 1

    def turn(paths: Paths) -> Paths:
        return replace(paths, arcs=last - paths.arcs)

    return Plan(fabric, plan.flows, turn(plan.paths), turn(plan.backups))


@given(SEEDS)
def test_difference_names_just_the_rows_that_were_changed(seed: int) -> None:
    """The difference names exactly the rows that were removed or changed.

    Either few rows change and most switches keep all their matches, or hardly any switch does.
    """
    rng = np.random.default_rng(seed)
    entries = entries_of(two_plans(seed)[0])
    count = len(entries)
    gone, other, riskless = (rng.random(count) < rng.choice([0.0, 0.02, 0.3]) for _ in range(3))
    lengths = np.diff(entries.risk_first)
    links = entries.risk_links.copy()
    riskless &= lengths > 0
    links[entries.risk_first[:-1][riskless]] += 1
    changed = replace(
        entries, primary=np.where(other, entries.primary + 2, entries.primary), risk_links=links
    )
    sets, deletes = difference(entries, changed.take(np.flatnonzero(~gone)))
    assert (
        np.flatnonzero(~gone)[sets].tolist() == np.flatnonzero((other | riskless) & ~gone).tolist()
    )
    assert deletes.tolist() == np.flatnonzero(gone).tolist()
    sets, deletes = difference(changed.take(np.flatnonzero(~gone)), entries)
    assert sets.tolist() == np.flatnonzero(other | riskless | gone).tolist()
    assert deletes.tolist() == []
