from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import NodeKind, State
from heddle_emulator.campaign.trials import (
    CABLE,
    HOURS_A_MONTH,
    SWITCH,
    Draw,
    Drawing,
    FaultKind,
    between_switches,
    expected_failures,
    trials,
)
from heddle_emulator.topology import clos
from tests.support.campaigns import FABRIC


def test_each_link_between_switches_fails_once() -> None:
    """In as many trials as there are links, each link fails once. Then they begin again."""
    links = between_switches(FABRIC)
    drawn = trials(FABRIC, Drawing(Draw.EACH), len(links) + 1)
    rows = [event.row for trial in drawn for event in trial.events]
    assert sorted(rows[:-1]) == links.tolist()
    assert rows[-1] == rows[0]


def test_the_number_alone_draws_a_trial() -> None:
    """Equal seeds draw the same trials in a campaign of any length. Another seed draws others."""
    drawing = Drawing(Draw.RANDOM, at_once=3, seed=5)
    assert trials(FABRIC, drawing, 9)[:4] == trials(FABRIC, drawing, 4)
    assert trials(FABRIC, drawing, 9) != trials(FABRIC, Drawing(Draw.RANDOM, at_once=3, seed=6), 9)


def test_links_at_once_are_different_ones_between_switches() -> None:
    """No link is drawn twice in a trial, and no NIC's link is drawn."""
    links = set(between_switches(FABRIC).tolist())
    for trial in trials(FABRIC, Drawing(Draw.RANDOM, at_once=4), 50):
        rows = [event.row for event in trial.events]
        assert len(set(rows)) == 4
        assert set(rows) <= links


def test_links_that_are_down_already_are_left_out() -> None:
    """A link that is down from the start does not fail."""
    dead = int(between_switches(FABRIC)[0])
    fabric = FABRIC.with_links({dead: State.DOWN})
    drawn = trials(fabric, Drawing(Draw.RANDOM), 200)
    assert dead not in {event.row for trial in drawn for event in trial.events}


def test_more_links_than_there_are_cannot_fail() -> None:
    """The campaign is refused before it runs, and the error says how many links there are."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2)
    with pytest.raises(InputError, match="there are 4 that are up; 5 cannot fail at once"):
        trials(fabric, Drawing(Draw.RANDOM, at_once=5), 1)


INTERRUPTIONS = 0.084 * 419 / (54 * 24.0) / 16_384
"""Interruptions by the network per GPU and hour, in a job of 16,384 GPUs (Llama 3)."""


def test_published_rates_agree_with_what_a_large_job_met() -> None:
    """Two cables and 1/15 switch a GPU give 1 to 1.5 times the rate published for Llama 3."""
    per_gpu = 2 * CABLE + SWITCH / 15
    assert 1.0 < per_gpu / INTERRUPTIONS < 1.5
    assert pytest.approx(0.00119, rel=0.01) == INTERRUPTIONS * HOURS_A_MONTH


def test_kinds_come_as_often_as_published() -> None:
    """Over many trials, each kind has its share within three standard deviations (seed 1)."""
    fabric = clos(leaves=16, spines=16, nics_per_leaf=16)
    hourly = expected_failures(
        len(between_switches(fabric)),
        int(np.count_nonzero(fabric.structure.nodes.kind != NodeKind.NIC)),
    )
    count = 4000
    drawn = trials(fabric, Drawing(Draw.PUBLISHED, mend_hours=1e-9, seed=1), count)
    assert all(len(trial.events) == 1 for trial in drawn)
    kinds = Counter(trial.events[0].kind for trial in drawn)
    shares = {
        FaultKind.LINK: hourly.links,
        FaultKind.FLAP: hourly.flaps,
        FaultKind.SWITCH: hourly.switches,
    }
    for kind, rate in shares.items():
        share = rate / hourly.total
        assert abs(kinds[kind] - share * count) < 3 * np.sqrt(count * share * (1 - share))


def test_what_takes_long_to_mend_stands_beside_others() -> None:
    """Besides each failure, as many others are present as break within the repair time (seed 2)."""
    count, hours = 2000, 24 * 30.0
    switches = int(np.count_nonzero(FABRIC.structure.nodes.kind != NodeKind.NIC))
    hourly = expected_failures(len(between_switches(FABRIC)), switches)
    drawn = trials(FABRIC, Drawing(Draw.PUBLISHED, mend_hours=hours, seed=2), count)
    beside = sum(len(trial.events) - 1 for trial in drawn)
    wanted = hourly.lasting * hours * count
    assert beside == pytest.approx(wanted, abs=4 * np.sqrt(wanted))
