"""Rules of committed plans, of the facts that a leader finds out, and of rollbacks.

Only the leader writes plans and facts (how far switches and jobs have come), and its epoch guards
these writes. A plan is large, so it is kept in blobs apart from the fabric, mostly as a delta to
the plan before (``codec.plans``).

A rollback is an operator's wish to return to an earlier plan for some time, so it is intent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from heddle_controller.model.errors import Problem
from heddle_controller.state.audit import rollback_text
from heddle_controller.state.codec.container import parser
from heddle_controller.state.errors import FailedPrecondition, NotFound, StaleGeneration
from heddle_controller.state.fabrics import meta_of
from heddle_controller.state.jobs import FACT, job_etag
from heddle_controller.state.records import JobFacts, PlanSummary, Programmed, Rollback
from heddle_controller.state.view import (
    FACTS,
    FACTS_VERSION,
    GENERATION,
    INTENT,
    INTENT_VERSION,
    JOB_KIND,
    NEITHER,
    Blob,
    Change,
    Stamp,
    View,
    check_known,
    entry_of,
)

KEPT = 16
"""How many plans of each fabric are kept, to inspect them or return to them. An agent that missed a
few plans still holds a table that is known here. The plan of a rollback is kept as long as it."""
REMEMBERED = 1000
"""How many plans of each fabric have their summary kept."""
PLAN, SUMMARY, PROGRAMMED = "plan", "summary", "programmed"
KEPT_FOR = "kept_for"
"""Field for ``Committed.kept_for``."""


MOST_DELTAS, MOST_SHARE = 128, 1 / 2
"""The next plan is stored whole if there are more deltas than this since the last whole plan, or
more bytes of deltas relative to it. Otherwise reading the newest plan would take too long."""
LONG_DELTAS, LONG_SHARE = 32, 1 / 8
"""The same limits, beyond which the newest plan is stored whole again when there is time."""


@dataclass(frozen=True, slots=True)
class PlanRow:
    """What the fields of a fabric say of a stored plan."""

    blobs: tuple[str, ...]
    """Ids of the last plan that was stored whole and of the deltas since, this plan's last."""
    structure: str
    """Id of the blob with the structure that it was made on."""
    digest: str
    """Digest of that structure."""
    whole: int
    """Size in bytes of the first of ``blobs``."""
    deltas: int = 0
    """Size in bytes of the other blobs together."""

    def pointed_at(self) -> tuple[str, ...]:
        """Return the ids of all blobs that the plan needs."""
        return (*self.blobs, self.structure)

    def with_delta(self, blob: str, size: int) -> PlanRow:
        """Return the row of the next plan, which is stored as a delta to this one."""
        return replace(self, blobs=(*self.blobs, blob), deltas=self.deltas + size)

    @property
    def is_full(self) -> bool:
        """Whether the next plan must be stored whole."""
        return len(self.blobs) > MOST_DELTAS or self.deltas > MOST_SHARE * self.whole

    @property
    def is_long(self) -> bool:
        """Whether this plan should be stored whole again when there is time."""
        return len(self.blobs) > LONG_DELTAS or self.deltas > LONG_SHARE * self.whole


class UnknownBaseError(Exception):
    """The stored newest plan is not the one that a delta was made from."""


def commit(
    view: View,
    row: PlanRow,
    summary: PlanSummary,
    keep: Sequence[Blob],
    stamp: Stamp,
    *,
    switches: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Change:
    """Make a plan the newest, and drop plans that are not kept any more.

    The plan of a rollback stays, however many follow it: links that come back need its paths.

    Args:
        view: The fabric.
        row: How the plan is stored.
        summary: Its key figures.
        keep: The blobs of ``row``.
        stamp: Time of the decision.
        switches: Switches that were added to the fabric, and those that were removed, since the
            plan before.

    Raises:
        NotFound: there is no such fabric.
        StaleGeneration: the newest plan is not the one before this.
        UnknownBaseError: ``row`` ends in a delta, and the newest plan is not stored as the blobs
            before it.
    """
    check_known(view)
    newest, generation = view.number(GENERATION), summary.generation
    if newest != generation - 1:
        raise StaleGeneration(generation - 1, newest)
    before = plan_row(view, newest)
    if len(row.blobs) > 1 and (before is None or before.blobs != row.blobs[:-1]):
        raise UnknownBaseError
    current = rollback_of(view, stamp.now)
    held_to = current.generation if current else None
    gone = {
        name: old
        for name, old in plan_rows(view).items()
        if name <= generation - KEPT and name != held_to
    }
    sets: dict[str, bytes | None] = {
        _field(generation): orjson.dumps(row),
        _field(generation, SUMMARY): orjson.dumps(summary),
        GENERATION: str(generation).encode(),
        **{_field(name): None for name in gone},
    }
    if view.raw(forgotten := _field(generation - REMEMBERED, SUMMARY)) is not None:
        sets[forgotten] = None
    held = programmed(view).on_others(*switches)
    if held != programmed(view):
        sets[PROGRAMMED] = _programmed_bytes(held)
    return Change(
        fabric=view.name,
        moves=FACTS,
        time=stamp.now,
        guards=tuple(
            view.guard(name) for name in (GENERATION, PROGRAMMED, ROLLBACK, _field(newest))
        ),
        sets=sets,
        keep=tuple(keep),
        drop=tuple(blob for old in gone.values() for blob in old.pointed_at()),
        epoch=summary.epoch,
    )


def replace_newest(
    view: View,
    blob: Blob,
    stamp: Stamp,
    *,
    epoch: int,
    generation: int,
    bound: float,
    after: tuple[str, ...] = (),
) -> Change | None:
    """Store the newest plan in another form, perhaps with a better certificate.

    Args:
        view: The fabric.
        blob: The same plan, whole, or as a delta to what is stored.
        stamp: Time of the decision.
        epoch: Epoch of the leader.
        generation: Generation of the plan.
        bound: Lower bound in its certificate.
        after: Blobs that a delta follows; empty if ``blob`` is whole.

    Returns:
        The change, or None if the plan is not the newest.

    Raises:
        UnknownBaseError: the plan is not stored as ``after``.
    """
    row, summary = plan_row(view, generation), plan_summary(view, generation)
    if row is None or summary is None or view.number(GENERATION) != generation:
        return None
    if after and row.blobs != after:
        raise UnknownBaseError
    size = len(blob.body or b"")
    now = PlanRow((blob.id,), row.structure, row.digest, size)
    if after:
        now = row.with_delta(blob.id, size)
    return Change(
        fabric=view.name,
        moves=FACTS,
        time=stamp.now,
        guards=(view.guard(GENERATION), view.guard(_field(generation))),
        sets={
            _field(generation): orjson.dumps(now),
            _field(generation, SUMMARY): orjson.dumps(replace(summary, lower_bound=bound)),
        },
        keep=(blob,),
        drop=() if after else row.blobs,
        epoch=epoch,
    )


def record_programmed(view: View, epoch: int, told: Programmed, stamp: Stamp) -> Change:
    """Note which generations switches hold completely. None goes back to an older one."""
    known = programmed(view)
    held = known.joined(told)
    sets = {} if held == known else {PROGRAMMED: _programmed_bytes(held)}
    return _note(view, epoch, sets, stamp, lasting=False)  # a new leader asks every switch


def record_kept(view: View, epoch: int, version: int, stamp: Stamp) -> Change:
    """Note that the newest plan serves a version of the intent. An older version is ignored."""
    sets = {KEPT_FOR: str(version).encode()} if view.number(KEPT_FOR) < version else {}
    return _note(view, epoch, sets, stamp, lasting=False)  # a new leader finds out by itself


def record_jobs(view: View, epoch: int, facts: Mapping[str, JobFacts], stamp: Stamp) -> Change:
    """Note how far jobs have come. Facts of other specifications and deleted jobs are dropped."""
    sets: dict[str, bytes | None] = {
        f"{FACT}/{name}": orjson.dumps(fact)
        for name, fact in facts.items()
        if fact.etag == job_etag(view, name)
    }
    # A job may have been deleted while its facts were written.
    sets |= dict.fromkeys(f"{FACT}/{name}" for name in view.lacking(FACT, JOB_KIND))
    return _note(view, epoch, sets, stamp)


def _note(
    view: View,
    epoch: int,
    sets: Mapping[str, bytes | None],
    stamp: Stamp,
    *,
    lasting: bool = True,
) -> Change:
    """Return a change of facts.

    New facts depend on the stored ones, so the change guards the version of facts.
    """
    check_known(view)
    return Change(
        fabric=view.name,
        moves=FACTS if sets else NEITHER,
        time=stamp.now,
        guards=(view.guard(FACTS_VERSION),),
        sets=sets,
        epoch=epoch,
        lasting=lasting,
    )


def plan_row(view: View, generation: int) -> PlanRow | None:
    """Return how the plan of a generation is stored, or None if it is not."""
    return view.get(PLAN, str(generation), _parse)


def plan_rows(view: View) -> dict[int, PlanRow]:
    """Return how each stored plan is stored, by generation."""
    return {int(name): row for name, row in view.all(PLAN, _parse).items()}


def plan_summary(view: View, generation: int) -> PlanSummary | None:
    """Return the summary of a plan, or None if it is not kept."""
    return view.get(SUMMARY, str(generation), _parse_summary)


def plan_summaries(view: View, below: int, limit: int) -> list[PlanSummary]:
    """Return at most ``limit`` summaries of plans below a generation (0: all), newest first."""
    known = [int(name) for name in view.names(SUMMARY)]
    wanted = sorted((at for at in known if not below or at < below), reverse=True)
    return [one for at in wanted[:limit] if (one := plan_summary(view, at)) is not None]


def programmed(view: View) -> Programmed:
    """Return which generations switches hold."""
    return view.get(PROGRAMMED, "", _parse_programmed) or Programmed()


_parse = parser(PlanRow, "plan")
_parse_summary = parser(PlanSummary, "summary of a plan")


def _programmed_bytes(held: Programmed) -> bytes:
    return orjson.dumps([held.generation, held.others, held.time])


def _parse_programmed(raw: bytes) -> Programmed:
    return Programmed(*orjson.loads(raw))


def _field(generation: int, kind: str = PLAN) -> str:
    return f"{kind}/{generation}"


ROLLBACK = "rollback"


def roll_back(view: View, generation: int, seconds: float, stamp: Stamp) -> tuple[Change, Rollback]:
    """Return to an earlier plan for some seconds. Replaces another rollback, if there is one.

    Raises:
        NotFound: the fabric does not exist, or the plan is not stored.
        FailedPrecondition: the plan was made for other nodes or links.
    """
    check_known(view)
    row = plan_row(view, generation)
    if row is None:
        cure = "name one of 'heddle history'"
        raise NotFound(f"generation {generation} of fabrics/{view.name}/plan", cure)
    if row.digest != meta_of(view).digest:
        why = "was made for other nodes or links: the fabric was put since"
        raise FailedPrecondition("rollback", Problem(f"generation {generation}", why))
    wanted = Rollback(generation, view.number(INTENT_VERSION) + 1, stamp.now + seconds)
    change = _written(view, wanted, stamp)
    return replace(change, guards=(*change.guards, view.guard(_field(generation)))), wanted


def end_rollback(view: View, stamp: Stamp) -> Change:
    """End the rollback. Raises ``NotFound``, also if it is already over."""
    check_known(view)
    if rollback_of(view, stamp.now) is None:
        cure = "nothing needs to end: plans are made freely"
        raise NotFound(f"a rollback of fabrics/{view.name}/plan", cure)
    return _written(view, None, stamp)


def rollback_of(view: View, now: float) -> Rollback | None:
    """Return the rollback of a fabric, or None if there is none or it is over."""
    found = view.get(ROLLBACK, "", parse_rollback)
    return None if found is None or found.over(now) else found


parse_rollback = parser(Rollback, "rollback")


def _written(view: View, wanted: Rollback | None, stamp: Stamp) -> Change:
    raw = orjson.dumps(wanted) if wanted is not None else None
    texts = rollback_text(rollback_of(view, stamp.now)), rollback_text(wanted)
    action = "roll_back" if wanted is not None else "end_rollback"
    return Change(
        fabric=view.name,
        moves=INTENT,
        time=stamp.now,
        guards=(view.guard(INTENT_VERSION), view.guard(ROLLBACK)),
        sets={ROLLBACK: raw},
        audit=entry_of(stamp, action, f"fabrics/{view.name}/plan", texts),
        answer=raw or b"",
    )
