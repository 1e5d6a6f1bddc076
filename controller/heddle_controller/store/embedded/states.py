"""Administrative states in the embedded store: what the operator wants of one link or switch.

Setting a state that is set already writes nothing: the loop has nothing to do.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from heddle_controller.model.fabric import NodeKind, State
from heddle_controller.state.audit_texts import Change, state_text
from heddle_controller.state.codec.answers import link_json, parse_link
from heddle_controller.state.errors import NotFound
from heddle_controller.state.records import LinkName, LinkRecord, Request, SwitchRecord
from heddle_controller.store.common.requests import fingerprint
from heddle_controller.store.common.states import States, changed
from heddle_controller.store.embedded.part import NOBODY, Part, new_etag
from heddle_controller.store.embedded.requests import nothing, once
from heddle_controller.store.embedded.rows import FabricRow, fabric_row, save_states


class StateTables(Part):
    """``set_link_state`` and ``set_switch_state`` of ``FabricStore``."""

    async def set_link_state(
        self, fabric: str, link: LinkName, state: State, *, request: Request = NOBODY
    ) -> LinkRecord:
        """See ``FabricStore``."""
        print_ = fingerprint("set_link_state", fabric, str(link), state.name)

        def work(connection: sqlite3.Connection) -> LinkRecord:
            codec = (link_json, parse_link)
            set_ = lambda: self._set_link(connection, fabric, link, state, request)  # noqa: E731
            return once(connection, request, print_, set_, codec)

        return await self._write(fabric, work)

    def _set_link(
        self,
        connection: sqlite3.Connection,
        fabric: str,
        link: LinkName,
        state: State,
        request: Request,
    ) -> LinkRecord:
        row = fabric_row(connection, fabric, self._shared.structures)
        at = row.record().fabric.find_links(link.source, link.target, link.key)
        if not at:
            raise NotFound(f"fabrics/{fabric}/links/{link}")
        states = row.states
        if states.link_admin[at[0]] != state:
            now = self._shared.now()
            times = states.time.copy()
            times[at[0]] = now
            admin = changed(states.link_admin, at[0], state)
            row = _save(connection, row, replace(states, link_admin=admin, time=times), now)
            name = f"fabrics/{fabric}/links/{row.record().link(at[0]).link}"
            before = state_text(State(int(states.link_admin[at[0]])))
            change = Change("set_link_state", name, before, state_text(state))
            self._note(connection, request, change)
        return row.record().link(at[0])

    async def set_switch_state(
        self, fabric: str, node: str, state: State, *, request: Request = NOBODY
    ) -> SwitchRecord:
        """See ``FabricStore``."""
        print_ = fingerprint("set_switch_state", fabric, node, state.name)
        answer = SwitchRecord(node, state)

        def work(connection: sqlite3.Connection) -> SwitchRecord:
            def set_() -> SwitchRecord:
                self._set_switch(connection, fabric, node, state, request)
                return answer

            return once(connection, request, print_, set_, (nothing, lambda _: answer))

        return await self._write(fabric, work)

    def _set_switch(
        self,
        connection: sqlite3.Connection,
        fabric: str,
        node: str,
        state: State,
        request: Request,
    ) -> None:
        row = fabric_row(connection, fabric, self._shared.structures)
        at = row.structure.index.get(node)
        if at is None or row.structure.nodes.kind[at] == NodeKind.NIC:
            raise NotFound(f"fabrics/{fabric}/switches/{node}")
        if row.states.node_admin[at] != state:
            nodes = changed(row.states.node_admin, at, state)
            _save(connection, row, replace(row.states, node_admin=nodes), self._shared.now())
            before = state_text(State(int(row.states.node_admin[at])))
            name = f"fabrics/{fabric}/switches/{node}"
            change = Change("set_switch_state", name, before, state_text(state))
            self._note(connection, request, change)


def _save(connection: sqlite3.Connection, row: FabricRow, states: States, now: float) -> FabricRow:
    """Write administrative states, under a new etag."""
    version = save_states(connection, row.name, states, now)
    etag = new_etag(version)
    connection.execute(
        "UPDATE fabrics SET etag = ?, update_time = ? WHERE name = ?", (etag, now, row.name)
    )
    return replace(row, states=states, etag=etag, update_time=now, version=version)
