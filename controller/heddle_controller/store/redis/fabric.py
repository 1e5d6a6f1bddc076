"""What the fields of a fabric itself mean: its title, structure, states and overlay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from heddle_controller.model.fabric import Fabric, Structure
from heddle_controller.state.errors import NotFound, StaleIntent
from heddle_controller.state.records import FabricRecord, Overlay
from heddle_controller.store.common.states import States, unpack_states
from heddle_controller.store.redis.change import Op, new_token, put
from heddle_controller.store.redis.view import View

GROUND = "ground"
"""A token that is new whenever structure, states or overlay are: what their writers guard."""
REVISION = "revision"
JOB = "job"
SETS = "sets"
"""A token that is new whenever a demand set is put: what is guarded by who looks at all sets."""


@dataclass(frozen=True, slots=True)
class Meta:
    """What changes with the operator's writes, small."""

    title: str
    digest: str
    """Of the structure."""
    blob: str
    """Where the structure is."""
    etag: str
    update_time: float

    def op(self) -> Op:
        """That sets it."""
        return put("meta", orjson.dumps(self))


def meta_of(view: View) -> Meta:
    """Of a fabric that is there."""
    meta = view.get("meta", "", lambda raw: Meta(**orjson.loads(raw)))
    if meta is None:
        raise NotFound(f"fabrics/{view.name}")
    return meta


def states_of(view: View) -> States:
    """How its links and nodes stand."""
    states = view.get("states", "", unpack_states)
    if states is None:
        raise NotFound(f"fabrics/{view.name}")
    return states


def overlay_of(view: View) -> Overlay:
    """Whether its entries are followed."""
    return view.get("overlay", "", lambda raw: Overlay(**orjson.loads(raw))) or Overlay()


def record_of(view: View, structures: Mapping[str, Structure]) -> FabricRecord:
    """As the port tells it; its structure has been read before."""

    def made(_: bytes) -> FabricRecord:
        meta, states = meta_of(view), states_of(view)
        return FabricRecord(
            name=view.name,
            title=meta.title,
            etag=meta.etag,
            update_time=meta.update_time,
            revision=view.number(REVISION),
            fabric=Fabric(structures[meta.digest], states.link_admin, states.node_admin),
            observed=states.observed,
            state_time=states.time,
            overlay=overlay_of(view),
        )

    record = view.get(GROUND, "", made)
    if record is None:
        raise NotFound(f"fabrics/{view.name}")
    return record


def new_ground() -> Op:
    """Says that structure, states or overlay are not what they were."""
    return put(GROUND, new_token())


def ground(view: View | None) -> tuple[str, bytes | None]:
    """The guard of one who writes structure, states or overlay."""
    return GROUND, view.raw(GROUND) if view else None


def known(view: View | None, fabric: str) -> View:
    """The view. Raises ``NotFound`` where there is none."""
    if view is None:
        raise NotFound(f"fabrics/{fabric}")
    return view


def at_revision(view: View | None, fabric: str, checked: int) -> tuple[View, tuple[str, bytes]]:
    """The view, and the guard of one who checked against a revision.

    Raises:
        NotFound: there is no such fabric.
        StaleIntent: it was put again since.
    """
    found = known(view, fabric)
    if found.number(REVISION) != checked:
        raise StaleIntent(fabric)
    return found, (REVISION, str(checked).encode())
