"""Demand sets in the Redis store: large, so the fabric only points at them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import orjson

from heddle_controller.model.demand import Demands
from heddle_controller.state.audit_texts import demands_text
from heddle_controller.state.codec.demands import pack_demands, unpack_demands
from heddle_controller.state.errors import NotFound
from heddle_controller.state.ids import check_ids, jobs_meant
from heddle_controller.state.records import DemandRecord, Request
from heddle_controller.store.common.requests import fingerprint
from heddle_controller.store.redis.change import (
    ABSENT,
    INTENT,
    NEITHER,
    Ask,
    Blob,
    Change,
    drop,
    new_token,
    put,
)
from heddle_controller.store.redis.fabric import JOB, SETS, at_revision, known
from heddle_controller.store.redis.part import NOBODY, Part, entry
from heddle_controller.store.redis.view import View

DEMANDS = "demands"


@dataclass(frozen=True, slots=True)
class _Set:
    """What the fabric has of a set."""

    blob: str
    etag: str
    update_time: float
    text: str
    """For the audit trail; the same for the same content alone."""
    jobs: tuple[str, ...] = ()
    """Names of jobs whose flows would have ids of this set."""

    def raw(self) -> bytes:
        """As it is stored; an older replica knows no jobs, and mostly there are none."""
        fields = {"blob": self.blob, "etag": self.etag, "update_time": self.update_time}
        more = {"jobs": self.jobs} if self.jobs else {}
        return orjson.dumps({**fields, "text": self.text, **more})


class DemandPart(Part):
    """The demand sets of ``WorkStore``."""

    async def put_demands(
        self,
        fabric: str,
        name: str,
        demands: Demands,
        *,
        checked_revision: int,
        request: Request = NOBODY,
    ) -> DemandRecord:
        """See ``WorkStore``."""
        body, text, asked, meant = await asyncio.to_thread(_packed, fabric, name, demands)
        blob, field = Blob(f"demands-{new_token()}", body), _field(name)

        def decide(given: View | None) -> tuple[Change, DemandRecord]:
            view, guard = at_revision(given, fabric, checked_revision)
            old, now = set_of(view, name), self._shared.now()
            if old is not None and old.text == text:
                same = Change(
                    fabric=fabric,
                    kind=NEITHER,
                    guards=(guard, (field, view.raw(field))),
                    answer=orjson.dumps([old.etag, old.update_time]),
                    time=now,
                )
                return same, DemandRecord(name, demands, old.etag, old.update_time)
            others = [(o.name, o.demands) for o in self._demands_of(view) or () if o.name != name]
            jobs = {job for job in meant if view.raw(f"{JOB}/{job}") is not None}
            check_ids(name, demands, others, jobs)
            new = _Set(blob.id, new_token(), now, text, tuple(sorted(meant)))
            texts = (old.text if old else "", text)
            change = Change(
                fabric=fabric,
                kind=INTENT,
                guards=(
                    guard,
                    (field, view.raw(field)),
                    (SETS, view.raw(SETS)),
                    *((f"{JOB}/{job}", ABSENT) for job in meant),
                ),
                ops=(put(field, new.raw()), put(SETS, new_token())),
                keep=(blob,),
                drop=(old.blob,) if old else (),
                audit=entry(request, now, "put_demands", _name(fabric, name), texts),
                answer=orjson.dumps([new.etag, now]),
                time=now,
            )
            return change, DemandRecord(name, demands, new.etag, now)

        ask = Ask(request, asked)
        return await self._write(
            fabric,
            ask,
            decide,
            lambda answer: DemandRecord(name, demands, *orjson.loads(answer)),
            needs=self._all_bodies,
        )

    async def get_demands(self, fabric: str, name: str) -> DemandRecord:
        """See ``WorkStore``."""
        while True:
            view = await self._view(fabric)
            with self._sound():
                wanted = set_of(view, name)
            if wanted is None:
                raise NotFound(_name(fabric, name))
            if await self._body(wanted.blob):
                return self._demand_record(name, wanted)

    async def delete_demands(self, fabric: str, name: str, *, request: Request = NOBODY) -> None:
        """See ``WorkStore``."""
        field = _field(name)

        def decide(given: View | None) -> tuple[Change, None]:
            view = known(given, fabric)
            old, now = set_of(view, name), self._shared.now()
            if old is None:
                raise NotFound(_name(fabric, name))
            change = Change(
                fabric=fabric,
                kind=INTENT,
                guards=((field, view.raw(field)),),
                ops=(drop(field),),
                drop=(old.blob,),
                audit=entry(request, now, "delete_demands", _name(fabric, name), (old.text, "")),
                time=now,
            )
            return change, None

        ask = Ask(request, fingerprint("delete_demands", fabric, name))
        await self._write(fabric, ask, decide, lambda _: None)

    async def _all_bodies(self, view: View) -> None:
        """Bring all sets that a fabric has now into memory."""
        while not await self._bodies(view) or self._demands_of(view) is None:
            self._shared.link.check()
            await self._shared.mirror.fresh()  # one was put again, and the old one dropped

    async def _bodies(self, view: View) -> bool:
        """Bring all sets of a fabric into memory; False where one is gone meanwhile."""
        sets = [wanted for name in view.names(DEMANDS) if (wanted := set_of(view, name))]
        return all([await self._body(wanted.blob) for wanted in sets])

    def _demands_of(self, view: View) -> tuple[DemandRecord, ...] | None:
        """All sets of a fabric, by name; None where not all are in memory."""
        sets = [(name, wanted) for name in view.names(DEMANDS) if (wanted := set_of(view, name))]
        if any(wanted.blob not in self._shared.demands for _, wanted in sets):
            return None
        return tuple(self._demand_record(name, wanted) for name, wanted in sets)

    def _demand_record(self, name: str, wanted: _Set) -> DemandRecord:
        demands = self._shared.demands[wanted.blob]
        return DemandRecord(name, demands, wanted.etag, wanted.update_time)

    async def _body(self, blob: str) -> bool:
        """Bring a set into memory; False where it is gone, for another or for none."""
        if blob in self._shared.demands:
            return True
        body = await self._shared.blobs.read(blob)
        if body is None:
            return False
        with self._sound():
            self._shared.demands[blob] = await asyncio.to_thread(unpack_demands, body)
        self._forget(blob)
        return True

    def _forget(self, newest: str) -> None:
        """Let go of sets that no fabric points at any more."""
        views = self._shared.mirror.views.values()
        used = {w.blob for view in views for n in view.names(DEMANDS) if (w := set_of(view, n))}
        for blob in set(self._shared.demands) - used - {newest}:
            del self._shared.demands[blob]


def _packed(fabric: str, name: str, demands: Demands) -> tuple[bytes, str, str, frozenset[str]]:
    """A set as it is kept, for the trail, as a request is known again by, and the jobs it means."""
    body = pack_demands(demands)
    asked = fingerprint("put_demands", fabric, name, body)
    return body, demands_text(body), asked, jobs_meant(demands)


def set_of(view: View, name: str) -> _Set | None:
    """What the fabric has of a set; None if there is none."""
    return view.get(DEMANDS, name, lambda raw: _Set(**orjson.loads(raw)))


def meant_by_sets(view: View) -> list[tuple[str, tuple[str, ...]]]:
    """Names of sets, each with the jobs whose flows' ids it has."""
    sets = [(name, set_of(view, name)) for name in view.names(DEMANDS)]
    return [(name, wanted.jobs) for name, wanted in sets if wanted is not None]


def _field(name: str) -> str:
    return f"{DEMANDS}/{name}"


def _name(fabric: str, name: str) -> str:
    return f"fabrics/{fabric}/demands/{name}"
