"""Prometheus metrics of agents, collected when they are read, at no cost to forwarding."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from heddle_agent.agent import Agent
from heddle_agent.host import HostFigures
from heddle_agent.peers import Refusal


class AgentCollector(Collector):
    """The state of the agents of this process, with one series per switch."""

    def __init__(self, agents: Iterable[Agent]) -> None:
        self._agents = list(agents)

    def collect(self) -> Iterable[Metric]:
        """Yield all metric families."""
        yield self._entries()
        yield self._links()
        yield self._pushes()
        for name, text in (
            ("connected", "1 while a controller has accepted a session that still stands."),
            ("controllers", "Controllers with which there is a session."),
            ("epoch", "Highest epoch accepted."),
            ("generation", "Generation held whole; 0 for none."),
            ("table_size", "Entries that the table can hold; 0 is unlimited."),
            ("overlay_withdrawn", "1 while no packet is matched against the entries."),
        ):
            family = GaugeMetricFamily(f"heddle_agent_{name}", text, labels=["switch"])
            for agent in self._agents:
                held = agent.held
                values = {
                    "connected": agent.connected,
                    "controllers": agent.sessions.connected,
                    "epoch": held.epoch,
                    "generation": held.generation,
                    "table_size": agent.forwarding.fib.table_size,
                    "overlay_withdrawn": agent.forwarding.fib.withdrawn,
                }
                family.add_metric([agent.switch], values[name])
            yield family
        sessions = CounterMetricFamily(
            "heddle_agent_sessions", "Sessions accepted by controllers.", labels=["switch"]
        )
        flips = CounterMetricFamily(
            "heddle_agent_groups_moved", "Next-hop groups moved by local repair.", labels=["switch"]
        )
        for agent in self._agents:
            sessions.add_metric([agent.switch], agent.sessions.begun)
            flips.add_metric([agent.switch], agent.forwarding.flips)
        yield sessions
        yield flips
        yield from self._peers()

    def _entries(self) -> Metric:
        family = GaugeMetricFamily(
            "heddle_agent_entries",
            "Entries programmed, of these stale, and entries that differ from what is intended.",
            labels=["switch", "state"],
        )
        for agent in self._agents:
            held = agent.held
            family.add_metric([agent.switch, "programmed"], held.entries)
            family.add_metric([agent.switch, "stale"], held.stale)
            family.add_metric([agent.switch, "dirty"], held.dirty)
        return family

    def _links(self) -> Metric:
        family = GaugeMetricFamily(
            "heddle_agent_links",
            "Links of the switch by state; flap-damped ones are down, grey and slow ones up.",
            labels=["switch", "state"],
        )
        for agent in self._agents:
            states = [seen.up for seen in agent.links.current()]
            family.add_metric([agent.switch, "up"], states.count(True))
            family.add_metric([agent.switch, "down"], states.count(False))
            reasons = [seen.reason for seen in agent.links.current()]
            for reason in ("flap-damped", "grey", "slow"):
                family.add_metric([agent.switch, reason], reasons.count(reason))
        return family

    def _peers(self) -> Iterable[Metric]:
        peers = GaugeMetricFamily(
            "heddle_agent_peers",
            "Peers that notices go to, and those that have proven to be there.",
            labels=["switch", "state"],
        )
        datagrams = CounterMetricFamily(
            "heddle_agent_peer_datagrams",
            "Datagrams of peer notices by what became of them.",
            labels=["switch", "outcome"],
        )
        records = GaugeMetricFamily(
            "heddle_agent_peer_records",
            "Switches that have lost links, now or before, as far as peer notices tell.",
            labels=["switch"],
        )
        for agent in self._agents:
            notices = agent.peer_notices
            if notices is None:
                continue
            peers.add_metric([agent.switch, "known"], len(notices.peers))
            peers.add_metric([agent.switch, "introduced"], notices.introduced)
            records.add_metric([agent.switch], len(notices.records))
            datagrams.add_metric([agent.switch, "sent"], notices.sent)
            datagrams.add_metric([agent.switch, "unsent"], notices.unsent)
            datagrams.add_metric([agent.switch, "received"], notices.received)
            for why in Refusal:
                datagrams.add_metric([agent.switch, why.name.lower()], notices.refusals.counts[why])
        yield from (peers, datagrams, records)

    def _pushes(self) -> Metric:
        family = CounterMetricFamily(
            "heddle_agent_pushes", "Pushes by how they were taken.", labels=["switch", "status"]
        )
        for agent in self._agents:
            for status, count in dict(agent.sessions.answered).items():
                family.add_metric([agent.switch, status.name.lower()], count)
        return family


class HostCollector(Collector):
    """The state of the agent of one host."""

    def __init__(self, host: str, figures: HostFigures) -> None:
        self._host, self._figures = host, figures

    def collect(self) -> Iterable[Metric]:
        """Yield all metric families, each labelled with the host's name."""
        told = self._figures
        for name, text, value in (
            ("connected", "1 while a controller has told all ports and goes on.", told.connected),
            ("jobs", "Jobs whose ports are told.", told.jobs),
            ("ports", "UDP source ports that QPs of these jobs have to use.", told.ports),
            ("last_write_timestamp_seconds", "When files last changed; 0: never.", told.last_write),
            ("wanted_paths", "Ports whose path a controller wants known.", told.wanted_paths),
            ("known_paths", "Ports whose path was found when last probed.", told.known_paths),
            (
                "last_probing_timestamp_seconds",
                "When ports were probed; 0: never.",
                told.last_probing,
            ),
        ):
            gauge = GaugeMetricFamily(f"heddle_host_{name}", text, labels=["host"])
            gauge.add_metric([self._host], value)
            yield gauge
        for name, text, counts in (
            ("writes", "Changes of files.", {"done": told.writes, "failed": told.write_failures}),
            ("probes", "Probes of paths.", {"sent": told.probes, "answered": told.answers}),
            ("reports", "Paths told.", {"done": told.reports, "failed": told.report_failures}),
        ):
            family = CounterMetricFamily(f"heddle_host_{name}", text, labels=["host", "outcome"])
            for outcome, count in counts.items():
                family.add_metric([self._host, outcome], count)
            yield family


def host_registry(host: str, figures: HostFigures) -> CollectorRegistry:
    """Return a registry that contains only the metrics of this host's agent."""
    own = CollectorRegistry()
    own.register(HostCollector(host, figures))
    return own


def registry(agents: Iterable[Agent]) -> CollectorRegistry:
    """Return a registry that contains only the metrics of these agents."""
    own = CollectorRegistry()
    own.register(AgentCollector(agents))
    return own
