from __future__ import annotations

import pytest

from heddle_controller.serve.agents.gateway import FAULTS, FIRST, LONGEST_ASIDE, SetAside
from heddle_controller.serve.agents.link_book import BURST, SHARE, Pace


class Clock:
    """Time as the test has it."""

    now = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


def test_it_comes_back_and_later_each_time() -> None:
    """A minute, two, four, at most an hour; a minute again once it was well for long."""
    clock = Clock()
    aside = SetAside(clock)
    for seconds in (60, 120, 240, 480, 960, 1920, 3600, 3600):
        assert aside.put("f1", "l0", "says too much") == seconds
        assert aside.put("f1", "l0", "says too much") == seconds  # no longer for saying it twice
        assert aside.of("f1") == {
            "l0": f"set aside for {seconds} s more, as its agent says too much"
        }
        assert not aside.of("f2")
        clock.now += seconds
        assert not aside.of("f1")
        assert aside.left("f1", "l0") == 0
    clock.now += LONGEST_ASIDE
    assert aside.put("f1", "l0", "says too much") == FIRST


def test_faults_are_forgiven_one_by_one() -> None:
    """So many at once, and one more a minute; each switch by itself."""
    clock = Clock()
    aside = SetAside(clock)
    assert [aside.faulty("f1", "l0") for _ in range(int(FAULTS) + 1)] == [False] * 5 + [True]
    assert not aside.faulty("f1", "l1")
    clock.now += 2 * FIRST
    assert not aside.faulty("f1", "l0")


def test_an_agent_takes_no_more_than_its_share() -> None:
    """What it took at once beyond the burst it waits for, as long as its share of that takes."""
    clock = Clock()
    pace = Pace(clock)
    assert pace.rest(BURST / 2) == 0
    rest = pace.rest(BURST)
    assert rest == pytest.approx(BURST / 2 / SHARE, rel=0.01)
    clock.now += rest + BURST / SHARE
    assert pace.rest(0.0) == 0
