from __future__ import annotations

import asyncio
from contextlib import aclosing

import numpy as np
import pytest

from heddle_controller.model.arrays import Ints
from heddle_controller.model.flows import FIRST_SOURCE_PORT, Flows
from heddle_controller.model.plan import Plan, no_paths
from heddle_controller.model.program import Program, no_entries
from heddle_controller.serve.errors import Refusal
from heddle_controller.serve.flow_index import FlowIndex
from heddle_controller.serve.rates import QUEUE, RateBook, Rates
from heddle_controller.state.records import Committed, PlanFacts, Programmed
from tests.support.store_samples import clos

FABRIC = clos()


def ints(*values: int) -> Ints:
    """Return a column."""
    return np.array(values, dtype=np.int64)


def committed(*flows: tuple[str, str, str, int, float]) -> Committed:
    """Return a plan of flows given as id, source, destination, QPs and Gbit/s."""
    index, count = FABRIC.structure.index, len(flows)
    made = Flows(
        ids=tuple(flow[0] for flow in flows),
        source=ints(*(index[flow[1]] for flow in flows)),
        destination=ints(*(index[flow[2]] for flow in flows)),
        gbps=np.array([flow[4] for flow in flows]),
        job=np.zeros(count, dtype=np.int64),
        phase=np.full(count, -1, dtype=np.int64),
        qps=ints(*(flow[3] for flow in flows)),
        traffic_class=np.zeros(count, dtype=np.int64),
        weight=np.ones(count),
        job_names=("j",),
        phase_names=(),
    )
    plan = Plan(FABRIC, made, no_paths(), no_paths())
    return Committed(plan, Program(1, 1, 1, no_entries()), PlanFacts(), Programmed())


FLOWS = FlowIndex(
    committed(
        ("a", "n0.0", "n1.0", 4, 300.0),
        ("b", "n0.1", "n1.1", 1, 100.0),
        ("c", "n0.0", "n1.0", 2, 100.0),
    )
)


def shares(*packets: tuple[str, str, int]) -> list[tuple[int, str, float]]:
    """Return element, flow id and share of packets given as source, destination and port."""
    index = FABRIC.structure.index
    pair = FLOWS.pairs(ints(*(index[p[0]] for p in packets)), ints(*(index[p[1]] for p in packets)))
    found = FLOWS.shares(pair, ints(*(p[2] for p in packets)))
    ids = FLOWS.plan.flows.ids
    return [(e, ids[r], s) for e, r, s in zip(*(c.tolist() for c in found), strict=True)]


@pytest.mark.parametrize(
    ("offset", "flow"),
    [(0, "a"), (3, "a"), (4, "c"), (5, "c")],
    ids=["first", "last", "next", "its last"],
)
def test_a_port_belongs_to_the_flow_whose_qps_it_counts(offset: int, flow: str) -> None:
    """Flows of one pair of NICs have consecutive ports, one for each QP."""
    assert shares(("n0.0", "n1.0", FIRST_SOURCE_PORT + offset)) == [(0, flow, 1.0)]


@pytest.mark.parametrize(
    "packet",
    [("n0.0", "n1.0", FIRST_SOURCE_PORT + 6), ("n0.0", "n1.0", 9), ("n0.0", "n1.1", 0)],
    ids=["beyond the last", "before the first", "another pair"],
)
def test_packets_of_no_flow_are_left_out(packet: tuple[str, str, int]) -> None:
    """Packets that belong to no flow have no share."""
    assert shares(packet) == []


def test_any_port_is_shared_by_the_flows_of_the_pair() -> None:
    """Shares follow demands: three quarters and one quarter."""
    found = shares(("n0.1", "n1.1", 0), ("n0.0", "n1.0", 0))
    assert sorted(found) == [(0, "b", 1.0), (1, "a", 0.75), (1, "c", 0.25)]


def test_an_empty_plan_owns_no_packets() -> None:
    """Without flows there are no shares."""
    empty = FlowIndex(committed())
    assert [len(column) for column in empty.shares(ints(5), ints(7))] == [0, 0, 0]
    assert [len(column) for column in empty.shares(ints(5), ints(0))] == [0, 0, 0]


def rates(time: float) -> Rates:
    """Return rates of one flow at 1 Gbit/s."""
    return Rates(time, 1.0, ("a",), np.ones(1))


async def test_a_watcher_hears_the_newest_of_each_source_first() -> None:
    """A watcher first gets the newest rates of each source, and then every new batch."""
    book = RateBook()
    book.publish("f1", "s0", rates(1.0))
    book.publish("f1", "s0", rates(2.0))
    book.publish("f1", "s1", rates(3.0))
    book.publish("f2", "s0", rates(9.0))
    async with aclosing(book.watch("f1")) as batches:
        assert [(await anext(batches)).time for _ in range(2)] == [2.0, 3.0]
        book.publish("f1", "s0", rates(4.0))
        assert (await anext(batches)).time == 4.0


async def test_a_source_that_is_gone_is_forgotten() -> None:
    """A new watcher does not get rates of a switch that left."""
    book = RateBook()
    book.publish("f1", "s0", rates(1.0))
    book.forget("f1", "s0")
    async with aclosing(book.watch("f1")) as batches:
        waiting = asyncio.create_task(anext(batches))
        await asyncio.sleep(0)
        book.publish("f1", "s0", rates(2.0))
        assert (await waiting).time == 2.0


async def test_a_slow_watcher_is_cut_off_with_a_clear_status() -> None:
    """The slow watcher's stream ends with RESOURCE_EXHAUSTED. Other watchers go on."""
    book = RateBook()
    book.publish("f1", "s0", rates(0.0))
    async with aclosing(book.watch("f1")) as slow, aclosing(book.watch("f1")) as quick:
        await anext(slow)
        await anext(quick)
        for time in range(QUEUE + 1):
            book.publish("f1", "s0", rates(float(time)))
            assert (await anext(quick)).time == time
        with pytest.raises(Refusal, match="behind") as caught:
            await anext(slow)
    assert caught.value.code.name == "RESOURCE_EXHAUSTED"


async def test_watchers_end_with_the_controller() -> None:
    """Watchers get a refusal, so that they come back at another controller."""
    book = RateBook()
    async with aclosing(book.watch("f1")) as batches:
        waiting = asyncio.create_task(anext(batches))
        await asyncio.sleep(0)
        book.close()
        with pytest.raises(Refusal, match="shutting down"):
            await waiting
