"""Entries realise the plan: packets that follow them take its paths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.model.arrays import NONE
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.flows import ROCE_PORT
from heddle_controller.model.plan import Plan
from heddle_controller.model.program import ANY_PORT, Entries
from heddle_controller.model.underlay import underlay
from heddle_controller.plan.programs import entries_of
from heddle_controller.plan.verify import verify_plan
from tests.support.plan_chance import random_fabric, random_plan, with_failures

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)
Table = dict[tuple[int, int, int, int, int], int]


def drawn(seed: int) -> Plan:
    """A random plan of a fabric with some links down."""
    rng = Random(seed)
    return random_plan(rng, with_failures(rng, random_fabric(rng)))


def table(entries: Entries) -> Table:
    """The primary arc of each entry, by switch and match."""
    keys = zip(
        entries.switch.tolist(),
        entries.source.tolist(),
        entries.destination.tolist(),
        entries.source_port.tolist(),
        entries.destination_port.tolist(),
        strict=True,
    )
    return dict(zip(keys, entries.primary.tolist(), strict=True))


def next_arc(
    held: Table, fabric: Fabric, switch: int, pair: tuple[int, int], port: int
) -> list[int]:
    """The arcs that a packet may take: by its port's entry, its pair's entry, or the underlay."""
    for ports in ((port, ROCE_PORT), (ANY_PORT, ANY_PORT)):
        if (switch, *pair, *ports) in held:
            return [held[switch, *pair, *ports]]
    hops: list[int] = underlay(fabric.structure, fabric.carries).next_hops(switch, pair[1]).tolist()
    return hops


@given(SEEDS)
def test_packets_follow_the_plan(seed: int) -> None:
    """Every QP takes exactly the arcs of its path, and no hop is left to hashing."""
    plan = drawn(seed)
    held = table(entries_of(plan))
    structure, flows = plan.fabric.structure, plan.flows
    ports = flows.source_ports()
    for path in range(len(plan.paths)):
        row = int(plan.paths.flow[path])
        pair = (int(flows.source[row]), int(flows.destination[row]))
        for qp in range(int(plan.paths.first_qp[path]), int(plan.paths.last_qp[path]) + 1):
            for arc in plan.paths.of(path)[1:].tolist():
                switch = int(structure.tail[arc])
                assert next_arc(held, plan.fabric, switch, pair, int(ports[row]) + qp) == [arc]


@given(SEEDS)
def test_paths_hold_when_every_link_is_back(seed: int) -> None:
    """With all links up again, and no new plan yet, packets still take the paths of the plan."""
    plan = drawn(seed)
    held = table(entries_of(plan))
    healthy = Fabric(plan.fabric.structure, plan.fabric.link_state * 0, plan.fabric.node_state * 0)
    ports = plan.flows.source_ports()
    for path in range(len(plan.paths)):
        row = int(plan.paths.flow[path])
        pair = (int(plan.flows.source[row]), int(plan.flows.destination[row]))
        port = int(ports[row] + plan.paths.first_qp[path])
        for arc in plan.paths.of(path)[1:].tolist():
            switch = int(plan.fabric.structure.tail[arc])
            assert next_arc(held, healthy, switch, pair, port) == [arc]


@given(SEEDS)
def test_entries_follow_from_paths_alone(seed: int) -> None:
    """The states of links that a plan does not use do not change its entries."""
    plan = drawn(seed)
    rng, states = Random(seed), plan.fabric.link_state.copy()
    spared = np.ones(len(states), dtype=np.bool_)
    spared[np.append(plan.paths.arcs, plan.backups.arcs) >> 1] = False
    for link in np.flatnonzero(spared).tolist():
        states[link] = rng.choice([State.UP, State.DOWN])
    other = replace(plan, fabric=Fabric(plan.fabric.structure, states, plan.fabric.node_state))
    found, due = entries_of(other), entries_of(plan)
    for one in fields(Entries):
        np.testing.assert_array_equal(getattr(found, one.name), getattr(due, one.name), one.name)


@given(SEEDS)
def test_no_entry_is_idle(seed: int) -> None:
    """No entry repeats the underlay's only next hop, if it is the only one with all links up too.

    On a detour an entry may repeat it, because with other links down the underlay may have more.
    """
    plan = drawn(seed)
    entries = entries_of(plan)
    structure = plan.fabric.structure
    sole = underlay(structure).only_next_hop(entries.primary, entries.destination)
    sole &= underlay(structure, plan.fabric.carries).only_next_hop(
        entries.primary, entries.destination
    )
    longest = _longest(plan)
    for row in np.flatnonzero(sole).tolist():
        pair = (int(entries.source[row]), int(entries.destination[row]))
        assert longest[pair, int(entries.primary[row])] > _shortest(plan, entries, row)


def _longest(plan: Plan) -> dict[tuple[tuple[int, int], int], int]:
    """For each pair and arc, the most links left on a path of the pair, that arc included."""
    found: dict[tuple[tuple[int, int], int], int] = {}
    for path, flow in enumerate(plan.paths.flow.tolist()):
        pair = (int(plan.flows.source[flow]), int(plan.flows.destination[flow]))
        for left, arc in enumerate(plan.paths.of(path)[::-1].tolist(), 1):
            found[pair, arc] = max(left, found.get((pair, arc), 0))
    return found


def _shortest(plan: Plan, entries: Entries, row: int) -> int:
    """The number of links from an entry's switch to its destination, with all links up."""
    reach = underlay(plan.fabric.structure).reach
    place = reach.place[entries.destination[row]]
    return int(reach.distance[reach.row[entries.switch[row]], place]) + 1


@given(SEEDS)
def test_entries_are_sorted_and_unique(seed: int) -> None:
    """Entries are sorted by switch and match and unique, and their hops leave that switch."""
    plan = drawn(seed)
    entries = entries_of(plan)
    keys = [*table(entries)]
    assert keys == sorted(keys)
    assert len(keys) == len(entries)
    tail = plan.fabric.structure.tail
    assert (tail[entries.primary] == entries.switch).all()
    spare = entries.backup != NONE
    assert (tail[entries.backup[spare]] == entries.switch[spare]).all()
    assert (entries.backup != entries.primary).all()


@given(SEEDS)
def test_risks_are_the_links_ahead(seed: int) -> None:
    """An entry's risks are the links between switches that its QPs cross from there on.

    On a detour they may be all links between switches that any QP of the pair crosses.
    """
    plan = drawn(seed)
    entries = entries_of(plan)
    structure, flows, paths = plan.fabric.structure, plan.flows, plan.paths
    ports = flows.source_ports()
    ahead: dict[tuple[int, int, int, int], set[int]] = defaultdict(set)
    for path in range(len(paths)):
        row, arcs = int(paths.flow[path]), paths.of(path)
        pair = (int(flows.source[row]), int(flows.destination[row]))
        for at in range(1, len(arcs)):
            links = {int(arc) >> 1 for arc in arcs[at:-1]}
            switch = int(structure.tail[arcs[at]])
            ahead[switch, *pair, ANY_PORT] |= links
            for qp in range(int(paths.first_qp[path]), int(paths.last_qp[path]) + 1):
                ahead[switch, *pair, int(ports[row]) + qp] |= links
    columns = (entries.switch, entries.source, entries.destination, entries.source_port)
    longest = _longest(plan)
    for row, key in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        told, pair = entries.risks(row).tolist(), key[1:3]
        risks = set(told)
        assert told == sorted(risks)
        if risks != ahead[key]:
            every = {link for other, links in ahead.items() if other[1:3] == pair for link in links}
            assert risks == every
            assert longest[pair, int(entries.primary[row])] > _shortest(plan, entries, row)


@given(SEEDS)
def test_a_backup_leads_round_the_risk(seed: int) -> None:
    """From its switch on, an entry's backup path avoids every link at risk.

    The backup's own links between switches are its risks. If another entry of the pair with a
    backup follows at the other end of its first link, risks of that entry may be added. An entry
    without a backup has no such risks.
    """
    plan = drawn(seed)
    entries = entries_of(plan)
    flows = plan.flows
    behind: dict[tuple[int, int, int], set[int]] = defaultdict(set)
    for row in np.flatnonzero(entries.backup != NONE).tolist():
        ends = int(entries.source[row]), int(entries.destination[row])
        behind[int(entries.switch[row]), *ends] |= set(entries.risks(row).tolist())
    for row in np.flatnonzero(entries.backup != NONE).tolist():
        risk, arc = set(entries.risks(row).tolist()), int(entries.backup[row])
        spare = set(entries.backup_risks(row).tolist())
        pair = (int(entries.source[row]), int(entries.destination[row]))
        tails = []
        for path in range(len(plan.backups)):
            flow, way = int(plan.backups.flow[path]), plan.backups.of(path).tolist()
            if (int(flows.source[flow]), int(flows.destination[flow])) == pair and arc in way:
                tails.append([link >> 1 for link in way[way.index(arc) :]])
        more = behind[int(plan.fabric.structure.head[arc]), *pair]
        assert any(
            not risk & set(links) and set(links[:-1]) <= spare <= {*links[:-1], *more}
            for links in tails
        )
    for row in np.flatnonzero(entries.backup == NONE).tolist():
        assert not len(entries.backup_risks(row))


@given(SEEDS)
def test_stages_fall_along_every_path(seed: int) -> None:
    """An entry's stage is one above the highest that follows on its paths, and 0 for the last.

    Where two paths of a pair meet switches in opposite order, no such stages exist.
    """
    plan = drawn(seed)
    entries = entries_of(plan)
    chains = [chain for chain in _chains(plan, entries) if chain]
    after: dict[int, set[int]] = {chain[-1]: set() for chain in chains}
    for chain in chains:
        for row, following in pairwise(chain):
            after.setdefault(row, set()).add(following)
    try:
        order = [*TopologicalSorter(after).static_order()]
    except CycleError:
        return
    for row in order:
        due = max((int(entries.stage[n]) + 1 for n in after[row]), default=0)
        assert entries.stage[row] == due


def _chains(plan: Plan, entries: Entries) -> Iterator[list[int]]:
    """Rows of the entries that the first QP of each path meets, in order."""
    held = {key: row for row, key in enumerate(table(entries))}
    ports = plan.flows.source_ports()
    for path in range(len(plan.paths)):
        row = int(plan.paths.flow[path])
        pair = (int(plan.flows.source[row]), int(plan.flows.destination[row]))
        exact = (int(ports[row] + plan.paths.first_qp[path]), ROCE_PORT)
        switches = plan.fabric.structure.tail[plan.paths.of(path)[1:]].tolist()
        rows = [held.get((s, *pair, *exact), held.get((s, *pair, 0, 0))) for s in switches]
        yield [found for found in rows if found is not None]


@given(SEEDS)
def test_random_plans_are_valid(seed: int) -> None:
    """The random plans that these tests use pass the independent check."""
    plan = drawn(seed)
    verify_plan(plan)
    assert NodeKind.NIC not in plan.fabric.structure.nodes.kind[entries_of(plan).switch]
