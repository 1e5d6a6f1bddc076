"""Links that agents keep down because they flap, and links that lose packets or are too slow.

The latter are up for the network, and none of them is well: operators see how many there are and
which, in lists of links, and in the log when it begins and when it ends.

What an agent may say: no more than its switch can have, and no faster than others can bear.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import structlog

from heddle.names import link_name
from heddle.v1 import agent_pb2 as pb
from heddle.v1 import common_pb2
from heddle_controller.model.fabric import Structure
from heddle_controller.reconcile.ports import AgentSession
from heddle_controller.store.store import Store

log = structlog.stdlib.get_logger(__name__)

UNWELL = ("flap-damped", "grey", "slow")
"""Reasons of an agent's observation, the worst first; see agent.proto."""

Ends: TypeAlias = tuple[str, str, str]
"""Both ends of a link, the lesser first, and its key as text."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What is wrong with a link."""

    reason: str
    """One of ``UNWELL``."""
    loss_ratio: float = 0.0
    """Share of what it carries that it loses."""
    rate_ratio: float = 0.0
    """Share of its rate that it has to offer; 0 where nothing is known to be wrong."""

    def joined(self, other: Condition) -> Condition:
        """What both ends together tell of a link: the worse of everything."""
        rates = [rate for rate in (self.rate_ratio, other.rate_ratio) if rate]
        return Condition(
            min(self.reason, other.reason, key=UNWELL.index),
            max(self.loss_ratio, other.loss_ratio),
            min(rates, default=0.0),
        )


class LinkMeter(Protocol):
    """Counts unwell links."""

    def links_unwell(self, fabric: str, reason: str, count: int) -> None:
        """Notes how many ends of links are told to be so at present."""


class LinkBook:
    """The unwell links of connected agents' switches, each end by itself."""

    def __init__(self, meter: LinkMeter) -> None:
        self._meter = meter
        self._seen: dict[str, dict[tuple[str, Ends], Condition]] = {}

    def unwell(self, fabric: str) -> Mapping[Ends, Condition]:
        """What is wrong with the links of a fabric that are not well."""
        found: dict[Ends, Condition] = {}
        for (_, ends), condition in self._seen.get(fabric, {}).items():
            other = found.get(ends)
            found[ends] = condition.joined(other) if other else condition
        return found

    def take(self, about: AgentSession, report: pb.LinkStateReport) -> None:
        """What an agent says of its links."""
        seen = self._seen.setdefault(about.fabric, {})
        if report.full:
            self._drop(about)
        for link in report.links:
            ends = ends_of(link.link)
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
        """The agent is gone: nobody knows how its links are."""
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


def ends_of(link: common_pb2.LinkRef) -> Ends:
    """The name of a link here, whichever end is named first."""
    low, high = sorted((link.source, link.target))
    return low, high, link.key or "0"


SPARE = 64
"""Links, and entries, that an agent may know of and the fabric may not (yet, or any more)."""
_ENTRIES = 1 << 18
"""Entries of a switch whose table knows no limit."""
PAIRS = 1024
"""Pairs of NICs without an entry that an agent tells of at most; see CounterReport."""
_LOOK_SECONDS = 1.0
"""Least time between two looks at the fabric for links that are not known."""
SHARE, BURST = 0.1, 0.5
"""Part of the event loop's time that one agent may take for long, and seconds of it at once."""
_EACH = 0.0002
"""Seconds that a message takes which cannot be seen here: to be read and parsed."""


class TooMuch(Exception):  # noqa: N818 - it tells of an agent; nothing failed
    """An agent says more than its switch can have."""


def _links_of(structure: Structure, switch: str) -> frozenset[Ends]:
    """The links that end at a switch."""
    row = structure.index.get(switch)
    if row is None:
        return frozenset()
    first, arcs = structure.out
    ids, links = structure.nodes.ids, structure.links
    found = set()
    for arc in arcs[first[row] : first[row + 1]].tolist():
        low, high = sorted((switch, ids[structure.head[arc]]))
        found.add((low, high, str(links.key[arc >> 1])))
    return frozenset(found)


class Means:
    """The means of one session."""

    def __init__(self, about: AgentSession, structure: Structure, store: Store) -> None:
        self._about = about
        self._store = store
        self._links = _links_of(structure, about.switch)
        self._entries = (about.table_size or _ENTRIES) + SPARE
        self._looked = -_LOOK_SECONDS

    async def links(self, report: pb.LinkStateReport) -> pb.LinkStateReport:
        """What is said of links that the fabric has and that end at the switch, each once.

        Raises:
            TooMuch: it speaks of far more links than there are.
            PortError: the fabric cannot be read.
        """
        most = 2 * len(self._links) + SPARE
        said = len(report.links)
        newest = {}
        for seen in report.links[: most + 1]:
            newest[ends_of(seen.link)] = seen
        if newest.keys() - self._links or said > most:
            await self._look()
            most = 2 * len(self._links) + SPARE
        if said > most:
            raise TooMuch(f"told of {said} links, and its switch has {len(self._links)}")
        if len(newest) == said and newest.keys() <= self._links:
            return report
        known = [
            seen
            for ends, seen in newest.items()
            if ends in self._links or not (seen.link.source and seen.link.target)
        ]  # what names no link at all is malformed, which is for the codec to say
        return pb.LinkStateReport(links=known, full=report.full)

    async def _look(self) -> None:
        """The fabric may have got links since."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        structure = (await self._store.get_fabric(self._about.fabric)).fabric.structure
        self._links = _links_of(structure, self._about.switch)

    def counters(self, report: pb.CounterReport) -> None:
        """Nothing.

        Raises:
            TooMuch: it counts more entries than the table can hold, or more pairs without one
                than an agent ever tells.
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


class Pace:
    """Lets one agent take no more than its share of the event loop: else it waits to be read."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._at = now()
        self._owed = 0.0

    def rest(self, spent: float) -> float:
        """Seconds until the next message is read, after one that took so many of work."""
        now = self._now()
        self._owed = max(0.0, self._owed - SHARE * (now - self._at)) + spent + _EACH
        self._at = now
        return max(0.0, self._owed - BURST) / SHARE
