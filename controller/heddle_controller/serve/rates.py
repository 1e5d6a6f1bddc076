"""Measured rates of flows, from NICs and from switches, for whoever watches.

DemandService.ReportRates, agents' counters -> RateBook.publish -> a bounded queue of
each watcher. Rates are a stream of measurements, not a state, so a watcher that
falls ``QUEUE`` batches behind cannot be served by merging: it is cut off with
RESOURCE_EXHAUSTED and may come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from heddle_controller.model.arrays import Floats
from heddle_controller.serve.errors import exhausted
from heddle_controller.serve.watch import shutting_down

QUEUE = 256
"""Batches that may wait for one watcher."""


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """Rates of one moment; ``gbps[i]`` is that of ``flows[i]``."""

    time: float
    """Middle of the interval, Unix seconds."""
    interval: float
    """Seconds."""
    flows: tuple[str, ...]
    gbps: Floats


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """The newest rate of one flow."""

    time: float
    """Middle of the interval, Unix seconds."""
    gbps: float


class RateBook:
    """The newest rates of each source, and who watches them."""

    def __init__(self) -> None:
        self._newest: dict[str, dict[str, Rates]] = {}
        self._watchers: dict[str, set[RateWatcher]] = {}
        self._closed = False

    def publish(self, fabric: str, source: str, rates: Rates) -> None:
        """Keep a source's rates in place of its last, and hand them to all watchers."""
        self._newest.setdefault(fabric, {})[source] = rates
        for watcher in self._watchers.get(fabric, ()):
            watcher.offer(rates)

    def newest(self, fabric: str) -> tuple[Rates, ...]:
        """What each source told last."""
        return tuple(self._newest.get(fabric, {}).values())

    def measured(self, fabric: str) -> dict[str, MeasuredRate]:
        """The newest rate of each flow, by its id: what counted most, where several count it."""
        found: dict[str, MeasuredRate] = {}
        for rates in self.newest(fabric):
            for flow, gbps in zip(rates.flows, rates.gbps.tolist(), strict=True):
                if flow not in found or found[flow].gbps < gbps:
                    found[flow] = MeasuredRate(rates.time, gbps)
        return found

    def forget(self, fabric: str, source: str) -> None:
        """A source is gone."""
        self._newest.get(fabric, {}).pop(source, None)

    def close(self) -> None:
        """End every watch with UNAVAILABLE."""
        self._closed = True
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.wake.set()

    async def watch(self, fabric: str) -> AsyncGenerator[Rates, None]:
        """The newest rates of each source, then those that come.

        Raises:
            Refusal: RESOURCE_EXHAUSTED when the watcher is too slow, UNAVAILABLE
                when the controller shuts down.
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
    """RateBook.publish -> one watch stream, at most ``QUEUE`` batches."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self._waiting: list[Rates] = []
        self._lost = False

    def offer(self, rates: Rates) -> None:
        """Queue a batch; over the bound, give the watcher up and free its memory."""
        if len(self._waiting) >= QUEUE:
            self._lost = True
            self._waiting.clear()
        if not self._lost:
            self._waiting.append(rates)
        self.wake.set()

    async def take(self) -> list[Rates]:
        """Wait for batches, then take all there are."""
        await self.wake.wait()
        self.wake.clear()
        if self._lost:
            message = f"the client fell more than {QUEUE} batches behind: read faster, watch again"
            raise exhausted("SLOW_CLIENT", message)
        waiting, self._waiting = self._waiting, []
        return waiting
