from __future__ import annotations

import pytest

from heddle_controller.serve.bucket import TokenBucket


def test_a_burst_and_then_the_rate() -> None:
    """As many tokens as it holds are taken at once, then one whenever the rate has given one."""
    bucket = TokenBucket(3.0, 0.5, now=10.0)
    assert [bucket.take(10.0) for _ in range(4)] == [0, 0, 0, 2]
    assert bucket.take(11.0) == pytest.approx(1)
    assert bucket.take(12.0) == 0
    assert [bucket.take(1000.0) for _ in range(4)] == [0, 0, 0, 2]


def test_what_is_overspent_is_waited_for() -> None:
    """Beyond the burst, the wait is as long as the rate takes to pay for what was spent."""
    bucket = TokenBucket(0.5, 0.1, now=0.0)
    assert bucket.spend(0.25, 0.0) == 0
    rest = bucket.spend(0.5, 0.0)
    assert rest == pytest.approx(2.5)
    assert bucket.spend(0.0, rest) == pytest.approx(0)
    assert bucket.spend(0.5, rest + 5.0) == pytest.approx(0)
