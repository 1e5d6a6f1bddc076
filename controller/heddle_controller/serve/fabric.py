"""FabricService: whole fabrics, and the states of their links and switches."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np
from grpc import aio
from typing_extensions import override

from heddle.v1 import fabric_pb2 as pb
from heddle.v1.fabric_pb2_grpc import FabricServiceServicer
from heddle_controller.model.arrays import Ints
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.reconcile.observations import LinkEnds, Observations, SeenLinks, link_ends
from heddle_controller.serve.agents.link_book import Condition
from heddle_controller.serve.codec import common, names
from heddle_controller.serve.codec import fabric as codec
from heddle_controller.serve.request import page, request_of
from heddle_controller.serve.watch import Changes
from heddle_controller.state.errors import NotFound
from heddle_controller.state.records import FabricRecord
from heddle_controller.store.store import Store

_Context = aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class FabricSnapshot:
    """A fabric as a watcher last saw it."""

    record: FabricRecord
    seen: SeenLinks

    def not_up(self) -> Ints:
        """Return the rows of links that operators or agents say are not up, ascending."""
        wanted = np.flatnonzero(self.record.fabric.link_state != State.UP)
        return np.union1d(wanted, np.array(sorted(self.seen.down), dtype=np.int64))


class FabricService(FabricServiceServicer):
    """Reads and writes fabrics in the store; see fabric.proto."""

    def __init__(
        self,
        store: Store,
        changes: Changes,
        observations: Observations,
        *,
        unwell: Callable[[str], Mapping[LinkEnds, Condition]],
        aside: Callable[[str], Mapping[str, str]],
    ) -> None:
        """Serve fabrics of the store, with what agents report of their links.

        Args:
            store: Has the fabrics.
            changes: Wakes watchers.
            observations: Link states from agents.
            unwell: Returns the unwell links of a fabric, by the fabric's id.
            aside: Returns the switches of a fabric that are set aside, each with the reason.
        """
        self._observations = observations
        self._unwell = unwell
        self._aside = aside
        self._store = store
        self._changes = changes

    @override
    async def PutFabric(self, request: pb.PutFabricRequest, context: _Context) -> pb.Fabric:
        """Create or replace a fabric; it is decoded and checked in a thread."""
        given = request.fabric
        name = names.fabric_name.fabric(given.name, "fabric.name")
        asked = request_of(request.request_id)
        fabric = await asyncio.to_thread(codec.fabric_from_pb, given)
        record = await self._store.put_fabric(
            name, fabric, title=given.title, etag=given.etag, request=asked
        )
        seen = self._seen(record)
        return await asyncio.to_thread(codec.fabric_record_to_pb, record, seen)

    @override
    async def DeleteFabric(
        self, request: pb.DeleteFabricRequest, context: _Context
    ) -> pb.DeleteFabricResponse:
        """Delete a fabric that nothing needs any more."""
        name = names.fabric_name.fabric(request.name, "name")
        asked = request_of(request.request_id)
        await self._store.delete_fabric(name, etag=request.etag, request=asked)
        return pb.DeleteFabricResponse()

    @override
    async def GetFabric(self, request: pb.GetFabricRequest, context: _Context) -> pb.Fabric:
        """Get a fabric with all nodes and links; it is encoded in a thread."""
        name = names.fabric_name.fabric(request.name, "name")
        record = await self._store.get_fabric(name)
        return await asyncio.to_thread(
            codec.fabric_record_to_pb, record, self._seen(record), self._aside(name)
        )

    @override
    async def ListFabrics(
        self, request: pb.ListFabricsRequest, context: _Context
    ) -> pb.ListFabricsResponse:
        """List fabrics by name."""
        part = page("fabrics", request, default=100, ceiling=1000)
        found = await self._store.list_fabrics(after=part.after, limit=part.size + 1)
        more = len(found) > part.size
        return pb.ListFabricsResponse(
            fabrics=[codec.fabric_summary_to_pb(summary) for summary in found[: part.size]],
            next_page_token=part.token(found[part.size - 1].name) if more else "",
        )

    @override
    async def ListLinks(
        self, request: pb.ListLinksRequest, context: _Context
    ) -> pb.ListLinksResponse:
        """List links in the order of the fabric; a page token expires when any link changes."""
        name = names.fabric_name.fabric(request.parent, "parent")
        collection = f"links/{name}/{request.not_up_only}"
        part = page(collection, request, default=1000, ceiling=10000)
        record = await self._store.get_fabric(name)
        unwell = self._unwell(name)
        found = record.fabric.find_links
        bad = [row for source, target, key in unwell for row in found(source, target, key)]
        seen = self._seen(record)
        stamp = f"{record.etag}/{_check(sorted(seen.down))}"
        rows: Sequence[int] = range(record.fabric.link_count)
        if request.not_up_only:
            rows = sorted({*FabricSnapshot(record, seen).not_up().tolist(), *bad})
            stamp = f"{stamp}/{_check(rows)}"
        first = part.row(stamp)
        last = first + part.size
        wanted = list(rows[first:last])
        links = await asyncio.to_thread(_links, record, seen, wanted, dict(unwell))
        return pb.ListLinksResponse(
            links=links,
            next_page_token=part.token(last, stamp) if last < len(rows) else "",
        )

    def _seen(self, record: FabricRecord) -> SeenLinks:
        """Return the link states that agents with a session here report."""
        return self._observations.of(record.name).seen(record.fabric)

    @override
    async def SetLinkState(self, request: pb.SetLinkStateRequest, context: _Context) -> pb.Link:
        """Set the administrative state of one link."""
        name = names.fabric_name.fabric(request.fabric, "fabric")
        state = common.state_from_pb(request.admin_state, "admin_state")
        asked = request_of(request.request_id)
        if not (request.link.source and request.link.target):
            reason = "an end is missing: give source and target"
            raise refuse("request", "link", reason)
        link = common.asked_link(request.link)
        answer = await self._store.set_link_state(
            name, link, state, etag=request.etag, request=asked
        )
        fabric = await self._fabric_now(name)
        if fabric is None:
            return codec.link_to_pb(answer, down=False, since=0.0)
        seen, found = self._observations.of(name).seen(fabric), answer.link
        rows = fabric.find_links(found.source, found.target, found.key)
        since = max((seen.since.get(row, 0.0) for row in rows), default=0.0)
        return codec.link_to_pb(answer, down=not seen.down.isdisjoint(rows), since=since)

    async def _fabric_now(self, name: str) -> Fabric | None:
        """Return a fabric after a change of it; None if it was deleted since.

        A repeated call may come that late.
        """
        try:
            return (await self._store.get_fabric(name)).fabric
        except NotFound:
            return None

    @override
    async def SetSwitchState(self, request: pb.SetSwitchStateRequest, context: _Context) -> pb.Node:
        """Set the administrative state of one switch."""
        name = names.fabric_name.fabric(request.fabric, "fabric")
        state = common.state_from_pb(request.admin_state, "admin_state")
        if not request.node:
            raise refuse("request", "node", "it is empty: give the id of a switch")
        switch = await self._store.set_switch_state(
            name,
            request.node,
            state,
            etag=request.etag,
            request=request_of(request.request_id),
        )
        fabric = await self._fabric_now(name)
        node = pb.Node(id=switch.node)
        if fabric is not None and switch.node in fabric.structure.index:  # not replaced since
            node = codec.node_to_pb(fabric, fabric.structure.index[switch.node])
        node.admin_state = common.state_to_pb(switch.admin_state)
        return node

    @override
    async def WatchFabric(
        self, request: pb.WatchFabricRequest, context: _Context
    ) -> AsyncIterator[pb.FabricEvent]:
        """Yield the fabric, its links and switches that are not up, ``synced``, then changes."""
        name = names.fabric_name.fabric(request.name, "name")
        before: FabricSnapshot | None = None
        async with aclosing(self._changes.watch(name)) as changes:
            async for _ in changes:
                record = await self._store.get_fabric(name)
                now = FabricSnapshot(record, self._seen(record))
                links, nodes = _changed(before, now)
                for event in await asyncio.to_thread(_events, before, now, links, nodes):
                    yield event
                if before is None:
                    yield pb.FabricEvent(synced=True)
                before = now


def _check(rows: Sequence[int]) -> str:
    """Return a checksum that differs for other rows."""
    return f"{zlib.crc32(np.array(rows, dtype=np.int64).tobytes()):x}"


def _links(
    record: FabricRecord, seen: SeenLinks, rows: list[int], unwell: Mapping[LinkEnds, Condition]
) -> list[pb.Link]:
    links = codec.links_to_pb(record, seen, rows)
    for link in links if unwell else ():
        _tell_condition(link, unwell)
    return links


def _changed(before: FabricSnapshot | None, now: FabricSnapshot) -> tuple[Ints, Ints]:
    """Return the rows of links and nodes to send to a watcher that has seen ``before``."""
    new = now.record.fabric
    if before is None or before.record.digest != now.record.digest:
        return now.not_up(), np.flatnonzero(new.node_state != State.UP)
    old = before.record.fabric
    links = np.flatnonzero(
        (old.link_state != new.link_state) | (before.record.state_time != now.record.state_time)
    )
    then, since = before.seen.since, now.seen.since
    turned = [row for row in then.keys() | since.keys() if then.get(row) != since.get(row)]
    links = np.union1d(links, np.array(turned, dtype=np.int64))
    return links, np.flatnonzero(old.node_state != new.node_state)


def _events(
    before: FabricSnapshot | None, now: FabricSnapshot, links: Ints, nodes: Ints
) -> list[pb.FabricEvent]:
    record, events = now.record, []
    if before is None or before.record.digest != record.digest:
        events = [pb.FabricEvent(fabric=codec.fabric_summary_to_pb(record.summary()))]
    told = codec.links_to_pb(record, now.seen, links.tolist())
    events += [pb.FabricEvent(link=link) for link in told]
    return events + _switches(record, nodes)


def _tell_condition(link: pb.Link, unwell: Mapping[LinkEnds, Condition]) -> None:
    """Add to a link's message what agents report as wrong with it."""
    condition = unwell.get(link_ends(link.source, link.target, link.key))
    if condition is not None:
        link.condition = condition.reason
        link.loss_ratio, link.rate_ratio = condition.loss_ratio, condition.rate_ratio


def _switches(record: FabricRecord, rows: Ints) -> list[pb.FabricEvent]:
    kinds = record.fabric.structure.nodes.kind
    return [
        pb.FabricEvent(node=codec.node_to_pb(record.fabric, row))
        for row in rows.tolist()
        if kinds[row] != NodeKind.NIC
    ]
