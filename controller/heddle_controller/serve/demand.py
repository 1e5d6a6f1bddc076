"""DemandService: sets of flow demands, and streams of measured rates to and from clients."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import numpy as np
from grpc import aio
from typing_extensions import override

from heddle.v1 import demand_pb2 as pb
from heddle.v1.demand_pb2_grpc import DemandServiceServicer
from heddle_controller.model.demand import Demands
from heddle_controller.model.errors import InputError, refuse
from heddle_controller.model.flows import SET
from heddle_controller.reconcile.observations import Observations
from heddle_controller.serve.codec import demand as codec
from heddle_controller.serve.codec import names, times
from heddle_controller.serve.errors import exhausted
from heddle_controller.serve.flow_index import FlowIndex, FlowIndexes
from heddle_controller.serve.rates import RateBook, Rates
from heddle_controller.serve.request import Page, page, request_of, version_without
from heddle_controller.state.errors import NotFound
from heddle_controller.state.records import DemandRecord, Intent
from heddle_controller.store.store import Store

_Context = aio.ServicerContext[Any, Any]

MAX_DEMANDS = 1_000_000
"""Most flows in one set."""
MAX_BATCH = 1_000_000
"""Most rates in one batch."""


class DemandService(DemandServiceServicer):
    """Serves demand sets from the store, and rates through the rate book; see demand.proto."""

    def __init__(
        self,
        store: Store,
        indexes: FlowIndexes,
        rates: RateBook,
        observations: Observations,
    ) -> None:
        self._observations = observations
        self._store = store
        self._indexes = indexes
        self._rates = rates

    @override
    async def PutDemands(
        self, request_iterator: AsyncIterator[pb.PutDemandsRequest], context: _Context
    ) -> pb.DemandSet:
        """Store a set when the client half-closes, if as many flows came as it announced.

        The count is needed because gRPC may end a broken stream as if it had been half-closed.
        """
        name, request_id, told = "", "", 0
        parts: list[Demands] = []
        count, first = 0, True
        async for message in request_iterator:
            if first:
                name, request_id, first = message.name, message.request_id, False
                told = message.flow_count
            elif message.name or message.request_id or message.flow_count:
                field = "flow_count" if message.flow_count else "name"
                raise refuse("request", field, "it belongs in the first message only")
            count += len(message.demands)
            if count > MAX_DEMANDS:
                text = f"a set holds at most {MAX_DEMANDS} flows: divide it into several sets"
                raise exhausted("TOO_MANY_DEMANDS", text)
            # Convert each message at once: freeing all of them together would delay other calls.
            before = count - len(message.demands)
            parts.append(await asyncio.to_thread(codec.demands_from_pb, message.demands, before))
        fabric, of_set = names.demands_name.parse(name, "name")
        asked = request_of(request_id)
        if count != told:
            text = f"says {told}, but {count} came; nothing was stored: send the whole set again"
            raise refuse("request", "flow_count", text)
        columns = await asyncio.to_thread(codec.joined_demands, parts)
        record = await self._store.put_demands(fabric, of_set, columns, request=asked)
        return codec.demand_record_to_pb(fabric, record)

    @override
    async def ListDemandSets(
        self, request: pb.ListDemandSetsRequest, context: _Context
    ) -> pb.ListDemandSetsResponse:
        """List demand sets by name."""
        fabric = names.fabric_name.fabric(request.parent, "parent")
        collection = f"demand-sets/{fabric}"
        part = page(collection, request, default=100, ceiling=1000)
        seen = self._observations.of(fabric)
        intent = seen.with_unannounced(await self._store.intent(fabric))
        index = await self._indexes.of(fabric)
        return await asyncio.to_thread(_sets, fabric, intent, index, part)

    @override
    async def ListDemands(
        self, request: pb.ListDemandsRequest, context: _Context
    ) -> pb.ListDemandsResponse:
        """List demands in the order of the set; a page token expires when the set is replaced."""
        fabric, name = names.demands_name.parse(request.name, "name")
        part = page(request.name, request, default=1000, ceiling=10000)
        record = await self._record(fabric, name)
        first = part.row(record.etag)
        last = min(first + part.size, len(record.demands))
        return pb.ListDemandsResponse(
            demands=await asyncio.to_thread(_demands, record.demands, first, last),
            next_page_token=part.token(last, record.etag) if last < len(record.demands) else "",
        )

    async def _record(self, fabric: str, name: str) -> DemandRecord:
        if name != SET:
            return await self._store.get_demands(fabric, name)
        structure = (await self._store.get_fabric(fabric)).fabric.structure
        found = self._observations.of(fabric).unannounced.flows.record(structure)
        if found is None:
            cure = "no unannounced traffic is seen now"
            raise NotFound(names.demands_name(fabric, name), cure)
        return found

    @override
    async def DeleteDemands(
        self, request: pb.DeleteDemandsRequest, context: _Context
    ) -> pb.DeleteDemandsResponse:
        """Delete a set; its flows stay until the next plan."""
        fabric, name = names.demands_name.parse(request.name, "name")
        if name == SET:
            why = "it holds what switches count; announce these flows, or wait until they end"
            raise refuse("request", "name", f"{SET!r} cannot be deleted: {why}")
        asked = request_of(request.request_id)
        await self._store.delete_demands(fabric, name, request=asked)
        version = await version_without(self._store, fabric)
        return pb.DeleteDemandsResponse(intent_version=version)

    @override
    async def ReportRates(
        self, request_iterator: AsyncIterator[pb.ReportRatesRequest], context: _Context
    ) -> pb.ReportRatesResponse:
        """Pass each batch of rates on to the watchers as it arrives."""
        fabric, accepted, unknown = "", 0, 0
        async for message in request_iterator:
            if not fabric:
                fabric = names.fabric_name.fabric(message.fabric, "fabric")
                await self._store.versions(fabric)  # raises NotFound now, not after an hour
            elif message.fabric:
                raise refuse("request", "fabric", "it belongs in the first message only")
            rates, strangers = await self._known(fabric, message.batch)
            accepted, unknown = accepted + len(rates.flows), unknown + strangers
            self._rates.publish(fabric, "reported", rates)
        if not fabric:
            raise refuse("request", "fabric", "no message came: name the fabric in the first")
        return pb.ReportRatesResponse(accepted_count=accepted, unknown_count=unknown)

    async def _known(self, fabric: str, batch: pb.RateBatch) -> tuple[Rates, int]:
        """Return the rates of flows in the newest plan, and the number of unknown flows."""
        index = await self._indexes.of(fabric)
        return await asyncio.to_thread(_rates_from_pb, batch, index)

    @override
    async def WatchRates(
        self, request: pb.WatchRatesRequest, context: _Context
    ) -> AsyncIterator[pb.RateBatch]:
        """Yield the newest rates of each source, then new rates as they arrive."""
        fabric = names.fabric_name.fabric(request.fabric, "fabric")
        await self._store.versions(fabric)
        async with aclosing(self._rates.watch(fabric)) as batches:
            async for rates in batches:
                yield pb.RateBatch(
                    time=times.time_to_pb(rates.time),
                    interval_seconds=rates.interval,
                    flows=rates.flows,
                    rates_gbps=rates.gbps.tolist(),
                )


def _sets(
    fabric: str, intent: Intent, index: FlowIndex | None, part: Page
) -> pb.ListDemandSetsResponse:
    plan, rows = (index.plan, index.rows) if index else (None, {})
    facts = codec.demand_facts(intent, plan, rows)
    every = sorted(intent.demands, key=lambda record: record.name)
    found = [record for record in every if record.name > part.after]
    shown = found[: part.size]
    return pb.ListDemandSetsResponse(
        demand_sets=[codec.demand_record_to_pb(fabric, one, facts[one.name]) for one in shown],
        next_page_token=part.token(shown[-1].name) if len(found) > len(shown) else "",
    )


def _demands(demands: Demands, first: int, last: int) -> list[pb.FlowDemand]:
    return [codec.demand_to_pb(demands, row) for row in range(first, last)]


def _rates_from_pb(batch: pb.RateBatch, index: FlowIndex | None) -> tuple[Rates, int]:
    _check_batch(batch)
    known = index.rows if index else {}
    kept = [row for row, flow in enumerate(batch.flows) if flow in known]
    rates = Rates(
        time=times.time_from_pb(batch.time, "batch.time"),
        interval=batch.interval_seconds,
        flows=tuple(batch.flows[row] for row in kept),
        gbps=np.array(batch.rates_gbps, dtype=np.float64)[kept],
    )
    return rates, len(batch.flows) - len(kept)


def _check_batch(batch: pb.RateBatch) -> None:
    """Check a batch of rates.

    Raises:
        InputError: the arrays differ in length or are too long, the interval is not above 0, or a
            rate is not a finite number of at least 0.
    """
    if len(batch.flows) != len(batch.rates_gbps):
        lengths = f"{len(batch.flows)} flows and {len(batch.rates_gbps)} rates"
        raise _batch(f"{lengths}: give one rate a flow")
    if len(batch.flows) > MAX_BATCH:
        raise _batch(f"{len(batch.flows)} rates: give at most {MAX_BATCH} a batch")
    if not (math.isfinite(batch.interval_seconds) and batch.interval_seconds > 0):
        raise _batch(f"interval_seconds is {batch.interval_seconds:g}: give a number above 0")
    rates = np.array(batch.rates_gbps)
    for row in np.flatnonzero(~(np.isfinite(rates) & (rates >= 0)))[:1].tolist():
        raise _batch(f"rates_gbps[{row}] is {rates[row]:g}: give a finite number, 0 or above")


def _batch(reason: str) -> InputError:
    return refuse("request", "batch", reason)
