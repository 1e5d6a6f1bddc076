from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from heddle.ports import ports_document
from heddle.v1 import plan_pb2 as pb
from heddle_controller.serve import nic_ports as codec
from tests.support.job_flows import commit, flows_of
from tests.support.operating import operating
from tests.support.serving import reason, refusal, serving, violations
from tests.support.waiting import PATIENCE

PLAN = "fabrics/f1/plan"


async def heard(stream: AsyncIterator[pb.JobPortsEvent], count: int) -> list[pb.JobPortsEvent]:
    """Return the next ``count`` events."""
    async with asyncio.timeout(PATIENCE):
        return [await anext(stream) for _ in range(count)]


def told(event: pb.JobPortsEvent) -> Any:
    """Return a job with its ports by flow, a job that has gone, or True for ``synced``."""
    if event.HasField("ports"):
        flows = ports_document("", "", [event.ports])["flows"]
        return event.ports.job, {flow["flow"]: flow["ports"] for flow in flows}
    return event.deleted or event.synced


async def test_a_job_has_the_ports_that_its_entries_match(tmp_path: Path) -> None:
    """A job's ports are those that its entries match, of all flows or of some hosts and NICs."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        generation = await commit(s, flows_of({"red": 2, "blue": 4}))
        request = pb.GetJobPortsRequest(plan=PLAN, job="blue")
        answer = (await s.plans.GetJobPorts(request)).ports
        document = ports_document("fabrics/f1", "blue", [answer])
        assert (document["job"], document["generation"]) == ("blue", generation)
        assert document["flows"][0] == {
            "flow": "blue/2",
            "source": "n0.0",
            "source_address": "10.0.0.0",
            "destination": "n1.0",
            "destination_address": "10.1.0.0",
            "ports": [49156, 49157, 49158, 49159],
        }
        index = flows_of({"red": 2, "blue": 4})
        assert [flow["ports"][0] for flow in document["flows"]] == index.source_ports()[2:].tolist()
        request.hosts.append("h0.1")
        (only,) = (await s.plans.GetJobPorts(request)).ports.flows
        assert only == "blue/4"
        request.nics.append("n0.0")  # the named NICs count as well
        assert len((await s.plans.GetJobPorts(request)).ports.flows) == 4


async def test_ports_come_in_pages_that_die_with_the_plan(tmp_path: Path) -> None:
    """Pages have each flow once; a page token expires with its plan."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await commit(s, flows_of({"red": 4}))
        request = pb.GetJobPortsRequest(plan=PLAN, job="red", page_size=3)
        first = await s.plans.GetJobPorts(request)
        request.page_token = first.next_page_token
        second = await s.plans.GetJobPorts(request)
        assert not second.next_page_token
        found = [*first.ports.flows, *second.ports.flows]
        assert found == ["red/0", "red/1", "red/2", "red/3"]
        await commit(s, flows_of({"red": 3}))
        assert reason(await refusal(s.plans.GetJobPorts(request))) == "PAGE_TOKEN_EXPIRED"


async def test_questions_that_have_no_answer_are_refused(tmp_path: Path) -> None:
    """An unknown plan, job, host or NIC is refused, and so is a switch in place of a NIC."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        request = pb.GetJobPortsRequest(plan=PLAN, job="red")
        assert reason(await refusal(s.plans.GetJobPorts(request))) == "NO_PLAN"
        await commit(s, flows_of({"blue": 1}))
        assert reason(await refusal(s.plans.GetJobPorts(request))) == "UNKNOWN_JOB"
        for field, name in (("hosts", "h9"), ("nics", "n9"), ("nics", "l0")):
            asked = pb.GetJobPortsRequest(plan=PLAN, job="blue", **{field: [name]})  # type: ignore[arg-type]
            assert field in violations(await refusal(s.plans.GetJobPorts(asked)))
            watched = pb.WatchJobPortsRequest(plan=PLAN, **{field: [name]})
            assert field in violations(await refusal(anext(aiter(s.plans.WatchJobPorts(watched)))))
        missing = pb.WatchJobPortsRequest(plan="fabrics/f2/plan")
        assert reason(await refusal(anext(aiter(s.plans.WatchJobPorts(missing))))) == "NOT_FOUND"


async def test_a_watch_tells_all_and_then_what_changed(tmp_path: Path) -> None:
    """A watch sends nothing before the first plan, then each job and ``synced``, then changes."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        request = pb.WatchJobPortsRequest(plan=PLAN, hosts=["h0.1"])
        stream = aiter(s.plans.WatchJobPorts(request))
        await commit(s, flows_of({"red": 4, "blue": 1}))
        first, synced = await heard(stream, 2)
        assert told(first) == ("red", {"red/2": [49152, 49153, 49154, 49155]})
        assert told(synced) is True
        await commit(s, flows_of({"red": 4, "blue": 1}))  # changes nothing for the host
        await commit(s, flows_of({"red": 4, "blue": 2}))
        await commit(s, flows_of({"green": 3}, qps=1))
        seen = [told(event) for event in await heard(stream, 2)]
        assert seen == [("green", {"green/2": [49152]}), "red"]


async def test_a_large_job_comes_in_parts(tmp_path: Path, monkeypatch: Any) -> None:
    """A large job comes in several events, which say whether more follow."""
    monkeypatch.setattr(codec, "MOST_FLOWS", 3)
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await commit(s, flows_of({"red": 4}))
        stream = aiter(s.plans.WatchJobPorts(pb.WatchJobPortsRequest(plan=PLAN, jobs=["red"])))
        first, second, synced = await heard(stream, 3)
        assert (first.more, second.more, synced.synced) == (True, False, True)
        document = ports_document("", "red", [first.ports, second.ports])
        assert [flow["flow"] for flow in document["flows"]] == [f"red/{at}" for at in range(4)]


async def test_an_operator_reads_the_ports_of_a_job(tmp_path: Path) -> None:
    """``heddle job ports`` prints a line for each flow, or JSON; of one host on request."""
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        await commit(o.s, flows_of({"red": 3}))
        done = await o.does("job", "ports", "red", "--host", "h0.1")
        assert done.lines[1:] == [["red/2", "n0.1", "n1.0", "49152-49155"]], done.err
        document = (await o.does("job", "ports", "red", "--json")).json
        assert document["fabric"] == "fabrics/f1"
        assert [flow["ports"] for flow in document["flows"]] == [[*range(49152, 49156)]] * 3
        assert (await o.does("job", "ports", "nobody")).code == 2
