"""Rules of demand sets. A set is always replaced as a whole, and kept as a blob, as it is large.

No two flows of a fabric may have the same id, whether they belong to demand sets or to jobs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

import orjson

from heddle_controller.model.demand import Demands
from heddle_controller.model.errors import MAX_PROBLEMS, Problem
from heddle_controller.model.flows import PREFIX, SET
from heddle_controller.model.job import job_of_flow
from heddle_controller.state.admission import check_name
from heddle_controller.state.audit import demands_text
from heddle_controller.state.codec.container import parser
from heddle_controller.state.codec.intent import pack_demands
from heddle_controller.state.errors import FailedPrecondition, NotFound
from heddle_controller.state.records import DemandRecord
from heddle_controller.state.view import (
    ABSENT,
    INTENT,
    JOB_KIND,
    NEITHER,
    Blob,
    Change,
    Stamp,
    View,
    check_known,
    entry_of,
    fingerprint,
)


def jobs_meant(demands: Demands) -> frozenset[str]:
    """Return the names of jobs whose flows would have ids of this set, if they existed."""
    return frozenset(filter(None, {job_of_flow(flow) for flow in demands.ids}))


def id_problems(
    set_name: str,
    demands: Demands,
    others: Iterable[tuple[str, Demands]],
    jobs: Container[str],
) -> list[Problem]:
    """Return problems of flows whose ids are reserved or belong to other sets or jobs.

    Plans and queries identify a flow by its id. So no two flows may have the same one, or the
    second would never be carried.

    Args:
        set_name: Name of the set to check.
        demands: Its flows.
        others: Name and demands of each other set.
        jobs: Names of the jobs of the fabric.
    """
    asked = frozenset(demands.ids)
    text = f"ids that begin with {PREFIX!r} are of flows that nobody announced; rename it"
    problems = [
        Problem(f"flow {flow!r}", text)
        for flow in demands.ids
        if flow.startswith(PREFIX) and set_name != SET
    ][:MAX_PROBLEMS]
    for name, other in others:
        if not asked.isdisjoint(other.ids):
            problems += [
                Problem(f"flow {flow!r}", f"demands {name!r} have one of this id; rename it")
                for flow in sorted(asked.intersection(other.ids))[:MAX_PROBLEMS]
            ]
    problems += [
        Problem(f"flow {flow!r}", f"this id is one of job {job!r}; rename it")
        for flow in demands.ids
        if (job := job_of_flow(flow)) and job in jobs
    ][:MAX_PROBLEMS]
    return problems[:MAX_PROBLEMS]


def check_ids(
    name: str, demands: Demands, others: Iterable[tuple[str, Demands]], jobs: Container[str]
) -> None:
    """Check that the ids of a demand set belong to it alone; see ``id_problems``.

    Raises:
        FailedPrecondition: names the flows whose ids do not.
    """
    if problems := id_problems(name, demands, others, jobs):
        raise FailedPrecondition(f"demands {name!r}", *problems)


def check_job_ids(job: str, sets: Iterable[tuple[str, Container[str]]]) -> None:
    """Check that no demand set has ids of a new job's flows.

    Args:
        job: Name of the job.
        sets: Name of each set, and the jobs whose flows would have ids of it.

    Raises:
        FailedPrecondition: names the sets.
    """
    text = "has flows with ids of this job; give the job another name, or rename them"
    if problems := [Problem(f"demands {name!r}", text) for name, jobs in sets if job in jobs]:
        raise FailedPrecondition(f"job {job!r}", *problems[:MAX_PROBLEMS])


DEMANDS = "demands"
SETS = "sets"
"""Field with a token that changes whenever a set is put. Changes that depend on all sets guard
it."""


@dataclass(frozen=True, slots=True)
class DemandSet:
    """What the fields of a fabric say of a demand set."""

    blob: str
    etag: str
    update_time: float
    text: str
    """Description for the audit trail. Equal texts mean equal demands."""
    jobs: tuple[str, ...]
    """Names of jobs whose flows would have ids of this set, if these jobs existed."""


@dataclass(frozen=True, slots=True, eq=False)
class DemandsPut:
    """A request to put a demand set, packed before it is decided."""

    fabric: str
    name: str
    demands: Demands
    blob: Blob
    text: str
    meant: frozenset[str]
    """See ``DemandSet.jobs``."""
    fingerprint: str

    def decode(self, answer: bytes) -> DemandRecord:
        """Return the record in an answer to this request."""
        return DemandRecord(self.name, self.demands, *orjson.loads(answer))


def demands_put(fabric: str, name: str, demands: Demands, token: str) -> DemandsPut:
    """Make a request to put a demand set. Packing it may take long. Raises ``InputError``."""
    check_name("demand set", name)
    body = pack_demands(demands)
    return DemandsPut(
        fabric=fabric,
        name=name,
        demands=demands,
        blob=Blob(f"demands-{token}", body),
        text=demands_text(body),
        meant=jobs_meant(demands),
        fingerprint=fingerprint("put_demands", fabric, name, body),
    )


def put_demands(
    view: View, others: Iterable[tuple[str, Demands]], put: DemandsPut, stamp: Stamp
) -> tuple[Change, DemandRecord]:
    """Create or replace a demand set. ``others`` has all other sets of the fabric.

    Raises what ``Store.put_demands`` documents.
    """
    check_known(view)
    if put.name == SET:
        reason = "holds what switches count of flows that nobody announced; take another name"
        raise FailedPrecondition(f"demands {SET!r}", Problem("name", reason))
    field, old = _field(put.name), view.get(DEMANDS, put.name, _parse)
    guards = (view.guard(field),)
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
    """Delete a demand set. Raises ``NotFound``."""
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
    """Return what the fabric says of a demand set. Raises ``NotFound``."""
    check_known(view)
    found = view.get(DEMANDS, name, _parse)
    if found is None:
        raise NotFound(_name(view.name, name), "put it, or name one of 'heddle demand list'")
    return found


def demand_sets(view: View) -> dict[str, DemandSet]:
    """Return all demand sets of a fabric, by name."""
    return dict(view.all(DEMANDS, _parse))


def jobs_meant_by_sets(view: View) -> list[tuple[str, tuple[str, ...]]]:
    """Return the name of each set, with the jobs whose flows would have ids of it."""
    return [(name, one.jobs) for name, one in demand_sets(view).items()]


_parse = parser(DemandSet, "demand set")


def _field(name: str) -> str:
    return f"{DEMANDS}/{name}"


def _name(fabric: str, name: str) -> str:
    return f"fabrics/{fabric}/demands/{name}"
