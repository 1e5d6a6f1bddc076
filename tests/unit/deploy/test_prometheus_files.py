from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from heddle_agent import metrics as agent_metrics
from heddle_agent.host import HostFigures
from heddle_controller.settings import Settings
from heddle_controller.store.redis.store import RedisStore
from heddle_controller.telemetry.metrics import Telemetry
from tests.unit.deploy.containerfile import read

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "prometheus"
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
}
SELECTOR = re.compile(r"\b(heddle_\w+|up)\b(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\bby \(([^)]*)\)")
ADDED = {"le", "job", "instance"}  # added by histograms and by Prometheus itself


def load(name: str) -> Any:
    """Load a YAML file of the folder."""
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def labels_of(family: object, registry: CollectorRegistry, name: str) -> set[str]:
    """Return the label names of a family, even if it has no samples."""
    if (found := getattr(family, "_labelnames", None)) is not None:
        return set(found)
    collector = registry._names_to_collectors[name]
    assert isinstance(collector, MetricWrapperBase)
    return set(collector._labelnames)


def served() -> dict[str, set[str]]:
    """Return every series name that controller and agents serve, with its labels."""
    found: dict[str, set[str]] = {"up": set()}
    host, telemetry = agent_metrics.host_registry("h0", HostFigures()), Telemetry()
    for figure in RedisStore(MagicMock(), time.time).figures():
        telemetry.watch(*figure)
    for registry in (telemetry.registry, agent_metrics.registry([]), host):
        for family in registry.collect():
            labels = labels_of(family, registry, family.name)
            for suffix in SUFFIXES[family.type]:
                found[f"{family.name}{suffix}"] = labels
    return found


def alerts() -> Iterator[dict[str, Any]]:
    """Yield every alert rule."""
    for group in load("heddle.rules.yaml")["groups"]:
        yield from group["rules"]


def test_rules_ask_for_metrics_that_exist() -> None:
    """Each series in an expression is served by a controller or an agent."""
    known = served()
    asked = {match[1] for rule in alerts() for match in SELECTOR.finditer(rule["expr"])}
    assert asked <= known.keys(), f"nobody serves {sorted(asked - known.keys())}"
    assert len(asked) > 10


def test_rules_ask_for_labels_that_the_metrics_have() -> None:
    """Selectors, groupings and texts use labels that the series of the rule have."""
    known = served()
    for rule in alerts():
        names = [match[1] for match in SELECTOR.finditer(rule["expr"])]
        carried = set.union(ADDED, *(known[name] for name in names))
        selected = {
            label
            for match in SELECTOR.finditer(rule["expr"])
            for label in re.findall(r"(\w+)\s*[=!]~?", match[2] or "")
        }
        groups = GROUPING.findall(rule["expr"])
        grouped = {label.strip() for group in groups for label in group.split(",")}
        assert selected | grouped <= carried, rule["alert"]
        shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert shown <= ((grouped - {"le"}) if groups else carried), rule["alert"]


def test_every_alert_says_how_bad_it_is_and_what_it_means() -> None:
    """Each alert has a severity, a summary, a description and a runbook. Names are unique."""
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names))
    for rule in alerts():
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}


def test_every_alert_is_tried() -> None:
    """The test for promtool makes each of them fire once."""
    (trial,) = [test for test in load("heddle.rules.test.yaml")["tests"] if "wrong" in test["name"]]
    (samples,) = [each["exp_samples"] for each in trial["promql_expr_test"]]
    fired = {
        match for each in samples for match in re.findall(r'alertname="(\w+)"', each["labels"])
    }
    assert fired == {rule["alert"] for rule in alerts()}


def test_the_scrape_configuration_points_at_what_is_there() -> None:
    """The rules exist, the controller's port is the default, and scrapes do not overlap."""
    content = load("prometheus.yaml")
    assert all((FOLDER / name).is_file() for name in content["rule_files"])
    jobs = {job["job_name"]: job for job in content["scrape_configs"]}
    targets = jobs["heddle-controller"]["static_configs"][0]["targets"]
    port = Settings.model_fields["metrics_port"].default
    assert targets == [f"controller-{number}.controller:{port}" for number in range(2)]
    interval, limit = (content["global"][f"scrape_{key}"] for key in ("interval", "timeout"))
    assert int(limit.removesuffix("s")) < int(interval.removesuffix("s"))
    asked = {job for rule in alerts() for job in re.findall(r'job="([^"]+)"', rule["expr"])}
    assert asked <= jobs.keys()


def test_the_example_of_agents_is_in_prometheus_form() -> None:
    """The example lists groups with labels, and targets on the port of the agent's image."""
    port = read("agent")[1][-1].one("ENV").pairs()["HEDDLE_AGENT_METRICS_PORT"]
    groups = load("targets/agents.yaml.example")
    for group in groups:
        assert group.keys() == {"targets", "labels"}
        assert all(target.endswith(f":{port}") for target in group["targets"])
    assert groups
