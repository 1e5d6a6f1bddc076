"""What agents report of links, in the embedded store.

All that an agent said last is kept in memory, by switch; the file gets a switch's
observations only when the set of its links that are down changes. Whatever the
file lacks, the agent says again when it comes back: a session begins with a full
report. So a fabric that boots, thousands of agents with every link up, writes
nothing, and a lost link waits for no disk until the plan after it is committed.
"""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace

import numpy as np

from heddle_controller.state.records import LinkReport
from heddle_controller.store.common.reporters import (
    LinkEnds,
    Reporter,
    known_links,
    links_json,
    restated,
)
from heddle_controller.store.embedded.part import Part
from heddle_controller.store.embedded.rows import FabricRow, fabric_row, save_states


class ObservedTables(Part):
    """``report_links`` of ``FabricStore``."""

    async def report_links(self, fabric: str, report: LinkReport) -> bool:
        """See ``FabricStore``."""
        loop = asyncio.get_running_loop()

        def work(connection: sqlite3.Connection) -> tuple[Reporter, bool]:
            row = fabric_row(connection, fabric, self._shared.structures)
            before = self._shared.observations.of(connection, fabric).get(report.switch, Reporter())
            now = before.after(known_links(row.record().fabric, report))
            if now.down() == before.down():
                return now, False
            _save(connection, fabric, report.switch, now)
            turned = before.down() ^ now.down()
            return now, self._restate(connection, row, report.switch, now, turned)

        def after(answer: tuple[Reporter, bool]) -> None:
            self._shared.observations.keep(fabric, report.switch, answer[0])
            if answer[1]:
                loop.call_soon_threadsafe(self._tell, fabric, False)

        return (await self._run(self._shared.database.run(work, after, lasting=False)))[1]

    def _restate(
        self,
        connection: sqlite3.Connection,
        row: FabricRow,
        switch: str,
        now: Reporter,
        turned: set[LinkEnds],
    ) -> bool:
        """Write the observed states of links that turned for a reporter; whether any changed."""
        reporters = {**self._shared.observations.of(connection, row.name), switch: now}
        fabric = row.record().fabric
        observed = restated(fabric, row.states.observed, reporters, turned)
        changed = observed != row.states.observed
        if not changed.any():
            return False
        moment = self._shared.now()
        times = np.where(changed, moment, row.states.time)
        save_states(
            connection, row.name, replace(row.states, observed=observed, time=times), moment
        )
        return True


def _save(connection: sqlite3.Connection, fabric: str, switch: str, reporter: Reporter) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO observations VALUES (?, ?, ?, ?)",
        (fabric, switch, reporter.instance, links_json(reporter)),
    )
