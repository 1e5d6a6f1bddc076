"""Measured rates of flows, reported by clients and counted by switches, for all who watch.

DemandService.ReportRates, agents' counters -> RateBook.publish -> a bounded queue of each watcher

Rates are a stream of measurements and not a state, so batches cannot be merged for a slow watcher.
A watcher that is more than ``QUEUE`` batches behind is ended with RESOURCE_EXHAUSTED, and may
watch again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from heddle_controller.model.arrays import Floats
from heddle_controller.serve.errors import exhausted
from heddle_controller.serve.watch import shutting_down

QUEUE = 256
"""Most batches that may wait for one watcher."""


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """Rates of flows in one interval; ``gbps[i]`` is the rate of ``flows[i]``."""

    time: float
    """Middle of the interval, Unix seconds."""
    interval: float
    """Length in seconds."""
    flows: tuple[str, ...]
    gbps: Floats


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """The newest rate of one flow."""

    time: float
    """Middle of the interval, Unix seconds."""
    gbps: float


class RateBook:
    """The newest rates of each source, and the watchers of each fabric."""

    def __init__(self) -> None:
        self._newest: dict[str, dict[str, Rates]] = {}
        self._watchers: dict[str, set[RateWatcher]] = {}
        self._closed = False

    def publish(self, fabric: str, source: str, rates: Rates) -> None:
        """Replace a source's rates, and give them to all watchers of the fabric."""
        self._newest.setdefault(fabric, {})[source] = rates
        for watcher in self._watchers.get(fabric, ()):
            watcher.offer(rates)

    def newest(self, fabric: str) -> tuple[Rates, ...]:
        """Return the newest rates of each source."""
        return tuple(self._newest.get(fabric, {}).values())

    def measured(self, fabric: str) -> dict[str, MeasuredRate]:
        """Return the newest rate of each flow by id; of several sources the highest rate."""
        found: dict[str, MeasuredRate] = {}
        for rates in self.newest(fabric):
            for flow, gbps in zip(rates.flows, rates.gbps.tolist(), strict=True):
                if flow not in found or found[flow].gbps < gbps:
                    found[flow] = MeasuredRate(rates.time, gbps)
        return found

    def forget(self, fabric: str, source: str) -> None:
        """Forget a source that is gone."""
        self._newest.get(fabric, {}).pop(source, None)

    def close(self) -> None:
        """End every watch with UNAVAILABLE."""
        self._closed = True
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.wake.set()

    async def watch(self, fabric: str) -> AsyncGenerator[Rates, None]:
        """Yield the newest rates of each source, then new rates as they arrive.

        Raises:
            Refusal: RESOURCE_EXHAUSTED if the watcher is too slow, UNAVAILABLE when the
                controller shuts down.
        """
        watcher = RateWatcher()
        watchers = self._watchers.setdefault(fabric, set())
        watchers.add(watcher)
        try:
            for rates in self.newest(fabric):
                yield rates
            while not self._closed:
                for rates in await watcher.take():
                    yield rates
        finally:
            watchers.discard(watcher)
        raise shutting_down()


class RateWatcher:
    """The queue of one watch stream, with at most ``QUEUE`` batches."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self._waiting: list[Rates] = []
        self._lost = False

    def offer(self, rates: Rates) -> None:
        """Queue a batch; if the queue is full, drop it all and mark the watcher as too slow."""
        if len(self._waiting) >= QUEUE:
            self._lost = True
            self._waiting.clear()
        if not self._lost:
            self._waiting.append(rates)
        self.wake.set()

    async def take(self) -> list[Rates]:
        """Wait for batches, then return all that are queued.

        Raises:
            Refusal: RESOURCE_EXHAUSTED if the watcher was too slow.
        """
        await self.wake.wait()
        self.wake.clear()
        if self._lost:
            message = f"the client fell more than {QUEUE} batches behind: read faster, watch again"
            raise exhausted("SLOW_CLIENT", message)
        waiting, self._waiting = self._waiting, []
        return waiting
