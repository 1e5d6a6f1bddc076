"""Start the two halves of a probe, read their notes once they have ended, and evaluate them.

Times are in nanoseconds of the wall clock. A sent packet counts as lost if it never came. The last
packets before the probe's end may still have been on their way. So callers have to leave them out,
with ``Notes.within``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints
from heddle_emulator.netns import LabError
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.layout import MGMT
from heddle_emulator.netns.probe.spec import HEADERS, SMALL, TCP, UDP, ProbeFlow, dump

_NANO = 1e9
_BEFORE = 50_000_000
"""Nanoseconds: a packet sent this long before a fault may still be lost to it."""


@dataclass(frozen=True, slots=True, eq=False)
class Notes:
    """What was sent and what came of one flow."""

    flow: ProbeFlow
    sent: Ints
    """When each packet was sent, by number."""
    came: Ints
    """When the first copy of each packet came, by number; 0 if none came."""
    ttl: Ints
    """Time to live of each packet on arrival; 0 if it did not come."""
    stream: Ints
    """Time in ns and bytes of each read from TCP, shape (reads, 2)."""

    @property
    def lost(self) -> Bools:
        """Whether each packet sent was lost."""
        return np.asarray(self.came == 0)

    def within(self, begin: int, end: int) -> Notes:
        """Return only the packets sent, and the reads made, from ``begin`` to before ``end``."""
        low, high = np.searchsorted(self.sent, [begin, end])
        rows = slice(int(low), int(high))
        times = self.stream[:, 0]
        stream = self.stream[(times >= begin) & (times < end)]
        return Notes(self.flow, self.sent[rows], self.came[rows], self.ttl[rows], stream)

    def lost_count(self) -> int:
        """Return the number of lost packets."""
        return int(self.lost.sum())

    def recovered(self, fault: int) -> float:
        """Return the seconds from a fault (time in ns) until the first packet after all losses.

        The time at which that packet was sent counts. If none was lost, it is the first packet
        after the fault. The result is infinite if there is no such packet.
        """
        after = np.flatnonzero(self.lost & (self.sent >= fault - _BEFORE))
        first = int(after[-1]) + 1 if len(after) else int(np.searchsorted(self.sent, fault))
        if first >= len(self.sent):
            return float("inf")
        return max(0.0, float(self.sent[first] - fault) / _NANO)

    def mbit(self, begin: int, end: int) -> float:
        """Return the Mbit/s received from ``begin`` to ``end``, for UDP with headers."""
        if self.flow.protocol == TCP:
            times = self.stream[:, 0]
            total = float(self.stream[(times >= begin) & (times < end), 1].sum())
        else:
            count = int(((self.came >= begin) & (self.came < end)).sum())
            total = count * (self.flow.size + HEADERS[self.flow.family])
        return total * 8 / ((end - begin) / _NANO) / 1e6


def read_notes(folder: Path, flows: list[ProbeFlow]) -> list[Notes]:
    """Return the notes of both halves of a probe that has ended, in order of the flows."""
    return [_read(folder, row, flow) for row, flow in enumerate(flows)]


def _read(folder: Path, row: int, flow: ProbeFlow) -> Notes:
    sent = np.fromfile(folder / f"{row}.sent", dtype=np.int64)
    got = np.fromfile(folder / f"{row}.got", dtype=np.int64).reshape(-1, 3)
    came, ttl = np.zeros_like(sent), np.zeros_like(sent)
    if flow.protocol == TCP:
        return Notes(flow, sent, came, ttl, got[:, 1:])
    first = got[::-1]  # the first copy is written last
    came[first[:, 0]], ttl[first[:, 0]] = first[:, 1], first[:, 2]
    return Notes(flow, sent, came, ttl, np.empty((0, 2), dtype=np.int64))


def summary(values: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile, which is the next measured value from above."""
    ordered: Floats = np.sort(np.asarray(values, dtype=np.float64))
    place = min(len(ordered) - 1, int(np.ceil(0.99 * len(ordered))) - 1)
    return float(np.median(ordered)), float(ordered[max(place, 0)])


_END_SECONDS = 30.0


class Probe:
    """Both halves of a probe. Its ``with`` is entered when packets flow; ``stop`` gives notes."""

    def __init__(self, lab: Lab, flows: list[ProbeFlow]) -> None:
        self._lab, self.flows = lab, flows
        self._halves: dict[str, subprocess.Popen[str]] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="probe", dir=lab.folder))

    def __enter__(self) -> Self:
        for half in ("receive", "send"):  # in this order, so that each packet has a receiver
            self._start(half)
        return self

    def _start(self, half: str) -> None:
        name = __name__.rpartition(".")[0]
        with (self._lab.folder / "probe.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", name, half, self._lab.spaces[MGMT]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._halves[half] = process
        assert process.stdin is not None
        process.stdin.write(dump(self.flows, str(self._folder)) + "\n")
        process.stdin.flush()
        self._hear(process, "ready")

    def __exit__(self, *_: object) -> None:
        for process in self._halves.values():
            process.kill()
            for end in (process.stdin, process.stdout):
                if end is not None:
                    end.close()
            process.wait()

    def stop(self) -> list[Notes]:
        """End the sender, then the receiver, and return their notes in order of the flows.

        Raises:
            LabError: the sender or the receiver has failed.
        """
        for half in ("send", "receive"):
            process = self._halves[half]
            assert process.stdin is not None
            process.stdin.close()
            self._hear(process, "written")
            process.wait(_END_SECONDS)
            assert process.stdout is not None
            process.stdout.close()
        return read_notes(self._folder, self.flows)

    def _hear(self, process: subprocess.Popen[str], word: str) -> None:
        assert process.stdout is not None
        if process.stdout.readline().strip() != word:
            process.wait(_END_SECONDS)
            words = (self._lab.folder / "probe.log").read_text().strip().splitlines()
            raise LabError(f"a probe failed: {words[-1] if words else 'it said nothing'}")


def probe_flow(
    lab: Lab,
    nics: tuple[str, str],
    ports: tuple[int, int],
    rate: float,
    *,
    name: str = "",
    size: int = SMALL,
    protocol: str = UDP,
) -> ProbeFlow:
    """Return a stream from one NIC to another, given their ids and ports, source first.

    ``rate`` is in packets per second, and ``size`` is the payload in bytes.

    Raises:
        LabError: one of the ids is no NIC of the lab.
    """
    known = lab.layout.nic_port
    for nic in nics:
        if nic not in known:
            raise LabError(f"{nic} is not a NIC of the fabric")
    sender, receiver = known[nics[0]], known[nics[1]]
    return ProbeFlow(
        name or f"{nics[0]}>{nics[1]}:{ports[0]}",
        lab.spaces[sender.namespace],
        lab.spaces[receiver.namespace],
        sender.address,
        receiver.address,
        *ports,
        rate,
        size,
        protocol,
    )
