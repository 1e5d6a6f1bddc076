"""Leadership of an embedded store: one process has the file, so one leads at a time.

The epoch grows with every acquisition all the same, and lives in the file: agents
refuse what an earlier process of the same controller may still have under way. Whose
file is gone leads no more: another may have begun with a copy of it.
"""

from __future__ import annotations

import sqlite3

from heddle_controller.reconcile.replicas import Leader
from heddle_controller.state.errors import StaleEpoch, Unavailable
from heddle_controller.store.embedded.part import Part


class LeadershipTable(Part):
    """``Leadership``, ``Succession`` and ``Freshness``."""

    async def acquire_leadership(self, holder: str, *, above: int = 0) -> int:
        """See ``Leadership``."""
        turn = self._shared.turn
        async with turn.changed:
            await turn.changed.wait_for(lambda: not turn.leader or turn.closed)
            if turn.closed:
                raise Unavailable("the store is closed, the controller is stopping")
            # Not _read, which would take the turn again.
            turn.leader = await self._shared.database.run(lambda c: _next(c, holder, above))
            return turn.leader

    async def leadership_lost(self, epoch: int) -> None:
        """See ``Leadership``."""
        turn = self._shared.turn
        async with turn.changed:
            await turn.changed.wait_for(lambda: turn.leader != epoch or turn.closed)

    async def release_leadership(self, epoch: int) -> None:
        """See ``Leadership``."""
        turn = self._shared.turn
        async with turn.changed:
            if turn.leader == epoch:
                turn.leader = 0
                turn.changed.notify_all()

    def leads(self, epoch: int) -> bool:
        """See ``Succession``."""
        turn = self._shared.turn
        return turn.leader == epoch and not turn.closed

    async def leader(self) -> Leader:
        """See ``Succession``."""
        return await self._read(_newest)

    def stale_for(self) -> float:
        """See ``Freshness``: the file is here, or nothing is."""
        return 0.0


def _next(connection: sqlite3.Connection, holder: str, above: int) -> int:
    row = connection.execute(
        "UPDATE leadership SET epoch = max(epoch, ?) + 1, holder = ? RETURNING epoch",
        (above, holder),
    ).fetchone()
    return int(row[0])


def _newest(connection: sqlite3.Connection) -> Leader:
    return Leader(*connection.execute("SELECT epoch, holder FROM leadership").fetchone())


def check_epoch(connection: sqlite3.Connection, epoch: int) -> None:
    """Nothing if the epoch is the newest. Raises ``StaleEpoch``."""
    newest = int(connection.execute("SELECT epoch FROM leadership").fetchone()[0])
    if newest != epoch:
        raise StaleEpoch(epoch, newest)
