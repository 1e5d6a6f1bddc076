"""Plans after sequences of losses, returns and drains are valid and near a fresh plan.

Two ways of planning are tested: ``heddle plan --previous`` from file to file, and the functions
that the controller plans with. Expected results are computed a second time, from the files and
arrays alone.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from heddle_controller.cli.plan_run import WORTH_MOVING, PlanRequest, run
from heddle_controller.model.arrays import Bools
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_controller.model.flows import ANY_PHASE, Flows, TrafficClass
from heddle_controller.model.plan import Plan
from heddle_controller.plan.verify import verify_plan
from heddle_controller.planner.core import planning_engine
from heddle_controller.planner.planning import Planned, Repair, Wanted, make_plan, reoptimise
from heddle_controller.solve import Repairer, plan_anew, solve
from tests.support.depth import examples, fresh_seeds
from tests.support.drawn import KINDS, drawn
from tests.support.exact import CLOSE, Exact
from tests.support.solve_checks import check_backups, check_certificate, check_paths

STEPS = examples(4, 20)
MOST_FLOWS = examples(8, 12)
PARTS = 4
"""Parts of the long test, so that several processes can share it."""
SETTLED = 0.02
"""How much fuller the worst link of a settled plan may be: the controller's default."""


def events(random: Random, fabric: Fabric) -> Iterator[Fabric]:
    """Yield the fabric after each of ``STEPS`` losses, drains or returns of a link or switch."""
    kind = fabric.structure.nodes.kind
    switches = np.flatnonzero(kind != NodeKind.NIC).tolist()
    for _ in range(STEPS):
        away = [*np.flatnonzero(fabric.link_state), *(-1 - np.flatnonzero(fabric.node_state))]
        if away and random.random() < min(0.8, len(away) / 5):
            which, state = int(random.choice(away)), State.UP
        else:
            which = -1 - random.choice(switches)
            if random.random() < 0.8:
                which = random.randrange(fabric.link_count)
            state = random.choice([State.DOWN, State.DOWN, State.DRAINED])
        if which < 0:
            fabric = fabric.with_nodes({-1 - which: state})
        else:
            fabric = fabric.with_links({which: state})
        yield fabric


def joined(fabric: Fabric, ends: tuple[int, int], barred: frozenset[int] = frozenset()) -> bool:
    """Whether plannable links, except the barred ones, connect two NICs."""
    structure = fabric.structure
    first, arcs = structure.out
    seen, queue = {ends[0]}, deque([ends[0]])
    while queue:
        node = queue.popleft()
        for arc in arcs[first[node] : first[node + 1]].tolist():
            head = int(structure.head[arc])
            if not fabric.plannable[arc] or arc >> 1 in barred or head in seen:
                continue
            if head == ends[1]:
                return True
            if structure.nodes.kind[head] != NodeKind.NIC:
                seen.add(head)
                queue.append(head)
    return False


def poorly_backed(plan: Plan) -> Iterator[str]:
    """Describe each path whose backup is missing or shares more links than necessary."""
    fabric, structure = plan.fabric, plan.fabric.structure
    nic = structure.nodes.kind == NodeKind.NIC
    between: Bools = ~nic[structure.tail] & ~nic[structure.head]
    for row in range(len(plan.paths)):
        flow = int(plan.paths.flow[row])
        ends = int(plan.flows.source[flow]), int(plan.flows.destination[flow])
        way, spare = plan.paths.of(row), {*(plan.backups.of(row) >> 1).tolist()}
        links = (way >> 1).tolist()
        inner = frozenset((way[between[way]] >> 1).tolist())
        told = f"{plan.flows.ids[flow]}: path {links}, backup {sorted(spare)}"
        apart = inner or frozenset(links[-1:])  # no switch can mend the loss of the first link
        if joined(fabric, ends, apart) and (not spare or apart & spare):
            yield f"{told}; a way exists without {sorted(apart)}"
        if not spare and any(joined(fabric, ends, frozenset([link])) for link in links):
            yield f"{told}; another way exists"


def check(plan: Plan) -> None:
    """Assert that a plan, its certificate and its backups are as they should be."""
    verify_plan(plan)
    check_paths(plan)
    check_backups(plan)
    check_certificate(plan)
    poor = [*poorly_backed(plan)]
    assert not poor, poor


def check_bound(plan: Plan) -> None:
    """Assert that no bound is above the exact optimum and every flow that can be is routed."""
    exact = Exact(plan.fabric, plan.flows)
    assert not {*plan.unrouted} & {*exact.routed}
    told, tiers = plan.certificate, plan.fabric.structure.tier_of_arc
    assert told.lower_bound <= exact.least().high * (1 + CLOSE)
    for number, tier in enumerate(told.tiers):
        if tier.lower_bound > CLOSE:
            assert tier.lower_bound <= exact.least(tiers == number).high * (1 + CLOSE)


def check_near(plan: Plan, share: float) -> None:
    """Assert that a plan routes what a fresh one does, its worst link ``share`` fuller at most."""
    fresh = plan_anew(plan.fabric, plan.flows, plan)
    assert {*plan.unrouted} == {*fresh.unrouted}
    worst, least = (one.certificate.max_utilization for one in (plan, fresh))
    assert worst <= least * (1 + share) * (1 + CLOSE)
    assert not fresh.beats(plan, share * (1 + CLOSE))


def moved(before: Plan, after: Plan) -> int:
    """The number of flows that had a path and now have a QP on another path, or on none."""
    was, now = (_ways(plan) for plan in (before, after))
    return sum(now.get(flow) != ways for flow, ways in was.items())


def _ways(plan: Plan) -> dict[int, list[tuple[int, ...]]]:
    found: dict[int, list[tuple[int, ...]]] = {}
    for row in range(len(plan.paths)):
        way = tuple(plan.paths.of(row).tolist())
        found.setdefault(int(plan.paths.flow[row]), []).extend(
            [way] * int(plan.paths.qp_count[row])
        )
    return found


@pytest.mark.deep
def test_what_the_controller_plans_stays_sound_and_near_a_plan_made_anew() -> None:
    """Plans are sound after each event, and near a fresh plan after each reoptimisation."""
    engine = planning_engine(None)
    for seed in fresh_seeds(len(KINDS)):
        random, case = Random(seed), drawn(seed, MOST_FLOWS)
        plan = solve(case.fabric, case.flows)
        repair: Repair = Repairer(plan)
        made: Planned | None = None
        for step, fabric in enumerate(events(random, case.fabric)):
            try:
                before = (made.plan, made.entries) if made else None
                made = make_plan(Wanted(fabric, case.flows, ()), plan, repair, engine, before)
                assert made.changed_count == moved(plan, made.plan)
                plan = made.plan
                check(plan)
                if random.random() < 0.3:
                    better = reoptimise(plan, engine, SETTLED)
                    if isinstance(better, Planned):
                        made, plan = better, better.plan
                        check(plan)
                    check_near(plan, SETTLED)
                if not repair.is_ready_for(plan):
                    repair = Repairer(plan)
            except Exception as error:
                error.add_note(f"{case}, step {step}")
                raise
        check_bound(plan)


def write_flows(fabric: Fabric, flows: Flows, path: Path) -> None:
    """Write a flow file."""
    ids, lines = fabric.structure.nodes.ids, ["flow,src,dst,gbps,job,phase,qps,class"]
    for row, name in enumerate(flows.ids):
        ends = ids[flows.source[row]], ids[flows.destination[row]]
        phase = "" if flows.phase[row] == ANY_PHASE else f"p{flows.phase[row]}"
        kind = TrafficClass(int(flows.traffic_class[row])).name.lower()
        rest = f"{float(flows.gbps[row])},j{flows.job[row]},{phase},{flows.qps[row]},{kind}"
        lines.append(f"{name},{ends[0]},{ends[1]},{rest}")
    path.write_text("\n".join(lines) + "\n")


def losses(random: Random, fabric: Fabric) -> tuple[Fabric, tuple[str, ...]]:
    """Split a fabric's losses into a fabric for the file and values of ``--down``."""
    structure, links = fabric.structure, fabric.structure.links
    told, up_links, up_nodes = [], {}, {}
    for row in np.flatnonzero(fabric.link_state == State.DOWN).tolist():
        if random.random() < 0.7:
            up_links[row] = State.UP
            ends = structure.nodes.ids[links.a[row]], structure.nodes.ids[links.b[row]]
            told.append(f"{ends[0]},{ends[1]},{links.key[row]}")
    for row in np.flatnonzero(fabric.node_state == State.DOWN).tolist():
        if random.random() < 0.7:
            up_nodes[row] = State.UP
            told.append(structure.nodes.ids[row])
    return fabric.with_links(up_links).with_nodes(up_nodes), tuple(told)


def moved_in_files(before: dict[str, Any], after: dict[str, Any]) -> int:
    """The same as ``moved``, from two plan documents."""
    was, now = (
        {
            route["flow"]: [
                (way["nodes"], way["keys"])
                for way in route["paths"]
                for _ in range(way["qps"][0], way["qps"][1] + 1)
            ]
            for route in document["routes"]
        }
        for document in (before, after)
    )
    return sum(now.get(flow) != ways for flow, ways in was.items())


@pytest.mark.deep
@pytest.mark.parametrize("part", range(PARTS))
def test_a_plan_file_follows_events_and_stays_near_a_plan_made_anew(
    part: int, tmp_path: Path
) -> None:
    """Plans made with ``--previous``, event by event, stay sound and near fresh ones.

    Sometimes the previous file has no states.
    """
    flows, fabric_file = tmp_path / "flows.csv", tmp_path / "fabric.json"
    for seed in islice(fresh_seeds(len(KINDS)), part, None, PARTS):
        random, case = Random(seed), drawn(seed, MOST_FLOWS)
        write_flows(case.fabric, case.flows, flows)
        save_fabric_file(case.fabric, fabric_file)
        last = tmp_path / "0.json"
        outcome = run(PlanRequest(fabric_file, flows, out=last), lambda _: None, lambda _: None)
        for step, fabric in enumerate(events(random, case.fabric), 1):
            try:
                filed, down = losses(random, fabric)
                save_fabric_file(filed, fabric_file)
                before = json.loads(last.read_bytes())
                if random.random() < 0.2:
                    del before["states"]
                    last.write_text(json.dumps(before))
                out = tmp_path / f"{step}.json"
                order = PlanRequest(fabric_file, flows, previous=last, down=down, out=out)
                outcome = run(order, lambda _: None, lambda _: None)
                after = json.loads(out.read_bytes())
                assert after["changed"] == outcome.changed == moved_in_files(before, after)
                check(outcome.plan)
                check_near(outcome.plan, WORTH_MOVING)
                last = out
            except Exception as error:
                error.add_note(f"{case}, step {step}")
                raise
        check_bound(outcome.plan)
