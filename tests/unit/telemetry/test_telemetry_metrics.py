from __future__ import annotations

import re
import socket
from contextlib import ExitStack, suppress
from dataclasses import replace
from select import select
from typing import Any
from urllib.request import urlopen

import pytest

from heddle.scrape import MOST_CONNECTIONS, ScrapeServer
from heddle_controller.model.plan import Certificate, TierCertificate
from heddle_controller.reconcile.ports import Metric
from heddle_controller.state.records import Committed, PlanFacts, Programmed
from heddle_controller.telemetry.metrics import MetricsServer, Telemetry
from tests.support.store_samples import clos, plan_of, program_of
from tests.support.waiting import PATIENCE


@pytest.fixture
def telemetry() -> Telemetry:
    """Return meters with a registry of their own."""
    return Telemetry()


def sample(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    """Return one value as Prometheus would read it."""
    return telemetry.registry.get_sample_value(name, labels)


@pytest.mark.parametrize("metric", list(Metric))
def test_every_metric_of_the_loop_can_be_measured(telemetry: Telemetry, metric: Metric) -> None:
    """Each metric has the name from reconcile, and the one method of its kind."""
    if metric.endswith("_total"):
        telemetry.count(metric, "f1", 2)
        telemetry.count(metric, "f1")
        assert sample(telemetry, metric, fabric="f1") == 3
    elif metric.endswith("_seconds"):
        telemetry.observe(metric, "f1", 0.03)
        assert sample(telemetry, f"{metric}_sum", fabric="f1") == 0.03
        assert sample(telemetry, f"{metric}_bucket", fabric="f1", le="0.05") == 1
        assert sample(telemetry, f"{metric}_bucket", fabric="f1", le="0.025") == 0
    else:
        telemetry.set(metric, "f1", 7)
        telemetry.set(metric, "f1", 4)
        assert sample(telemetry, metric, fabric="f1") == 4


def test_names_and_labels_keep_the_house_rules(telemetry: Telemetry) -> None:
    """Names have the prefix heddle_ and base units. No label is a flow, a job or a switch."""
    for family in telemetry.registry.collect():
        assert re.fullmatch(r"heddle_[a-z_]+", family.name), family.name
        assert family.documentation, family.name
        assert not re.search(r"_(ms|milliseconds|percent|kb|mb|gb)\b", family.name)
        for one in family.samples:
            assert set(one.labels) <= {"fabric", "tier", "service", "method", "code", "le"}


def test_a_certificate_is_told_tier_by_tier(telemetry: Telemetry) -> None:
    """Each tier has its worst link, bound and gap. A tier without load has a gap of 0."""
    tiers = (TierCertificate("leaf-spine", 1.2, 1.0), TierCertificate("spine-core", 0.0, 0.0))
    plan = replace(plan_of(clos()), certificate=Certificate(1.2, 1.0, "cut", tiers))
    telemetry.plan("f1", Committed(plan, program_of(plan, 1, 1), PlanFacts(), Programmed()))
    loaded = {"fabric": "f1", "tier": "leaf-spine"}
    assert sample(telemetry, "heddle_tier_max_utilization_ratio", **loaded) == 1.2
    assert sample(telemetry, "heddle_tier_lower_bound_ratio", **loaded) == 1.0
    assert sample(telemetry, "heddle_tier_gap_ratio", **loaded) == pytest.approx(0.2)
    assert sample(telemetry, "heddle_tier_gap_ratio", fabric="f1", tier="spine-core") == 0


def test_what_never_happened_in_a_fabric_stands_at_zero(telemetry: Telemetry) -> None:
    """Counters of a known fabric start at 0, so that the first failure is a rise."""
    telemetry.fabric_known("f1", 8, {"programmed": 2, "degraded": 0})
    assert sample(telemetry, "heddle_fabric_switches", fabric="f1") == 8
    assert sample(telemetry, "heddle_jobs", fabric="f1", state="programmed") == 2
    assert sample(telemetry, "heddle_jobs", fabric="f1", state="degraded") == 0
    assert sample(telemetry, Metric.RECONCILE_FAILURES, fabric="f1") == 0
    assert sample(telemetry, "heddle_sessions_coalesced_total", fabric="f1") == 0
    telemetry.count(Metric.RECONCILE_FAILURES, "f1")
    telemetry.fabric_known("f1", 8, {"programmed": 1, "degraded": 1})
    assert sample(telemetry, Metric.RECONCILE_FAILURES, fabric="f1") == 1


def test_leadership_and_the_store_are_read_when_somebody_asks(telemetry: Telemetry) -> None:
    """Leading is 1 or 0, whatever the epoch."""
    state = {"epoch": 7.0, "stale": 0.0}
    telemetry.watch_replica(lambda: state["epoch"], lambda: state["stale"])
    assert sample(telemetry, "heddle_leading") == 1
    state |= {"epoch": 0.0, "stale": 12.5}
    assert sample(telemetry, "heddle_leading") == 0
    assert sample(telemetry, "heddle_store_stale_seconds") == 12.5


def test_what_only_rises_elsewhere_is_a_counter(telemetry: Telemetry) -> None:
    """A watched metric named ``_total`` is scraped as a counter, with its value at that moment."""
    seen = [0]
    telemetry.watch("heddle_seen_total", "Times seen", lambda: seen[0])
    telemetry.watch("heddle_seen_now", "Seen now", lambda: seen[0])
    seen[0] = 3
    found = {one.name: one for one in telemetry.registry.collect()}
    assert found["heddle_seen"].type == "counter"
    assert found["heddle_seen_now"].type == "gauge"
    assert telemetry.registry.get_sample_value("heddle_seen_total") == 3


def test_calls_under_way_and_ended_are_told_apart(telemetry: Telemetry) -> None:
    """The gauge falls when the counter grows."""
    labels = {"service": "S", "method": "M"}
    telemetry.call_started("S", "M")
    assert sample(telemetry, "heddle_rpcs_running", **labels) == 1
    telemetry.call_ended("S", "M", "OK", 0.5)
    assert sample(telemetry, "heddle_rpcs_running", **labels) == 0
    assert sample(telemetry, "heddle_rpcs_total", code="OK", **labels) == 1
    assert sample(telemetry, "heddle_rpc_seconds_sum", **labels) == 0.5


def test_prometheus_can_scrape(telemetry: Telemetry) -> None:
    """Metrics are served over HTTP with figures of the process. Closing frees the port."""
    telemetry.count(Metric.PUSHES, "f1")
    server = MetricsServer(telemetry, "127.0.0.1", 0)
    with urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        text = answer.read().decode()
    assert 'heddle_rollout_pushes_total{fabric="f1"} 1.0' in text
    assert "process_resident_memory_bytes" in text
    server.close()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", server.port))


def _answer(_: object, start: Any) -> list[bytes]:
    start("200 OK", [])
    return [b"heddle_up 1"]


def test_connections_to_the_metrics_are_bounded() -> None:
    """So many connections stay open and no more, so that others keep their descriptors."""
    server = ScrapeServer(_answer, "127.0.0.1", 0, most_seconds=10 * PATIENCE)
    address = ("127.0.0.1", server.server_port)
    with ExitStack() as stack:
        stack.callback(server.stop)
        one_each = [stack.enter_context(socket.create_connection(address)) for _ in range(100)]
        for one in one_each[MOST_CONNECTIONS:]:
            one.settimeout(PATIENCE)
            with suppress(ConnectionResetError):
                assert not one.recv(1)
        assert not select(one_each[:MOST_CONNECTIONS], [], [], 0)[0]


def test_a_slow_connection_to_the_metrics_is_cut_off() -> None:
    """Connections that do not finish their request in time end, whatever they have sent."""
    server = ScrapeServer(_answer, "127.0.0.1", 0, most_seconds=0.2)
    address = ("127.0.0.1", server.server_port)
    with ExitStack() as stack:
        stack.callback(server.stop)
        slow = [stack.enter_context(socket.create_connection(address)) for _ in range(20)]
        for one in slow:
            one.settimeout(PATIENCE)
            with suppress(ConnectionResetError, BrokenPipeError):
                one.sendall(b"GET /metrics")
                assert not one.recv(1)


def test_a_metrics_port_in_use_is_an_error(telemetry: Telemetry) -> None:
    """The caller gets an OSError and decides what to say."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            MetricsServer(telemetry, "127.0.0.1", taken.getsockname()[1])
