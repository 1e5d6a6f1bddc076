"""Dashboards and alerts with a real Prometheus, which scrapes a real controller in trouble."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import start_http_server

from heddle_agent import metrics
from heddle_agent.host import HostAgent, PortsFolder, Probing, Wanted
from heddle_agent.session import Backoff, Channels
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import parse_fabric, save_fabric_file
from heddle_emulator.fleet import Fleet
from tests.support.operating import controlling, holds_a_plan
from tests.support.ports import free_port
from tests.support.prometheus import Prometheus, QueryError, program, scraping
from tests.support.waiting import PATIENCE, until

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "heddle.rules.yaml"
RUNBOOKS = DEPLOY / "runbooks"
JOBS = """\
- job: red
  hosts: [h0, h1]
  gpus_per_host: 4
  parallelism: {dp: 8}
- job: blue
  hosts: [h2, h3]
  gpus_per_host: 4
  parallelism: {dp: 8}
"""
IN_TROUBLE = {
    "HeddleAgentDown",
    "HeddleAgentsMissing",
    "HeddleHostAlone",
    "HeddleHostDown",
    "HeddleJobsDegraded",
    "HeddleLinkDown",
    "HeddleLinksUnwell",
    "HeddleOperationsFail",
    "HeddleSwitchesBehind",
    "HeddleTableFull",
}
"""Alerts whose expressions must hold in ``world``; those of all others must not."""
MAY_BE = {"HeddlePlanFarFromBound", "HeddleSlowToProgram"}
"""Alerts that depend on the plan after a lost link, and on the speed of this machine."""
VARIABLES = {"$fabric": ".*", "$__rate_interval": "5m"}


def fabric(table_of_l1: int) -> Fabric:
    """Return four leaves with a host of four NICs each, and four spines.

    ``table_of_l1`` is the table size of leaf l1; other leaves have 64.
    """
    nodes: list[dict[str, object]] = [{"id": f"s{s}", "kind": "spine"} for s in range(4)]
    edges: list[dict[str, object]] = []
    for leaf in range(4):
        nodes.append(
            {"id": f"l{leaf}", "kind": "leaf", "table_size": table_of_l1 if leaf == 1 else 64}
        )
        for each in range(4):
            nic = f"h{leaf}-{each}"
            nodes.append({"id": nic, "kind": "nic", "host": f"h{leaf}"})
            edges.append({"source": nic, "target": f"l{leaf}", "gbps": 400})
            edges.append({"source": f"l{leaf}", "target": f"s{each}", "gbps": 400})
    return parse_fabric({"nodes": nodes, "edges": edges}, "a test")


def panels() -> Iterator[tuple[str, str]]:
    """Yield the place of each panel's expression, and the expression with variables filled in."""
    for path in sorted((DEPLOY / "grafana").glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"]:
                expression = target["expr"]
                for name, value in VARIABLES.items():
                    expression = expression.replace(name, value)
                yield f"{path.stem}: {panel['title']}: {target['legendFormat']}", expression


def alerts() -> list[dict[str, Any]]:
    """Return all alert rules."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


@dataclass
class Answers:
    """What Prometheus answered to all expressions."""

    failed: dict[str, str] = field(default_factory=dict)
    empty: set[str] = field(default_factory=set)
    holding: set[str] = field(default_factory=set)
    """Alerts whose expressions hold."""
    unhealthy: list[str] = field(default_factory=list)
    labels: set[str] = field(default_factory=set)
    """Names of all labels of Heddle's series."""


async def settled(prometheus: Prometheus) -> Answers:
    """Ask all expressions until all answers are as they should be, or patience ends."""
    answers, waiting = Answers(), dict(panels())
    try:
        async with asyncio.timeout(PATIENCE):
            while waiting or answers.holding - MAY_BE != IN_TROUBLE:
                for place, expression in list(waiting.items()):
                    try:
                        if await prometheus.query(expression):
                            del waiting[place]
                    except QueryError as error:
                        answers.failed[place] = str(error)
                        del waiting[place]
                answers.holding = {
                    rule["alert"] for rule in alerts() if await prometheus.query(rule["expr"])
                }
                await asyncio.sleep(0.2)
    except TimeoutError:
        answers.empty = set(waiting)
    return answers


@asynccontextmanager
async def host(
    folder: Path, name: str, controller: str, targets: dict[str, list[str]]
) -> AsyncIterator[None]:
    """Run the agent of a host, and add its metrics to the targets."""
    channels = Channels(None)
    agent = HostAgent(
        Wanted("fabrics/pod", name),
        PortsFolder(folder / name, "fabrics/pod", name),
        controllers=[controller],
        channels=channels,
        backoff=Backoff(longest=0.5),
        probing=Probing(),
    )
    server, thread = start_http_server(0, "127.0.0.1", metrics.host_registry(name, agent.figures))
    targets["heddle-host"].append(f"127.0.0.1:{server.server_port}")
    running = asyncio.create_task(agent.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await channels.close()
        server.shutdown()
        server.server_close()
        thread.join()


async def world(folder: Path) -> Answers:
    """Run a controller, agents in trouble and a Prometheus; return what it answers."""
    save_fabric_file(fabric(64), folder / "fabric.json")
    (folder / "jobs.yaml").write_text(JOBS, encoding="utf-8")
    async with controlling(folder) as controller:
        for words in (
            ("fabric", "import", folder / "fabric.json", "--fabric", "pod"),
            ("job", "submit", folder / "jobs.yaml"),
        ):
            done = await controller.does(*words)
            assert done.code == 0, done.err
        # l1 has room for fewer entries than the controller believes, so it refuses some.
        async with Fleet(fabric(2), [controller.address], name="fabrics/pod") as fleet:
            row = fleet.world.structure.index
            await fleet.connected(PATIENCE)
            await fleet.stop(row["s3"])
            server, thread = start_http_server(
                0, "127.0.0.1", metrics.registry(fleet.agents[each] for each in fleet.running)
            )
            targets = {
                "heddle-controller": [f"127.0.0.1:{controller.metrics_port}"],
                "heddle-agent": [f"127.0.0.1:{server.server_port}", f"127.0.0.1:{free_port()}"],
                "heddle-host": [f"127.0.0.1:{free_port()}"],
            }
            try:
                async with (
                    host(folder, "h0", controller.address, targets),
                    host(folder, "h1", f"127.0.0.1:{free_port()}", targets),  # no controller there
                    scraping(folder, targets, RULES) as prometheus,
                ):
                    await until(lambda: holds_a_plan(fleet, [row["l0"]]), "l0 to hold a plan")
                    await fleet.set_link("l0", "s0", None, up=False)
                    slow = fleet.links[row["l2"]]
                    slow.down("s1")
                    slow.up("s1", reason="slow")
                    answers = await settled(prometheus)
                    groups = (await prometheus.ask("rules"))["groups"]
                    answers.unhealthy = [
                        f"{rule['name']}: {rule.get('lastError')}"
                        for group in groups
                        for rule in group["rules"]
                        if rule["health"] == "err"
                    ]
                    answers.labels = {
                        label
                        for series in await prometheus.ask(
                            "series", **{"match[]": '{__name__=~"heddle_.+"}'}
                        )
                        for label in series
                    }
                    return answers
            finally:
                server.shutdown()
                server.server_close()
                thread.join()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The answers from one world, shared by all tests of this file."""
    return asyncio.run(world(tmp_path_factory.mktemp("prometheus")))


def test_every_expression_of_every_panel_has_an_answer(answers: Answers) -> None:
    """No expression fails or is empty: a counter of what never happened is 0, not absent."""
    assert not answers.failed
    assert not answers.empty
    assert len(list(panels())) > 40


def test_alerts_hold_for_what_is_wrong_and_for_nothing_else(answers: Answers) -> None:
    """Exactly the alerts about what is wrong in this world hold."""
    assert answers.holding - MAY_BE == IN_TROUBLE
    assert not answers.unhealthy


def test_no_series_names_a_flow_or_a_job(answers: Answers) -> None:
    """Labels are few, and the fabric and our code bound their values.

    The label ``job`` is Prometheus' own; it names the kind of target.
    """
    ours = {"fabric", "tier", "state", "reason", "service", "method", "code", "switch", "status"}
    ours |= {"host", "outcome"}
    added = {"__name__", "job", "instance", "le"}
    assert answers.labels <= ours | added, answers.labels - ours - added
    assert {"fabric", "switch", "host"} <= answers.labels


def test_promtool_has_every_alert_fire_when_it_should_and_only_then() -> None:
    """On written series all alerts fire for a fabric with every fault, and none for a good one."""
    for words in (
        ("test", "rules", DEPLOY / "prometheus" / "heddle.rules.test.yaml"),
        ("check", "rules", RULES),
    ):
        done = subprocess.run(
            [program("promtool"), *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    """Each alert names its runbook, and each runbook has the same three sections."""
    named = {rule["alert"]: rule["annotations"]["runbook"] for rule in alerts()}
    assert named == {name: f"deploy/runbooks/{name}.md" for name in named}
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == set(named)
    for path in RUNBOOKS.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
        assert titles == [path.stem, "Who suffers", "Look", "Do"]
        for target in re.findall(r"\]\(([^)]+)\)", text):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_committed_dashboards_are_what_the_generator_writes() -> None:
    """``deploy/dashboards.py --check`` finds no difference to the committed files."""
    done = subprocess.run(
        [sys.executable, DEPLOY / "dashboards.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
