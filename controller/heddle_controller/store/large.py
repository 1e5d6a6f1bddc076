"""Large values in memory: structures, demand sets, and the newest plan of each fabric.

Views refer to them. They are read when first needed, and dropped when nothing refers to them any
more. Each is read once, however many ask for it at the same time: thousands of sessions need the
structure of their fabric when a replica has just started. Most plans are stored as a delta to the
plan before, so a process that has that plan reads little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from heddle_controller.model.demand import Demands
from heddle_controller.model.fabric import Structure
from heddle_controller.state.codec.container import DamagedError
from heddle_controller.state.codec.intent import unpack_demands, unpack_structure
from heddle_controller.state.codec.plans import Whole, unpack_delta, unpack_plan
from heddle_controller.state.demands import demand_sets
from heddle_controller.state.errors import Unusable
from heddle_controller.state.fabrics import meta_of
from heddle_controller.state.plans import PlanRow, plan_rows
from heddle_controller.state.records import DemandRecord
from heddle_controller.state.view import GENERATION, View
from heddle_controller.store.applier import Applier

_Value = TypeVar("_Value")


class LargeValues:
    """The large values of one store that are in memory."""

    def __init__(self, applier: Applier) -> None:
        self._applier = applier
        self.structures: dict[str, Structure] = {}
        """Structures by digest."""
        self.demands: dict[str, Demands] = {}
        """Demand sets by the id of their blob."""
        self.plans: dict[str, tuple[tuple[str, ...], Whole]] = {}
        """Blob ids of the newest plan that was read or committed, and that plan, by fabric."""
        self._reading: dict[tuple[object, ...], asyncio.Task[Any]] = {}
        """Values that are being read."""

    async def structure_of(self, view: View) -> Structure | None:
        """Return the structure of a fabric, or None if there is no such fabric."""
        while view.known:
            meta = meta_of(view)
            structure = await self.structure(meta.digest, meta.blob)
            if structure is not None:
                return structure
            self._applier.check()
            await self._applier.fresh()  # the fabric was replaced, and the old blob is gone
        return None

    async def structure(self, digest: str, blob: str) -> Structure | None:
        """Return a structure, or None if its blob is gone."""
        known = self.structures.get(digest)
        if known is not None:
            return known
        return await self._once(("structure", blob), lambda: self._read_structure(digest, blob))

    async def _once(
        self, key: tuple[object, ...], read: Callable[[], Coroutine[Any, Any, _Value]]
    ) -> _Value:
        """Return what ``read`` returns, or what it returns to another caller at this moment.

        A caller that is cancelled does not cancel it for the others.
        """
        reading: asyncio.Task[_Value] | None = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.create_task(read())
            reading.add_done_callback(partial(self._has_read, key))
        return await asyncio.shield(reading)

    def _has_read(self, key: tuple[object, ...], reading: asyncio.Task[Any]) -> None:
        del self._reading[key]
        if not reading.cancelled():
            reading.exception()  # retrieved here, because all callers may be gone

    async def _read_structure(self, digest: str, blob: str) -> Structure | None:
        body = await self._body(blob)
        if body is None:
            return None
        with self.sound():
            structure = await asyncio.to_thread(unpack_structure, body, digest)
        return self.structures.setdefault(digest, structure)

    async def load_demands(self, view: View) -> bool:
        """Load all demand sets of a fabric into memory. False if one of them is gone meanwhile."""
        with self.sound():
            blobs = [one.blob for one in demand_sets(view).values()]
        return all([await self.load_set(blob) for blob in blobs])

    async def load_set(self, blob: str) -> bool:
        """Load a demand set into memory. False if its blob is gone: it was replaced or deleted."""
        if blob in self.demands:
            return True
        body = await self._body(blob)
        if body is None:
            return False
        with self.sound():
            self.demands[blob] = await asyncio.to_thread(unpack_demands, body)
        used = {one.blob for view in self._views() for one in demand_sets(view).values()}
        for gone in set(self.demands) - used - {blob}:
            del self.demands[gone]
        return True

    def demands_of(self, view: View) -> tuple[DemandRecord, ...] | None:
        """Return all demand sets of a fabric, by name, or None if not all are in memory."""
        sets = demand_sets(view)
        if any(one.blob not in self.demands for one in sets.values()):
            return None
        return tuple(
            DemandRecord(name, self.demands[one.blob], one.etag, one.update_time)
            for name, one in sets.items()
        )

    async def plan(self, fabric: str, row: PlanRow, *, newest: bool) -> Whole | None:
        """Return a plan and its program, or None if they were dropped meanwhile.

        ``newest`` says whether it is the newest plan, which is then kept in memory.
        """
        held = self.plans.get(fabric)
        if held is not None and held[0] == row.blobs:
            return held[1]
        key = (fabric, newest, *row.blobs)
        return await self._once(key, lambda: self._read_plan(fabric, row, newest=newest))

    async def _read_plan(self, fabric: str, row: PlanRow, *, newest: bool) -> Whole | None:
        blobs, begin, made = row.blobs, 0, None
        held = self.plans.get(fabric)
        if held is not None and held[0] == blobs[: len(held[0])]:
            begin, made = len(held[0]), held[1]
        if begin < len(blobs):
            structure = await self.structure(row.digest, row.structure)
            bodies = [await self._body(one) for one in blobs[begin:]]
            if structure is None or None in bodies:
                return None
            known = [body for body in bodies if body is not None]
            with self.sound():
                made = await asyncio.to_thread(_read, known, made, structure)
            held = self.plans.get(fabric)
            if held is not None and held[0] == blobs:
                return held[1]  # a commit kept it meanwhile; it shares columns with the plan before
            if newest:
                self.keep_plan(fabric, blobs, made)
                self.forget()
        return made

    async def _body(self, blob: str) -> bytes | None:
        """Return a blob, or None if it was replaced or deleted meanwhile.

        Raises:
            Unavailable: the store is away.
            Unusable: the blob is gone although a fabric refers to it.
        """
        body = await self._applier.blob(blob)
        if body is None:
            await self._applier.fresh()
            self._applier.check()  # or the views may be too old to tell
            with self.sound():
                lost = any(blob in _blobs_of(view) for view in self._views())
            if lost:
                raise Unusable(
                    f"store {self._applier.name}: {blob} is gone; restore the store from a backup"
                )
        return body

    def keep_plan(self, fabric: str, blobs: tuple[str, ...], made: Whole) -> None:
        """Keep a plan as the newest one of a fabric, unless a newer one is known.

        What is newer than the newest plan of the store does not count: the store came back older.
        """
        known, generation = self.plans.get(fabric), made[1].generation
        newest = self._applier.view(fabric).number(GENERATION)
        if known is None or known[1][1].generation <= generation or generation == newest:
            self.plans[fabric] = blobs, made

    def forget(self) -> None:
        """Drop structures that no fabric and no stored plan uses, and plans of deleted fabrics."""
        used: set[str] = set()
        for view in self._views():
            used.add(meta_of(view).digest)
            used |= {row.digest for row in plan_rows(view).values()}
        for fabric in self.plans.keys() - set(self._applier.fabrics()):
            del self.plans[fabric]
        for digest in set(self.structures) - used:
            del self.structures[digest]

    def _views(self) -> list[View]:
        return [self._applier.view(name) for name in self._applier.fabrics()]

    @contextmanager
    def sound(self) -> Iterator[None]:
        """Turn a ``DamagedError`` into ``Unusable``, which names the store and a cure."""
        try:
            yield
        except DamagedError as error:
            raise Unusable(
                f"store {self._applier.name}: a record is damaged ({error}); "
                "restore it from a backup"
            ) from error


def _blobs_of(view: View) -> Iterator[str]:
    """Yield the ids of all blobs that a fabric refers to."""
    yield meta_of(view).blob
    yield from (one.blob for one in demand_sets(view).values())
    for row in plan_rows(view).values():
        yield from row.pointed_at()


def _read(bodies: list[bytes], before: Whole | None, structure: Structure) -> Whole:
    """Return the plan that results from some stored blobs, read in order.

    All are deltas that follow the plan ``before``. If that is None, the first is a whole plan.

    Raises:
        DamagedError: a blob was changed since it was made.
    """
    made, deltas = before, bodies
    if made is None:
        made, deltas = unpack_plan(bodies[0], structure), bodies[1:]
    for body in deltas:
        made = unpack_delta(body, made)
    return made
