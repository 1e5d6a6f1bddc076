from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterator
from pathlib import Path

import pytest
from grpc import aio

from heddle.v1 import common_pb2
from heddle.v1 import demand_pb2 as pb
from heddle.v1.placement_pb2 import JobState
from heddle_controller.serve import demand as service
from heddle_controller.serve.codec import times
from tests.support.serving import reason, refusal, serving, violations

LATENCY = common_pb2.TRAFFIC_CLASS_LATENCY
NAME = "fabrics/f1/demands/d1"
FLOWS = [
    pb.FlowDemand(flow="a", source="n0.0", destination="n1.0", gbps=100, job="j", qps=4),
    pb.FlowDemand(flow="b", source="n0.1", destination="n1.1", gbps=200, phase="p"),
    pb.FlowDemand(flow="c", source="n1.0", destination="n0.1", gbps=50, traffic_class=LATENCY),
]


def told(*flows: pb.FlowDemand, request_id: str = "") -> Iterator[pb.PutDemandsRequest]:
    """Yield the name first, and then one message for each flow."""
    yield pb.PutDemandsRequest(name=NAME, request_id=request_id, flow_count=len(flows))
    for flow in flows:
        yield pb.PutDemandsRequest(demands=[flow])


async def test_a_set_is_put_whole_and_listed(tmp_path: Path) -> None:
    """Defaults are filled in, pages hold every flow once, and a new put replaces the set."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        stored = await s.demands.PutDemands(told(*FLOWS))
        assert (stored.name, stored.flow_count) == (NAME, 3)
        first = await s.demands.ListDemands(pb.ListDemandsRequest(name=NAME, page_size=2))
        second = await s.demands.ListDemands(
            pb.ListDemandsRequest(name=NAME, page_size=2, page_token=first.next_page_token)
        )
        listed = [*first.demands, *second.demands]
        assert [(d.flow, d.qps, d.traffic_class) for d in listed] == [
            ("a", 4, 1),
            ("b", 1, 1),
            ("c", 1, 2),
        ]
        again = await s.demands.PutDemands(told(FLOWS[0]))
        assert again.flow_count == 1
        assert again.etag != stored.etag
        request = pb.ListDemandsRequest(name=NAME, page_token=first.next_page_token)
        assert reason(await refusal(s.demands.ListDemands(request))) == "PAGE_TOKEN_EXPIRED"


async def test_sets_of_one_id_are_not_both_acknowledged(tmp_path: Path) -> None:
    """Of sets with the same flow ids put at once, one is stored, and the refusals name it."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        asked = []
        for n in range(8):
            first, *rest = told(*FLOWS)
            first.name = f"fabrics/f1/demands/d{n}"
            asked.append(s.demands.PutDemands(iter([first, *rest])))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        (stored,) = [one for one in answers if isinstance(one, pb.DemandSet)]
        assert stored.state == JobState.JOB_STATE_ACCEPTED
        refused = [one for one in answers if isinstance(one, aio.AioRpcError)]
        assert len(refused) == 7
        for error in refused:
            assert error.code().name == "FAILED_PRECONDITION"
            assert stored.name.rpartition("/")[2] in (error.details() or "")
        request = pb.ListDemandSetsRequest(parent="fabrics/f1")
        assert list((await s.demands.ListDemandSets(request)).demand_sets) == [stored]


async def test_sets_are_listed_by_page(tmp_path: Path) -> None:
    """Demand sets are listed in pages, each once, by name, and none of another fabric."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.put_fabric(name="f2")
        for n, fabric in ((3, "f1"), (1, "f1"), (2, "f1"), (1, "f2")):
            first, *_ = told()
            first.name, first.flow_count = f"fabrics/{fabric}/demands/d{n}", 1
            flow = pb.FlowDemand(flow=f"x{n}", source="n0.0", destination="n1.0", gbps=1)
            await s.demands.PutDemands(iter([first, pb.PutDemandsRequest(demands=[flow])]))
        request = pb.ListDemandSetsRequest(parent="fabrics/f1", page_size=2)
        found: list[str] = []
        while not found or request.page_token:
            answer = await s.demands.ListDemandSets(request)
            found += [one.name for one in answer.demand_sets]
            request.page_token = answer.next_page_token
        assert found == [f"fabrics/f1/demands/d{n}" for n in (1, 2, 3)]
        request = pb.ListDemandSetsRequest(parent="fabrics/f3")
        assert (await refusal(s.demands.ListDemandSets(request))).code().name == "NOT_FOUND"


async def test_a_stream_that_breaks_changes_nothing(tmp_path: Path) -> None:
    """When a stream breaks off, its flows are dropped and the stored set stays."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.demands.PutDemands(told(FLOWS[0]))
        call = s.demands.PutDemands()
        await call.write(pb.PutDemandsRequest(name=NAME, flow_count=2))
        await call.write(pb.PutDemandsRequest(demands=FLOWS[1:]))
        call.cancel()
        listed = await s.demands.ListDemands(pb.ListDemandsRequest(name=NAME))
        assert [d.flow for d in listed.demands] == ["a"]


@pytest.mark.parametrize("count", [0, 2, 4])
async def test_a_set_is_as_large_as_was_said(tmp_path: Path, count: int) -> None:
    """A stream with more or fewer flows than announced is refused: it may have been cut off."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.demands.PutDemands(told(FLOWS[0]))
        first, *others = told(*FLOWS)
        first.flow_count = count
        error = await refusal(s.demands.PutDemands(iter([first, *others])))
        assert "3 came" in violations(error)["flow_count"]
        listed = await s.demands.ListDemands(pb.ListDemandsRequest(name=NAME))
        assert [d.flow for d in listed.demands] == ["a"]


async def test_a_repeated_put_answers_as_the_first_did(tmp_path: Path) -> None:
    """A put with the same request id gets the same answer and changes nothing."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        first = await s.demands.PutDemands(told(*FLOWS, request_id="r"))
        version = await s.store.versions("f1")
        assert await s.demands.PutDemands(told(*FLOWS, request_id="r")) == first
        assert await s.store.versions("f1") == version


async def test_faulty_flows_are_named(tmp_path: Path) -> None:
    """Each faulty flow is named by its id, and nothing is stored."""
    bad = [
        pb.FlowDemand(flow="x", source="nix", destination="n1.0", gbps=1),
        pb.FlowDemand(flow="y", source="n0.0", destination="n0.0", gbps=1),
        pb.FlowDemand(flow="z", source="n0.0", destination="n1.0", gbps=float("nan")),
        pb.FlowDemand(flow="w", source="n0.0", destination="l1", gbps=-1),
    ]
    async with serving(tmp_path) as s:
        await s.put_fabric()
        error = await refusal(s.demands.PutDemands(told(*bad)))
        found = violations(error)
        assert set(found) == {"flow 'x'", "flow 'y'", "flow 'z'", "flow 'w'"}
        error = await refusal(s.demands.ListDemands(pb.ListDemandsRequest(name=NAME)))
        assert error.code().name == "NOT_FOUND"


async def test_a_name_in_the_middle_of_a_stream_is_refused(tmp_path: Path) -> None:
    """A name in a later message of a stream is refused, as it could only mix up two sets."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        messages = [*told(FLOWS[0]), pb.PutDemandsRequest(name=NAME)]
        assert "name" in violations(await refusal(s.demands.PutDemands(iter(messages))))


async def test_a_set_is_deleted_once(tmp_path: Path) -> None:
    """Deleting a set a second time gives NOT_FOUND."""
    request = pb.DeleteDemandsRequest(name=NAME)
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.demands.PutDemands(told(*FLOWS))
        await s.demands.DeleteDemands(request)
        assert (await refusal(s.demands.DeleteDemands(request))).code().name == "NOT_FOUND"


def test_a_set_is_bounded() -> None:
    """The limit of a million flows is far beyond any fabric and fits in memory."""
    assert service.MAX_DEMANDS == 1_000_000


def batch(**rates: float) -> pb.RateBatch:
    """Return a batch of rates in Gbps by flow, with slashes for the underscores of the names."""
    flows = {name.replace("_", "/"): rate for name, rate in rates.items()}
    return pb.RateBatch(
        time=times.time_to_pb(9.0), interval_seconds=1.0, flows=flows, rates_gbps=flows.values()
    )


async def test_reported_rates_reach_who_watches(tmp_path: Path) -> None:
    """Watchers get the reported rates of flows in the plan; other flows are counted as unknown."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.commit_plan()
        watch = s.demands.WatchRates(pb.WatchRatesRequest(fabric="fabrics/f1"))
        heard = asyncio.create_task(_first(watch))
        messages = [
            pb.ReportRatesRequest(fabric="fabrics/f1", batch=batch(j1_f0=12.5, j9_f0=1.0)),
            pb.ReportRatesRequest(batch=batch(j1_f0=13.0)),
        ]
        answer = await s.demands.ReportRates(iter(messages))
        assert (answer.accepted_count, answer.unknown_count) == (2, 1)
        first = await heard
        assert list(first.flows) == ["j1/f0"]
        assert first.rates_gbps[0] in (12.5, 13.0)
        watch.cancel()


async def _first(batches: AsyncIterable[pb.RateBatch]) -> pb.RateBatch:
    async for one in batches:
        return one
    raise EOFError


async def test_malformed_rates_are_refused(tmp_path: Path) -> None:
    """Invalid rates are refused: by interval, lengths, value, time, or fabric."""
    no_interval = batch(j1_f0=1.0)
    no_interval.interval_seconds = 0
    lengths = batch(j1_f0=1.0)
    lengths.flows.append("more")
    async with serving(tmp_path) as s:
        await s.put_fabric()
        for bad in (no_interval, lengths, batch(j1_f0=-1.0), batch(j1_f0=float("inf"))):
            message = pb.ReportRatesRequest(fabric="fabrics/f1", batch=bad)
            assert "batch" in violations(await refusal(s.demands.ReportRates(iter([message]))))
        for seconds in (2**62, -(2**62), 253_402_300_799):
            never = batch(j1_f0=1.0)
            never.time.seconds = seconds
            message = pb.ReportRatesRequest(fabric="fabrics/f1", batch=never)
            error = await refusal(s.demands.ReportRates(iter([message])))
            assert "batch.time" in violations(error)
        assert "fabric" in violations(await refusal(s.demands.ReportRates(iter([]))))
        nowhere = pb.ReportRatesRequest(fabric="fabrics/none", batch=batch(j1_f0=1.0))
        error = await refusal(s.demands.ReportRates(iter([nowhere])))
        assert error.code().name == "NOT_FOUND"
