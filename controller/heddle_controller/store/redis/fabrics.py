"""Fabrics in the Redis store: put whole, got, listed, withdrawn from the overlay."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import orjson

from heddle_controller.model.fabric import Fabric, Structure
from heddle_controller.state.audit_texts import fabric_text, overlay_text
from heddle_controller.state.codec.answers import parse_summary, summary_json
from heddle_controller.state.codec.structure import pack_structure
from heddle_controller.state.errors import Conflict, StaleIntent
from heddle_controller.state.records import FabricRecord, FabricSummary, Overlay, Request
from heddle_controller.store.common.fabrics import FabricPut
from heddle_controller.store.common.reporters import observed_states
from heddle_controller.store.common.requests import fingerprint
from heddle_controller.store.common.states import States, state_times
from heddle_controller.store.redis.change import INTENT, NEITHER, Ask, Blob, Change, new_token, put
from heddle_controller.store.redis.fabric import (
    REVISION,
    Meta,
    ground,
    known,
    meta_of,
    new_ground,
    overlay_of,
    record_of,
    states_of,
)
from heddle_controller.store.redis.observed import reporters_of
from heddle_controller.store.redis.part import NOBODY, Part, entry
from heddle_controller.store.redis.view import View


class FabricPart(Part):
    """``put_fabric``, ``get_fabric``, ``list_fabrics`` and ``set_overlay`` of ``FabricStore``."""

    async def put_fabric(
        self,
        name: str,
        fabric: Fabric,
        *,
        title: str = "",
        etag: str = "",
        checked_version: int | None = None,
        request: Request = NOBODY,
    ) -> FabricRecord:
        """See ``FabricStore``."""
        packed = await asyncio.to_thread(pack_structure, fabric.structure, f"fabric {name!r}")
        wanted = FabricPut(name, title, fabric, packed, etag, checked_version)
        blob = Blob(f"structure-{new_token()}", packed.body)

        def decide(view: View | None) -> tuple[Change, FabricRecord]:
            return self._put(view, wanted, blob, request)

        ask = Ask(request, await asyncio.to_thread(wanted.fingerprint))
        return await self._write(name, ask, decide, wanted.decode)

    def _put(
        self, view: View | None, wanted: FabricPut, blob: Blob, request: Request
    ) -> tuple[Change, FabricRecord]:
        old = meta_of(view) if view else None
        version = view.number("version") if view else 0
        if wanted.checked_version not in (None, version):
            raise StaleIntent(wanted.name)
        if wanted.etag and (old is None or wanted.etag != old.etag):
            raise Conflict(f"fabrics/{wanted.name}")
        same = old is not None and old.digest == wanted.packed.digest
        structures, digest = self._shared.structures, wanted.packed.digest
        structure = structures.setdefault(digest, wanted.packed.structure)
        now = self._shared.now()
        meta = Meta(
            title=wanted.title,
            digest=digest,
            blob=old.blob if old and same else blob.id,
            etag=new_token(),
            update_time=now,
        )
        states = self._states(view, wanted.fabric, structure, now)
        packed = states.packed()
        revision = (view.number(REVISION) if view else 0) + (not same)
        record = FabricRecord(
            name=wanted.name,
            title=meta.title,
            etag=meta.etag,
            update_time=now,
            revision=revision,
            fabric=Fabric(structure, states.link_admin, states.node_admin),
            observed=states.observed,
            state_time=states.time,
            overlay=overlay_of(view) if view else Overlay(),
        )
        before = record_of(view, structures) if view else None
        texts = _text(before, old), _text(record, meta)
        change = Change(
            fabric=wanted.name,
            kind=INTENT,
            guards=_guards(view, wanted),
            ops=(meta.op(), put("states", packed), put(REVISION, revision), new_ground()),
            keep=() if same else (blob,),
            drop=(old.blob,) if old and not same else (),
            audit=entry(request, now, "put_fabric", f"fabrics/{wanted.name}", texts),
            answer=wanted.encode(record),
            time=now,
        )
        return change, record

    def _states(
        self, view: View | None, fabric: Fabric, structure: Structure, now: float
    ) -> States:
        states = States(
            link_admin=fabric.link_state,
            node_admin=fabric.node_state,
            observed=observed_states(structure, reporters_of(view) if view else {}),
            time=np.zeros(len(structure.links.key)),
        )
        before = None
        if view is not None:
            before = self._shared.structures[meta_of(view).digest], states_of(view)
        return replace(states, time=state_times(before, structure, states, now))

    async def get_fabric(self, name: str) -> FabricRecord:
        """See ``FabricStore``."""
        view = await self._view(name)
        return await self._record(view)

    async def _record(self, view: View) -> FabricRecord:
        while True:
            await self._structure_of(view)
            with self._sound():
                if meta_of(view).digest in self._shared.structures:
                    return record_of(view, self._shared.structures)

    async def list_fabrics(self, *, after: str = "", limit: int = 0) -> Sequence[FabricSummary]:
        """See ``FabricStore``."""
        mirror = self._shared.mirror
        await mirror.fresh()
        names = sorted(name for name in mirror.views if name > after)
        views = [mirror.views[name] for name in names[: limit or None]]
        return [(await self._record(view)).summary() for view in views]

    async def set_overlay(
        self, fabric: str, *, withdrawn: bool, request: Request = NOBODY
    ) -> FabricSummary:
        """See ``FabricStore``."""

        def decide(view: View | None) -> tuple[Change, FabricSummary]:
            return self._overlay(known(view, fabric), Overlay(withdrawn=withdrawn), request)

        ask = Ask(request, fingerprint("set_overlay", fabric, str(withdrawn)))
        return await self._write(fabric, ask, decide, parse_summary)

    def _overlay(
        self, view: View, wanted: Overlay, request: Request
    ) -> tuple[Change, FabricSummary]:
        record, now = record_of(view, self._shared.structures), self._shared.now()
        change = Change(view.name, NEITHER, guards=(ground(view),), time=now)
        if record.overlay.withdrawn != wanted.withdrawn:
            overlay = replace(wanted, time=now)
            meta = replace(meta_of(view), etag=new_token(), update_time=now)
            texts = (
                overlay_text(withdrawn=not wanted.withdrawn),
                overlay_text(withdrawn=wanted.withdrawn),
            )
            record = replace(record, etag=meta.etag, update_time=now, overlay=overlay)
            change = replace(
                change,
                kind=INTENT,
                ops=(put("overlay", orjson.dumps(overlay)), meta.op(), new_ground()),
                audit=entry(request, now, "set_overlay", f"fabrics/{view.name}", texts),
            )
        summary = record.summary()
        return replace(change, answer=summary_json(summary)), summary


def _guards(view: View | None, wanted: FabricPut) -> tuple[tuple[str, bytes | None], ...]:
    """What must hold still: what it was decided on, and what it was checked against."""
    if wanted.checked_version is None:
        return (ground(view),)
    return (ground(view), ("version", view.raw("version") if view else None))


def _text(record: FabricRecord | None, meta: Meta | None) -> str:
    if record is None or meta is None:
        return ""
    return fabric_text(record.title, meta.digest, record.fabric)
