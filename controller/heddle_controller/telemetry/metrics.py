"""Prometheus metrics; all have the prefix ``heddle_`` and base units.

Labels are fabrics, tiers, states of jobs, reasons, gRPC methods and status names. No label is a
flow, a job or a switch, because there are too many of these.

Metrics of fabrics, jobs and plans come from the store, so all replicas show the same.

Metrics are only for people to look at. So an error while they are updated is logged and stops
nothing else. The next change of the same fabric is a new attempt.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    make_wsgi_app,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from heddle.scrape import ScrapeServer
from heddle_controller.reconcile.ports import Metric
from heddle_controller.state.errors import NotFound, Unavailable
from heddle_controller.state.records import Committed, JobState, Versions
from heddle_controller.store.store import Store

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Telemetry:
    """All metrics of one controller; implements the meters of reconcile and serve."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counters: dict[Metric, Counter] = {}
        self._gauges: dict[Metric, Gauge] = {}
        self._histograms: dict[Metric, Histogram] = {}
        for metric in Metric:
            self._register(metric)
        self._fabrics = FabricGauges(self.registry)
        self._plans = PlanGauges(self.registry)
        self._agents = AgentMeters(self.registry)
        self._calls = CallMeters(self.registry)
        self._leading = Gauge(
            "heddle_leading", "1 while this controller leads", registry=self.registry
        )
        self._stale = Gauge(
            "heddle_store_stale_seconds",
            "Age of what reads are answered from while the store is away; 0 while it is not",
            registry=self.registry,
        )

    def watch_replica(self, leading: Callable[[], float], stale: Callable[[], float]) -> None:
        """Show whether this controller leads and how stale its reads are, read at each scrape.

        Args:
            leading: Returns a number above 0, such as its epoch, while it leads; else 0.
            stale: Returns for how many seconds the store has been out of reach; 0 if it is not.
        """
        self._leading.set_function(lambda: float(leading() > 0))
        self._stale.set_function(stale)

    def fabric_known(self, fabric: str, switches: int, jobs: Mapping[str, int]) -> None:
        """Show what a fabric has, and create its counters and histograms with the value 0.

        If a counter first appears with its first event, no rate shows that event.

        Args:
            fabric: Name of the fabric.
            switches: Number of its switches that should run an agent.
            jobs: Number of its jobs by name of the state, with 0 for states without jobs.
        """
        self._fabrics.set(fabric, switches, jobs)
        for counter in self._counters.values():
            counter.labels(fabric)
        for histogram in self._histograms.values():
            histogram.labels(fabric)
        self._agents.begin(fabric)

    def watch_tasks(self, loop: asyncio.AbstractEventLoop) -> None:
        """Show how many tasks an event loop has, so that tasks that never end are noticed."""
        gauge = Gauge("heddle_event_loop_tasks", "Tasks of the process", registry=self.registry)
        gauge.set_function(lambda: float(len(asyncio.all_tasks(loop))))

    def watch(self, name: str, about: str, read: Callable[[], float]) -> None:
        """Add a metric whose value is read at each scrape: a counter if named ``_total``."""
        if name.endswith("_total"):
            self.registry.register(_ReadCounter(name, about, read))
        else:
            Gauge(name, about, registry=self.registry).set_function(read)

    def _register(self, metric: Metric) -> None:
        """Register a metric: ``_total`` is a counter, ``_seconds`` a histogram, else a gauge."""
        about = metric.about
        if metric.endswith("_total"):
            self._counters[metric] = Counter(metric, about, ["fabric"], registry=self.registry)
        elif metric.endswith("_seconds"):
            self._histograms[metric] = Histogram(
                metric, about, ["fabric"], buckets=_SECONDS, registry=self.registry
            )
        else:
            self._gauges[metric] = Gauge(metric, about, ["fabric"], registry=self.registry)

    def count(self, metric: Metric, fabric: str, amount: float = 1.0) -> None:
        """Implement the loop's meter: add to a counter."""
        self._counters[metric].labels(fabric).inc(amount)

    def observe(self, metric: Metric, fabric: str, value: float) -> None:
        """Implement the loop's meter: add a value to a histogram."""
        self._histograms[metric].labels(fabric).observe(value)

    def set(self, metric: Metric, fabric: str, value: float) -> None:
        """Implement the loop's meter: set a gauge."""
        self._gauges[metric].labels(fabric).set(value)

    def fabric_gone(self, fabric: str) -> None:
        """Stop showing a fabric that was deleted, or that the store lost."""
        self._fabrics.remove(fabric)
        self._plans.remove(fabric)

    def plan(self, fabric: str, committed: Committed | None) -> None:
        """Show the newest plan, and how good it is, tier by tier; None if there is no plan."""
        if committed is None:
            self._plans.remove(fabric)
        else:
            self._plans.set(fabric, committed)

    def call_started(self, service: str, method: str) -> None:
        """Count a call that began."""
        self._calls.running.labels(service, method).inc()

    def call_ended(self, service: str, method: str, code: str, seconds: float) -> None:
        """Count a call that ended; ``code`` is a status name such as "OK"."""
        self._calls.running.labels(service, method).dec()
        self._calls.ended.labels(service, method, code).inc()
        self._calls.seconds.labels(service, method).observe(seconds)

    def agents_connected(self, fabric: str, count: int) -> None:
        """Show how many agents of a fabric have a session with this controller."""
        self._agents.connected.labels(fabric).set(count)

    def session_coalesced(self, fabric: str) -> None:
        """Count an agent that was so far behind that its queue was dropped."""
        self._agents.coalesced.labels(fabric).inc()

    def links_unwell(self, fabric: str, reason: str, count: int) -> None:
        """Show how many ends of links are unwell; ``reason`` is flap-damped, grey or slow."""
        self._agents.unwell.labels(fabric, reason).set(count)

    def overlay_state(self, fabric: str, *, withdrawn: bool, disobeying: int) -> None:
        """Show a fabric's overlay flag, and how many agents here are not in that state."""
        self._agents.withdrawn.labels(fabric).set(withdrawn)
        self._agents.disobeying.labels(fabric).set(disobeying)

    def traffic_counted(self, fabric: str, packets: int, size: int) -> None:
        """Count packets and bytes that matched entries."""
        self._agents.packets.labels(fabric).inc(packets)
        self._agents.bytes.labels(fabric).inc(size)


@dataclass(frozen=True)
class _ReadCounter(Collector):
    """A counter that another part of the program keeps."""

    name: str
    about: str
    read: Callable[[], float]

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self.name, self.about, self.read())


class FabricGauges:
    """Gauges of what the store says is in each fabric."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.switches = Gauge(
            "heddle_fabric_switches",
            "Switches, each of which should run an agent",
            ["fabric"],
            registry=registry,
        )
        self.jobs = Gauge("heddle_jobs", "Jobs by state", ["fabric", "state"], registry=registry)

    def set(self, fabric: str, switches: int, jobs: Mapping[str, int]) -> None:
        """Set the gauges of a fabric; ``jobs`` is the number of jobs by state."""
        self.switches.labels(fabric).set(switches)
        for state, count in jobs.items():
            self.jobs.labels(fabric, state).set(count)

    def remove(self, fabric: str) -> None:
        """Remove the gauges of a fabric."""
        for gauge in (self.switches, self.jobs):
            gauge.remove_by_labels({"fabric": fabric})


class PlanGauges:
    """Gauges of the newest plan, and of how good it is, tier by tier."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["fabric"]
        self.worst = Gauge(
            "heddle_plan_max_utilization_ratio",
            "Load over capacity of the worst link of the newest plan",
            labels,
            registry=registry,
        )
        self.least = Gauge(
            "heddle_plan_lower_bound_ratio",
            "What no plan of the same flows can beat",
            labels,
            registry=registry,
        )
        self.unrouted = Gauge(
            "heddle_plan_unrouted_flows",
            "Flows of the newest plan without a path",
            labels,
            registry=registry,
        )
        self.generation = Gauge(
            "heddle_plan_generation", "Generation of the newest plan", labels, registry=registry
        )
        self.entries = Gauge(
            "heddle_plan_entries",
            "Exact-match entries of the newest plan over all switches",
            labels,
            registry=registry,
        )
        labels = ["fabric", "tier"]
        self.max = Gauge(
            "heddle_tier_max_utilization_ratio", "Worst link of a tier", labels, registry=registry
        )
        self.bound = Gauge(
            "heddle_tier_lower_bound_ratio", "Least a tier can have", labels, registry=registry
        )
        self.gap = Gauge(
            "heddle_tier_gap_ratio", "Worst link over bound, less 1", labels, registry=registry
        )
        self._tiers: dict[str, set[str]] = {}
        """Names of the tiers that are shown, by fabric."""

    def set(self, fabric: str, committed: Committed) -> None:
        """Set the gauges of a plan and of its tiers; the gap is 0 where the lower bound is 0."""
        certificate = committed.plan.certificate
        for gauge, value in (
            (self.worst, certificate.max_utilization),
            (self.least, certificate.lower_bound),
            (self.unrouted, len(committed.plan.unrouted)),
            (self.generation, committed.generation),
            (self.entries, len(committed.program.entries)),
        ):
            gauge.labels(fabric).set(value)
        tiers = {tier.tier for tier in certificate.tiers}
        for gone in self._tiers.get(fabric, set()) - tiers:
            for gauge in (self.max, self.bound, self.gap):
                gauge.remove(fabric, gone)
        self._tiers[fabric] = tiers
        for tier in certificate.tiers:
            bound = tier.lower_bound
            self.max.labels(fabric, tier.tier).set(tier.max_utilization)
            self.bound.labels(fabric, tier.tier).set(bound)
            gap = tier.max_utilization / bound - 1 if bound > 0 else 0.0
            self.gap.labels(fabric, tier.tier).set(gap)

    def remove(self, fabric: str) -> None:
        """Remove the gauges of a fabric."""
        self._tiers.pop(fabric, None)
        plan = self.worst, self.least, self.unrouted, self.generation, self.entries
        for gauge in (*plan, self.max, self.bound, self.gap):
            gauge.remove_by_labels({"fabric": fabric})


class CallMeters:
    """Metrics of gRPC calls."""

    def __init__(self, registry: CollectorRegistry) -> None:
        method = ["service", "method"]
        self.running = Gauge("heddle_rpcs_running", "Calls under way", method, registry=registry)
        self.ended = Counter(
            "heddle_rpcs_total", "Calls ended, by status", [*method, "code"], registry=registry
        )
        self.seconds = Histogram(
            "heddle_rpc_seconds", "How long calls took", method, buckets=_SECONDS, registry=registry
        )


class AgentMeters:
    """Metrics of agents' sessions, and of what their switches count."""

    def __init__(self, registry: CollectorRegistry) -> None:
        fabric = ["fabric"]
        self.connected = Gauge(
            "heddle_connected_agents", "Agents with a session here", fabric, registry=registry
        )
        self.coalesced = Counter(
            "heddle_sessions_coalesced_total",
            "Queues of slow agents dropped for a FULL_SYNC",
            fabric,
            registry=registry,
        )
        self.unwell = Gauge(
            "heddle_unwell_links",
            "Ends of links that agents keep down (flap-damped), see lose packets (grey), or find"
            " slower than they are meant to be (slow)",
            ["fabric", "reason"],
            registry=registry,
        )
        self.withdrawn = Gauge(
            "heddle_overlay_withdrawn",
            "1 where the operator has put the whole fabric on the underlay",
            fabric,
            registry=registry,
        )
        self.disobeying = Gauge(
            "heddle_overlay_disobeying_agents",
            "Agents with a session here that do not stand as the overlay's flag says",
            fabric,
            registry=registry,
        )
        self.packets = Counter(
            "heddle_traffic_packets_total", "Packets by entries", fabric, registry=registry
        )
        self.bytes = Counter(
            "heddle_traffic_bytes_total", "Bytes by entries", fabric, registry=registry
        )

    def begin(self, fabric: str) -> None:
        """Create the metrics of a fabric with the value 0 where they do not exist yet."""
        for meter in (self.connected, self.coalesced, self.packets, self.bytes, self.disobeying):
            meter.labels(fabric)


class MetricsServer:
    """The endpoint that Prometheus scrapes, in a thread of its own."""

    def __init__(self, telemetry: Telemetry, host: str, port: int) -> None:
        """Start to serve; port 0 takes a free port.

        Raises:
            OSError: the address or port cannot be used.
        """
        # They would be a second series for each counter and histogram, which nobody reads.
        disable_created_metrics()  # type: ignore[no-untyped-call] # the library has no types here
        ProcessCollector(registry=telemetry.registry)
        PlatformCollector(registry=telemetry.registry)
        self._server = ScrapeServer(make_wsgi_app(telemetry.registry), host, port)

    @property
    def port(self) -> int:
        """The port that the endpoint listens on."""
        return self._server.server_port

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.stop()


_log = structlog.get_logger()

_REST, _LONGEST = 999.0, 1.0
"""After an update of a fabric that took ``t`` seconds, rest ``_REST * t`` seconds, at most
``_LONGEST``. So a storm of changes takes no more than a thousandth of the time from others."""

Told: TypeAlias = tuple[Versions, tuple[int, ...]]
"""The last state of a fabric that was shown: its versions; then its number of switches, followed by
its number of jobs in each state."""
NOTHING: Told = (Versions(), ())


async def follow_plans(store: Store, telemetry: Telemetry) -> None:
    """Keep the metrics of every fabric up to date with the store, until the store is closed."""
    told: dict[str, Told] = {}

    async def look(fabric: str) -> None:
        began = time.monotonic()
        try:
            await _tell(fabric, store, telemetry, told)
        except Unavailable:
            raise
        except Exception:  # noqa: BLE001 - of no more worth than the gauges
            _log.exception("fabric not told as metrics", fabric=fabric)
        await asyncio.sleep(min(_REST * (time.monotonic() - began), _LONGEST))

    await store.follow(look)


async def _tell(fabric: str, store: Store, telemetry: Telemetry, told: dict[str, Told]) -> None:
    try:
        now, (before, figures) = await store.versions(fabric), told.get(fabric, NOTHING)
        if now == before:
            return
        states = collections.Counter(job.facts.state for job in await store.list_jobs(fabric))
        record, committed = await store.get_fabric(fabric), await store.committed(fabric)
    except NotFound:
        if told.pop(fabric, None) is not None:
            telemetry.fabric_gone(fabric)
        return
    known = len(record.fabric.structure.programmed), *(states[state] for state in JobState)
    if known != figures:
        jobs = {state.name.lower(): states[state] for state in JobState}
        telemetry.fabric_known(fabric, known[0], jobs)
    telemetry.plan(fabric, committed)  # a plan of the same generation may get a better bound
    told[fabric] = now, known
