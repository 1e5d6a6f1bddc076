"""Links that agents keep down because they flap, and links that lose packets or are too slow.

The latter are up for the network, and none of them is well: operators see how many there are and
which, in lists of links, and in the log when it begins and when it ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import structlog

from heddle.names import link_name
from heddle.v1 import agent_pb2 as pb
from heddle.v1 import common_pb2
from heddle_controller.reconcile.southbound import AgentSession

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
