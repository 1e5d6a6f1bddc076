"""Demand sets in the embedded store: each put whole."""

from __future__ import annotations

import asyncio
import sqlite3
from functools import lru_cache

import orjson

from heddle_controller.model.demand import Demands
from heddle_controller.reconcile.errors import NotFound
from heddle_controller.reconcile.records import DemandRecord, Request
from heddle_controller.store.codec.audit import Change, demands_text
from heddle_controller.store.codec.demands import pack_demands, unpack_demands
from heddle_controller.store.common.requests import fingerprint
from heddle_controller.store.embedded.part import NOBODY, Part, new_etag
from heddle_controller.store.embedded.requests import nothing, once
from heddle_controller.store.embedded.rows import bump_intent, check_revision


class DemandTables(Part):
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
        body, print_ = await asyncio.to_thread(_packed, fabric, name, demands)

        def put(connection: sqlite3.Connection) -> DemandRecord:
            check_revision(connection, fabric, checked_revision)
            old = _body(connection, fabric, name)
            now = self._shared.now()
            etag = new_etag(bump_intent(connection, fabric, now))
            connection.execute(
                "INSERT OR REPLACE INTO demands VALUES (?, ?, ?, ?, ?)",
                (fabric, name, body, etag, now),
            )
            before = demands_text(old) if old else ""
            change = Change("put_demands", _name(fabric, name), before, demands_text(body))
            self._note(connection, request, change)
            return DemandRecord(name, demands, etag, now)

        codec = (_answer, lambda answer: DemandRecord(name, demands, *orjson.loads(answer)))
        return await self._write(fabric, lambda c: once(c, request, print_, lambda: put(c), codec))

    async def get_demands(self, fabric: str, name: str) -> DemandRecord:
        """See ``WorkStore``."""
        return await self._read(lambda connection: _demands_named(connection, fabric, name))

    async def delete_demands(self, fabric: str, name: str, *, request: Request = NOBODY) -> None:
        """See ``WorkStore``."""
        print_ = fingerprint("delete_demands", fabric, name)

        def delete(connection: sqlite3.Connection) -> None:
            old = _body(connection, fabric, name)
            if old is None:
                raise NotFound(_name(fabric, name))
            connection.execute("DELETE FROM demands WHERE fabric = ? AND name = ?", (fabric, name))
            bump_intent(connection, fabric, self._shared.now())
            change = Change("delete_demands", _name(fabric, name), before=demands_text(old))
            self._note(connection, request, change)

        codec = (nothing, lambda _: None)
        await self._write(fabric, lambda c: once(c, request, print_, lambda: delete(c), codec))


def _packed(fabric: str, name: str, demands: Demands) -> tuple[bytes, str]:
    """A set as it is kept, and as a request for it is known again by."""
    body = pack_demands(demands)
    return body, fingerprint("put_demands", fabric, name, body)


def demands_of(connection: sqlite3.Connection, fabric: str) -> list[DemandRecord]:
    """All demand sets of a fabric, by name."""
    rows = connection.execute(
        "SELECT name, body, etag, update_time FROM demands WHERE fabric = ? ORDER BY name",
        (fabric,),
    )
    return [DemandRecord(name, _unpacked(body), etag, time) for name, body, etag, time in rows]


@lru_cache(maxsize=8)
def _unpacked(body: bytes) -> Demands:
    """The loop reads all sets with every change of a link; a large one takes a while to unpack."""
    return unpack_demands(body)


def _demands_named(connection: sqlite3.Connection, fabric: str, name: str) -> DemandRecord:
    row = connection.execute(
        "SELECT body, etag, update_time FROM demands WHERE fabric = ? AND name = ?",
        (fabric, name),
    ).fetchone()
    if row is None:
        raise NotFound(_name(fabric, name))
    return DemandRecord(name, unpack_demands(row[0]), row[1], row[2])


def _body(connection: sqlite3.Connection, fabric: str, name: str) -> bytes | None:
    """A set as it is stored; None if there is none."""
    row = connection.execute(
        "SELECT body FROM demands WHERE fabric = ? AND name = ?", (fabric, name)
    ).fetchone()
    return row[0] if row else None


def _name(fabric: str, name: str) -> str:
    return f"fabrics/{fabric}/demands/{name}"


def _answer(record: DemandRecord) -> bytes:
    return orjson.dumps([record.etag, record.update_time])
