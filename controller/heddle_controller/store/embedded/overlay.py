"""The overlay flag in the embedded store: a fabric on its entries, or on the underlay alone.

It is intent like a link's state: a new version and a new etag, an audit record, and no
plan changes by it.
"""

from __future__ import annotations

import sqlite3

from heddle_controller.state.audit_texts import Change, overlay_text
from heddle_controller.state.codec.answers import parse_summary, summary_json
from heddle_controller.state.records import FabricSummary, Request
from heddle_controller.store.common.requests import fingerprint
from heddle_controller.store.embedded.part import NOBODY, Part, new_etag
from heddle_controller.store.embedded.requests import once
from heddle_controller.store.embedded.rows import bump_intent, fabric_row


class OverlayColumns(Part):
    """``set_overlay`` of ``FabricStore``."""

    async def set_overlay(
        self, fabric: str, *, withdrawn: bool, request: Request = NOBODY
    ) -> FabricSummary:
        """See ``FabricStore``."""
        print_ = fingerprint("set_overlay", fabric, str(withdrawn))

        def work(connection: sqlite3.Connection) -> FabricSummary:
            def set_() -> FabricSummary:
                return self._set_overlay(connection, fabric, withdrawn, request)

            return once(connection, request, print_, set_, (summary_json, parse_summary))

        return await self._write(fabric, work)

    def _set_overlay(
        self,
        connection: sqlite3.Connection,
        fabric: str,
        withdrawn: bool,  # noqa: FBT001 - as in the port, where it is named
        request: Request,
    ) -> FabricSummary:
        before = fabric_row(connection, fabric, self._shared.structures)
        if before.overlay.withdrawn == withdrawn:
            return before.record().summary()
        now = self._shared.now()
        etag = new_etag(bump_intent(connection, fabric, now))
        connection.execute(
            "UPDATE fabrics SET overlay_withdrawn = ?, overlay_time = ?, etag = ?, "
            "update_time = ? WHERE name = ?",
            (int(withdrawn), now, etag, now, fabric),
        )
        texts = (overlay_text(withdrawn=value) for value in (not withdrawn, withdrawn))
        self._note(connection, request, Change("set_overlay", f"fabrics/{fabric}", *texts))
        return fabric_row(connection, fabric, self._shared.structures).record().summary()
