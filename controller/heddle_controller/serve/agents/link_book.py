"""Links that agents keep down because they flap, and links that lose some of what they carry.

Both are up for the network and neither is well: operators see how many there are and
which, in the log when it begins and when it ends.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from heddle.v1 import agent_pb2 as pb
from heddle_controller.reconcile.southbound import AgentSession

log = structlog.stdlib.get_logger(__name__)

UNWELL = ("flap-damped", "grey")
"""Reasons of an agent's observation; see agent.proto."""


class LinkMeter(Protocol):
    """Where unwell links are counted."""

    def links_unwell(self, fabric: str, reason: str, count: int) -> None:
        """So many ends of links are told to be so at present."""


class LinkBook:
    """The unwell links of connected agents' switches, each end by itself."""

    def __init__(self, meter: LinkMeter) -> None:
        self._meter = meter
        self._seen: dict[str, dict[tuple[str, str], str]] = {}

    def take(self, about: AgentSession, report: pb.LinkStateReport) -> None:
        """What an agent says of its links."""
        seen = self._seen.setdefault(about.fabric, {})
        if report.full:
            self._drop(about)
        for link in report.links:
            name = f"{link.link.source}-{link.link.target} key {link.link.key}"
            before = seen.get((about.switch, name))
            if link.reason in UNWELL:
                seen[about.switch, name] = link.reason
                if before != link.reason:
                    loss = round(link.loss_ratio, 4)
                    log.warning("link unwell", link=name, reason=link.reason, loss_ratio=loss)
            elif before is not None:
                del seen[about.switch, name]
                log.info("link not unwell any more", link=name, was=before)
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
        reasons = list(self._seen.get(fabric, {}).values())
        for reason in UNWELL:
            self._meter.links_unwell(fabric, reason, reasons.count(reason))
