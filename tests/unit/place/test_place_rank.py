"""Which of two scores of a job is taken, where one of them is of the hosts it gets by default."""

from __future__ import annotations

import pytest

from heddle_controller.place.ask import Score

DEFAULT = Score(max_utilization=2.0, slowest_flow=0.25, seconds=0.8, least_seconds=0.1)


@pytest.mark.parametrize(
    ("seconds", "least", "preferred"),
    [
        (0.8, 0.079, True),  # cuts allow clearly less
        (0.109, 0.1, True),  # the plan is about as good as cuts allow
        (0.4, 0.11, False),  # far faster at present, but cuts allow less in the default
        (0.3, 0.1, False),  # far faster at present, which may be chance
        (0.8, 0.085, False),  # plans made from scratch differ by more than cuts do
    ],
)
def test_the_default_is_taken_in_doubt(seconds: float, least: float, preferred: bool) -> None:  # noqa: FBT001 - a column
    """Another choice comes before the default only if it is surely no worse."""
    other = Score(2.0, 0.25, seconds, least)
    assert (other.rank_beside(DEFAULT) < DEFAULT.rank_beside(DEFAULT)) is preferred
