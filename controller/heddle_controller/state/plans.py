"""Committed plans, and the facts that a leader finds out: how far switches and jobs have come.

All of it is written by the leader alone, fenced by its epoch. A plan is large: it is kept
beside the fabric, most often as what it has otherwise than a base (``codec.deltas``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from heddle_controller.state.change import FACTS, NEITHER, Blob, Change, Stamp
from heddle_controller.state.errors import StaleGeneration
from heddle_controller.state.jobs import FACT, job_etag
from heddle_controller.state.records import JobFacts, PlanFacts, Programmed
from heddle_controller.state.view import FACTS_VERSION, GENERATION, JOB, View, check_known

KEPT = 4
"""Plans kept of each fabric: an agent that was away for a few still holds a table we know."""
PLAN, PROGRAMMED = "plan", "programmed"
KEPT_FOR = "kept_for"
"""See ``Committed``."""


@dataclass(frozen=True, slots=True)
class PlanRow:
    """What the fabric has of a plan."""

    blob: str
    structure: str
    """Blob of the structure that it was made on."""
    digest: str
    """Of the structure."""
    changed_count: int
    solve_seconds: float
    commit_time: float
    base: str = ""
    """Blob of the plan that ``blob`` is a delta of; empty where it is whole."""

    def blobs(self) -> tuple[str, ...]:
        """All that it points at."""
        return (self.blob, self.structure, *([self.base] if self.base else []))

    def facts(self) -> PlanFacts:
        """As they are told."""
        return PlanFacts(self.changed_count, self.solve_seconds, self.commit_time)


class UnknownBaseError(Exception):
    """The newest plan is no delta of what was taken for its base."""


def commit(
    view: View,
    row: PlanRow,
    keep: Sequence[Blob],
    stamp: Stamp,
    *,
    epoch: int,
    generation: int,
    switches: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Change:
    """Make a plan the newest, and drop the oldest.

    ``keep`` are the blobs of ``row``; ``switches`` have come to the fabric, and have gone from it,
    since the plan before.

    Raises:
        NotFound: there is no such fabric.
        StaleGeneration: the newest is not the one before.
        UnknownBaseError: the base may be gone.
    """
    check_known(view)
    newest = view.number(GENERATION)
    if newest != generation - 1:
        raise StaleGeneration(generation - 1, newest)
    if row.base and not _stands_on(view, newest, row.base):
        raise UnknownBaseError
    gone = {name: old for name, old in plan_rows(view).items() if name <= generation - KEPT}
    sets: dict[str, bytes | None] = {
        _field(generation): orjson.dumps(replace(row, commit_time=stamp.now)),
        GENERATION: str(generation).encode(),
        **{_field(name): None for name in gone},
    }
    held = programmed(view).on_others(*switches)
    if held != programmed(view):
        sets[PROGRAMMED] = _programmed_bytes(held)
    return Change(
        fabric=view.name,
        moves=FACTS,
        time=stamp.now,
        guards=(view.guard(GENERATION), view.guard(PROGRAMMED)),
        sets=sets,
        keep=tuple(keep),
        drop=tuple(blob for old in gone.values() for blob in old.blobs()),
        epoch=epoch,
    )


def certify(view: View, epoch: int, generation: int, blob: Blob, stamp: Stamp) -> Change | None:
    """Put the newest plan, whole, in place of what is kept of it; None where it is not the newest.

    ``blob`` is the same plan under a better certificate.
    """
    row = plan_row(view, generation)
    if row is None or view.number(GENERATION) != generation:
        return None
    return Change(
        fabric=view.name,
        moves=FACTS,
        time=stamp.now,
        guards=(view.guard(GENERATION), view.guard(_field(generation))),
        sets={_field(generation): orjson.dumps(replace(row, blob=blob.id, base=""))},
        keep=(blob,),
        drop=tuple(one for one in row.blobs() if one != row.structure),
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
    sets |= dict.fromkeys(f"{FACT}/{name}" for name in view.lacking(FACT, JOB))
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


def programmed(view: View) -> Programmed:
    """What switches hold."""
    return view.get(PROGRAMMED, "", _parse_programmed) or Programmed()


def _stands_on(view: View, generation: int, base: str) -> bool:
    """Whether a plan is this one or a delta of it, so that it is there and will be."""
    row = plan_row(view, generation)
    return row is not None and base == (row.base or row.blob)


def _parse(raw: bytes) -> PlanRow:
    return PlanRow(**orjson.loads(raw))


def _programmed_bytes(held: Programmed) -> bytes:
    return orjson.dumps([held.generation, held.others, held.time])


def _parse_programmed(raw: bytes) -> Programmed:
    return Programmed(*orjson.loads(raw))


def _field(generation: int) -> str:
    return f"{PLAN}/{generation}"
