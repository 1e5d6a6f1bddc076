"""Committed plans, and the facts that a leader finds out: how far switches and jobs have come.

All of it is written by the leader alone, fenced by its epoch. A plan is large: it is kept
beside the fabric, most often as what it has otherwise than the one before (``codec.deltas``).

An earlier plan to go back to, for a time: what an operator wants, so that it is intent.
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
"""Plans kept of each fabric, to be looked at and gone back to. An agent that was away for a few
still holds a table we know."""
REMEMBERED = 1000
"""Plans whose summary is kept."""
PLAN, SUMMARY, PROGRAMMED = "plan", "summary", "programmed"
KEPT_FOR = "kept_for"
"""See ``Committed``."""


MOST_DELTAS, MOST_SHARE = 128, 1 / 2
"""Plans between two that are stored whole, and bytes of their deltas, of those of the first: beyond
that to read the newest takes too long."""
LONG_DELTAS, LONG_SHARE = 32, 1 / 8
"""Likewise, where the newest is stored whole once there is time for it."""


@dataclass(frozen=True, slots=True)
class PlanRow:
    """What the fabric has of a plan."""

    blobs: tuple[str, ...]
    """The last plan that was stored whole, and the deltas since, up to this plan's own."""
    structure: str
    """Blob of the structure that it was made on."""
    digest: str
    """Of the structure."""
    whole: int
    """Bytes of the first of ``blobs``."""
    deltas: int = 0
    """Bytes of the others."""

    def pointed_at(self) -> tuple[str, ...]:
        """All blobs that it needs."""
        return (*self.blobs, self.structure)

    def with_delta(self, blob: str, size: int) -> PlanRow:
        """The row of the plan after this one, by its delta."""
        return replace(self, blobs=(*self.blobs, blob), deltas=self.deltas + size)

    @property
    def is_full(self) -> bool:
        """Whether the next plan has to be stored whole."""
        return len(self.blobs) > MOST_DELTAS or self.deltas > MOST_SHARE * self.whole

    @property
    def is_long(self) -> bool:
        """Whether this plan is to be stored whole when there is time."""
        return len(self.blobs) > LONG_DELTAS or self.deltas > LONG_SHARE * self.whole


class UnknownBaseError(Exception):
    """The newest plan is not the one that a delta was made for."""


def commit(
    view: View,
    row: PlanRow,
    summary: PlanSummary,
    keep: Sequence[Blob],
    stamp: Stamp,
    *,
    switches: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Change:
    """Make a plan the newest, and drop the oldest.

    ``keep`` are the blobs of ``row``; ``switches`` have come to the fabric, and have gone from it,
    since the plan before.

    Raises:
        NotFound: there is no such fabric.
        StaleGeneration: the newest is not the one before.
        UnknownBaseError: it is stored otherwise than as what ``row`` goes on from.
    """
    check_known(view)
    newest, generation = view.number(GENERATION), summary.generation
    if newest != generation - 1:
        raise StaleGeneration(generation - 1, newest)
    before = plan_row(view, newest)
    if len(row.blobs) > 1 and (before is None or before.blobs != row.blobs[:-1]):
        raise UnknownBaseError
    gone = {name: old for name, old in plan_rows(view).items() if name <= generation - KEPT}
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
        guards=(view.guard(GENERATION), view.guard(PROGRAMMED), view.guard(_field(newest))),
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
    """Put the newest plan in place of what is kept of it; None where it is not the newest.

    ``blob`` is the same plan, perhaps under a better certificate, whose lower bound is ``bound``:
    whole, or as what it has otherwise than what is kept in ``after``.

    Raises:
        UnknownBaseError: something else is kept of the plan.
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
    """Note what switches hold whole; none goes back to an older generation."""
    known = programmed(view)
    held = known.joined(told)
    sets = {} if held == known else {PROGRAMMED: _programmed_bytes(held)}
    return _note(view, epoch, sets, stamp, lasting=False)  # a new leader asks every switch


def record_kept(view: View, epoch: int, version: int, stamp: Stamp) -> Change:
    """Note that the newest plan answers to a version of the intent; it goes up only."""
    sets = {KEPT_FOR: str(version).encode()} if view.number(KEPT_FOR) < version else {}
    return _note(view, epoch, sets, stamp, lasting=False)  # a new leader finds out by itself


def record_jobs(view: View, epoch: int, facts: Mapping[str, JobFacts], stamp: Stamp) -> Change:
    """Note how far jobs have come; facts of other specifications, and of jobs gone, are dropped."""
    sets: dict[str, bytes | None] = {
        f"{FACT}/{name}": orjson.dumps(fact)
        for name, fact in facts.items()
        if fact.etag == job_etag(view, name)
    }
    # A job may have been deleted as its facts were written.
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
    """Facts that are there are compared with, so they are written one change after the other."""
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
    """What the fabric has of a plan; None if it has none (any more) of this generation."""
    return view.get(PLAN, str(generation), _parse)


def plan_rows(view: View) -> dict[int, PlanRow]:
    """All of them, by generation."""
    return {int(name): row for name, row in view.all(PLAN, _parse).items()}


def plan_summary(view: View, generation: int) -> PlanSummary | None:
    """What is remembered of a plan; None if nothing is (any more)."""
    return view.get(SUMMARY, str(generation), _parse_summary)


def plan_summaries(view: View, below: int, limit: int) -> list[PlanSummary]:
    """Summaries of plans below a generation (0: all), newest first, so many at most."""
    known = [int(name) for name in view.names(SUMMARY)]
    wanted = sorted((at for at in known if not below or at < below), reverse=True)
    return [one for at in wanted[:limit] if (one := plan_summary(view, at)) is not None]


def programmed(view: View) -> Programmed:
    """What switches hold."""
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
    """Keep to a plan for so long; in place of another rollback, if there is one.

    Raises:
        NotFound: there is no such fabric, or no such plan (any more).
        FailedPrecondition: the fabric had other nodes or links then.
    """
    check_known(view)
    row = plan_row(view, generation)
    if row is None:
        raise NotFound(f"generation {generation} of fabrics/{view.name}/plan")
    if row.digest != meta_of(view).digest:
        why = "was made for other nodes or links: the fabric was put since"
        raise FailedPrecondition("rollback", Problem(f"generation {generation}", why))
    wanted = Rollback(generation, view.number(INTENT_VERSION) + 1, stamp.now + seconds)
    return _written(view, wanted, stamp), wanted


def end_rollback(view: View, stamp: Stamp) -> Change:
    """Plan freely again. Raises ``NotFound``, also for one that is over."""
    check_known(view)
    if rollback_of(view, stamp.now) is None:
        raise NotFound(f"a rollback of fabrics/{view.name}/plan")
    return _written(view, None, stamp)


def rollback_of(view: View, now: float) -> Rollback | None:
    """The one that is wanted; None where there is none, or it is over."""
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
