from __future__ import annotations

from dataclasses import replace

import numpy as np
import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.arrays import NONE, starts
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.plan import Paths, utilization
from heddle_controller.serve.rates import Rates
from heddle_controller.state.records import Committed, PlanFacts, Programmed
from heddle_controller.web.overview import PlanView, SwitchLinks
from tests.support.depth import examples
from tests.support.store_samples import clos, plan_of, program_of


def committed(leaves: int, spines: int) -> Committed:
    """Return the sample plan of a fabric."""
    plan = plan_of(clos(leaves, spines))
    return Committed(plan, program_of(plan, 3, 7), PlanFacts(), Programmed())


@settings(max_examples=examples(5))
@given(st.integers(0, 2**32 - 1))
def test_the_fullest_link_of_each_flow(seed: int) -> None:
    """For drawn paths and loads, the fullest link is that of a walk over the paths, or NONE."""
    random = np.random.default_rng(seed)
    given = committed(int(random.integers(2, 5)), int(random.integers(2, 4)))
    flows = given.plan.flows.take(random.integers(0, len(given.plan.flows), 6))
    per_flow = random.integers(0, 4, len(flows))
    lengths = random.integers(1, 5, per_flow.sum())
    owner = np.repeat(np.arange(len(flows)), per_flow)
    arcs = random.integers(0, 2 * given.plan.fabric.link_count, lengths.sum())
    paths = Paths(owner, owner * 0, owner * 0, starts(lengths), arcs)
    given = replace(given, plan=replace(given.plan, flows=flows, paths=paths))
    plan = given.plan
    vars(plan)["loads"] = random.integers(0, 5, 2 * plan.fabric.link_count) * 100.0
    view, used = PlanView.of(given), utilization(plan.fabric, plan.loads)
    for flow in range(len(plan.flows)):
        arcs = [arc for path in np.flatnonzero(plan.paths.flow == flow).tolist()
                for arc in plan.paths.of(path).tolist()]  # fmt: skip
        if not arcs:
            assert view.fares.fullest[flow] == NONE, seed
            continue
        assert view.fares.fullest[flow] in arcs, seed
        assert used[view.fares.fullest[flow]] == max(used[arc] for arc in arcs), seed
    routed = np.flatnonzero(view.fares.fullest != NONE)
    told = view.fares.share[view.slowest_of(routed, 3)].tolist()
    assert told == sorted(view.fares.share[routed].tolist())[:3], seed
    assert view.slowest in routed, seed
    assert view.fares.share[view.slowest] == told[0], seed
    for tier, arc in enumerate(view.worst):
        of_tier = used[plan.fabric.structure.tier_of_arc == tier]
        assert (used[arc] if arc != NONE else 0.0) == of_tier.max(), seed


def test_columns_name_each_link_between_switches_once() -> None:
    """Ends are places among the switches, and loads are in thousandths, in both directions."""
    given = committed(3, 2)
    structure = given.plan.fabric.structure
    links = SwitchLinks.of(structure)
    shape = orjson.loads(links.json(structure, 4))
    loads = orjson.loads(PlanView.of(given).json(links))
    ids, found = shape["switch"]["id"], shape["link"]
    pairs = {frozenset((ids[a], ids[b])) for a, b in zip(found["a"], found["b"], strict=True)}
    assert pairs == {
        frozenset((f"l{leaf}", f"s{spine}")) for leaf in range(3) for spine in range(2)
    }
    assert (shape["revision"], loads["generation"]) == (4, 7)
    used = utilization(given.plan.fabric, given.plan.loads)
    nic = structure.nodes.kind == NodeKind.NIC
    rows = np.flatnonzero(~nic[structure.links.a] & ~nic[structure.links.b]).tolist()
    assert loads["forth"] == [round(1000 * used[2 * row]) for row in rows]
    assert loads["back"] == [round(1000 * used[2 * row + 1]) for row in rows]


@settings(max_examples=examples(5))
@given(st.integers(0, 2**32 - 1))
def test_what_is_measured_is_laid_on_the_paths(seed: int) -> None:
    """Each flow's rate is shared by its paths. Of two counts of a flow, the greater one is used."""
    random = np.random.default_rng(seed)
    given = committed(int(random.integers(2, 5)), int(random.integers(2, 4)))
    plan, view = given.plan, PlanView.of(given)
    flows = plan.flows
    some = random.permutation(len(flows))[: random.integers(0, len(flows) + 1)].tolist()
    sent = {row: float(random.integers(0, 100)) for row in some}
    names = (*(flows.ids[row] for row in some), "gone/f0")
    gbps = np.array([*(sent[row] for row in some), 9.0])
    counted = [Rates(2.0, 1.0, names, gbps), Rates(1.0, 1.0, names[:1], np.array([-1.0]))]
    told = view.measured(counted)
    assert (told.flows, told.of) == (len(some), len(flows)), seed
    load = np.zeros(2 * plan.fabric.link_count)
    share = plan.paths.gbps(flows)
    for path, flow in enumerate(plan.paths.flow.tolist()):
        for arc in plan.paths.of(path).tolist():
            load[arc] += sent.get(flow, 0.0) * share[path] / flows.gbps[flow]
    assert np.allclose(told.utilization * plan.fabric.structure.capacity, load), seed
    if some:
        assert told.oldest == 1.0, seed
    links = SwitchLinks.of(plan.fabric.structure)
    text = orjson.loads(view.measured_json(links, counted))
    assert (text["measured"], text["time"] is None) == (len(some), not some), seed
