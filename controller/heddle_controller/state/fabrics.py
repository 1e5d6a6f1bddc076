"""Rules of fabrics, and of the administrative states of links, switches and the overlay.

A fabric is always replaced as a whole. A request for a state that is set already changes no field,
so the loop does not run for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import orjson

from heddle_controller.model.arrays import Ints
from heddle_controller.model.errors import MAX_TITLE, refuse, too_long
from heddle_controller.model.fabric import Fabric, NodeKind, State, Structure
from heddle_controller.state.admission import check_name
from heddle_controller.state.audit import AuditEntry, fabric_text, overlay_text, state_text
from heddle_controller.state.codec.container import pack, parser, unpack
from heddle_controller.state.codec.intent import (
    PackedStructure,
    States,
    pack_structure,
    state_times,
    unpack_states,
)
from heddle_controller.state.errors import Conflict, NotFound, unknown_fabric
from heddle_controller.state.records import (
    FabricRecord,
    FabricSummary,
    LinkName,
    LinkRecord,
    Overlay,
)
from heddle_controller.state.view import (
    INTENT,
    META,
    NEITHER,
    REVISION,
    Blob,
    Change,
    Guard,
    Stamp,
    View,
    entry_of,
    fingerprint,
)

_STATES, OVERLAY = "states", "overlay"
GROUND = "ground"
"""Field with a token that changes whenever structure, states or overlay do. Their writers guard
it."""

Structures = Mapping[str, Structure]
"""Structures by digest. That of the fabric in question must be among them."""


@dataclass(frozen=True, slots=True)
class Meta:
    """The small facts about a fabric that change with the operator's writes."""

    title: str
    digest: str
    """Digest of the structure."""
    blob: str
    """Id of the blob with the structure."""
    etag: str
    update_time: float


@dataclass(frozen=True, slots=True, eq=False)
class FabricPut:
    """A request to put a fabric, packed before it is decided."""

    name: str
    title: str
    fabric: Fabric
    packed: PackedStructure
    etag: str
    blob: Blob
    """The blob for the structure, used unless the fabric has this structure already."""
    fingerprint: str

    def encode(self, record: FabricRecord) -> bytes:
        """Return the part of the answer that does not follow from the request."""
        meta = {
            "etag": record.etag,
            "update_time": record.update_time,
            "revision": record.revision,
        }
        return pack(meta, {"state_time": record.state_time})

    def decode(self, answer: bytes) -> FabricRecord:
        """Return the record in an answer to this request; see ``encode``."""
        meta, columns = unpack(answer)
        fabric = replace(self.fabric, structure=self.packed.structure)
        return FabricRecord(
            self.name, self.title, fabric=fabric, digest=self.packed.digest, **meta, **columns
        )


def fabric_put(
    name: str,
    fabric: Fabric,
    *,
    title: str,
    etag: str,
    token: str,
) -> FabricPut:
    """Make a request to put a fabric. Packing it may take long.

    Raises ``InputError`` if the name, the title or the fabric is not valid.
    """
    check_name("fabric", name)
    if len(title) > MAX_TITLE:
        raise refuse(f"fabric {name!r}", "title", too_long("it", len(title), MAX_TITLE))
    packed = pack_structure(fabric.structure, f"fabric {name!r}")
    states = np.concatenate([fabric.link_state, fabric.node_state]).tobytes()
    return FabricPut(
        name=name,
        title=title,
        fabric=fabric,
        packed=packed,
        etag=etag,
        blob=Blob(f"structure-{token}", packed.body),
        fingerprint=fingerprint("put_fabric", name, title, packed.digest, states, etag),
    )


_parse_meta = parser(Meta, "fabric")
_parse_overlay = parser(Overlay, "overlay")


def meta_of(view: View) -> Meta:
    """Return the small facts about a fabric. Raises ``NotFound``."""
    meta = view.get(META, "", _parse_meta)
    if meta is None:
        raise unknown_fabric(view.name)
    return meta


def states_of(view: View) -> States:
    """Return the administrative states of a fabric. Raises ``NotFound``."""
    states = view.get(_STATES, "", unpack_states)
    if states is None:
        raise unknown_fabric(view.name)
    return states


def _overlay_of(view: View) -> Overlay:
    """Return the overlay setting of a fabric: whether its switches use their entries."""
    return view.get(OVERLAY, "", _parse_overlay) or Overlay()


def record_of(view: View, structures: Structures) -> FabricRecord:
    """Return the record of a fabric. Raises ``NotFound``."""

    def made(_: bytes) -> FabricRecord:
        meta, states = meta_of(view), states_of(view)
        return FabricRecord(
            name=view.name,
            title=meta.title,
            etag=meta.etag,
            update_time=meta.update_time,
            revision=view.number(REVISION),
            fabric=Fabric(structures[meta.digest], states.link_admin, states.node_admin),
            state_time=states.time,
            overlay=_overlay_of(view),
            digest=meta.digest,
        )

    record = view.get(GROUND, "", made)
    if record is None:
        raise unknown_fabric(view.name)
    return record


def text_of(view: View, structures: Structures) -> str:
    """Describe a fabric for the audit trail. Raises ``NotFound``."""
    meta = meta_of(view)
    return fabric_text(meta.title, meta.digest, record_of(view, structures).fabric)


def put_fabric(
    view: View, structures: Structures, put: FabricPut, stamp: Stamp
) -> tuple[Change, FabricRecord]:
    """Create a fabric, or replace it as a whole.

    Raises:
        Conflict: an etag is given and differs, or there is no such fabric.
    """
    old = meta_of(view) if view.known else None
    if put.etag and (old is None or put.etag != old.etag):
        raise Conflict(f"fabrics/{put.name}")
    digest = put.packed.digest
    same = old is not None and old.digest == digest
    blob = old.blob if old and same else put.blob.id
    meta = Meta(put.title, digest, blob, stamp.token, stamp.now)
    structure = structures.get(digest, put.packed.structure)
    states = _states_after(view, structures, put.fabric, structure, stamp.now)
    record = FabricRecord(
        name=put.name,
        title=meta.title,
        etag=meta.etag,
        update_time=stamp.now,
        revision=view.number(REVISION) + (not same),
        fabric=Fabric(structure, states.link_admin, states.node_admin),
        state_time=states.time,
        overlay=_overlay_of(view),
        digest=digest,
    )
    before = text_of(view, structures) if old else ""
    after = fabric_text(meta.title, digest, record.fabric)
    change = Change(
        fabric=put.name,
        moves=INTENT,
        time=stamp.now,
        guards=(view.guard(GROUND),),
        sets={
            META: orjson.dumps(meta),
            _STATES: states.packed(),
            REVISION: str(record.revision).encode(),
            GROUND: stamp.token.encode(),
        },
        keep=() if same else (put.blob,),
        drop=(old.blob,) if old and not same else (),
        audit=entry_of(stamp, "put_fabric", f"fabrics/{put.name}", (before, after)),
        answer=put.encode(record),
    )
    return change, record


def _states_after(
    view: View, structures: Structures, fabric: Fabric, structure: Structure, now: float
) -> States:
    states = States(
        link_admin=fabric.link_state,
        node_admin=fabric.node_state,
        time=np.zeros(len(structure.links.key)),
    )
    before = (structures[meta_of(view).digest], states_of(view)) if view.known else None
    return replace(states, time=state_times(before, structure, states, now))


def set_link_state(
    view: View,
    structures: Structures,
    link: LinkName,
    state: State,
    stamp: Stamp,
    *,
    etag: str = "",
) -> tuple[Change, LinkRecord]:
    """Set the administrative state of a link.

    Raises:
        NotFound: there is no such fabric or link.
        InputError: the key is empty, and there are several links between the ends.
        Conflict: ``etag`` is given and is not that of the fabric.
    """
    record, states = record_of(view, structures), states_of(view)
    check_etag(view, etag)
    key = None if link.key == "" else link.key
    at = record.fabric.find_links(link.source, link.target, key)
    if not at:
        cure = "name one of 'heddle fabric show --links'"
        raise NotFound(f"fabrics/{view.name}/links/{link}", cure)
    if len(at) > 1:
        raise refuse("request", "link", parallel_links(record.fabric, link, at))
    row = at[0]
    before = State(int(states.link_admin[row]))
    if before == state:
        answer = record.link(row)
        return _unchanged(view, stamp, orjson.dumps(answer)), answer
    admin, time = _with(states.link_admin, row, state), states.time.copy()
    time[row] = stamp.now
    fabric = replace(record.fabric, link_state=admin)
    answer = replace(record, fabric=fabric, state_time=time).link(row)
    name = f"fabrics/{view.name}/links/{answer.link}"
    texts = state_text(before), state_text(state)
    sets = {_STATES: replace(states, link_admin=admin, time=time).packed()}
    entry = entry_of(stamp, "set_link_state", name, texts)
    return _restated(view, stamp, sets, entry, orjson.dumps(answer)), answer


def parallel_links(fabric: Fabric, link: LinkName, rows: Sequence[int]) -> str:
    """Return why a name without a key does not tell which of some links it means."""
    keys = ", ".join(str(fabric.structure.links.key[row]) for row in rows)
    return f"link {str(link)!r} has {len(rows)} parallel links: give one of the keys {keys}"


def set_switch_state(
    view: View, structures: Structures, node: str, state: State, stamp: Stamp, *, etag: str = ""
) -> Change:
    """Set the administrative state of a switch.

    Raises:
        NotFound: there is no such fabric, or ``node`` is not a switch of it.
        Conflict: ``etag`` is given and is not that of the fabric.
    """
    structure, states = structures[meta_of(view).digest], states_of(view)
    check_etag(view, etag)
    if reason := no_switch(structure, node):
        raise NotFound(f"fabrics/{view.name}/switches/{node}", reason)
    row = structure.index[node]
    before = State(int(states.node_admin[row]))
    if before == state:
        return _unchanged(view, stamp)
    name = f"fabrics/{view.name}/switches/{node}"
    texts = state_text(before), state_text(state)
    nodes = _with(states.node_admin, row, state)
    sets = {_STATES: replace(states, node_admin=nodes).packed()}
    return _restated(view, stamp, sets, entry_of(stamp, "set_switch_state", name, texts))


def no_switch(structure: Structure, name: str) -> str:
    """Return why a name is not that of a switch, and what to do; empty if it is."""
    node = structure.index.get(name)
    if node is not None and structure.nodes.kind[node] != NodeKind.NIC:
        return ""
    if node is not None:
        return f"{name!r} is a NIC, not a switch: name its link, as NIC,LEAF"
    if name in structure.host_names:
        return f"{name!r} is a host, not a switch: heddle job replace moves a job to another host"
    return f"{name!r} is not a switch of the fabric: see heddle fabric show --links"


def set_overlay(
    view: View, structures: Structures, stamp: Stamp, *, withdrawn: bool
) -> tuple[Change, FabricSummary]:
    """Make the whole fabric use only the underlay (``withdrawn``), or its entries again.

    The setting stays when the fabric is replaced. Raises ``NotFound``.
    """
    record = record_of(view, structures)
    if record.overlay.withdrawn == withdrawn:
        summary = record.summary()
        return _unchanged(view, stamp, orjson.dumps(summary)), summary
    overlay = Overlay(withdrawn=withdrawn, time=stamp.now)
    summary = replace(record, etag=stamp.token, update_time=stamp.now, overlay=overlay).summary()
    texts = overlay_text(withdrawn=not withdrawn), overlay_text(withdrawn=withdrawn)
    entry = entry_of(stamp, "set_overlay", f"fabrics/{view.name}", texts)
    sets = {OVERLAY: orjson.dumps(overlay)}
    return _restated(view, stamp, sets, entry, orjson.dumps(summary)), summary


def check_etag(view: View, etag: str) -> None:
    """Raise ``Conflict`` if an etag is given and is not that of the fabric."""
    if etag and etag != meta_of(view).etag:
        raise Conflict(f"fabrics/{view.name}")


def ground(view: View, stamp: Stamp) -> tuple[Guard, dict[str, bytes]]:
    """Return a guard that structure, states and overlay are unchanged, and a new ``GROUND``."""
    return view.guard(GROUND), {GROUND: stamp.token.encode()}


def _unchanged(view: View, stamp: Stamp, answer: bytes = b"") -> Change:
    """Return a change that only remembers the request, because nothing needs to change."""
    return Change(view.name, NEITHER, stamp.now, guards=(view.guard(GROUND),), answer=answer)


def _restated(
    view: View,
    stamp: Stamp,
    sets: Mapping[str, bytes],
    entry: AuditEntry,
    answer: bytes = b"",
) -> Change:
    """Return a change of states or overlay (``sets``), which gives the fabric a new etag."""
    meta = replace(meta_of(view), etag=stamp.token, update_time=stamp.now)
    guard, token = ground(view, stamp)
    return Change(
        fabric=view.name,
        moves=INTENT,
        time=stamp.now,
        guards=(guard,),
        sets={**sets, META: orjson.dumps(meta), **token},
        audit=entry,
        answer=answer,
    )


def _with(column: Ints, row: int, value: int) -> Ints:
    """Return a copy of a column with another value in one row."""
    result = column.copy()
    result[row] = value
    return result
