"""What an agent sees of its links, on the way to the store.

Beside the stream, so that acks never wait behind a write; of each link only the newest
observation waits. While the store is away they wait here and the session goes on: an
agent whose session ended for that would only come back and say the same again.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import structlog

from heddle_controller.reconcile.ports import FabricStore
from heddle_controller.state.errors import Unavailable
from heddle_controller.state.records import LinkReport

log = structlog.stdlib.get_logger(__name__)


def merged(older: LinkReport, newer: LinkReport) -> LinkReport:
    """One report that says what two of the same instance say, one after the other."""
    if newer.full:
        return newer
    links = {seen.link: seen for seen in older.links}
    for seen in newer.links:
        known = links.get(seen.link)
        if known is None or known.sequence < seen.sequence:
            links[seen.link] = seen
    return replace(newer, links=tuple(links.values()), full=older.full)


class LinkMail:
    """Of one session."""

    def __init__(self, store: FabricStore, fabric: str) -> None:
        self._store = store
        self._fabric = fabric
        self._waiting: LinkReport | None = None
        self._wake = asyncio.Event()
        self._closed = False

    def put(self, report: LinkReport) -> None:
        """Have a report written soon."""
        self._waiting = merged(self._waiting, report) if self._waiting else report
        self._wake.set()

    def close(self) -> None:
        """The session is over: write what waits, once, and end."""
        self._closed = True
        self._wake.set()

    async def run(self) -> None:
        """Write what is put, until closed.

        Raises:
            PortError: it can never be written.
        """
        while not self._closed or self._waiting:
            await self._wake.wait()
            self._wake.clear()
            report, self._waiting = self._waiting, None
            if report is None:
                continue
            try:
                await self._store.report_links(self._fabric, report)
            except Unavailable as error:
                if self._closed:
                    return
                log.warning("links not reported yet", why=str(error), links=len(report.links))
                self._put_back(report)
                # Spread: all agents' reports wait for the same store.
                await asyncio.sleep(error.retry_after * random.uniform(0.5, 1.0))  # noqa: S311
                self._wake.set()

    def _put_back(self, report: LinkReport) -> None:
        """It was not written; what came meanwhile is newer."""
        self._waiting = merged(report, self._waiting) if self._waiting else report
