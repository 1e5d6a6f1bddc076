"""Unwell links: those that agents keep down because they flap, that lose packets, or are slow.

Links that lose packets or are slow still count as up. Operators see unwell links in a metric, in
lists of links, and in the log when the condition begins and ends.

This module also limits what an agent may report: no more than its switch can have, and no faster
than this controller can process it without delay for others.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from heddle.names import link_name
from heddle.v1 import agent_pb2 as pb
from heddle.v1 import common_pb2
from heddle_controller.model.fabric import Structure
from heddle_controller.reconcile.observations import LinkEnds, link_ends
from heddle_controller.reconcile.ports import AgentSession
from heddle_controller.store.store import Store

log = structlog.stdlib.get_logger(__name__)

UNWELL = ("flap-damped", "grey", "slow")
"""Reasons of link observations that mean an unwell link, the worst first; see agent.proto."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What is wrong with a link."""

    reason: str
    """One of ``UNWELL``."""
    loss_ratio: float = 0.0
    """Share of packets that it loses, 0 to 1."""
    rate_ratio: float = 0.0
    """Share of its speed that it offers; 0 if nothing is known to be wrong with its speed."""

    def joined(self, other: Condition) -> Condition:
        """Return the worse of two conditions, field by field, as seen from the two ends."""
        rates = [rate for rate in (self.rate_ratio, other.rate_ratio) if rate]
        return Condition(
            min(self.reason, other.reason, key=UNWELL.index),
            max(self.loss_ratio, other.loss_ratio),
            min(rates, default=0.0),
        )


class LinkMeter(Protocol):
    """Measures unwell links."""

    def links_unwell(self, fabric: str, reason: str, count: int) -> None:
        """Set how many ends of links agents now report with this reason."""


class LinkBook:
    """The unwell links at the switches of connected agents; each end is kept separately."""

    def __init__(self, meter: LinkMeter) -> None:
        self._meter = meter
        self._seen: dict[str, dict[tuple[str, LinkEnds], Condition]] = {}

    def unwell(self, fabric: str) -> Mapping[LinkEnds, Condition]:
        """Return the unwell links of a fabric, each with the worse condition of its two ends."""
        found: dict[LinkEnds, Condition] = {}
        for (_, ends), condition in self._seen.get(fabric, {}).items():
            other = found.get(ends)
            found[ends] = condition.joined(other) if other else condition
        return found

    def take(self, about: AgentSession, report: pb.LinkStateReport) -> None:
        """Take in an agent's report of its links."""
        seen = self._seen.setdefault(about.fabric, {})
        if report.full:
            self._drop(about)
        for link in report.links:
            ends = _ends(link.link)
            before = seen.get((about.switch, ends))
            name = link_name(*ends)
            if link.reason in UNWELL:
                loss, rate = round(link.loss_ratio, 4), round(link.rate_ratio, 4)
                now = seen[about.switch, ends] = Condition(link.reason, loss, rate)
                if before is None or before.reason != now.reason:
                    told = {"loss_ratio": loss, "rate_ratio": rate}
                    log.warning("link unwell", link=name, reason=link.reason, **told)
            elif before is not None:
                del seen[about.switch, ends]
                log.info("link not unwell any more", link=name, was=before.reason)
        self._count(about.fabric)

    def forget(self, about: AgentSession) -> None:
        """Forget what an agent reported, because its session is over."""
        self._drop(about)
        self._count(about.fabric)

    def _drop(self, about: AgentSession) -> None:
        seen = self._seen.get(about.fabric, {})
        for key in [key for key in seen if key[0] == about.switch]:
            del seen[key]

    def _count(self, fabric: str) -> None:
        reasons = [condition.reason for condition in self._seen.get(fabric, {}).values()]
        for reason in UNWELL:
            self._meter.links_unwell(fabric, reason, reasons.count(reason))


def _ends(link: common_pb2.LinkRef) -> LinkEnds:
    return link_ends(link.source, link.target, link.key or "0")


SPARE = 64
"""Links, and also entries, that an agent may report beyond those that the controller knows, because
one of the two may be out of date."""
_ENTRIES = 1 << 18
"""Assumed table size of a switch whose agent reports no limit."""
PAIRS = 1024
"""Most pairs of NICs without an entry in one report; see CounterReport in agent.proto."""
_LOOK_SECONDS = 1.0
"""Least time between two reads of the fabric because of unknown links."""
SHARE, BURST = 0.1, 0.5
"""Share of the event loop's time that one agent may take in the long run, and seconds of it that it
may take in a burst."""
EACH = 0.0002
"""Estimated seconds to read and parse a message, which are not measured."""


class TooMuch(Exception):  # noqa: N818 - it tells of an agent; nothing failed
    """An agent reports more than its switch can have."""


def _links_of(structure: Structure, switch: str) -> frozenset[LinkEnds]:
    """Return the links that end at a switch; none for an unknown switch."""
    row = structure.index.get(switch)
    if row is None:
        return frozenset()
    ids, links = structure.nodes.ids, structure.links
    return frozenset(
        link_ends(switch, ids[structure.head[arc]], links.key[arc >> 1])
        for arc in structure.leaving(row).tolist()
    )


class Means:
    """Limits on the size of what the agent of one session may report."""

    def __init__(self, about: AgentSession, structure: Structure, store: Store) -> None:
        self._about = about
        self._store = store
        self._links = _links_of(structure, about.switch)
        self._strange: set[LinkEnds] = set()
        """Links at the switch that were reported although the fabric lacked them."""
        self._entries = (about.table_size or _ENTRIES) + SPARE
        self._first = True
        """Whether the session has had no report of links yet."""
        self._looked = -_LOOK_SECONDS

    async def links(self, report: pb.LinkStateReport) -> pb.LinkStateReport:
        """Return a report with only links at this switch, each once with its newest state.

        A cable is often there before the fabric has it, and its state is not reported again when
        it gets it. So links that the fabric lacks are kept too, as many as the switch may report.

        Raises:
            TooMuch: the report has far more links than the switch.
            PortError: the fabric cannot be read.
        """
        most = 2 * len(self._links) + SPARE
        said = len(report.links)
        newest = {}
        for seen in report.links[: most + 1]:
            newest[_ends(seen.link)] = seen
        if newest.keys() - self._links or said > most:
            await self._look()
            most = 2 * len(self._links) + SPARE
        if said > most:
            raise TooMuch(f"told of {said} links, and its switch has {len(self._links)}")
        full, self._first = report.full or self._first, False
        if full:
            self._strange.clear()
        self._strange -= self._links
        if len(newest) == said and full == report.full and newest.keys() <= self._links:
            return report
        known = [seen for ends, seen in newest.items() if self._counts(ends, most)]
        return pb.LinkStateReport(links=known, full=full)

    def _counts(self, ends: LinkEnds, most: int) -> bool:
        """Return whether what is reported of a link is taken in."""
        if ends in self._links or ends in self._strange:
            return True
        if not all(ends[:2]):
            return True  # it is malformed; the codec reports that
        if self._about.switch not in ends[:2] or len(self._links) + len(self._strange) >= most:
            return False
        self._strange.add(ends)
        return True

    async def _look(self) -> None:
        """Read the links of the switch again, because the fabric may have new ones."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        structure = (await self._store.get_fabric(self._about.fabric)).fabric.structure
        self._links = _links_of(structure, self._about.switch)

    def counters(self, report: pb.CounterReport) -> None:
        """Check the size of a counter report.

        Raises:
            TooMuch: it has more entries than the table can hold, or more pairs of NICs without an
                entry than ``PAIRS``.
        """
        said = max(len(report.sources), len(report.packets), len(report.bytes))
        said = max(said, len(report.destinations), len(report.source_ports))
        pairs = max(len(report.unmatched_sources), len(report.unmatched_destinations))
        pairs = max(pairs, len(report.unmatched_packets), len(report.unmatched_bytes))
        if pairs > PAIRS:
            raise TooMuch(f"counts {pairs} pairs without an entry, and may tell {PAIRS} at most")
        said = max(said, len(report.endpoints) // 2 - pairs)
        if said > self._entries:
            raise TooMuch(f"counts {said} entries, and its table holds {self._entries} at most")
