#!/usr/bin/env python3
"""Write deploy/grafana: the dashboards, as Grafana imports them; --check only compares.

A dashboard is rows of panels, and a panel is expressions of PromQL. Everything else is the same for
all. Panels are laid out automatically, from left to right.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

FOLDER = Path(__file__).resolve().parent / "grafana"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDE = 24
"""Columns of Grafana's grid."""
HEIGHT = {"stat": 4, "timeseries": 8, "table": 8}
OF_FABRIC = '{fabric=~"$fabric"}'
TOP = 10
"""Number of switches or hosts that a panel shows, out of thousands."""
UNKNOWN = "-"

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Panel:
    """What one panel shows."""

    title: str
    expressions: Mapping[str, str]
    """Expressions of PromQL by legend."""
    about: str
    """The description that a reader sees."""
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 12
    bad: float | None = None
    """A figure from here on is shown in red."""
    good_from: float | None = None
    """A figure below this is shown in red."""

    def document(self, number: int, x: int, y: int) -> Json:
        """Return the panel as Grafana reads it. Its position is in columns and rows of the grid."""
        instant = self.kind != "timeseries"
        targets = [
            {
                "refId": chr(ord("A") + place),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend,
                "instant": instant,
                "range": not instant,
                **({"format": "table"} if self.kind == "table" else {}),
            }
            for place, (legend, expression) in enumerate(self.expressions.items())
        ]
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.about,
            "datasource": SOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": HEIGHT[self.kind]},
            "fieldConfig": {"defaults": self._field(), "overrides": []},
            "options": self._options(),
            "targets": targets,
        }

    def _field(self) -> Json:
        steps: list[Json] = [{"color": "green", "value": None}]
        if self.bad is not None:
            steps.append({"color": "red", "value": self.bad})
        if self.good_from is not None:
            steps = [{"color": "red", "value": None}, {"color": "green", "value": self.good_from}]
        return {
            "unit": self.unit,
            "noValue": UNKNOWN,
            "thresholds": {"mode": "absolute", "steps": steps},
        }

    def _options(self) -> Json:
        if self.kind == "stat":
            calculated = {"calcs": ["lastNotNull"], "fields": "", "values": False}
            return {"reduceOptions": calculated, "colorMode": "background", "textMode": "auto"}
        if self.kind == "table":
            return {"showHeader": True}
        return {
            "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }


def stat(
    title: str,
    expression: str,
    about: str,
    *,
    unit: str = "short",
    bad: float | None = None,
    good_from: float | None = None,
    legend: str = "{{fabric}}",
) -> Panel:
    """Return a panel with a single figure, of which six fit side by side."""
    return Panel(title, {legend: expression}, about, "stat", unit, 4, bad, good_from)


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A named set of panels."""

    name: str
    title: str
    about: str
    panels: Sequence[Panel]
    fabric: bool = True
    """Whether a reader can choose fabrics."""

    def document(self) -> Json:
        """Return the dashboard as Grafana imports it."""
        return {
            "uid": f"heddle-{self.name}",
            "title": f"Heddle: {self.title}",
            "description": self.about,
            "tags": ["heddle"],
            "editable": True,
            "graphTooltip": 1,
            "schemaVersion": 39,
            "version": 1,
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "templating": {"list": self._variables()},
            "links": [
                {
                    "title": "Heddle",
                    "type": "dashboards",
                    "tags": ["heddle"],
                    "asDropdown": True,
                    "includeVars": True,
                    "keepTime": True,
                }
            ],
            "panels": list(self._placed()),
        }

    def _placed(self) -> Iterator[Json]:
        x = y = tallest = 0
        for number, panel in enumerate(self.panels, 1):
            if x + panel.width > WIDE:
                x, y, tallest = 0, y + tallest, 0
            yield panel.document(number, x, y)
            x, tallest = x + panel.width, max(tallest, HEIGHT[panel.kind])

    def _variables(self) -> list[Json]:
        source = {"name": "datasource", "label": "Prometheus", "type": "datasource"}
        variables: list[Json] = [{**source, "query": "prometheus"}]
        if self.fabric:
            query = "label_values(heddle_fabric_switches, fabric)"
            variables.append(
                {
                    "name": "fabric",
                    "label": "Fabric",
                    "type": "query",
                    "datasource": SOURCE,
                    "definition": query,
                    "query": {"query": query, "refId": "fabric"},
                    "refresh": 2,
                    "includeAll": True,
                    "allValue": ".*",
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                }
            )
        return variables


def newest(metric: str, *by: str) -> str:
    """Return an expression for a gauge that every replica exports, counted once."""
    return f"max by ({', '.join(['fabric', *by])}) ({metric}{OF_FABRIC})"


def per_second(metric: str, *by: str) -> str:
    """Return an expression for the rate of a counter, summed over all replicas."""
    return f"sum by ({', '.join(['fabric', *by])}) (rate({metric}{OF_FABRIC}[$__rate_interval]))"


def quantile(part: float, metric: str, *by: str, labels: str = OF_FABRIC) -> str:
    """Return an expression for a quantile of a histogram over all replicas."""
    groups = ", ".join([*by, "le"])
    rates = f"sum by ({groups}) (rate({metric}_bucket{labels}[$__rate_interval]))"
    return f"histogram_quantile({part}, {rates})"


def job_count(*states: str) -> str:
    """Return an expression for the number of jobs in any of these states."""
    wanted = f'{{fabric=~"$fabric", state=~"{"|".join(states)}"}}'
    return f"sum by (fabric) (max by (fabric, state) (heddle_jobs{wanted}))"


MISSING = f"{newest('heddle_fabric_switches')} - {newest('heddle_connected_agents')}"
UNWELL = newest("heddle_unwell_links", "reason")
GAP = newest("heddle_tier_gap_ratio", "tier")

FABRIC = Dashboard(
    "fabric",
    "fabric",
    "Whether the fabric is well, and how far its plan is from the best one.",
    [
        stat(
            "Flows without a path",
            newest("heddle_plan_unrouted_flows"),
            "The underlay carries what it can of them.",
            bad=1,
        ),
        stat(
            "Worst link above its bound",
            f"max by (fabric) ({GAP})",
            "How much fuller the worst link is than it must be in any plan, over all tiers.",
            unit="percentunit",
            bad=0.1,
        ),
        stat(
            "Agents missing",
            MISSING,
            "Switches whose agent has a session with no controller.",
            bad=1,
        ),
        stat(
            "Link ends down",
            'sum(heddle_agent_links{state="down"})',
            "As agents see them: a link counts at both of its ends.",
            bad=1,
            legend="down",
        ),
        stat(
            "Link ends not well",
            f"sum by (fabric) ({UNWELL})",
            "Kept down for flapping, losing packets (grey), or slower than meant.",
            bad=1,
        ),
        stat(
            "Switches behind",
            newest("heddle_rollout_pending_switches"),
            "They do not hold the newest plan yet.",
            bad=1,
        ),
        Panel(
            "Worst link of each tier against its bound",
            {
                "{{fabric}} {{tier}}": newest("heddle_tier_max_utilization_ratio", "tier"),
                "{{fabric}} {{tier}} bound": newest("heddle_tier_lower_bound_ratio", "tier"),
            },
            "Load over capacity in the newest plan, and the least that any plan of these flows has."
            " The two are equal where the plan is proven best.",
            unit="percentunit",
        ),
        Panel(
            "Traffic by entries",
            {"{{fabric}}": f"8 * {per_second('heddle_traffic_bytes_total')}"},
            "What switches have counted on exact-match entries; the rest is the underlay's.",
            unit="bps",
        ),
        Panel(
            "Links that are not well",
            {"{{fabric}} {{reason}}": UNWELL},
            "Ends of links, by what is wrong with them.",
        ),
        Panel(
            "Links by state, over all agents",
            {"{{state}}": "sum by (state) (heddle_agent_links)"},
            "Flap-damped ones are down; grey and slow ones are up.",
        ),
        Panel(
            "Flows moved",
            {"{{fabric}}": per_second("heddle_plan_changed_flows_total")},
            "Flows whose path another plan has changed, a second.",
        ),
        Panel(
            "Entries of the plan",
            {"{{fabric}}": newest("heddle_plan_entries")},
            "Exact-match entries over all switches.",
        ),
    ],
)

CONTROLLER = Dashboard(
    "controller",
    "controller",
    "Who leads, how fast changes reach the switches, and what calls cost.",
    [
        stat(
            "Controllers up",
            'sum(up{job="heddle-controller"})',
            "As Prometheus reaches them.",
            good_from=1,
            legend="up",
        ),
        stat(
            "Leaders",
            "sum(heddle_leading)",
            "One, but while leadership changes.",
            good_from=1,
            legend="leaders",
        ),
        stat(
            "Store away for",
            "max(heddle_store_stale_seconds)",
            "Reads are answered from what was there before; no change is taken.",
            unit="s",
            bad=1,
            legend="away",
        ),
        stat(
            "Plans that failed, last hour",
            f"sum by (fabric) (increase(heddle_reconcile_failures_total{OF_FABRIC}[1h]))",
            "The last good plan stays in force.",
            bad=1,
        ),
        stat("Generation", newest("heddle_plan_generation"), "Of the newest plan."),
        stat(
            "Calls that fail by our fault, last hour",
            'sum(increase(heddle_rpcs_total{code=~"INTERNAL|UNKNOWN|DATA_LOSS"}[1h])) or vector(0)',
            "INTERNAL, UNKNOWN and DATA_LOSS; the log has each.",
            bad=1,
            legend="failed",
        ),
        Panel(
            "From intent to the last FIB acknowledgement",
            {
                "{{fabric}} half": quantile(0.5, "heddle_intent_to_programmed_seconds", "fabric"),
                "{{fabric}} 99 %": quantile(0.99, "heddle_intent_to_programmed_seconds", "fabric"),
            },
            "How long a change of jobs, links or switches takes to be in force.",
            unit="s",
        ),
        Panel(
            "Planning",
            {
                "{{fabric}} half": quantile(0.5, "heddle_solve_seconds", "fabric"),
                "{{fabric}} 99 %": quantile(0.99, "heddle_solve_seconds", "fabric"),
            },
            "From the intent read to a verified plan.",
            unit="s",
        ),
        Panel(
            "Calls",
            {
                "{{method}} {{code}}": "sum by (method, code)"
                " (rate(heddle_rpcs_total[$__rate_interval]))"
            },
            "Calls ended, a second.",
            unit="reqps",
        ),
        Panel(
            "How long calls take, 99 %",
            {"{{method}}": quantile(0.99, "heddle_rpc_seconds", "method", labels="")},
            "Of those that are answered; streams end when their client goes.",
            unit="s",
        ),
        Panel(
            "Looks at fabrics",
            {
                "{{fabric}}": per_second("heddle_reconcile_runs_total"),
                "{{fabric}} failed": per_second("heddle_reconcile_failures_total"),
            },
            "How often the loop has looked at a fabric, a second, and how often in vain.",
        ),
        Panel(
            "Calls under way",
            {"{{method}}": "sum by (method) (heddle_rpcs_running)"},
            "Sessions of agents are calls, too.",
        ),
        Panel(
            "Processor",
            {
                "{{instance}}": "rate(process_cpu_seconds_total"
                '{job="heddle-controller"}[$__rate_interval])'
            },
            "Of the talking process, in cores; planning is done in processes of its own.",
        ),
        Panel(
            "Memory",
            {"{{instance}}": 'process_resident_memory_bytes{job="heddle-controller"}'},
            "Resident, of the talking process.",
            unit="bytes",
        ),
    ],
)

AGENTS = Dashboard(
    "agents",
    "agents",
    f"Which switches stand out. Of thousands, each panel shows {TOP}.",
    [
        stat(
            "Agents connected",
            newest("heddle_connected_agents"),
            "With a session to a controller, as that controller sees it.",
            good_from=1,
        ),
        stat(
            "Agents missing",
            MISSING,
            "Switches whose agent has a session with no controller.",
            bad=1,
        ),
        stat(
            "Agents that do not answer",
            'count(up{job="heddle-agent"} == 0) or vector(0)',
            "As Prometheus reaches them.",
            bad=1,
            legend="silent",
        ),
        stat(
            "Entries that differ",
            'sum(heddle_agent_entries{state="dirty"})',
            "What is forwarded is not what is intended.",
            bad=1,
            legend="dirty",
        ),
        stat(
            "Fullest table",
            'max(heddle_agent_entries{state="programmed"}'
            " / ignoring (state) (heddle_agent_table_size > 0))",
            "Entries over what the table can hold.",
            unit="percentunit",
            bad=0.95,
            legend="fullest",
        ),
        stat(
            "Agents against the overlay's flag",
            newest("heddle_overlay_disobeying_agents"),
            "They match packets though the operator has withdrawn the overlay, or the reverse.",
            bad=1,
        ),
        Panel(
            "Fullest tables",
            {
                "{{switch}}": f'topk({TOP}, heddle_agent_entries{{state="programmed"}}'
                " / ignoring (state) (heddle_agent_table_size > 0))"
            },
            "Entries over what the table can hold; a full table refuses entries.",
            unit="percentunit",
        ),
        Panel(
            "Most links down",
            {"{{switch}}": f'topk({TOP}, heddle_agent_links{{state="down"}} > 0)'},
            "Switches with links that carry nothing.",
        ),
        Panel(
            "Local repairs",
            {"{{switch}}": f"topk({TOP}, rate(heddle_agent_groups_moved_total[$__rate_interval]))"},
            "Next-hop groups that agents have moved by themselves, a second.",
        ),
        Panel(
            "Sessions begun",
            {"{{switch}}": f"topk({TOP}, rate(heddle_agent_sessions_total[$__rate_interval]))"},
            "An agent that begins many loses its controller again and again.",
        ),
        Panel(
            "Pushes to their FIB acknowledgement",
            {
                "{{fabric}} half": quantile(0.5, "heddle_rollout_push_seconds", "fabric"),
                "{{fabric}} 99 %": quantile(0.99, "heddle_rollout_push_seconds", "fabric"),
            },
            "From a batch sent to its answer.",
            unit="s",
        ),
        Panel(
            "Operations",
            {
                "{{fabric}}": per_second("heddle_rollout_operations_total"),
                "{{fabric}} refused": per_second("heddle_rollout_operation_failures_total"),
            },
            "Entries set or deleted a second, and those that a switch could not do.",
        ),
        Panel(
            "Pushes by answer",
            {"{{status}}": "sum by (status) (rate(heddle_agent_pushes_total[$__rate_interval]))"},
            "How agents took them, a second.",
        ),
        Panel(
            "Queues dropped",
            {"{{fabric}}": per_second("heddle_sessions_coalesced_total")},
            "Agents that fell so far behind that they got a full synchronisation instead.",
        ),
    ],
)

JOBS = Dashboard(
    "jobs",
    "jobs",
    "How far jobs have come. No metric names one: `heddle job list` and the page do.",
    [
        stat("Programmed", job_count("programmed"), "Every switch has their routes."),
        stat(
            "On their way",
            job_count("accepted", "planned"),
            "Accepted, or planned and not yet in every switch.",
        ),
        stat(
            "Degraded",
            job_count("degraded"),
            "Flows of theirs have no path, or switches refuse their entries.",
            bad=1,
        ),
        stat(
            "Flows without a path",
            newest("heddle_plan_unrouted_flows"),
            "`heddle show explain FLOW` tells why.",
            bad=1,
        ),
        stat(
            "Worst link",
            newest("heddle_plan_max_utilization_ratio"),
            "Load over capacity; above 100 % the jobs on it are slowed.",
            unit="percentunit",
            bad=1.01,
        ),
        stat(
            "What no plan can beat",
            newest("heddle_plan_lower_bound_ratio"),
            "Above 100 % the jobs want more than the fabric has where they stand.",
            unit="percentunit",
        ),
        Panel(
            "Jobs by state",
            {"{{fabric}} {{state}}": newest("heddle_jobs", "state")},
            "As the store has them.",
        ),
        Panel(
            "Worst link against the bound",
            {
                "{{fabric}}": newest("heddle_plan_max_utilization_ratio"),
                "{{fabric}} bound": newest("heddle_plan_lower_bound_ratio"),
            },
            "Of the newest plan.",
            unit="percentunit",
        ),
        Panel(
            "From a job submitted to its routes in force, 99 %",
            {"{{fabric}}": quantile(0.99, "heddle_intent_to_programmed_seconds", "fabric")},
            "Changes of links and switches are among them.",
            unit="s",
        ),
        Panel(
            "Traffic by entries",
            {"{{fabric}}": f"8 * {per_second('heddle_traffic_bytes_total')}"},
            "What switches have counted for all jobs together.",
            unit="bps",
        ),
    ],
)

HOSTS = Dashboard(
    "hosts",
    "hosts",
    f"Agents of hosts: ports of QPs, and the paths that these take. Each panel shows {TOP}.",
    [
        stat(
            "Hosts connected",
            "sum(heddle_host_connected)",
            "With a controller that has told them all their ports.",
            good_from=1,
            legend="connected",
        ),
        stat(
            "Hosts alone",
            "count(heddle_host_connected == 0) or vector(0)",
            "Their files stay as they are; they learn of no new job.",
            bad=1,
            legend="alone",
        ),
        stat(
            "Host agents that do not answer",
            'count(up{job="heddle-host"} == 0) or vector(0)',
            "As Prometheus reaches them.",
            bad=1,
            legend="silent",
        ),
        stat(
            "Ports without a known path",
            "sum(heddle_host_wanted_paths) - sum(heddle_host_known_paths)",
            "Where switches hash: no switch answered their probes.",
            bad=1,
            legend="unknown",
        ),
        stat(
            "Writes that failed, last hour",
            'sum(increase(heddle_host_writes_total{outcome="failed"}[1h]))',
            "Files of ports that a disk did not take.",
            bad=1,
            legend="failed",
        ),
        stat("Ports told", "sum(heddle_host_ports)", "That QPs have to use.", legend="ports"),
        Panel(
            "Probes",
            {"{{outcome}}": "sum by (outcome) (rate(heddle_host_probes_total[$__rate_interval]))"},
            "Sent and answered, a second. What lies behind the last switch never answers.",
        ),
        Panel(
            "Hosts with most ports whose path is not known",
            {
                "{{host}}": f"topk({TOP}, heddle_host_wanted_paths - heddle_host_known_paths)",
            },
            "Wanted by a controller and not found.",
        ),
        Panel(
            "Ports whose path is wanted, and known",
            {
                "wanted": "sum(heddle_host_wanted_paths)",
                "known": "sum(heddle_host_known_paths)",
            },
            "Where switches hash, over all hosts, as probed last.",
        ),
        Panel(
            "Since files last changed",
            {"{{host}}": f"topk({TOP}, time() - (heddle_host_last_write_timestamp_seconds > 0))"},
            "They change as jobs come, go and are planned anew.",
            unit="s",
        ),
        Panel(
            "Changes of files",
            {"{{outcome}}": "sum by (outcome) (rate(heddle_host_writes_total[$__rate_interval]))"},
            "A second, over all hosts.",
        ),
        Panel(
            "Reports of paths",
            {"{{outcome}}": "sum by (outcome) (rate(heddle_host_reports_total[$__rate_interval]))"},
            "That controllers took, and that they did not, a second.",
        ),
    ],
    fabric=False,
)

DASHBOARDS = (FABRIC, CONTROLLER, AGENTS, HOSTS, JOBS)


def files() -> dict[str, str]:
    """Return the content of each file by its name."""
    return {
        f"{each.name}.json": json.dumps(each.document(), indent=1) + "\n" for each in DASHBOARDS
    }


def main(words: Sequence[str]) -> int:
    """Write the files, or with --check name those that differ; return the exit status."""
    wanted = files()
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    if "--check" in words:
        differ = sorted(name for name in wanted | there if wanted.get(name) != there.get(name))
        if differ:
            names = ", ".join(differ)
            sys.stderr.write(f"deploy/grafana: {names} differ: run deploy/dashboards.py\n")
        return 1 if differ else 0
    for name in there.keys() - wanted.keys():
        (FOLDER / name).unlink()
    for name, content in wanted.items():
        (FOLDER / name).write_text(content, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
