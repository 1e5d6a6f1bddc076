"""Entries as an edit of others, as the planner makes for a plan that differs little."""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import NONE
from heddle_controller.model.program import Entries, splice_entries
from heddle_controller.plan.diff import difference, match_codes, partners


def as_edit(old: Entries, new: Entries) -> Entries:
    """Return the new entries together with how they are made from the old ones."""
    if not len(old) or not len(new):
        return new
    twin = partners(old, new)
    differs, gone = difference(old, new, twin)
    came = np.zeros(len(new), dtype=np.bool_)
    came[differs] = True
    came |= (twin == NONE) | (old.stage[twin] != new.stage)
    rows = np.flatnonzero(came)
    over = twin[rows][twin[rows] != NONE]
    before, after = match_codes([old, new])
    places = np.searchsorted(before, after[rows])
    return splice_entries(old, np.sort(np.append(gone, over)), places, new.take(rows))
