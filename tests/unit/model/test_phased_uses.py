"""Sums of loads in places where phases of jobs take turns, against a count by hand."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import PhasedUses

PLACES, JOBS, PHASES = 4, 3, 3


@pytest.mark.parametrize("seed", range(40))
def test_totals_and_what_a_phase_meets(seed: int) -> None:
    """A total takes the greatest phase of each job; a use meets its own phase in its place."""
    draw = Random(seed)
    size = draw.randrange(0, 30)
    phases = [ANY_PHASE] if seed % 4 == 0 else [ANY_PHASE, *range(PHASES)]
    uses = [
        (draw.randrange(PLACES), draw.randrange(JOBS), draw.choice(phases)) for _ in range(size)
    ]
    place, job, phase = np.array(uses, dtype=np.int64).reshape(-1, 3).T
    amounts = [np.array([float(draw.randrange(9)) for _ in uses]) for _ in range(2)]
    sums = PhasedUses(PLACES, place, job, phase).sums(*amounts)
    asked = [(p, j, f) for p in range(PLACES) for j in range(JOBS + 1) for f in range(-1, PHASES)]
    found = sums.met_by(*np.array(asked, dtype=np.int64).T)
    for amount, totals, met in zip(amounts, sums.totals, found, strict=True):

        def sent(where: int, whose: int, when: int, amount: np.ndarray = amount) -> float:
            mine = (place == where) & (phase == when)
            return float(amount[mine & (job == whose if when != ANY_PHASE else True)].sum())

        for (where, whose, when), value in zip(asked, met.tolist(), strict=True):
            most = [max(sent(where, one, at) for at in range(PHASES)) for one in range(JOBS + 1)]
            total = sent(where, 0, ANY_PHASE) + sum(most)
            assert totals[where] == pytest.approx(total)
            own = 0.0 if when == ANY_PHASE else sent(where, whose, when) - most[whose]
            assert value == pytest.approx(total + own)
