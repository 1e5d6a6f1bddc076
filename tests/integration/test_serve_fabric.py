from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from heddle.v1 import (
    common_pb2,
    demand_pb2,
    fabric_pb2,
    overlay_pb2,
    placement_pb2,
    plan_pb2,
)
from heddle.v1.overlay_pb2_grpc import OverlayServiceStub
from heddle_controller.model.fabric import State
from heddle_controller.serve.codec import fabric as codec
from heddle_controller.state.records import LinkName
from heddle_emulator.topology import published
from tests.support.serving import reason, refusal, serving, told_down, violations, wire
from tests.support.store_samples import clos, demands, job, plain

UP, DOWN, DRAINED = common_pb2.STATE_UP, common_pb2.STATE_DOWN, common_pb2.STATE_DRAINED


async def test_a_fabric_is_put_and_got(tmp_path: Path) -> None:
    """A fabric is answered and read back as it was put, with an etag."""
    fabric = clos().with_links({3: State.DRAINED})
    async with serving(tmp_path) as s:
        put = await s.fabrics.PutFabric(fabric_pb2.PutFabricRequest(fabric=wire(fabric)))
        got = await s.fabrics.GetFabric(fabric_pb2.GetFabricRequest(name="fabrics/f1"))
    assert put == got
    assert got.etag
    assert got.title == "small"
    assert plain(codec.fabric_from_pb(got)) == plain(fabric)


async def test_the_largest_published_fabric_is_put_and_got(tmp_path: Path) -> None:
    """A fabric of 24,576 NICs fits into one message in each direction."""
    fabric = published("meta-24k")
    async with serving(tmp_path) as s:
        put = await s.fabrics.PutFabric(fabric_pb2.PutFabricRequest(fabric=wire(fabric)))
        stored = (await s.store.get_fabric("f1")).fabric
    assert len(put.nodes) == fabric.node_count
    np.testing.assert_array_equal(stored.structure.links.gbps, fabric.structure.links.gbps)


async def test_a_put_with_an_older_etag_is_aborted(tmp_path: Path) -> None:
    """A put with an older etag is aborted and changes nothing; with the newest it succeeds."""
    async with serving(tmp_path) as s:
        message = wire(clos())
        first = await s.fabrics.PutFabric(fabric_pb2.PutFabricRequest(fabric=message))
        await s.store.set_switch_state("f1", "s0", State.DOWN)
        message.etag = first.etag
        request = fabric_pb2.PutFabricRequest(fabric=message)
        error = await refusal(s.fabrics.PutFabric(request))
        assert (error.code().name, reason(error)) == ("ABORTED", "ETAG_MISMATCH")
        message.etag = (await s.store.get_fabric("f1")).etag
        await s.fabrics.PutFabric(fabric_pb2.PutFabricRequest(fabric=message))


async def test_a_repeated_put_answers_as_the_first_did(tmp_path: Path) -> None:
    """The same request id does nothing twice; for another request it is refused."""
    request = fabric_pb2.PutFabricRequest(fabric=wire(clos()), request_id="r1")
    async with serving(tmp_path) as s:
        first = await s.fabrics.PutFabric(request)
        await s.store.set_switch_state("f1", "s0", State.DOWN)
        assert (await s.fabrics.PutFabric(request)).etag == first.etag
        assert (await s.store.get_fabric("f1")).etag != first.etag
        request.fabric.title = "other"
        error = await refusal(s.fabrics.PutFabric(request))
        assert "request_id" in violations(error)


async def test_what_a_put_refuses_is_named_as_the_client_gave_it(tmp_path: Path) -> None:
    """A title that is too long is a fault of the title, and a NIC's state one of the NIC."""
    long, down = wire(clos()), wire(clos())
    long.title = 1025 * "x"
    next(node for node in down.nodes if node.id == "n0.0").admin_state = DOWN
    async with serving(tmp_path) as s:
        for message, field in ((long, "title"), (down, "node 'n0.0'")):
            request = fabric_pb2.PutFabricRequest(fabric=message)
            assert [*violations(await refusal(s.fabrics.PutFabric(request)))] == [field]


async def test_a_fabric_that_jobs_need_is_not_taken_away(tmp_path: Path) -> None:
    """A new fabric without the hosts of a job is refused, and the old one stays."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.store.submit_job("f1", job())
        smaller = wire(clos(leaves=1))
        error = await refusal(s.fabrics.PutFabric(fabric_pb2.PutFabricRequest(fabric=smaller)))
        assert error.code().name == "FAILED_PRECONDITION"
        assert "'j1'" in str(error.details())
        assert (await s.store.get_fabric("f1")).fabric.node_count == clos().node_count


async def test_watches_of_a_deleted_fabric_end(tmp_path: Path) -> None:
    """A watch ends with NOT_FOUND. A fabric that is put under the name later has no plan yet."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.commit_plan()
        watch: Any = s.fabrics.WatchFabric(fabric_pb2.WatchFabricRequest(name="fabrics/f1"))
        plans: Any = s.plans.WatchPlan(plan_pb2.WatchPlanRequest(name="fabrics/f1/plan"))
        while not (await watch.read()).HasField("synced"):
            pass
        assert (await plans.read()).generation == 1
        await s.fabrics.DeleteFabric(fabric_pb2.DeleteFabricRequest(name="fabrics/f1"))
        for read in (watch.read, plans.read):
            assert (await refusal(read())).code().name == "NOT_FOUND"
        await s.put_fabric()
        error = await refusal(s.plans.GetPlan(plan_pb2.GetPlanRequest(name="fabrics/f1/plan")))
        assert reason(error) == "NO_PLAN"
        assert (await s.commit_plan()).generation == 3


async def test_fabrics_are_listed_in_pages(tmp_path: Path) -> None:
    """Fabrics are listed by name, each once, however small the pages are."""
    async with serving(tmp_path) as s:
        for name in ("c", "a", "b", "d", "e"):
            await s.put_fabric(name=name)
        found, token = [], ""
        while True:
            request = fabric_pb2.ListFabricsRequest(page_size=2, page_token=token)
            answer = await s.fabrics.ListFabrics(request)
            found += [fabric.name for fabric in answer.fabrics]
            assert len(answer.fabrics) <= 2
            if not (token := answer.next_page_token):
                break
    assert found == [f"fabrics/{name}" for name in "abcde"]


async def test_links_are_listed_with_both_states(tmp_path: Path) -> None:
    """Pages list all links, or only those that are not up as wanted or as observed.

    A page token expires when a link's state changes.
    """
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.store.set_link_state("f1", LinkName("l0", "s0"), State.DRAINED)
        told_down(s, "l1", "s1")
        request = fabric_pb2.ListLinksRequest(parent="fabrics/f1", page_size=5)
        first = await s.fabrics.ListLinks(request)
        request.page_token = first.next_page_token
        second = await s.fabrics.ListLinks(request)
        assert len(first.links) + len(second.links) == clos().link_count
        assert not second.next_page_token
        not_up = await s.fabrics.ListLinks(
            fabric_pb2.ListLinksRequest(parent="fabrics/f1", not_up_only=True)
        )
        states = {(x.source, x.target): (x.admin_state, x.oper_state) for x in not_up.links}
        assert states == {("l0", "s0"): (DRAINED, UP), ("l1", "s1"): (UP, DOWN)}
        await s.store.set_link_state("f1", LinkName("l0", "s0"), State.UP)
        error = await refusal(s.fabrics.ListLinks(request))
        assert (error.code().name, reason(error)) == ("ABORTED", "PAGE_TOKEN_EXPIRED")


async def test_a_link_is_set_by_its_ends_in_either_order(tmp_path: Path) -> None:
    """A link is found by its ends in either order; the answer and the store have its new state.

    The call may be repeated, even when the link has left the fabric.
    """
    request = fabric_pb2.SetLinkStateRequest(
        fabric="fabrics/f1",
        link=common_pb2.LinkRef(source="s1", target="l0"),
        admin_state=DOWN,
        request_id="r1",
    )
    async with serving(tmp_path) as s:
        await s.put_fabric()
        link = await s.fabrics.SetLinkState(request)
        assert (link.source, link.target, link.admin_state) == ("l0", "s1", DOWN)
        fabric = (await s.store.get_fabric("f1")).fabric
        (row,) = fabric.find_links("l0", "s1")
        assert fabric.link_state[row] == State.DOWN
        await s.store.put_fabric("f1", clos(spines=1))
        again = await s.fabrics.SetLinkState(request)
        assert (again.source, again.target, again.admin_state) == ("l0", "s1", DOWN)


async def test_a_switch_is_drained(tmp_path: Path) -> None:
    """Draining a switch stores its state and returns it; its links keep states of their own.

    The call may be repeated, even when the switch has left the fabric.
    """
    drain = fabric_pb2.SetSwitchStateRequest(
        fabric="fabrics/f1", node="s1", admin_state=DRAINED, request_id="r1"
    )
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.store.set_link_state("f1", LinkName("l0", "s1"), State.DOWN)
        node = await s.fabrics.SetSwitchState(drain)
        assert (node.id, node.kind, node.admin_state) == ("s1", fabric_pb2.NODE_KIND_SPINE, DRAINED)
        fabric = (await s.store.get_fabric("f1")).fabric
        assert fabric.node_state[fabric.structure.index["s1"]] == State.DRAINED
        listed = await s.fabrics.ListLinks(fabric_pb2.ListLinksRequest(parent="fabrics/f1"))
        await s.store.put_fabric("f1", clos(spines=1))
        node = await s.fabrics.SetSwitchState(drain)
        assert (node.id, node.admin_state) == ("s1", DRAINED)
    own = {link.source: link.admin_state for link in listed.links if link.target == "s1"}
    assert own == {"l0": DOWN, "l1": UP}


async def test_changes_may_be_repeated_after_the_fabric_was_deleted(tmp_path: Path) -> None:
    """A client that got no answer repeats its call: it was made, whatever became of the fabric."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.store.submit_job("f1", job("j1"))
        await s.store.put_demands("f1", "d1", demands(("n0.0", "n1.0")))

        async def ask() -> list[Any]:
            return [
                await s.fabrics.SetLinkState(
                    fabric_pb2.SetLinkStateRequest(
                        fabric="fabrics/f1",
                        link=common_pb2.LinkRef(source="l0", target="s1"),
                        admin_state=DOWN,
                        request_id="link",
                    )
                ),
                await s.fabrics.SetSwitchState(
                    fabric_pb2.SetSwitchStateRequest(
                        fabric="fabrics/f1", node="s0", admin_state=DRAINED, request_id="switch"
                    )
                ),
                await OverlayServiceStub(s.channel).SetOverlay(
                    overlay_pb2.SetOverlayRequest(
                        name="fabrics/f1/overlay",
                        state=overlay_pb2.OVERLAY_STATE_WITHDRAWN,
                        request_id="overlay",
                    )
                ),
                await s.jobs.DeleteJob(
                    placement_pb2.DeleteJobRequest(name="fabrics/f1/jobs/j1", request_id="job")
                ),
                await s.demands.DeleteDemands(
                    demand_pb2.DeleteDemandsRequest(
                        name="fabrics/f1/demands/d1", request_id="demands"
                    )
                ),
            ]

        link, switch, overlay, *gone = await ask()
        await s.store.delete_fabric("f1")
        await s.put_fabric()
        version = (await s.store.versions("f1")).intent
        await s.store.delete_fabric("f1")
        again = await ask()
        assert again[:3] == [link, fabric_pb2.Node(id="s0", admin_state=DRAINED), overlay]
        assert switch.kind == fabric_pb2.NODE_KIND_SPINE
        for first, second in zip(gone, again[3:], strict=True):
            assert 0 < first.intent_version < version < second.intent_version


async def test_a_watcher_sees_the_present_then_changes(tmp_path: Path) -> None:
    """A watcher gets the fabric, what is not up and ``synced``, then each change or new put.

    If the same nodes and links are back before it hears of others, it gets what is up again.
    """
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.store.set_link_state("f1", LinkName("l0", "s0"), State.DOWN)
        watch: Any = s.fabrics.WatchFabric(fabric_pb2.WatchFabricRequest(name="fabrics/f1"))
        events = aiter(watch)
        first = (await anext(events)).fabric
        assert first.name == "fabrics/f1"
        assert (await anext(events)).link.admin_state == DOWN
        assert (await anext(events)).synced
        await s.store.set_link_state("f1", LinkName("l0", "s0"), State.UP)
        assert (await anext(events)).link.admin_state == UP
        told_down(s, "l1", "s1")
        link = (await anext(events)).link
        assert (link.source, link.oper_state) == ("l1", DOWN)
        await s.store.set_switch_state("f1", "s0", State.DRAINED)
        node = (await anext(events)).node
        assert (node.id, node.admin_state) == ("s0", DRAINED)
        await s.put_fabric(clos(spines=3))
        await s.put_fabric()
        known = first.structure_etag
        async for event in events:
            if event.HasField("fabric"):
                assert event.fabric.structure_etag != known
                known = event.fabric.structure_etag
                if known == first.structure_etag:
                    break
            elif (event.node.id, event.node.admin_state) == ("s0", UP):
                break
        await s.put_fabric(clos(spines=3))
        while (await anext(events)).WhichOneof("event") != "fabric":
            pass
        watch.cancel()
