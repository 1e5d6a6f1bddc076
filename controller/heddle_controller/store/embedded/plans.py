"""Committed plans in the embedded store.

Packing and unpacking a plan takes longer than writing it, so both are done outside
the store's thread. The newest plan of each fabric is kept in memory: serve asks for
it with every route it lists. So is its base: most plans are written as what they have
otherwise, which is a few thousand bytes instead of millions.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace

from heddle_controller.model.fabric import Structure
from heddle_controller.model.plan import Certificate, Plan
from heddle_controller.model.program import Program
from heddle_controller.state.codec.deltas import Base, unpack_delta
from heddle_controller.state.codec.plans import pack_plan, unpack_plan
from heddle_controller.state.codec.structure import PackedStructure, pack_structure
from heddle_controller.state.errors import StaleGeneration
from heddle_controller.state.records import Committed, PlanFacts, Programmed
from heddle_controller.store.embedded.leadership import check_epoch
from heddle_controller.store.embedded.part import Part
from heddle_controller.store.embedded.rows import (
    bump_facts,
    drop_unused_structures,
    kept_for,
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
    base: Base[int] | None
    """What ``body`` is a delta of; None where it is whole."""


@dataclass(frozen=True, slots=True, eq=False)
class _Stored:
    """A plan as read from the file, still packed where it is not in memory."""

    generation: int
    body: bytes | None
    """None where the plan is in memory; empty where it is its own base."""
    base: int | None
    """None where the body is whole, as the release before wrote it."""
    base_body: bytes | None
    """None where the base is in memory."""
    structure: Structure
    facts: PlanFacts
    programmed: Mapping[str, Programmed]
    kept_for: int


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
        body, base = await asyncio.to_thread(_packed, plan, program, self._shared.bases.get(fabric))
        commit = _Commit(fabric, epoch, expected_generation, plan, program, facts, body, base)
        try:
            done = await self._write(fabric, lambda c: self._commit(c, commit), facts=True)
        except _UnknownStructureError:
            structure = plan.fabric.structure
            packed = await asyncio.to_thread(pack_structure, structure, f"fabric {fabric!r}")
            done = await self._write(fabric, lambda c: self._commit(c, commit, packed), facts=True)
        committed, number = done
        self._shared.newest[fabric] = (plan, program)
        if base is None:
            self._shared.bases[fabric] = Base(number, (plan, program), len(body))
        return committed

    def _commit(
        self,
        connection: sqlite3.Connection,
        commit: _Commit,
        packed: PackedStructure | None = None,
    ) -> tuple[Committed, int]:
        """The plan as committed, and the number of its base."""
        revision_of(connection, commit.fabric)
        check_epoch(connection, commit.epoch)
        newest = newest_generation(connection, commit.fabric)
        if newest != commit.expected_generation:
            raise StaleGeneration(commit.expected_generation, newest)
        facts = replace(commit.facts, commit_time=self._shared.now())
        digest = self._digest(connection, commit.plan.fabric.structure, packed)
        number = _insert(connection, commit, digest, facts)
        bump_facts(connection, commit.fabric)
        drop_unused_structures(connection, self._shared.structures)
        programmed = self._programmed(connection, commit.fabric)
        kept = kept_for(connection, commit.fabric)
        return Committed(commit.plan, commit.program, facts, programmed, kept), number

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

        def work(connection: sqlite3.Connection) -> int | None:
            check_epoch(connection, epoch)
            if newest_generation(connection, fabric) != generation:
                return None
            number = _insert_base(connection, body)
            connection.execute(
                "UPDATE plans SET body = ?, base = ? WHERE fabric = ? AND generation = ?",
                (b"", number, fabric, generation),
            )
            _drop_unused_bases(connection)
            bump_facts(connection, fabric)
            return number

        def after(number: int | None) -> None:
            known = self._shared.newest.get(fabric)
            if number is not None and known is not None and known[1].generation == generation:
                self._shared.newest[fabric] = (plan, program)
                self._shared.bases[fabric] = Base(number, (plan, program), len(body))

        # Before watchers are told: they look at once, and nothing tells them a second time.
        return await self._write(fabric, work, facts=True, then=after) is not None

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
        known, base = self._shared.newest.get(fabric), self._shared.bases.get(fabric)
        has = (known[1].generation if known else 0, base.id if base else 0)
        stored = await self._read(lambda c: self._stored(c, fabric, generation, has))
        if stored is None:
            return None
        if stored.body is None:
            assert known is not None  # its generation was what is stored
            return Committed(*known, stored.facts, stored.programmed, stored.kept_for)
        found, base = await asyncio.to_thread(_unpacked, stored, base)
        now = self._shared.newest.get(fabric)
        # While this was unpacked it may have been certified, or another may have been committed.
        if not generation and (now is None or now[1].generation < stored.generation):
            self._shared.newest[fabric] = found
            if base is not None:
                self._shared.bases[fabric] = base
        return Committed(*found, stored.facts, stored.programmed, stored.kept_for)

    def _stored(
        self, connection: sqlite3.Connection, fabric: str, generation: int, has: tuple[int, int]
    ) -> _Stored | None:
        """What the file has of a plan; ``has`` are a generation and a base that are in memory."""
        revision_of(connection, fabric)
        generation = generation or newest_generation(connection, fabric)
        row = connection.execute(
            "SELECT structure, base, changed_count, solve_seconds, commit_time "
            "FROM plans WHERE fabric = ? AND generation = ?",
            (fabric, generation),
        ).fetchone()
        if row is None:
            return None
        body = base_body = None
        if generation != has[0]:
            select = "SELECT body FROM plans WHERE fabric = ? AND generation = ?"
            body = connection.execute(select, (fabric, generation)).fetchone()[0]
            if row[1] is not None and row[1] != has[1]:
                select = "SELECT body FROM plan_bases WHERE id = ?"
                base_body = connection.execute(select, (row[1],)).fetchone()[0]
        structure = load_structure(connection, row[0], self._shared.structures)
        facts, programmed = PlanFacts(*row[2:]), self._programmed(connection, fabric)
        kept = kept_for(connection, fabric)
        return _Stored(generation, body, row[1], base_body, structure, facts, programmed, kept)

    def _programmed(self, connection: sqlite3.Connection, fabric: str) -> Mapping[str, Programmed]:
        """What switches hold; read once, for every commit tells it and they may be thousands."""
        if fabric not in self._shared.programmed:
            self._shared.programmed[fabric] = _read_programmed(connection, fabric)
        return self._shared.programmed[fabric]


def _packed(plan: Plan, program: Program, base: Base[int] | None) -> tuple[bytes, Base[int] | None]:
    """A plan beside its base, where it is worth that, or whole."""
    delta = base.pack(plan, program) if base is not None else None
    return (pack_plan(plan, program), None) if delta is None else (delta, base)


def _unpacked(
    stored: _Stored, base: Base[int] | None
) -> tuple[tuple[Plan, Program], Base[int] | None]:
    """A plan, and its base; ``base`` is one that is in memory."""
    assert stored.body is not None  # else there is nothing to do
    if stored.base is None:
        return unpack_plan(stored.body, stored.structure), None
    if stored.base_body is not None:
        whole = unpack_plan(stored.base_body, stored.structure)
        base = Base(stored.base, whole, len(stored.base_body))
    assert base is not None  # it was asked for unless it is in memory
    return (unpack_delta(stored.body, base.whole) if stored.body else base.whole), base


def _insert(connection: sqlite3.Connection, commit: _Commit, digest: str, facts: PlanFacts) -> int:
    """Write a plan, and trim the oldest; returns the number of its base."""
    generation, whole = commit.program.generation, commit.base is None
    base = commit.base.id if commit.base else _insert_base(connection, commit.body)
    connection.execute(
        "INSERT INTO plans (fabric, generation, structure, body, base, changed_count, "
        "solve_seconds, commit_time) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            commit.fabric,
            generation,
            digest,
            b"" if whole else commit.body,
            base,
            facts.changed_count,
            facts.solve_seconds,
            facts.commit_time,
        ),
    )
    connection.execute(
        "DELETE FROM plans WHERE fabric = ? AND generation <= ?",
        (commit.fabric, generation - KEPT),
    )
    _drop_unused_bases(connection)
    return base


def _insert_base(connection: sqlite3.Connection, body: bytes) -> int:
    cursor = connection.execute("INSERT INTO plan_bases (body) VALUES (?)", (body,))
    assert cursor.lastrowid is not None  # after an insert it is there
    return cursor.lastrowid


def _drop_unused_bases(connection: sqlite3.Connection) -> None:
    """Forget the plans that no kept one is a delta of."""
    connection.execute(
        "DELETE FROM plan_bases WHERE id NOT IN (SELECT base FROM plans WHERE base IS NOT NULL)"
    )


def _read_programmed(connection: sqlite3.Connection, fabric: str) -> dict[str, Programmed]:
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
