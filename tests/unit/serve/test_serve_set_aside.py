from __future__ import annotations

from heddle_controller.serve.agents.gateway import FAULTS, FIRST, LONGEST_ASIDE, SetAside


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now


def test_it_comes_back_and_later_each_time() -> None:
    """A switch is set aside for one minute, then two, four, at most an hour.

    After a long time without a fault it is one minute again.
    """
    clock = Clock()
    aside = SetAside(clock)
    for seconds in (60, 120, 240, 480, 960, 1920, 3600, 3600):
        assert aside.put("f1", "l0", "says too much") == seconds
        assert aside.put("f1", "l0", "says too much") == seconds  # a second fault adds no time
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
    """A few faults at once are allowed, and one more each minute, separately for each switch."""
    clock = Clock()
    aside = SetAside(clock)
    assert [aside.faulty("f1", "l0") for _ in range(int(FAULTS) + 1)] == [False] * 5 + [True]
    assert not aside.faulty("f1", "l1")
    clock.now += 2 * FIRST
    assert not aside.faulty("f1", "l0")
