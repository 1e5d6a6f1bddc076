"""Committed plans in the embedded store.

Packing and unpacking a plan takes longer than writing it, so both are done outside
the store's thread. The newest plan of each fabric is kept in memory: serve asks for
it with every route it lists.
"""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass, replace

from heddle_controller.model.fabric import Structure
from heddle_controller.model.plan import Certificate, Plan
from heddle_controller.model.program import Program
from heddle_controller.reconcile.errors import StaleGeneration
from heddle_controller.reconcile.records import Committed, PlanFacts, Programmed
from heddle_controller.store.codec.plans import pack_plan, unpack_plan
from heddle_controller.store.codec.structure import PackedStructure, pack_structure
from heddle_controller.store.embedded.leadership import check_epoch
from heddle_controller.store.embedded.part import Part
from heddle_controller.store.embedded.rows import (
    bump_facts,
    drop_unused_structures,
    load_structure,
    newest_generation,
    revision_of,
)

KEPT = 4
"""Plans kept of each fabric: an agent that was away for a few still holds a table we know."""


class _UnknownStructureError(Exception):
    """The structure of a plan is not, or no longer, in the file."""


@dataclass(frozen=True, slots=True, eq=False)
class _Commit:
    """A commit, packed before its transaction begins."""

    fabric: str
    epoch: int
    expected_generation: int
    plan: Plan
    program: Program
    facts: PlanFacts
    body: bytes


@dataclass(frozen=True, slots=True, eq=False)
class _Stored:
    """A plan as read from the file, still packed where it is not in memory."""

    generation: int
    body: bytes
    structure: Structure
    facts: PlanFacts
    programmed: dict[str, Programmed]


class PlanTables(Part):
    """``commit``, ``certify`` and ``committed`` of ``PlanStore``."""

    async def commit(
        self,
        fabric: str,
        *,
        epoch: int,
        expected_generation: int,
        plan: Plan,
        program: Program,
        facts: PlanFacts,
    ) -> Committed:
        """See ``PlanStore``."""
        if (program.epoch, program.generation) != (epoch, expected_generation + 1):
            raise ValueError(
                f"program of epoch {program.epoch}, generation {program.generation} committed "
                f"with epoch {epoch} after generation {expected_generation}"
            )
        body = await asyncio.to_thread(pack_plan, plan, program)
        commit = _Commit(fabric, epoch, expected_generation, plan, program, facts, body)
        try:
            committed = await self._write(fabric, lambda c: self._commit(c, commit), facts=True)
        except _UnknownStructureError:
            structure = plan.fabric.structure
            packed = await asyncio.to_thread(pack_structure, structure, f"fabric {fabric!r}")
            committed = await self._write(
                fabric, lambda c: self._commit(c, commit, packed), facts=True
            )
        self._shared.newest[fabric] = (plan, program)
        return committed

    def _commit(
        self,
        connection: sqlite3.Connection,
        commit: _Commit,
        packed: PackedStructure | None = None,
    ) -> Committed:
        revision_of(connection, commit.fabric)
        check_epoch(connection, commit.epoch)
        newest = newest_generation(connection, commit.fabric)
        if newest != commit.expected_generation:
            raise StaleGeneration(commit.expected_generation, newest)
        facts = replace(commit.facts, commit_time=self._shared.now())
        digest = self._digest(connection, commit.plan.fabric.structure, packed)
        _insert(connection, commit, digest, facts)
        bump_facts(connection, commit.fabric)
        drop_unused_structures(connection, self._shared.structures)
        programmed = _programmed(connection, commit.fabric)
        return Committed(commit.plan, commit.program, facts, programmed)

    async def certify(
        self, fabric: str, *, epoch: int, generation: int, certificate: Certificate
    ) -> bool:
        """See ``PlanStore``."""
        committed = await self.committed(fabric)
        if committed is None or committed.generation != generation:
            await self._read(lambda c: check_epoch(c, epoch))
            return False
        plan, program = replace(committed.plan, certificate=certificate), committed.program
        body = await asyncio.to_thread(pack_plan, plan, program)

        def work(connection: sqlite3.Connection) -> bool:
            check_epoch(connection, epoch)
            if newest_generation(connection, fabric) != generation:
                return False
            connection.execute(
                "UPDATE plans SET body = ? WHERE fabric = ? AND generation = ?",
                (body, fabric, generation),
            )
            bump_facts(connection, fabric)
            return True

        done = await self._write(fabric, work, facts=True)
        known = self._shared.newest.get(fabric)
        if done and known is not None and known[1].generation == generation:
            self._shared.newest[fabric] = (plan, program)
        return done

    def _digest(
        self, connection: sqlite3.Connection, structure: Structure, packed: PackedStructure | None
    ) -> str:
        """The name of a structure in the file, by identity: hashing a large one takes long."""
        if packed is not None:
            connection.execute(
                "INSERT OR IGNORE INTO structures VALUES (?, ?)", (packed.digest, packed.body)
            )
            return packed.digest
        for digest, known in self._shared.structures.items():
            if known is structure:
                return digest
        raise _UnknownStructureError

    async def committed(self, fabric: str, generation: int = 0) -> Committed | None:
        """See ``PlanStore``."""
        stored = await self._read(lambda c: self._stored(c, fabric, generation))
        if stored is None:
            return None
        known = self._shared.newest.get(fabric)
        if known is None or known[1].generation != stored.generation:
            known = await asyncio.to_thread(unpack_plan, stored.body, stored.structure)
            if not generation:
                self._shared.newest[fabric] = known
        return Committed(*known, stored.facts, stored.programmed)

    def _stored(
        self, connection: sqlite3.Connection, fabric: str, generation: int
    ) -> _Stored | None:
        revision_of(connection, fabric)
        row = connection.execute(
            "SELECT generation, body, structure, changed_count, solve_seconds, commit_time "
            "FROM plans WHERE fabric = ? AND generation = ?",
            (fabric, generation or newest_generation(connection, fabric)),
        ).fetchone()
        if row is None:
            return None
        structure = load_structure(connection, row[2], self._shared.structures)
        facts = PlanFacts(*row[3:])
        return _Stored(row[0], row[1], structure, facts, _programmed(connection, fabric))


def _insert(connection: sqlite3.Connection, commit: _Commit, digest: str, facts: PlanFacts) -> None:
    """Write a plan, and trim the oldest."""
    generation = commit.program.generation
    connection.execute(
        "INSERT INTO plans VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            commit.fabric,
            generation,
            digest,
            commit.body,
            facts.changed_count,
            facts.solve_seconds,
            facts.commit_time,
        ),
    )
    connection.execute(
        "DELETE FROM plans WHERE fabric = ? AND generation <= ?",
        (commit.fabric, generation - KEPT),
    )


def _programmed(connection: sqlite3.Connection, fabric: str) -> dict[str, Programmed]:
    rows = connection.execute(
        "SELECT switch, epoch, generation, time FROM programmed WHERE fabric = ?", (fabric,)
    )
    facts: dict[tuple[int, int, float], Programmed] = {}  # most switches share one
    found = {}
    for switch, *fact in rows:
        key = (fact[0], fact[1], fact[2])
        known = facts.get(key)
        if known is None:
            known = facts[key] = Programmed(*key)
        found[switch] = known
    return found
