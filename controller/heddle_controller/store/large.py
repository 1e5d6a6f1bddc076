"""Large values in memory: structures, demand sets, and the newest plan of each fabric.

Views point at them; they are read when they are first needed, and let go of when nothing
points at them any more. Most plans are kept as what they have otherwise than the one before, so
who has that reads little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from heddle_controller.model.demand import Demands
from heddle_controller.model.fabric import Structure
from heddle_controller.state.codec.container import DamagedError
from heddle_controller.state.codec.deltas import Whole, unpack_delta
from heddle_controller.state.codec.fabrics import unpack_structure
from heddle_controller.state.codec.jobs import unpack_demands
from heddle_controller.state.codec.plans import unpack_plan
from heddle_controller.state.demands import demand_sets
from heddle_controller.state.errors import Unusable
from heddle_controller.state.fabrics import meta_of
from heddle_controller.state.plans import PlanRow, plan_rows
from heddle_controller.state.records import DemandRecord
from heddle_controller.state.view import View
from heddle_controller.store.applier import Applier


class LargeValues:
    """Those of one store."""

    def __init__(self, applier: Applier) -> None:
        self._applier = applier
        self.structures: dict[str, Structure] = {}
        """By digest."""
        self.demands: dict[str, Demands] = {}
        """By blob."""
        self.plans: dict[str, tuple[tuple[str, ...], Whole]] = {}
        """The newest plan read or committed, and its blobs, by fabric."""

    async def structure_of(self, view: View) -> Structure | None:
        """The structure of a fabric; None where there is no such fabric."""
        while view.known:
            meta = meta_of(view)
            structure = await self.structure(meta.digest, meta.blob)
            if structure is not None:
                return structure
            self._applier.check()
            await self._applier.fresh()  # it was put again, and the old one dropped
        return None

    async def structure(self, digest: str, blob: str) -> Structure | None:
        """A structure; None where its blob is gone."""
        known = self.structures.get(digest)
        if known is not None:
            return known
        body = await self._applier.blob(blob)
        if body is None:
            return None
        with self.sound():
            structure = await asyncio.to_thread(unpack_structure, body, digest)
        return self.structures.setdefault(digest, structure)

    async def load_demands(self, view: View) -> bool:
        """Bring all sets of a fabric into memory; False where one is gone meanwhile."""
        with self.sound():
            blobs = [one.blob for one in demand_sets(view).values()]
        return all([await self.load_set(blob) for blob in blobs])

    async def load_set(self, blob: str) -> bool:
        """Bring a set into memory; False where it is gone, for another or for none."""
        if blob in self.demands:
            return True
        body = await self._applier.blob(blob)
        if body is None:
            return False
        with self.sound():
            self.demands[blob] = await asyncio.to_thread(unpack_demands, body)
        used = {one.blob for view in self._views() for one in demand_sets(view).values()}
        for gone in set(self.demands) - used - {blob}:
            del self.demands[gone]
        return True

    def demands_of(self, view: View) -> tuple[DemandRecord, ...] | None:
        """All sets of a fabric, by name; None where not all are in memory."""
        sets = demand_sets(view)
        if any(one.blob not in self.demands for one in sets.values()):
            return None
        return tuple(
            DemandRecord(name, self.demands[one.blob], one.etag, one.update_time)
            for name, one in sets.items()
        )

    async def plan(self, fabric: str, row: PlanRow, *, newest: bool) -> Whole | None:
        """A plan; None where it was dropped meanwhile."""
        blobs, begin, made = row.blobs, 0, None
        held = self.plans.get(fabric)
        if held is not None and held[0] == blobs[: len(held[0])]:
            begin, made = len(held[0]), held[1]
        if begin < len(blobs):
            structure = await self.structure(row.digest, row.structure)
            bodies = [await self._applier.blob(one) for one in blobs[begin:]]
            if structure is None or None in bodies:
                return None
            known = [body for body in bodies if body is not None]
            with self.sound():
                made = await asyncio.to_thread(_read, known, made, structure)
            held = self.plans.get(fabric)
            if held is not None and held[0] == blobs:
                return held[1]  # who wrote it has it by now, with the columns of the one before
            if newest:
                self.keep_plan(fabric, blobs, made)
                self.forget_structures()
        return made

    def keep_plan(self, fabric: str, blobs: tuple[str, ...], made: Whole) -> None:
        """This is the newest plan of a fabric, unless a newer one is known."""
        known = self.plans.get(fabric)
        if known is None or known[1][1].generation <= made[1].generation:
            self.plans[fabric] = blobs, made

    def forget_structures(self) -> None:
        """Let go of structures that no fabric and no kept plan stands on."""
        used: set[str] = set()
        for view in self._views():
            used.add(meta_of(view).digest)
            used |= {row.digest for row in plan_rows(view).values()}
        for digest in set(self.structures) - used:
            del self.structures[digest]

    def _views(self) -> list[View]:
        return [self._applier.view(name) for name in self._applier.fabrics()]

    @contextmanager
    def sound(self) -> Iterator[None]:
        """Turns damage into what the port says of it."""
        try:
            yield
        except DamagedError as error:
            raise Unusable(
                f"store {self._applier.name}: a record is damaged ({error}); "
                "restore it from a backup"
            ) from error


def _read(bodies: list[bytes], before: Whole | None, structure: Structure) -> Whole:
    """The plan at the end of some stored ones; the first is whole where none is known ``before``.

    Raises:
        DamagedError: one was changed since it was made.
    """
    made, deltas = before, bodies
    if made is None:
        made, deltas = unpack_plan(bodies[0], structure), bodies[1:]
    for body in deltas:
        made = unpack_delta(body, made)
    return made
