"""Administrative states in the Redis store: what the operator wants of one link or switch.

Setting a state that is set already writes nothing: the loop has nothing to do.
"""

from __future__ import annotations

from dataclasses import replace

from heddle_controller.model.fabric import NodeKind, State
from heddle_controller.state.audit_texts import state_text
from heddle_controller.state.codec.answers import link_json, parse_link
from heddle_controller.state.errors import NotFound
from heddle_controller.state.records import LinkName, LinkRecord, Request, SwitchRecord
from heddle_controller.store.common.requests import fingerprint
from heddle_controller.store.common.states import States, changed
from heddle_controller.store.redis.change import INTENT, NEITHER, Ask, Change, new_token, put
from heddle_controller.store.redis.fabric import (
    ground,
    known,
    meta_of,
    new_ground,
    record_of,
    states_of,
)
from heddle_controller.store.redis.part import NOBODY, Part, entry
from heddle_controller.store.redis.view import View


class StatePart(Part):
    """``set_link_state`` and ``set_switch_state`` of ``FabricStore``."""

    async def set_link_state(
        self, fabric: str, link: LinkName, state: State, *, request: Request = NOBODY
    ) -> LinkRecord:
        """See ``FabricStore``."""

        def decide(view: View | None) -> tuple[Change, LinkRecord]:
            change, record = self._set_link(known(view, fabric), link, state, request)
            return replace(change, answer=link_json(record)), record

        ask = Ask(request, fingerprint("set_link_state", fabric, str(link), state.name))
        return await self._write(fabric, ask, decide, parse_link)

    def _set_link(
        self, view: View, link: LinkName, state: State, request: Request
    ) -> tuple[Change, LinkRecord]:
        record, states = record_of(view, self._shared.structures), states_of(view)
        at = record.fabric.find_links(link.source, link.target, link.key)
        if not at:
            raise NotFound(f"fabrics/{view.name}/links/{link}")
        now, row = self._shared.now(), at[0]
        before = State(int(states.link_admin[row]))
        if before == state:
            return Change(view.name, NEITHER, guards=(ground(view),), time=now), record.link(row)
        times = states.time.copy()
        times[row] = now
        admin = changed(states.link_admin, row, state)
        fabric = replace(record.fabric, link_state=admin)
        answer = replace(record, fabric=fabric, state_time=times).link(row)
        name = f"fabrics/{view.name}/links/{answer.link}"
        texts = state_text(before), state_text(state)
        change = _restate(view, replace(states, link_admin=admin, time=times), now)
        return replace(change, audit=entry(request, now, "set_link_state", name, texts)), answer

    async def set_switch_state(
        self, fabric: str, node: str, state: State, *, request: Request = NOBODY
    ) -> SwitchRecord:
        """See ``FabricStore``."""
        answer = SwitchRecord(node, state)

        def decide(view: View | None) -> tuple[Change, SwitchRecord]:
            return self._set_switch(known(view, fabric), node, state, request), answer

        ask = Ask(request, fingerprint("set_switch_state", fabric, node, state.name))
        return await self._write(fabric, ask, decide, lambda _: answer)

    def _set_switch(self, view: View, node: str, state: State, request: Request) -> Change:
        structure, states = self._shared.structures[meta_of(view).digest], states_of(view)
        row = structure.index.get(node)
        if row is None or structure.nodes.kind[row] == NodeKind.NIC:
            raise NotFound(f"fabrics/{view.name}/switches/{node}")
        now, before = self._shared.now(), State(int(states.node_admin[row]))
        if before == state:
            return Change(view.name, NEITHER, guards=(ground(view),), time=now)
        name = f"fabrics/{view.name}/switches/{node}"
        texts = state_text(before), state_text(state)
        nodes = changed(states.node_admin, row, state)
        change = _restate(view, replace(states, node_admin=nodes), now)
        return replace(change, audit=entry(request, now, "set_switch_state", name, texts))


def _restate(view: View, states: States, now: float) -> Change:
    """Administrative states, under a new etag."""
    meta = replace(meta_of(view), etag=new_token(), update_time=now)
    return Change(
        fabric=view.name,
        kind=INTENT,
        guards=(ground(view),),
        ops=(meta.op(), put("states", states.packed()), new_ground()),
        time=now,
    )
