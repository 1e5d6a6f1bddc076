"""A fabric that a server lost whole, written again from what a replica knows of it.

A server without a disk, or with an empty one, has no ground for single writes to stand
on. The intent comes back as it was, with its etags; plans are made anew, by a leader of
a greater epoch.
"""

from __future__ import annotations

from collections.abc import Mapping

from heddle_controller.state.codec.demands import pack_demands
from heddle_controller.state.codec.structure import pack_structure
from heddle_controller.store.redis.change import ABSENT, INTENT, Blob, Change, put
from heddle_controller.store.redis.demands import DEMANDS, DemandPart, set_of
from heddle_controller.store.redis.fabric import GROUND, meta_of
from heddle_controller.store.redis.view import View

REFILLED = "refilled"
"""Number of the newest write that a fabric, written again, has in it."""
_FACTS = {
    "plan",
    "programmed",
    "kept_for",
    "generation",
    "fact",
    "version",
    "facts",
    "change_time",
}


class RefillPart(DemandPart):
    """Makes the change that brings a fabric back."""

    def _refill(self, name: str, fields: Mapping[str, bytes], number: int) -> Change | None:
        """The change; None where its structure was never needed here, so that we lack it."""
        view = View(name)
        view.replace(fields.items())
        meta = meta_of(view)
        structure = self._shared.structures.get(meta.digest)
        if structure is None:
            return None
        keep = [Blob(meta.blob, pack_structure(structure, f"fabric {name!r}").body)]
        kept = [field for field in fields if field.partition("/")[0] not in _FACTS]
        for one in view.names(DEMANDS):
            wanted = set_of(view, one)
            held = self._shared.demands.get(wanted.blob) if wanted else None
            if wanted is None or held is None:
                kept.remove(f"{DEMANDS}/{one}")
            else:
                keep.append(Blob(wanted.blob, pack_demands(held)))
        return Change(
            fabric=name,
            kind=INTENT,
            guards=((GROUND, ABSENT),),
            ops=(*(put(field, fields[field]) for field in kept), put(REFILLED, number)),
            keep=tuple(keep),
            time=self._shared.now(),
        )
