"""What each agent said last of its links, as the embedded store keeps it."""

from __future__ import annotations

import sqlite3

from heddle_controller.store.common.reporters import Reporter, parse_links


class Observations:
    """The reporters of every fabric; touched in the store's thread only."""

    def __init__(self) -> None:
        self._fabrics: dict[str, dict[str, Reporter]] = {}

    def of(self, connection: sqlite3.Connection, fabric: str) -> dict[str, Reporter]:
        """The reporters of a fabric by switch, read from the file the first time."""
        if fabric not in self._fabrics:
            rows = connection.execute(
                "SELECT switch, instance, body FROM observations WHERE fabric = ?", (fabric,)
            )
            self._fabrics[fabric] = {
                switch: Reporter(instance, parse_links(body)) for switch, instance, body in rows
            }
        return self._fabrics[fabric]

    def keep(self, fabric: str, switch: str, reporter: Reporter) -> None:
        """Remember what a switch's agent says now, once that is written."""
        self._fabrics[fabric][switch] = reporter
