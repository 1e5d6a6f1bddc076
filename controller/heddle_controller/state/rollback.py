"""An earlier plan to go back to, for a time: what an operator wants, so that it is intent."""

from __future__ import annotations

import orjson

from heddle_controller.model.errors import Problem
from heddle_controller.state.audit_texts import rollback_text
from heddle_controller.state.change import INTENT, Change, Stamp, entry_of
from heddle_controller.state.errors import FailedPrecondition, NotFound
from heddle_controller.state.fabrics import meta_of
from heddle_controller.state.plans import plan_row
from heddle_controller.state.records import Rollback
from heddle_controller.state.view import INTENT_VERSION, View, check_known

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


def parse_rollback(raw: bytes) -> Rollback:
    """As it is stored."""
    return Rollback(**orjson.loads(raw))


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
