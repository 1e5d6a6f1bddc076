"""What agents report of links, and what follows of it for the fabric.

What an agent said last is in the memory of the controller that has its session; it is kept
when the set of its links that are down changes, and with every full report, which begins a
session: so whatever a controller that had the session before may still have under way is
known to be old. Nobody waits for the disk: agents say all of it again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heddle_controller.state.change import INTENT, NEITHER, Change, Stamp
from heddle_controller.state.fabrics import STATES, Structures, ground, record_of, states_of
from heddle_controller.state.records import LinkReport
from heddle_controller.state.reporters import (
    Reporter,
    known_links,
    reporter_bytes,
    reporters_of,
    restated,
    seen_field,
)
from heddle_controller.state.view import View


def said_after(
    view: View, structures: Structures, before: Reporter, report: LinkReport
) -> Reporter:
    """What an agent says once a report is taken in."""
    return before.after(known_links(record_of(view, structures).fabric, report))


def is_news(before: Reporter, now: Reporter, *, full: bool) -> bool:
    """Whether there is something in a report to be kept."""
    return now.down() != before.down() or (full and now != before)


def observe(
    view: View,
    structures: Structures,
    switch: str,
    stamp: Stamp,
    *,
    before: Reporter,
    now: Reporter,
) -> tuple[Change, bool]:
    """Keep what an agent says now; and whether the observed state of any link changes by it."""
    field = seen_field(switch)
    guards = [view.guard(field)]
    sets = {field: reporter_bytes(now)}
    turned = before.down() ^ now.down()
    moved = False
    if turned:
        record, states = record_of(view, structures), states_of(view)
        reporters = {**reporters_of(view), switch: now}
        observed = restated(record.fabric, states.observed, reporters, turned)
        changed = observed != states.observed
        moved = bool(changed.any())
        if moved:
            time = np.where(changed, stamp.now, states.time)
            guard, token = ground(view, stamp)
            guards.append(guard)
            sets |= {STATES: replace(states, observed=observed, time=time).packed(), **token}
    change = Change(
        fabric=view.name,
        moves=INTENT if moved else NEITHER,
        time=stamp.now,
        guards=tuple(guards),
        sets=sets,
        lasting=False,
    )
    return change, moved
