"""What follows from the notes of a probe, by notes written by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heddle_emulator.netns.probe.handle import Notes, read_notes
from heddle_emulator.netns.probe.spec import FULL_PAYLOAD, HEADERS, ProbeFlow, dump, load

MS = 1_000_000
FLOW = ProbeFlow("p", "a", "b", "10.0.0.1", "10.0.0.2", 49152, 4791, 1000.0)


def _notes(lost: set[int], count: int = 100, flow: ProbeFlow = FLOW) -> Notes:
    """Return notes of a packet each ms. The lost rows never arrive, the others take 10 us."""
    sent = np.arange(count, dtype=np.int64) * MS + 1000 * MS
    came = np.where([row in lost for row in range(count)], 0, sent + 10_000)
    return Notes(flow, sent, came, np.full(count, 61), np.empty((0, 2), dtype=np.int64))


def test_recovery_ends_with_the_last_packet_that_was_lost() -> None:
    """Packets 20 to 24 and 30 are lost after a fault at 19.5 ms, so recovery is at 31 ms."""
    notes = _notes({20, 21, 22, 23, 24, 30})
    assert notes.lost_count() == 6
    assert notes.recovered(1000 * MS + 19_500_000) == pytest.approx(0.0115)


def test_nothing_lost_is_known_from_the_next_packet_on() -> None:
    """Without a loss, the path is known to be good only from the next packet on."""
    assert _notes(set()).recovered(1000 * MS + 19_500_000) == pytest.approx(0.0005)


def test_a_flow_that_ends_in_losses_never_recovered() -> None:
    """A flow whose last packets are lost has an infinite time of recovery."""
    assert _notes(set(range(50, 100))).recovered(1050 * MS) == float("inf")


def test_a_window_looks_at_what_was_sent_in_it() -> None:
    """Packets count by the time they left. The window includes its begin, but not its end."""
    notes = _notes({5, 50}).within(1010 * MS, 1060 * MS)
    assert len(notes.sent) == 50
    assert notes.lost_count() == 1


def test_rates_count_headers_too() -> None:
    """A shaper counts headers as well, here for a thousand full packets a second."""
    flow = ProbeFlow("p", "a", "b", "10.0.0.1", "10.0.0.2", 1, 2, 1000.0, size=FULL_PAYLOAD)
    notes = _notes(set(), flow=flow)
    rate = notes.mbit(1000 * MS, 1100 * MS)
    assert rate == pytest.approx(1000 * (FULL_PAYLOAD + HEADERS[FLOW.family]) * 8 / 1e6, rel=0.01)


def test_notes_are_read_as_they_were_written(tmp_path: Path) -> None:
    """The first copy of a packet counts. One that never arrived is lost."""
    sent = np.array([10, 20, 30], dtype=np.int64)
    got = np.array([[0, 11, 61], [2, 33, 61], [2, 44, 59]], dtype=np.int64)
    (tmp_path / "0.sent").write_bytes(sent.tobytes())
    (tmp_path / "0.got").write_bytes(got.tobytes())
    (notes,) = read_notes(tmp_path, [FLOW])
    assert notes.came.tolist() == [11, 0, 33]
    assert notes.lost.tolist() == [False, True, False]


def test_a_spec_survives_its_line() -> None:
    """A probe reads the spec that was written for it."""
    assert load(dump([FLOW], "/somewhere")) == ([FLOW], "/somewhere")
