"""What is read and written of facts in the embedded store, and the snapshot of intent."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

import orjson

from heddle_controller.state.records import Intent, JobFacts, Programmed, Versions
from heddle_controller.store.embedded.demands import sets_of
from heddle_controller.store.embedded.jobs import jobs_of
from heddle_controller.store.embedded.leadership import check_epoch
from heddle_controller.store.embedded.part import Part
from heddle_controller.store.embedded.rows import (
    bump_facts,
    fabric_row,
    newest_generation,
    revision_of,
)


class FactTables(Part):
    """``intent``, ``versions``, ``record_programmed``, ``record_kept`` and ``record_jobs``."""

    async def intent(self, fabric: str) -> Intent:
        """See ``PlanStore``."""

        def work(connection: sqlite3.Connection) -> Intent:
            row = fabric_row(connection, fabric, self._shared.structures)
            sets = sets_of(connection, fabric, self._shared.demands)
            return Intent(
                name=fabric,
                version=row.version,
                change_time=row.change_time,
                revision=row.revision,
                fabric=row.record().merged(),
                jobs=tuple(jobs_of(connection, fabric)),
                demands=tuple(one.record for one in sets.values()),
                overlay=row.overlay,
            )

        return await self._read(work)

    async def versions(self, fabric: str) -> Versions:
        """See ``Store``."""

        def work(connection: sqlite3.Connection) -> Versions:
            revision_of(connection, fabric)
            row = connection.execute(
                "SELECT version, facts FROM fabrics WHERE name = ?", (fabric,)
            ).fetchone()
            return Versions(row[0], row[1], newest_generation(connection, fabric))

        return await self._read(work)

    async def record_programmed(
        self, fabric: str, *, epoch: int, generation: int, switches: Sequence[str], time: float
    ) -> None:
        """See ``PlanStore``."""

        def work(connection: sqlite3.Connection) -> None:
            check_epoch(connection, epoch)
            bump_facts(connection, fabric)
            # One statement, in which nobody waits for the interpreter: they may be thousands.
            connection.execute(
                "INSERT INTO programmed SELECT ?, value, ?, ?, ? FROM json_each(?) WHERE true "
                "ON CONFLICT (fabric, switch) "
                "DO UPDATE SET epoch = excluded.epoch, generation = excluded.generation, "
                "time = excluded.time WHERE generation < excluded.generation",
                (fabric, epoch, generation, time, orjson.dumps(list(switches)).decode()),
            )

        def after(_: None) -> None:
            known = self._shared.programmed.get(fabric)
            if known is not None:
                self._shared.programmed[fabric] = advanced(known, fact, switches)

        fact = Programmed(epoch, generation, time)
        # A new leader asks every switch what it holds: older facts only make it ask for more.
        await self._write(fabric, work, facts=True, lasting=False, then=after)

    async def record_kept(self, fabric: str, *, epoch: int, version: int) -> None:
        """See ``PlanStore``."""

        def work(connection: sqlite3.Connection) -> None:
            check_epoch(connection, epoch)
            bump_facts(connection, fabric)
            connection.execute(
                "UPDATE fabrics SET kept_for = ? WHERE name = ? AND kept_for < ?",
                (version, fabric, version),
            )

        # A new leader finds out by itself.
        await self._write(fabric, work, facts=True, lasting=False)

    async def record_jobs(self, fabric: str, *, epoch: int, facts: Mapping[str, JobFacts]) -> None:
        """See ``PlanStore``."""

        def work(connection: sqlite3.Connection) -> None:
            check_epoch(connection, epoch)
            bump_facts(connection, fabric)
            connection.executemany(
                "UPDATE jobs SET state = ?, reason = ?, flow_count = ?, unrouted_count = ?, "
                "generation = ?, state_time = ? WHERE fabric = ? AND name = ? AND etag = ?",
                [_parameters(fabric, name, fact) for name, fact in facts.items()],
            )

        await self._write(fabric, work, facts=True)


def advanced(
    known: Mapping[str, Programmed], fact: Programmed, switches: Sequence[str]
) -> dict[str, Programmed]:
    """What switches hold once some have come to a generation; none goes back."""
    after = {**known}
    for switch in switches:
        if switch not in known or known[switch].generation < fact.generation:
            after[switch] = fact
    return after


def _parameters(fabric: str, name: str, fact: JobFacts) -> tuple[object, ...]:
    return (
        int(fact.state),
        fact.reason,
        fact.flow_count,
        fact.unrouted_count,
        fact.generation,
        fact.state_time,
        fabric,
        name,
        fact.etag,
    )
