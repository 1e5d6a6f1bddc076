"""The packet simulator of the tests against closed forms: single queues, series, and PFC."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.packet_queues import (
    Control,
    PacketNetwork,
    Pfc,
    Rated,
    Windowed,
)

PACKET, DELAY = 4096.0, 6e-7
SPEED = 400.0
SECONDS = PACKET * 8e-9 / SPEED
"""Seconds that a packet takes on a link."""


def test_a_message_alone() -> None:
    """Each link adds the time of a packet, and the rest follows at line rate."""
    net = PacketNetwork([SPEED] * 3, delay=DELAY)
    net.send([0, 1, 2], 100 * PACKET)
    assert net.run() == pytest.approx(102 * SECONDS + 3 * DELAY)


@pytest.mark.parametrize("pfc", [None, Pfc()])
@pytest.mark.parametrize("senders", [2, 5])
def test_one_queue(senders: int, pfc: Pfc | None) -> None:
    """The shared link is never idle: it takes all bytes and the hops of the first packet.

    Served in order of arrival, all messages end within a round of packets. With PFC they end within
    what links may hold back.
    """
    net = PacketNetwork([SPEED] * (senders + 1), delay=DELAY, pfc=pfc)
    for sender in range(senders):
        net.send([sender, senders], 200 * PACKET)
    assert net.run() == pytest.approx((senders * 200 + 1) * SECONDS + 2 * DELAY)
    apart = senders * (SECONDS if pfc is None else pfc.xoff * 8e-9 / SPEED)
    assert max(net.ends) - min(net.ends) <= apart * 1.001


def test_two_queues_in_series() -> None:
    """A queue without control divides its link in proportion to what arrives.

    Message a shares its first link with b, and gets half of it. It shares its second link with c,
    which arrives at full speed, so two of each three packets there are c's. So c ends after 3/2 of
    the time it takes alone. By then half of a has arrived, and the rest waits and goes at line
    rate.
    """
    count = 3000
    net = PacketNetwork([SPEED] * 5, delay=0.0)
    a = net.send([0, 2, 3], count * PACKET)
    b = net.send([1, 2], count * PACKET)
    c = net.send([4, 3], count * PACKET)
    net.run(until=count * SECONDS)
    assert net.missing(a) / (count * PACKET) == pytest.approx(2 / 3, abs=0.01)
    assert net.missing(b) / (count * PACKET) == pytest.approx(1 / 2, abs=0.01)
    assert net.missing(c) / (count * PACKET) == pytest.approx(1 / 3, abs=0.01)
    net.run()
    ends = [net.ends[qp] / (count * SECONDS) for qp in (a, b, c)]
    assert ends == pytest.approx([2.0, 2.0, 1.5], abs=0.01)


@pytest.mark.parametrize("switches", [1, 2, 4])
def test_pfc_pauses_a_line_of_switches(switches: int) -> None:
    """One slow link at the end fills each switch to its threshold, one after another.

    Beyond the threshold, a switch holds what was on the way: a link's delay there and back at line
    rate, and a packet at either end. The message takes as long as the slow link needs.
    """
    pfc, slow = Pfc(100_000, 90_000), SPEED / 4
    net = PacketNetwork([SPEED] * switches + [slow], delay=DELAY, pfc=pfc)
    size = 600 * PACKET
    net.send([*range(switches + 1)], size)
    end = net.run()
    assert end == pytest.approx(size * 8e-9 / slow + switches * SECONDS + (switches + 1) * DELAY)
    room = 2 * DELAY * SPEED / 8e-9 + 2 * PACKET
    for link in range(switches):
        assert pfc.xoff < net.most_held(link) <= pfc.xoff + room


def test_without_pfc_all_waits_at_the_slow_link() -> None:
    """Three quarters of the message pile up in front of the slow link."""
    net = PacketNetwork([SPEED, SPEED / 4], delay=0.0)
    net.send([0, 1], 1000 * PACKET)
    net.run()
    assert net.most_held(0) == pytest.approx(750 * PACKET, rel=0.01)


def test_pfc_holds_up_who_only_passes_by() -> None:
    """A message that shares a link with one to a slow link becomes as slow.

    Its own path is idle, but the switch behind pauses the shared link for both.
    """
    net = PacketNetwork([SPEED, SPEED, SPEED, SPEED / 4, SPEED], delay=DELAY, pfc=Pfc())
    size = 4000 * PACKET
    slowed = net.send([0, 2, 3], size)
    bystander = net.send([1, 2, 4], size)
    net.run()
    slow = size * 8e-9 / (SPEED / 4)
    assert net.ends[slowed] == pytest.approx(slow, rel=0.05)
    assert net.ends[bystander] == pytest.approx(slow, rel=0.05)


@pytest.mark.parametrize(
    ("control", "late"),
    [
        (lambda net, path: Windowed(PACKET, net.filling(path)), 0.03),
        (lambda _, __: Rated(SPEED), 0.3),
    ],
    ids=["window", "rate"],
)
def test_control_keeps_queues_short(
    control: Callable[[PacketNetwork, list[int]], Control], late: float
) -> None:
    """With four senders to one there are no pauses, and shares are equal.

    A window keeps the link next to full. A rate, which is cut at once and comes back in steps of 55
    us, takes a quarter longer for so few milliseconds.
    """
    net = PacketNetwork([SPEED] * 5, delay=DELAY, pfc=Pfc(2e6, 1.9e6), mark=100_000)
    size = 5000 * PACKET
    for sender in range(4):
        net.send([sender, 4], size, control(net, [sender, 4]))
    end = net.run()
    least = 4 * size * 8e-9 / SPEED
    assert least < end < least * (1 + late)
    assert min(net.ends) > 0.8 * end
    assert max(net.most_held(link) for link in range(4)) < 2e6


def test_starts_are_kept() -> None:
    """A message that starts later ends later by the same time."""
    net = PacketNetwork([SPEED], delay=0.0)
    net.send([0], PACKET, start=1e-3)
    assert net.run() == pytest.approx(1e-3 + SECONDS)
