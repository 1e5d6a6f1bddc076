"""Max-min fair rates against their definition, and phases against all their combinations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.model.arrays import Floats
from heddle_controller.model.flows import ANY_PHASE, Flows
from heddle_controller.model.plan import Paths, phased_loads
from heddle_emulator.fluid.rates import flow_ratios, path_rates

ARCS, JOBS, PHASES = 6, 2, 3
Case: TypeAlias = tuple[Floats, Flows, Paths]


@st.composite
def cases(draw: st.DrawFn, *, phased: bool) -> Case:
    """Draw up to 8 flows of up to 3 QPs over 6 arcs, each path over 1 to 4 of them."""
    count = draw(st.integers(1, 8))
    capacity = np.array(draw(st.lists(st.integers(1, 40), min_size=ARCS, max_size=ARCS)), float)
    qps = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    demand = draw(st.lists(st.integers(1, 60), min_size=count, max_size=count))
    job = draw(st.lists(st.integers(0, JOBS - 1), min_size=count, max_size=count))
    low, high = (ANY_PHASE, PHASES - 1) if phased else (ANY_PHASE, ANY_PHASE)
    phase = draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
    ways = st.lists(st.integers(0, ARCS - 1), min_size=1, max_size=4, unique=True)
    routes = [draw(ways) for flow in range(count) for _ in range(qps[flow])]
    return capacity, _flows(qps, demand, job, phase), _paths(qps, routes)


def _flows(
    qps: Sequence[int], demand: Sequence[int], job: Sequence[int], phase: Sequence[int]
) -> Flows:
    count = len(qps)
    zeros = np.zeros(count, dtype=np.int64)
    return Flows(
        ids=tuple(f"f{row}" for row in range(count)),
        source=zeros,
        destination=zeros + 1,
        gbps=np.array(demand, float),
        job=np.array(job),
        phase=np.array(phase),
        qps=np.array(qps),
        traffic_class=zeros,
        weight=np.ones(count),
        job_names=tuple(f"j{row}" for row in range(JOBS)),
        phase_names=tuple(f"p{row}" for row in range(PHASES)),
    )


def _paths(qps: Sequence[int], routes: Sequence[Sequence[int]]) -> Paths:
    qp = np.concatenate([np.arange(number) for number in qps])
    lengths = [len(route) for route in routes]
    return Paths(
        flow=np.repeat(np.arange(len(qps)), qps),
        first_qp=qp,
        last_qp=qp,
        first=np.concatenate([[0], np.cumsum(lengths)]),
        arcs=np.array(list(itertools.chain.from_iterable(routes)), dtype=np.int64),
    )


def _naive(capacities: Sequence[float], members: Sequence[set[int]], limit: Floats) -> Floats:
    """Fill by the textbook: all rates rise together until a limit or a full link stops some."""
    rate, active = np.zeros(len(limit)), set(range(len(limit)))
    while active:
        rises = [
            (capacity - sum(rate[m] for m in inside - active)) / len(inside & active)
            for capacity, inside in zip(capacities, members, strict=True)
            if inside & active
        ]
        level = min([*rises, *(limit[m] for m in active)])
        for m in active:
            rate[m] = level
        stopped = {m for m in active if limit[m] <= level * (1 + 1e-12)}
        for capacity, inside in zip(capacities, members, strict=True):
            if inside & active and sum(rate[m] for m in inside) >= capacity * (1 - 1e-12):
                stopped |= inside & active
        active -= stopped
    return rate


def _combinations(capacity: Floats, flows: Flows, paths: Paths) -> Iterator[tuple[float, set[int]]]:
    """For each arc and each choice of one phase per job: capacity, and the paths that may meet."""
    owner = paths.owner()
    for choice in itertools.product(range(PHASES), repeat=JOBS):
        for arc in range(ARCS):
            on = set(owner[paths.arcs == arc].tolist())
            yield (
                capacity[arc],
                {
                    p
                    for p in on
                    if flows.phase[paths.flow[p]] in (ANY_PHASE, choice[flows.job[paths.flow[p]]])
                },
            )


@given(cases(phased=True))
def test_no_link_carries_more_than_it_can(case: Case) -> None:
    """Rates neither overload a link, by the project's load rule, nor exceed the demand."""
    capacity, flows, paths = case
    rates = path_rates(capacity, flows, paths)
    owner = paths.owner()
    job, phase = flows.job[paths.flow][owner], flows.phase[paths.flow][owner]
    loads = phased_loads(ARCS, paths.arcs, rates[owner], job, phase)
    assert (loads <= capacity * (1 + 1e-6)).all()
    assert (rates <= flows.gbps[paths.flow] / flows.qps[paths.flow] * (1 + 1e-9)).all()
    assert (rates > 0).all()


@given(cases(phased=False))
def test_every_qp_has_a_bottleneck(case: Case) -> None:
    """A QP that gets less than it wants crosses a full link on which no QP gets more."""
    capacity, flows, paths = case
    rates, owner = path_rates(capacity, flows, paths), paths.owner()
    loads = np.bincount(paths.arcs, weights=rates[owner], minlength=ARCS)
    for path in range(len(paths)):
        if rates[path] >= flows.gbps[paths.flow[path]] / flows.qps[paths.flow[path]] * (1 - 1e-6):
            continue
        assert any(
            loads[arc] >= capacity[arc] * (1 - 1e-6)
            and rates[path] >= rates[owner[paths.arcs == arc]].max() * (1 - 1e-6)
            for arc in paths.of(path).tolist()
        )


@given(cases(phased=True))
def test_phases_are_as_if_every_combination_were_a_link(case: Case) -> None:
    """Textbook filling with one link for each combination of phases gives the same rates."""
    capacity, flows, paths = case
    limit = flows.gbps[paths.flow] / flows.qps[paths.flow]
    capacities, members = zip(*_combinations(capacity, flows, paths), strict=True)
    expected = _naive(capacities, members, limit)
    assert np.allclose(path_rates(capacity, flows, paths), expected, rtol=1e-6)


@given(cases(phased=True), st.data())
def test_equal_neighbouring_qps_may_share_a_path(case: Case, data: st.DataObject) -> None:
    """QPs of a flow on the same arcs get the same rate, given as one path or as several."""
    capacity, flows, _ = case
    ways = st.lists(st.integers(0, ARCS - 1), min_size=1, max_size=4, unique=True)
    routes = [data.draw(ways) for _ in range(len(flows))]
    apart = _paths(
        flows.qps.tolist(),
        [route for route, qps in zip(routes, flows.qps, strict=True) for _ in range(qps)],
    )
    first = np.flatnonzero(apart.first_qp == 0)
    one = apart.take(first)
    together = Paths(one.flow, one.first_qp, flows.qps - 1, one.first, one.arcs)
    expected = flow_ratios(capacity, flows, apart)
    assert np.allclose(flow_ratios(capacity, flows, together), expected, rtol=1e-6)


def test_a_flow_without_a_path_has_nothing() -> None:
    """A flow that lost all QPs is at 0, and one that lost half of them is at half."""
    flows = _flows([2, 2, 1], [10, 10, 10], [0, 0, 0], [ANY_PHASE] * 3)
    paths = _paths([1, 0, 1], [[0], [1]])
    assert flow_ratios(np.full(ARCS, 100.0), flows, paths).tolist() == [0.5, 0.0, 1.0]
