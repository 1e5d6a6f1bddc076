"""Committed plans in the Redis store.

A plan is written beside the fabric first, however long that takes; the commit is the
small change that makes the fabric point at it, refused if the epoch or the generation
has moved on. The newest plan of each fabric is kept in memory, and so is its base: most
plans are written as what they have otherwise.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import orjson

from heddle_controller.model.fabric import Structure
from heddle_controller.model.plan import Certificate, Plan
from heddle_controller.model.program import Program
from heddle_controller.state.codec.deltas import Base, unpack_delta
from heddle_controller.state.codec.plans import pack_plan, unpack_plan
from heddle_controller.state.codec.structure import pack_structure
from heddle_controller.state.errors import StaleEpoch, StaleGeneration
from heddle_controller.state.records import Committed, PlanFacts, Programmed
from heddle_controller.store.redis.change import FACTS, Blob, Change, drop, new_token, put
from heddle_controller.store.redis.fabric import known, meta_of
from heddle_controller.store.redis.part import NO_ASK, Part
from heddle_controller.store.redis.view import View

KEPT = 4
"""Plans kept of each fabric: an agent that was away for a few still holds a table we know."""
PLAN, PROGRAMMED, GENERATION = "plan", "programmed", "generation"
KEPT_FOR = "kept_for"
"""See ``Committed``."""


@dataclass(frozen=True, slots=True)
class _Row:
    """What the fabric has of a plan."""

    blob: str
    structure: str
    """Blob of the structure that it was made on."""
    digest: str
    """Of the structure."""
    changed_count: int
    solve_seconds: float
    commit_time: float
    base: str = ""
    """Blob of the plan that ``blob`` is a delta of; empty where it is whole."""

    def blobs(self) -> tuple[str, ...]:
        """All that it points at."""
        return (self.blob, self.structure, *([self.base] if self.base else []))

    def facts(self) -> PlanFacts:
        return PlanFacts(self.changed_count, self.solve_seconds, self.commit_time)


class _UnknownBaseError(Exception):
    """The newest plan that the store has is no delta of what we took for its base."""


class PlanPart(Part):
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
        made = Committed(plan, program, facts, {})
        done = await self._commit_delta(fabric, made)
        if done is None:
            body = await asyncio.to_thread(pack_plan, plan, program)
            done, blob = await self._commit(fabric, made, body, "")
            self._shared.bases[fabric] = Base(blob, (plan, program), len(body))
        view = self._shared.mirror.view(fabric)
        return Committed(plan, program, done, _programmed_of(view), view.number(KEPT_FOR))

    async def _commit_delta(self, fabric: str, made: Committed) -> PlanFacts | None:
        """Write a plan beside its base; None where it has to be written whole."""
        base = self._shared.bases.get(fabric)
        delta = await asyncio.to_thread(base.pack, made.plan, made.program) if base else None
        if base is None or delta is None:
            return None
        try:
            return (await self._commit(fabric, made, delta, base.id))[0]
        except _UnknownBaseError:
            return None

    async def _commit(
        self, fabric: str, made: Committed, body: bytes, base: str
    ) -> tuple[PlanFacts, str]:
        """Write a plan, ``body`` being a delta of ``base`` or whole; its facts, and its blob."""
        plan, program = made.plan, made.program
        blob = Blob(f"plan-{new_token()}", body)
        digest, structure = await self._named(plan.fabric.structure, fabric)

        def decide(given: View | None) -> tuple[Change, PlanFacts]:
            view = known(given, fabric)
            self._check_epoch(program.epoch)
            newest = view.number(GENERATION)
            if newest != program.generation - 1:
                raise StaleGeneration(program.generation - 1, newest)
            if base and not _stands_on(view, newest, base):
                raise _UnknownBaseError
            meta = meta_of(view)
            on = Blob(meta.blob, None) if meta.digest == digest else structure
            now = self._shared.now()
            facts = replace(made.facts, commit_time=now)
            row = _Row(blob.id, on.id, digest, facts.changed_count, facts.solve_seconds, now, base)
            keep = (blob, on, *([Blob(base, None)] if base else []))
            change = _change(view, program, row, keep)
            return replace(change, epoch=program.epoch, time=now), facts

        done = await self._write(fabric, NO_ASK, decide)
        self._shared.plans[fabric] = (blob.id, plan, program)
        return done, blob.id

    async def _named(self, structure: Structure, fabric: str) -> tuple[str, Blob]:
        """The digest of a structure, by identity where it is known: hashing one takes long.

        And a blob of it, for where the fabric has another by now.
        """
        view = self._shared.mirror.views.get(fabric)
        current = meta_of(view).digest if view else ""
        if self._shared.structures.get(current) is structure:
            return current, Blob(f"structure-{new_token()}", None)
        packed = await asyncio.to_thread(pack_structure, structure, f"fabric {fabric!r}")
        return packed.digest, Blob(f"structure-{new_token()}", packed.body)

    def _check_epoch(self, epoch: int) -> None:
        newest = self._shared.mirror.leader.epoch
        if newest != epoch:
            raise StaleEpoch(epoch, newest)

    async def certify(
        self, fabric: str, *, epoch: int, generation: int, certificate: Certificate
    ) -> bool:
        """See ``PlanStore``."""
        committed = await self.committed(fabric)
        self._shared.link.check()
        self._check_epoch(epoch)
        if committed is None or committed.generation != generation:
            return False
        plan, program = replace(committed.plan, certificate=certificate), committed.program
        body = await asyncio.to_thread(pack_plan, plan, program)
        blob, field = Blob(f"plan-{new_token()}", body), f"{PLAN}/{generation}"

        def decide(given: View | None) -> tuple[Change, bool]:
            view = known(given, fabric)
            self._check_epoch(epoch)
            row = _row(view, generation)
            guards = ((GENERATION, view.raw(GENERATION)), (field, view.raw(field)))
            change = Change(fabric, "n", guards, epoch=epoch, time=self._shared.now())
            if row is None or view.number(GENERATION) != generation:
                return change, False
            after = replace(row, blob=blob.id, base="")
            gone = tuple(one for one in row.blobs() if one != row.structure)
            ops = (put(field, orjson.dumps(after)),)
            return replace(change, kind=FACTS, ops=ops, keep=(blob,), drop=gone), True

        done = await self._write(fabric, NO_ASK, decide)
        if done and self._shared.plans[fabric][2].generation == generation:
            self._shared.plans[fabric] = (blob.id, plan, program)
            self._shared.bases[fabric] = Base(blob.id, (plan, program), len(body))
        return done

    async def committed(self, fabric: str, generation: int = 0) -> Committed | None:
        """See ``PlanStore``."""
        while True:
            view = await self._view(fabric)
            with self._sound():
                wanted = generation or view.number(GENERATION)
                row = _row(view, wanted)
            if row is None:
                return None
            found = await self._read(fabric, row, newest=not generation)
            if found is not None:
                return Committed(*found, row.facts(), _programmed_of(view), view.number(KEPT_FOR))

    async def _read(self, fabric: str, row: _Row, *, newest: bool) -> tuple[Plan, Program] | None:
        """A plan; None where it was dropped meanwhile."""
        held = self._shared.plans.get(fabric)
        if held is not None and held[0] == row.blob:
            return held[1], held[2]
        structure = await self._structure(row.digest, row.structure)
        body = await self._shared.blobs.read(row.blob)
        if structure is None or body is None:
            return None
        base = self._shared.bases.get(fabric)
        if row.base and (base is None or base.id != row.base):
            whole = await self._shared.blobs.read(row.base)
            if whole is None:
                return None
            base = await self._base(row.base, whole, structure)
        elif not row.base:
            base = await self._base(row.blob, body, structure)
        assert base is not None  # whichever of the three it is
        plan, program = base.whole
        if row.base:
            with self._sound():
                plan, program = await asyncio.to_thread(unpack_delta, body, base.whole)
        if newest:
            self._shared.plans[fabric] = (row.blob, plan, program)
            self._shared.bases[fabric] = base
            self._forget_structures()
        return plan, program

    async def _base(self, blob: str, body: bytes, structure: Structure) -> Base[str]:
        with self._sound():
            whole = await asyncio.to_thread(unpack_plan, body, structure)
        return Base(blob, whole, len(body))

    def _forget_structures(self) -> None:
        """Let go of structures that no fabric and no kept plan stands on."""
        used: set[str] = set()
        for view in self._shared.mirror.views.values():
            used.add(meta_of(view).digest)
            rows = (_row(view, int(name)) for name in view.names(PLAN))
            used |= {row.digest for row in rows if row is not None}
        for digest in set(self._shared.structures) - used:
            del self._shared.structures[digest]


def _change(view: View, program: Program, row: _Row, keep: tuple[Blob, ...]) -> Change:
    """Makes a plan the newest, and drops the oldest."""
    generation = program.generation
    old = {name: _row(view, int(name)) for name in view.names(PLAN)}
    gone = {name: one for name, one in old.items() if one and int(name) <= generation - KEPT}
    ops = [
        put(f"{PLAN}/{generation}", orjson.dumps(row)),
        put(GENERATION, generation),
        *(drop(f"{PLAN}/{name}") for name in gone),
    ]
    return Change(
        fabric=view.name,
        kind=FACTS,
        guards=((GENERATION, view.raw(GENERATION)),),
        ops=tuple(ops),
        keep=keep,
        drop=tuple(blob for one in gone.values() for blob in one.blobs()),
    )


def _stands_on(view: View, generation: int, base: str) -> bool:
    """Whether a plan is this one or a delta of it, so that it is there and will be."""
    row = _row(view, generation)
    return row is not None and base == (row.base or row.blob)


def _row(view: View, generation: int) -> _Row | None:
    return view.get(PLAN, str(generation), lambda raw: _Row(**orjson.loads(raw)))


def _programmed_of(view: View) -> dict[str, Programmed]:
    return dict(view.all(PROGRAMMED, parse_programmed))


def parse_programmed(raw: bytes) -> Programmed:
    """What a switch holds, from the field that says so."""
    generation, epoch, time = raw.split()
    return Programmed(int(epoch), int(generation), float(time))


def programmed_bytes(fact: Programmed) -> bytes:
    """What ``parse_programmed`` reads; the generation first, for the script to compare."""
    return f"{fact.generation} {fact.epoch} {fact.time!r}".encode()
