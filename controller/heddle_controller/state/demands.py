"""Demand sets: put whole, no two with a flow of one id. They are large: a fabric points at them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import orjson

from heddle_controller.model.demand import SET, Demands
from heddle_controller.model.errors import Problem
from heddle_controller.state.audit import demands_text
from heddle_controller.state.codec.jobs import pack_demands
from heddle_controller.state.errors import FailedPrecondition, NotFound
from heddle_controller.state.ids import check_ids, jobs_meant
from heddle_controller.state.records import DemandRecord
from heddle_controller.state.view import (
    ABSENT,
    INTENT,
    JOB_KIND,
    NEITHER,
    REVISION,
    Blob,
    Change,
    Stamp,
    View,
    check_known,
    check_revision,
    entry_of,
    fingerprint,
)

DEMANDS = "demands"
SETS = "sets"
"""A token that is new whenever a set is put: what is guarded by who looks at all of them."""


@dataclass(frozen=True, slots=True)
class DemandSet:
    """What a fabric has of a set."""

    blob: str
    etag: str
    update_time: float
    text: str
    """For the audit trail; the same for the same content alone."""
    jobs: tuple[str, ...]
    """Names of jobs whose flows would have ids of this set."""


@dataclass(frozen=True, slots=True, eq=False)
class DemandsPut:
    """One request to put a set, packed before anything is decided."""

    fabric: str
    name: str
    demands: Demands
    checked: int
    """Revision of the fabric that it was checked against."""
    blob: Blob
    text: str
    meant: frozenset[str]
    """See ``DemandSet.jobs``."""
    fingerprint: str

    def decode(self, answer: bytes) -> DemandRecord:
        """The first answer to this request."""
        return DemandRecord(self.name, self.demands, *orjson.loads(answer))


def demands_put(fabric: str, name: str, demands: Demands, checked: int, token: str) -> DemandsPut:
    """The request, which takes a while to pack."""
    body = pack_demands(demands)
    return DemandsPut(
        fabric=fabric,
        name=name,
        demands=demands,
        checked=checked,
        blob=Blob(f"demands-{token}", body),
        text=demands_text(body),
        meant=jobs_meant(demands),
        fingerprint=fingerprint("put_demands", fabric, name, body),
    )


def put_demands(
    view: View, others: Iterable[tuple[str, Demands]], put: DemandsPut, stamp: Stamp
) -> tuple[Change, DemandRecord]:
    """Set a demand set whole; ``others`` are all other sets of the fabric.

    Raises as ``WorkStore.put_demands`` tells.
    """
    check_revision(view, put.checked)
    if put.name == SET:
        reason = "holds what switches count of flows that nobody announced; take another name"
        raise FailedPrecondition(f"demands {SET!r}", Problem("name", reason))
    field, old = _field(put.name), view.get(DEMANDS, put.name, _parse)
    guards = (view.guard(REVISION), view.guard(field))
    if old is not None and old.text == put.text:
        answer = orjson.dumps([old.etag, old.update_time])
        same = Change(put.fabric, NEITHER, stamp.now, guards, answer=answer)
        return same, put.decode(answer)
    jobs = {job for job in put.meant if view.raw(f"{JOB_KIND}/{job}") is not None}
    check_ids(put.name, put.demands, others, jobs)
    new = DemandSet(put.blob.id, stamp.token, stamp.now, put.text, tuple(sorted(put.meant)))
    texts = old.text if old else "", put.text
    answer = orjson.dumps([new.etag, stamp.now])
    change = Change(
        fabric=put.fabric,
        moves=INTENT,
        time=stamp.now,
        guards=(*guards, view.guard(SETS), *((f"{JOB_KIND}/{job}", ABSENT) for job in put.meant)),
        sets={field: orjson.dumps(new), SETS: stamp.token.encode()},
        keep=(put.blob,),
        drop=(old.blob,) if old else (),
        audit=entry_of(stamp, "put_demands", _name(put.fabric, put.name), texts),
        answer=answer,
    )
    return change, put.decode(answer)


def delete_demands(view: View, name: str, stamp: Stamp) -> Change:
    """Take a set away. Raises ``NotFound``."""
    old = demand_set(view, name)
    return Change(
        fabric=view.name,
        moves=INTENT,
        time=stamp.now,
        guards=(view.guard(_field(name)),),
        sets={_field(name): None},
        drop=(old.blob,),
        audit=entry_of(stamp, "delete_demands", _name(view.name, name), (old.text, "")),
    )


def demand_set(view: View, name: str) -> DemandSet:
    """What the fabric has of a set. Raises ``NotFound``."""
    check_known(view)
    found = view.get(DEMANDS, name, _parse)
    if found is None:
        raise NotFound(_name(view.name, name))
    return found


def demand_sets(view: View) -> dict[str, DemandSet]:
    """All of them, by name, in order."""
    return dict(view.all(DEMANDS, _parse))


def jobs_meant_by_sets(view: View) -> list[tuple[str, tuple[str, ...]]]:
    """Names of sets, each with the jobs whose flows' ids it has."""
    return [(name, one.jobs) for name, one in demand_sets(view).items()]


def _parse(raw: bytes) -> DemandSet:
    fields = orjson.loads(raw)
    return DemandSet(**{**fields, "jobs": tuple(fields["jobs"])})


def _field(name: str) -> str:
    return f"{DEMANDS}/{name}"


def _name(fabric: str, name: str) -> str:
    return f"fabrics/{fabric}/demands/{name}"
