from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_agent.watch import HoldDown
from heddle_agent.watch.damping import Damper
from heddle_agent.watch.liveness import Liveness
from heddle_agent.watch.probe import reply, request


def probed(link: Liveness, answers: str) -> Liveness:
    """Send a probe for each letter, answer it if the letter is "1", and judge each."""
    for letter in answers:
        number = link.send()
        if letter == "1":
            link.answer(number)
        link.judge()
    return link


def test_three_lost_in_a_row_are_a_dead_link() -> None:
    """Three lost probes in a row end a link and three answers bring it back. Two do neither."""
    link = probed(Liveness(), "1100")
    assert link.alive
    assert not probed(link, "0").alive
    assert not probed(link, "11").alive
    assert probed(link, "1").alive


def test_a_link_is_suspect_from_the_first_miss_until_it_answers_or_is_dead() -> None:
    """A miss makes a link suspect. A dead link is not suspect, nor is one that never answered."""
    link = probed(Liveness(), "110")
    assert link.suspect
    assert not probed(link, "1").suspect
    assert probed(link, "00").suspect
    assert not probed(link, "0").suspect
    assert not probed(Liveness(), "00").suspect


def test_silence_from_the_start_proves_nothing() -> None:
    """The neighbour may not be allowed to answer, so its link stays up."""
    link = probed(Liveness(), "0" * 50)
    assert (link.alive, link.grey) == (True, False)
    assert not probed(link, "1000").alive


def test_an_agent_that_was_held_up_sees_answers() -> None:
    """Answers that arrive before judgement count, however many probes are waiting."""
    link = probed(Liveness(), "1")
    numbers = [link.send() for _ in range(10)]
    for number in numbers:
        link.answer(number)
    link.judge()
    assert (link.alive, link.loss) == (True, 0.0)


def test_a_cut_link_has_to_prove_itself() -> None:
    """Probes that were under way are not a second failure. Three answers bring the link back."""
    link = probed(Liveness(), "1100")
    link.send()
    link.cut()
    assert not link.alive
    assert not probed(link, "11").alive
    assert probed(link, "1").alive
    assert link.loss == 0.0
    silent = probed(Liveness(), "00")
    silent.cut()
    assert silent.alive


def test_some_loss_is_grey_and_passes() -> None:
    """Scattered losses make a link grey, with its share of loss. It recovers when they stop."""
    link = probed(Liveness(), "10" * 8 + "1" * 16)
    assert (link.alive, link.grey) == (True, True)
    assert link.loss == pytest.approx(8 / 32)
    assert not probed(link, "1" * 300).grey


@given(st.text("01", max_size=300))
def test_alive_is_what_the_last_run_says(answers: str) -> None:
    """After any history, three losses in a row end a link and three answers revive it."""
    link = probed(Liveness(), "1" + answers)
    ended = next((run for run in runs("1" + answers) if len(run) >= 3), "1")
    assert link.alive == (ended[0] == "1")
    assert 0.0 <= link.loss <= 1.0


def runs(answers: str) -> list[str]:
    """Return the runs of equal letters, the last run first."""
    found: list[str] = []
    for letter in answers:
        if found and found[-1][0] == letter:
            found[-1] += letter
        else:
            found.append(letter)
    return found[::-1]


def test_a_link_that_flaps_is_kept_down_longer_each_time() -> None:
    """The pause doubles with every loss, up to its cap, and shrinks after a long quiet time."""
    link, now, pauses = Damper(HoldDown(first=1, longest=6, memory=1000)), 0.0, []
    for _ in range(5):
        link.seen(up=False, now=now)
        assert not link.up
        link.seen(up=True, now=now + 0.1)
        pauses.append(link.until - now - 0.1)
        link.settle(link.until - 0.01)
        assert not link.up
        now = link.until
        link.settle(now)
        assert link.up
    assert pauses == pytest.approx([1, 2, 4, 6, 6])
    link.seen(up=False, now=now + 2000)
    link.seen(up=True, now=now + 2000)
    assert link.until == pytest.approx(now + 2001)


def test_a_loss_while_it_is_held_down_counts() -> None:
    """A link that fails again during its pause then waits twice as long and counts as flapping."""
    link, flapping = Damper(HoldDown(first=1, longest=60, memory=1000)), []
    for up, now in ((False, 0), (True, 0.5), (False, 0.6), (True, 0.7)):
        link.seen(up=up, now=now)
        flapping.append(link.flapping)
    assert flapping == [False, False, False, True]
    assert link.until == pytest.approx(2.7)
    link.settle(2.7)
    assert link.up


def test_a_link_found_down_is_used_when_it_comes() -> None:
    """The link has not been lost yet, so it is used without a pause."""
    link = Damper(HoldDown(), up=False)
    link.seen(up=True, now=7)
    assert link.up


def test_a_reply_is_known_by_its_token() -> None:
    """The kernel's reply is read. Other agents' replies, requests and garbage are not."""
    token, other = b"12345678", b"87654321"
    sent = request(7, token, 3, 99)
    head = bytes([0x45]) + bytes(19)
    answer = head + b"\0" + sent[1:]
    assert reply(answer, token) == (3, 99)
    for packet in (b"", head, head + sent, answer + b"\0", answer[:-1]):
        assert reply(packet, token) is None
    assert reply(answer, other) is None


@given(st.integers(0, 2**16 - 1), st.binary(min_size=8, max_size=8), st.integers(0, 2**40))
def test_the_checksum_of_a_probe_is_right(identity: int, token: bytes, sequence: int) -> None:
    """The sum over the whole packet is all ones, as the neighbour's kernel requires."""
    packet = request(identity, token, 5, sequence)
    total = sum(int.from_bytes(packet[at : at + 2]) for at in range(0, len(packet), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    assert total == 0xFFFF
