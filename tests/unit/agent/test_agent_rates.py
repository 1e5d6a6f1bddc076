"""How links that carry less than they should are told from idle and from full links."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_agent.watch.rates import RateShare

GBPS = 8e-9  # one byte a second

LOOKS = st.lists(st.tuples(st.floats(0.0, 1.0), st.booleans()), max_size=60)


def shares(looks: list[tuple[float, bool]], gbps: float = 1000 * GBPS) -> list[float]:
    """Return the reported share after each look, one second apart, from (share sent, waiting)."""
    watch, sent, found = RateShare(gbps), 0, [0.0]
    for second, (share, waiting) in enumerate(looks):
        sent += round(1000 * share)
        found.append(watch.look(float(second), sent, waiting=waiting))
    return found


def test_a_queue_that_stands_before_a_slow_link_is_told() -> None:
    """After five intervals of a queue, the share that the link carried is reported."""
    found = shares([(0.25, True)] * 8)
    assert found[:6] == [0.0] * 6
    assert found[6:] == pytest.approx([0.25] * 3)


def test_it_is_well_again_once_it_carries_its_rate_or_nothing_waits_for_long() -> None:
    """Ten looks without a queue, or five at full rate, end the report. Nine empty looks do not."""
    slow = [(0.25, True)] * 6
    assert shares([*slow, *[(0.0, False)] * 9])[-1] > 0
    assert shares([*slow, *[(0.0, False)] * 10])[-1] == 0
    assert shares([*slow, *[(1.0, True)] * 5])[-1] == 0


@given(LOOKS)
def test_a_link_without_a_standing_queue_is_never_slow(looks: list[tuple[float, bool]]) -> None:
    """Bursts pass, and idle senders are not a fault of the link."""
    broken = [(share, waiting and second % 5 > 0) for second, (share, waiting) in enumerate(looks)]
    assert set(shares(broken)) == {0.0}


@given(LOOKS)
def test_a_full_link_is_never_slow(looks: list[tuple[float, bool]]) -> None:
    """A link that carries its rate is not slow, however long packets wait for it."""
    full = [(0.8 + share / 5, waiting) for share, waiting in looks]
    assert set(shares(full)) == {0.0}


@given(LOOKS)
def test_nobody_minds_a_link_without_a_rate(looks: list[tuple[float, bool]]) -> None:
    """Without a known rate, nothing is reported."""
    assert set(shares(looks, gbps=0.0)) == {0.0}


def test_a_new_interface_begins_anew() -> None:
    """Counters that fall belong to another interface, of which nothing is known yet."""
    watch = RateShare(1000 * GBPS)
    for second in range(5):
        assert watch.look(second, 10_000 + 100 * second, waiting=True) == 0
    for second in range(5, 10):
        assert watch.look(second, 100 * second, waiting=True) == 0
    assert watch.look(10, 1000, waiting=True) == pytest.approx(0.1)
