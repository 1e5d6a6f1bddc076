"""Demand sets in the embedded store: each put whole."""

from __future__ import annotations

import asyncio
import sqlite3

import orjson

from heddle_controller.model.demand import Demands
from heddle_controller.state.audit_texts import Change, demands_text
from heddle_controller.state.codec.demands import pack_demands, unpack_demands
from heddle_controller.state.errors import NotFound
from heddle_controller.state.ids import check_ids, jobs_meant
from heddle_controller.state.records import DemandRecord, Request
from heddle_controller.store.common.requests import fingerprint
from heddle_controller.store.embedded.part import NOBODY, KeptSet, Part, new_etag
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
        body, print_, text, meant = await asyncio.to_thread(_packed, fabric, name, demands)

        def put(connection: sqlite3.Connection) -> DemandRecord:
            check_revision(connection, fabric, checked_revision)
            sets = sets_of(connection, fabric, self._shared.demands)
            old = sets.pop(name, None)
            if old is not None and old.text == text:
                return old.record
            jobs = {job for job in meant if _is_job(connection, fabric, job)}
            check_ids(name, demands, ((n, s.record.demands) for n, s in sets.items()), jobs)
            now = self._shared.now()
            etag = new_etag(bump_intent(connection, fabric, now))
            connection.execute(
                "INSERT OR REPLACE INTO demands VALUES (?, ?, ?, ?, ?)",
                (fabric, name, body, etag, now),
            )
            change = Change("put_demands", _name(fabric, name), old.text if old else "", text)
            self._note(connection, request, change)
            record = DemandRecord(name, demands, etag, now)
            self._shared.demands[fabric, name] = KeptSet(record, text, meant)
            return record

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


def _packed(fabric: str, name: str, demands: Demands) -> tuple[bytes, str, str, frozenset[str]]:
    """A set as it is kept, as a request is known again by, for the trail, and the jobs it means."""
    body = pack_demands(demands)
    print_ = fingerprint("put_demands", fabric, name, body)
    return body, print_, demands_text(body), jobs_meant(demands)


def sets_of(
    connection: sqlite3.Connection, fabric: str, kept: dict[tuple[str, str], KeptSet]
) -> dict[str, KeptSet]:
    """All demand sets of a fabric by name, in order; from memory where they were read before.

    The loop reads all with every change of a link, and a large one takes a while to unpack.
    ``kept`` is by fabric and name; an etag tells what is kept from what is there.
    """
    rows = connection.execute(
        "SELECT name, etag, update_time FROM demands WHERE fabric = ? ORDER BY name", (fabric,)
    ).fetchall()
    found = {}
    for name, etag, time in rows:
        one = kept.get((fabric, name))
        if one is None or one.record.etag != etag:
            body = _body(connection, fabric, name) or b""
            demands = unpack_demands(body)
            record = DemandRecord(name, demands, etag, time)
            one = KeptSet(record, demands_text(body), jobs_meant(demands))
        found[name] = one
    for gone in [key for key in kept if key[0] == fabric and key[1] not in found]:
        del kept[gone]
    kept.update({(fabric, name): one for name, one in found.items()})
    return found


def _is_job(connection: sqlite3.Connection, fabric: str, name: str) -> bool:
    found = connection.execute(
        "SELECT 1 FROM jobs WHERE fabric = ? AND name = ?", (fabric, name)
    ).fetchone()
    return found is not None


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
