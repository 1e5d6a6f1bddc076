"""QPs whose path is lost move to the ports of their backups, without controller or switch agents.

The lab has real kernels and FRR. Two hosts steer by themselves. The programs that own the QPs are
simulated here: each sends a packet every millisecond, checks its file before each packet, and sends
from the port that the file names. A far link is cut, so that nobody at the host's end sees a
carrier loss. The figure is the time from the first lost packet to the first packet sent from the
backup's port, for each QP.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from heddle_agent.host.trace import ROCE_PORT
from heddle_emulator.netns import tools
from heddle_emulator.netns.converge import wait_converged
from heddle_emulator.netns.kernel import inside
from heddle_emulator.netns.lab import Lab
from heddle_emulator.topology import hashing
from tests.bench.rows import Row, Scale, quantile, spread
from tests.bench.screen import Screen
from tests.integration.labbing import small_fabric, small_lab
from tests.integration.steering import Steered

TITLE = "a far link dies, no controller, no agent on any switch: QPs on backup ports"
QPS, INTERVAL_MS = 4, 10
PACKET_SECONDS = 0.001
BEFORE, AFTER = 0.05, 0.3
"""Seconds of sending before a cut, and after it."""
WANTED = 0.050
PATIENCE = 60.0
_PACKET = struct.Struct("!II")


@dataclass(slots=True)
class PlayedQp:
    """A QP of a simulated program, and what it sent."""

    flow: str
    place: int
    """Its index among the QPs of its flow."""
    file: Path
    ports: dict[int, socket.socket]
    to: tuple[str, int]
    port: int
    sent: list[tuple[float, int]] = field(default_factory=list)
    """When each packet was sent, and from which port."""


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return one row, of three times as many cuts as the scale has lab runs."""
    lacking = tools.missing()
    if lacking:
        return [Row(TITLE, "Heddle", "not measured", note=lacking)]
    cuts = 3 * scale.lab_runs
    found: list[float] = []
    wrong = 0
    with small_lab(programs=False, fabric=hashing(small_fabric())) as (lab, _):
        steered = Steered(lab, hold=0.5, probe_milliseconds=INTERVAL_MS, qps=QPS)
        with screen.progress(TITLE, cuts) as advance, played(lab, steered) as (qps, hear):
            for cut in range(cuts):
                (link,) = lab.layout.fabric.find_links(f"s{cut % 2}", "l1")
                times, lost = _one(lab, link, steered, qps, hear)
                found += times
                wrong += lost
                advance(cut + 1)
    return [_row(found, wrong, cuts)]


@contextmanager
def played(lab: Lab, steered: Steered) -> Iterator[tuple[list[PlayedQp], Sequence[socket.socket]]]:
    """Open the sockets of all QPs, and those at the other ends."""
    address = lab.layout.fabric.structure.nodes.address
    flows, planned, qps = steered.flows, steered.planned, []
    with ExitStack() as stack:
        known: dict[tuple[int, int], socket.socket] = {}  # QPs may share a port

        def opened(row: int, port: int) -> socket.socket:
            if (row, port) in known:
                return known[row, port]
            nic = lab.layout.fabric.structure.nodes.ids[row]
            space = lab.spaces[lab.layout.nic_port[nic].namespace]
            made = inside(space, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            stack.enter_context(made)
            made.bind((address[row], port))
            made.setblocking(False)
            known[row, port] = made
            return made

        for qp, row in enumerate(np.repeat(np.arange(len(flows)), flows.qps).tolist()):
            source, to = int(flows.source[row]), int(flows.destination[row])
            ports = {int(planned.ports[qp]), int(planned.backups[qp])} - {0}
            qps.append(
                PlayedQp(
                    flows.ids[row],
                    qp % QPS,
                    steered.folder / steered.host_of[row] / "plan.json",
                    {port: opened(source, port) for port in ports},
                    (address[to], ROCE_PORT),
                    int(planned.ports[qp]),
                )
            )
        ends = {row: opened(row, ROCE_PORT) for row in set(flows.destination.tolist())}
        yield qps, list(ends.values())


def _one(
    lab: Lab, link: int, steered: Steered, qps: list[PlayedQp], hear: Sequence[socket.socket]
) -> tuple[list[float], int]:
    """Cut one link. Return repair seconds of the QPs over it, and how many QPs behaved wrongly.

    A QP is wrong if it stays on the lost path, or leaves a path that is not lost.
    """
    for qp in qps:
        qp.sent.clear()
    arrived: dict[int, set[int]] = defaultdict(set)
    lost = [any(link == arc >> 1 for arc in way) for way in steered.planned.ways]
    cut = threading.Timer(BEFORE, lab.set_link, (link,), {"up": False})
    cut.start()
    _send(qps, hear, arrived, BEFORE + AFTER)
    cut.join()
    times, strayed = [], 0
    for number, qp in enumerate(qps):
        first = qp.sent[0][1]
        moved = next((at for at, port in qp.sent if port != first), None)
        gone = [at for row, (at, _) in enumerate(qp.sent) if row not in arrived[number]]
        if lost[number] and gone and moved is not None:
            times.append(moved - gone[0])
        strayed += lost[number] != (moved is not None)
    lab.set_link(link, up=True)
    wait_converged(lab, PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while steered.lost() and time.monotonic() < deadline:
        time.sleep(0.01)
    return times, strayed


def _send(
    qps: list[PlayedQp],
    hear: Sequence[socket.socket],
    arrived: dict[int, set[int]],
    seconds: float,
) -> None:
    seen: dict[Path, tuple[int, dict[str, list[int]]]] = {}
    due = end = time.perf_counter()
    end += seconds
    while due < end:
        for number, qp in enumerate(qps):
            qp.port = _told(qp.file, seen)[qp.flow][qp.place]
            packet = _PACKET.pack(number, len(qp.sent))
            qp.sent.append((time.perf_counter(), qp.port))
            qp.ports[qp.port].sendto(packet, qp.to)
        _hear(hear, arrived)
        due = max(due + PACKET_SECONDS, time.perf_counter())
        time.sleep(max(0.0, due - time.perf_counter()))
    time.sleep(0.01)
    _hear(hear, arrived)


def _told(file: Path, seen: dict[Path, tuple[int, dict[str, list[int]]]]) -> dict[str, list[int]]:
    """Return the ports of each flow, and read the file again only if it has changed."""
    stamp = file.stat().st_mtime_ns
    if file not in seen or seen[file][0] != stamp:
        flows = json.loads(file.read_bytes())["flows"]
        seen[file] = stamp, {flow["flow"]: flow["ports"] for flow in flows}
    return seen[file][1]


def _hear(hear: Sequence[socket.socket], arrived: dict[int, set[int]]) -> None:
    for one in hear:
        while True:
            try:
                number, row = _PACKET.unpack(one.recv(64))
            except BlockingIOError:
                break
            arrived[number].add(row)


def _row(found: list[float], wrong: int, cuts: int) -> Row:
    p99 = quantile(found, 0.99)
    return Row(
        TITLE,
        f"{len(found)} QPs of {cuts} cuts",
        f"p50 {quantile(found, 0.5) * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms",
        f"p99 <= {WANTED * 1e3:.0f} ms",
        p99 <= WANTED,
        f"from the first lost packet; each path is probed every {INTERVAL_MS} ms;"
        f" {wrong} QPs stayed on lost paths or left others",
        {"seconds": spread(found), "wrong": wrong},
    )
