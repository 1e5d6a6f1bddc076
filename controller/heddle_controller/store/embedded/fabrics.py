"""Fabrics in the embedded store: put whole, got, listed."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from heddle_controller.model.fabric import Fabric, Structure
from heddle_controller.state.audit_texts import Change, fabric_text
from heddle_controller.state.codec.structure import pack_structure
from heddle_controller.state.errors import Conflict, StaleIntent
from heddle_controller.state.records import FabricRecord, FabricSummary, Overlay, Request
from heddle_controller.store.common.fabrics import FabricPut
from heddle_controller.store.common.reporters import observed_states
from heddle_controller.store.common.states import States, state_times
from heddle_controller.store.embedded.part import NOBODY, Part, new_etag
from heddle_controller.store.embedded.requests import once
from heddle_controller.store.embedded.rows import (
    FabricRow,
    drop_unused_structures,
    fabric_row,
    find_fabric,
)


class FabricTables(Part):
    """``put_fabric``, ``get_fabric`` and ``list_fabrics`` of ``FabricStore``."""

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
        put = FabricPut(name, title, fabric, packed, etag, checked_version)

        def work(connection: sqlite3.Connection) -> FabricRecord:
            codec = (put.encode, put.decode)
            print_ = put.fingerprint()
            return once(
                connection, request, print_, lambda: self._put(connection, put, request), codec
            )

        return await self._write(name, work)

    def _put(
        self, connection: sqlite3.Connection, put: FabricPut, request: Request
    ) -> FabricRecord:
        structures = self._shared.structures
        old = find_fabric(connection, put.name, structures)
        version = old.version if old else 0
        if put.checked_version is not None and put.checked_version != version:
            raise StaleIntent(put.name)
        if put.etag and (old is None or put.etag != old.etag):
            raise Conflict(f"fabrics/{put.name}")
        structure = structures.setdefault(put.packed.digest, put.packed.structure)
        row = self._row(connection, put, old, structure)
        _upsert(connection, row, put.packed.body)
        drop_unused_structures(connection, structures)
        change = Change("put_fabric", f"fabrics/{put.name}", _text(old), _text(row))
        self._note(connection, request, change)
        return row.record()

    def _row(
        self,
        connection: sqlite3.Connection,
        put: FabricPut,
        old: FabricRow | None,
        structure: Structure,
    ) -> FabricRow:
        now = self._shared.now()
        version = old.version + 1 if old else 1
        revision = old.revision if old else 0
        states = States(
            link_admin=put.fabric.link_state,
            node_admin=put.fabric.node_state,
            observed=observed_states(structure, self._shared.observations.of(connection, put.name)),
            time=np.zeros(len(structure.links.key)),
        )
        before = (old.structure, old.states) if old else None
        return FabricRow(
            name=put.name,
            title=put.title,
            digest=put.packed.digest,
            structure=structure,
            states=replace(states, time=state_times(before, structure, states, now)),
            etag=new_etag(version),
            update_time=now,
            revision=revision if old and old.digest == put.packed.digest else revision + 1,
            version=version,
            change_time=now,
            overlay=old.overlay if old else Overlay(),
        )

    async def get_fabric(self, name: str) -> FabricRecord:
        """See ``FabricStore``."""
        row = await self._read(lambda c: fabric_row(c, name, self._shared.structures))
        return row.record()

    async def list_fabrics(self, *, after: str = "", limit: int = 0) -> Sequence[FabricSummary]:
        """See ``FabricStore``."""

        def work(connection: sqlite3.Connection) -> list[FabricSummary]:
            names = connection.execute(
                "SELECT name FROM fabrics WHERE name > ? ORDER BY name LIMIT ?",
                (after, limit or -1),
            ).fetchall()
            rows = (fabric_row(connection, name, self._shared.structures) for (name,) in names)
            return [row.record().summary() for row in rows]

        return await self._read(work)


def _text(row: FabricRow | None) -> str:
    return fabric_text(row.title, row.digest, row.record().fabric) if row else ""


def _upsert(connection: sqlite3.Connection, row: FabricRow, body: bytes) -> None:
    connection.execute("INSERT OR IGNORE INTO structures VALUES (?, ?)", (row.digest, body))
    connection.execute(
        "INSERT INTO fabrics (name, title, structure, states, etag, update_time, revision, "
        "version, change_time, facts) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0) "
        "ON CONFLICT (name) DO UPDATE SET title = excluded.title, "
        "structure = excluded.structure, states = excluded.states, etag = excluded.etag, "
        "update_time = excluded.update_time, revision = excluded.revision, "
        "version = excluded.version, change_time = excluded.change_time",
        (
            row.name,
            row.title,
            row.digest,
            row.states.packed(),
            row.etag,
            row.update_time,
            row.revision,
            row.version,
            row.change_time,
        ),
    )
