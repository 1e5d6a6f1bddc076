from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.v1 import agent_pb2 as pb
from heddle_controller.model.errors import InputError
from heddle_controller.reconcile.observations import Observations
from heddle_controller.reconcile.ports import AgentSession
from heddle_controller.reconcile.unannounced import UnannouncedTerms
from heddle_controller.serve.agents.counters import CounterBook
from heddle_controller.serve.codec import agent as codec
from heddle_controller.serve.codec import times
from heddle_controller.serve.flow_index import FlowIndexes
from heddle_controller.serve.rates import RateBook, Rates
from heddle_controller.state.records import PlanFacts
from heddle_controller.store.embedded import EmbeddedStore, open_embedded
from heddle_controller.telemetry.metrics import Telemetry
from tests.support.depth import fresh_seeds
from tests.support.store_samples import clos, plan_of, program_of

TERMS = UnannouncedTerms(0.1, 10.0)


class Recorder(RateBook):
    """A rate book whose batches can be read back."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Rates] = []

    def publish(self, fabric: str, source: str, rates: Rates) -> None:
        """Keep the batch, then do what the parent does."""
        self.batches.append(rates)
        super().publish(fabric, source, rates)


async def planned(path: Path, second: tuple[str, str] = ("n0.1", "n1.1")) -> EmbeddedStore:
    """Return a store with one fabric, and a plan of j1/f0 from n0.0 to n1.0 and of j1/f1."""
    store = await open_embedded(path / "store.sqlite3")
    await store.put_fabric("f1", clos())
    epoch = await store.acquire_leadership("test")
    plan = plan_of((await store.get_fabric("f1")).fabric)
    index, flows = plan.fabric.structure.index, plan.flows
    ends = [
        np.array([end[0], index[nic]])
        for end, nic in zip((flows.source, flows.destination), second, strict=True)
    ]
    plan = replace(plan, flows=replace(flows, source=ends[0], destination=ends[1]))
    program = program_of(plan, epoch, 1)
    await store.commit(
        "f1", epoch=epoch, expected_generation=0, plan=plan, program=program, facts=PlanFacts()
    )
    return store


def agent(switch: str = "l0", instance: str = "i") -> AgentSession:
    """Return a session of a switch."""
    return AgentSession(1, "f1", switch, instance, "", frozenset(), 0, 0, 0, b"")


def report(time: float, size: int, port: int = 0) -> pb.CounterReport:
    """Return a switch's counts of bytes from n0.0 to n1.0, and of a NIC that nobody knows."""
    return pb.CounterReport(
        time=times.time_to_pb(time),
        endpoints=[pb.Endpoint(nic="n0.0"), pb.Endpoint(nic="n1.0"), pb.Endpoint(nic="gone")],
        sources=[0, 2],
        destinations=[1, 1],
        source_ports=[port, 0],
        packets=[size // 1000, 1],
        bytes=[size, 99],
    )


async def evaluated() -> None:
    """Wait until reports that are queued have been evaluated, by the tasks that books begin."""
    while work := [task for task in asyncio.all_tasks() if task.get_name() == "counters"]:
        await asyncio.wait(work)


async def told(book: CounterBook, about: AgentSession, counters: codec.Counters) -> None:
    """Add a report and wait until it is evaluated."""
    book.put(about, counters)
    await evaluated()


async def test_two_reports_make_the_rate_of_a_flow(tmp_path: Path) -> None:
    """100 GB in 4 s are 200 Gbit/s. Unknown NICs do not count."""
    store, rates, telemetry = await planned(tmp_path), Recorder(), Telemetry()
    book = CounterBook(FlowIndexes(store), rates, telemetry, Observations())
    await told(book, agent(), codec.counters_from_pb(report(1000.0, 5_000_000)))
    await told(book, agent(), codec.counters_from_pb(report(1004.0, 100_005_000_000)))
    (batch,) = rates.batches
    assert batch.flows == ("j1/f0",)
    assert batch.gbps.tolist() == [200.0]
    assert (batch.time, batch.interval) == (1002.0, 4.0)
    counted = telemetry.registry.get_sample_value("heddle_traffic_bytes_total", {"fabric": "f1"})
    assert counted == 100_000_000_000
    await store.close()


async def test_a_flow_is_counted_at_its_first_switch_alone(tmp_path: Path) -> None:
    """The spine sees the same bytes again, and they are not counted."""
    store, rates = await planned(tmp_path), Recorder()
    book = CounterBook(FlowIndexes(store), rates, Telemetry(), Observations())
    for time, size in ((1.0, 0), (2.0, 1000)):
        await told(book, agent("s0"), codec.counters_from_pb(report(time, size)))
    assert [batch.flows for batch in rates.batches] == [()]
    await store.close()


async def test_a_new_instance_of_an_agent_begins_anew(tmp_path: Path) -> None:
    """Counters of a new instance do not compare with those of the one before."""
    store, rates = await planned(tmp_path), Recorder()
    book = CounterBook(FlowIndexes(store), rates, Telemetry(), Observations())
    await told(book, agent(instance="a"), codec.counters_from_pb(report(1.0, 900)))
    await told(book, agent(instance="b"), codec.counters_from_pb(report(2.0, 100)))
    assert rates.batches == []
    book.forget(agent(instance="b"))
    await told(book, agent(instance="b"), codec.counters_from_pb(report(3.0, 200)))
    assert rates.batches == []
    await store.close()


async def test_many_reports_are_reckoned_together_and_who_left_is_not_heard(tmp_path: Path) -> None:
    """Each of a hundred switches is counted once. One that leaves meanwhile has no rates."""
    store, rates = await planned(tmp_path), Recorder()
    book = CounterBook(FlowIndexes(store), rates, Telemetry(), Observations())
    every = [agent(f"s{number}") for number in range(100)]
    for time in (1.0, 2.0):
        for about in every:
            book.put(about, codec.counters_from_pb(report(time, int(time))))
        if time > 1.0:
            await asyncio.sleep(0)  # the first are being evaluated
            book.forget(every[0])
            book.forget(every[99])
        await evaluated()
    assert len(rates.batches) == 98
    await store.close()


@pytest.mark.deep
async def test_reports_reckoned_together_come_to_what_each_comes_to_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Switches, NICs, ports and sizes are drawn. Some entries come twice, some counters fall."""
    monkeypatch.setattr("heddle_controller.serve.agents.counters._PACE", 0.0)
    store = await planned(tmp_path, second=("n1.0", "n0.0"))
    for seed in fresh_seeds(6):
        chance = np.random.default_rng(seed)
        alone, together = Recorder(), Recorder()
        books = [
            CounterBook(FlowIndexes(store), rates, Telemetry(), Observations())
            for rates in (alone, together)
        ]
        switches = ["l1", "l0", "s0", "gone"]
        for time in (1.0, 2.0, 4.5):
            reports = []
            for switch in switches:
                count = int(chance.integers(0, 6))
                drawn = pb.CounterReport(time=times.time_to_pb(time))
                drawn.endpoints.extend(pb.Endpoint(nic=nic) for nic in ("n0.0", "n1.0", "no"))
                drawn.sources.extend(chance.integers(0, 3, count).tolist())
                drawn.destinations.extend(chance.integers(0, 3, count).tolist())
                drawn.source_ports.extend(chance.choice([0, 50_000, 60_000], count).tolist())
                drawn.packets.extend(chance.integers(0, 9, count).tolist())
                drawn.bytes.extend(chance.integers(0, 10**12, count).tolist())
                reports.append((agent(switch), codec.counters_from_pb(drawn)))
            for about, counters in reports:
                await told(books[0], about, counters)
            for about, counters in reports:
                books[1].put(about, counters)
            await evaluated()
        assert len(alone.batches) == 2 * len(switches), seed
        for one, other in zip(alone.batches, together.batches, strict=True):
            assert (one.time, one.interval, one.flows) == (other.time, other.interval, other.flows)
            np.testing.assert_allclose(one.gbps, other.gbps)
    await store.close()


async def test_a_report_of_an_agent_that_leaves_at_once_is_nobodys(tmp_path: Path) -> None:
    """A report that is waiting is forgotten when its agent leaves."""
    store, rates = await planned(tmp_path), Recorder()
    book = CounterBook(FlowIndexes(store), rates, Telemetry(), Observations())
    book.put(agent(), codec.counters_from_pb(report(10.0, 1_000_000)))
    await asyncio.sleep(0)
    book.forget(agent())
    await evaluated()
    await told(book, agent(), codec.counters_from_pb(report(14.0, 2_000_000)))
    assert rates.batches == []
    await told(book, agent(), codec.counters_from_pb(report(18.0, 3_000_000)))
    assert len(rates.batches) == 1
    await store.close()


async def test_an_entry_programmed_anew_counts_from_nothing(tmp_path: Path) -> None:
    """A counter that fell was reset, so its value is what was counted since."""
    store, rates = await planned(tmp_path), Recorder()
    book = CounterBook(FlowIndexes(store), rates, Telemetry(), Observations())
    for time, size in ((1.0, 9_000_000_000), (2.0, 1_000_000_000)):
        await told(book, agent(), codec.counters_from_pb(report(time, size)))
    np.testing.assert_allclose(rates.batches[0].gbps, [8.0])
    await store.close()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"sources": [0]}, "differ in length"),
        ({"sources": [0, 3]}, "beyond the 3 endpoints"),
        ({"bytes": [1, 2**63]}, "beyond 2"),
        ({"time": None}, "time is not set"),
    ],
)
def test_a_malformed_counter_report_is_refused(change: dict[Any, Any], text: str) -> None:
    """The error says what is wrong with the columns."""
    message = report(1.0, 1)
    for name, value in change.items():
        message.ClearField(name)
        if value:
            getattr(message, name).extend(value)
    with pytest.raises(InputError, match=text):
        codec.counters_from_pb(message)


def with_pairs(
    time: float, size: int, *pairs: tuple[pb.Endpoint, pb.Endpoint, int]
) -> codec.Counters:
    """Return counts of the entry from n0.0 to n1.0, and of pairs without an entry."""
    told = report(time, size)
    for source, destination, unmatched in pairs:
        told.unmatched_sources.append(len(told.endpoints))
        told.unmatched_destinations.append(len(told.endpoints) + 1)
        told.endpoints.extend([source, destination])
        told.unmatched_packets.append(unmatched // 1000)
        told.unmatched_bytes.append(unmatched)
    return codec.counters_from_pb(told)


N00, N01 = pb.Endpoint(nic="n0.0"), pb.Endpoint(nic="n0.1")
BY_ADDRESS = pb.Endpoint(address="10.1.0.1")
"""The address of n1.1."""


async def test_what_nobody_announced_is_found_by_id_and_by_address(tmp_path: Path) -> None:
    """100 Gbit/s from n0.0 to n1.1 are found. Bytes of a planned pair count for its flow.

    NICs elsewhere, switches, a NIC to itself and unknown addresses do not count.
    """
    store, rates, seen = await planned(tmp_path), Recorder(), Observations(TERMS)
    book = CounterBook(FlowIndexes(store), rates, Telemetry(), seen)
    gigabit = 10**9 // 8
    for time, sent in ((0.0, 0), (10.0, 1000 * gigabit)):
        pairs = (
            (N00, BY_ADDRESS, sent),
            (N01, BY_ADDRESS, 2 * sent),
            (pb.Endpoint(nic="n1.0"), N00, sent),
            (N00, pb.Endpoint(nic="s0"), sent),
            (N00, N00, sent),
            (N00, pb.Endpoint(address="10.77.0.1"), sent),
        )
        await told(book, agent(), with_pairs(time, sent, *pairs))
    assert seen.of("f1").unannounced.flows.gbps == {("n0.0", "n1.1"): 100.0}
    (batch,) = rates.batches
    assert dict(zip(batch.flows, batch.gbps.tolist(), strict=True)) == {
        "j1/f0": 100.0,
        "j1/f1": 200.0,
    }
    await store.close()


async def test_an_elephant_is_the_same_one_when_it_gets_its_entry(tmp_path: Path) -> None:
    """Counts of the pair's new entries continue what was counted without an entry.

    A pair that its switch has forgotten, and that begins again, is no burst.
    """
    store, seen = await planned(tmp_path), Observations(TERMS)
    book = CounterBook(FlowIndexes(store), Recorder(), Telemetry(), seen)
    found = seen.of("f1").unannounced
    gigabit = 10**9 // 8

    async def tells(time: float, entry: int, unmatched: int | None) -> None:
        counted = pb.CounterReport(
            time=times.time_to_pb(time),
            endpoints=[N00, pb.Endpoint(nic="n1.1")],
            sources=[0] * (entry > 0),
            destinations=[1] * (entry > 0),
            source_ports=[0] * (entry > 0),
            packets=[1] * (entry > 0),
            bytes=[entry * gigabit] * (entry > 0),
        )
        if unmatched is not None:
            counted.unmatched_sources.append(0)
            counted.unmatched_destinations.append(1)
            counted.unmatched_packets.append(1)
            counted.unmatched_bytes.append(unmatched * gigabit)
        await told(book, agent(), codec.counters_from_pb(counted))

    await tells(0.0, 0, 0)
    await tells(10.0, 0, 1000)
    first = found.flows
    assert first.gbps == {("n0.0", "n1.1"): 100.0}
    await tells(20.0, 600, 1400)
    await tells(30.0, 1600, 1400)
    await tells(40.0, 2600, None)
    await tells(50.0, 3600, 20)
    assert found.flows is first
    await tells(60.0, 3600, 20)
    assert found.flows is first
    await tells(70.0, 3600, 20)
    assert not found.flows.gbps
    await store.close()
