"""The same bulk transfers in the fluid world and over real kernels: slowest flow and makespan.

A small fabric of 20 Mbit/s cables is brought up with FRR. Flows are sent over TCP, all at once. The
switches' counters tell which cables each flow took, and its acknowledgements on the way back. The
fluid world is given the same cables, the same bytes, and what TCP, IP and Ethernet add to them. Two
figures are compared: the rate of the slowest flow while all are sending, and the time until the
last byte has come.

The fluid world assumes that flows which meet share equally. TCP flows in one queue do so only in
the long run, so each flow is given a queue. Results with one queue for all flows are shown beside
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import Floats, Ints, starts
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths
from heddle_emulator.drill.lab.control import LabClient
from heddle_emulator.drill.lab.probes import Pathfinder, Way
from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.fluid.simulation import FluidSimulation
from heddle_emulator.fluid.streams import Schedule, Streams
from heddle_emulator.fluid.wire import Wire
from heddle_emulator.netns import mark, tools, witness
from heddle_emulator.netns.converge import wait_converged
from heddle_emulator.netns.lab import Lab, LabOptions
from heddle_emulator.netns.layout import lay_out
from heddle_emulator.netns.probe.handle import probe_flow
from heddle_emulator.netns.probe.spec import TCP, ProbeFlow
from heddle_emulator.netns.programs import Programs
from heddle_emulator.netns.up import bring_up
from heddle_emulator.topology import clos
from heddle_emulator.traffic import flows_between
from tests.bench.lab_queues import queue_each, segments_as_packets
from tests.bench.rows import Row, Scale
from tests.bench.screen import Screen
from tests.bench.transfer import transfer

TITLE = "TCP over kernels beside the fluid world"
CLOSE = 0.05
MBIT = 20.0
PORT, FIRST_PORT = 5001, 50000
PATIENCE = 90.0
Ways = tuple[Way, Way]
"""The way of a flow, and of its acknowledgements."""
STARVED = 0.01
"""A rate below this, in Mbit/s, counts as this rate."""
STEADY = 0.2
"""Share of the time until the first flow is done, before which TCP is still finding its rate."""
TCP_SEGMENTS = Wire(payload_bytes=1448, header_bytes=66)
"""TCP with time stamps in Ethernet frames of 1500 bytes, as a kernel's shaper counts them.

Headers are Ethernet 14, IPv4 20 and TCP 32 bytes.
"""
TCP_ACKNOWLEDGED = 66 / (2 * (1448 + 66))
"""Bytes of acknowledgements, one per two segments, for each byte of segments."""


@dataclass(frozen=True, slots=True)
class Case:
    """Who sends to whom, and the state of the fabric meanwhile."""

    name: str
    pattern: str
    seed: int
    size: int
    """Bytes of each flow."""
    down: bool = False
    """Whether an uplink of the first leaf is cut."""
    pinned: bool = False
    """Whether Heddle chooses the paths."""
    alike: bool = True
    """Whether every flow has a queue of its own."""


CASES = (
    Case("hashed", "permutation", 1, 4_000_000),
    Case("hashed, an uplink cut", "permutation", 2, 3_000_000, down=True),
    Case("incast", "incast", 3, 1_000_000),
    Case("hashed, some NICs sent to twice", "uniform", 4, 3_000_000),
    Case("planned by Heddle", "permutation", 1, 6_000_000, pinned=True),
    Case("hashed, one queue for all flows", "permutation", 1, 4_000_000, alike=False),
    Case("incast, one queue for all flows", "incast", 3, 1_000_000, alike=False),
)


@dataclass(frozen=True, slots=True)
class Told:
    """The result of one world."""

    slowest: float
    """Rate of the slowest flow, Mbit/s on the wire while all flows are sending."""
    seconds: float
    """Seconds until all bytes have arrived."""


@dataclass(frozen=True, slots=True)
class Both:
    """The results of a case in both worlds."""

    case: Case
    fluid: Told
    packets: Told
    ways: list[Ways]
    """Ways of each flow, from the switches' counters."""

    @property
    def apart(self) -> tuple[float, float]:
        """How far the slowest flow and the makespan of both worlds differ, relative to packets."""
        rates = self.fluid.slowest, max(self.packets.slowest, STARVED)
        return rates[0] / rates[1] - 1, self.fluid.seconds / self.packets.seconds - 1

    @property
    def worst(self) -> float:
        """The greater of the two differences."""
        return max(abs(one) for one in self.apart)


def fabric() -> Fabric:
    """Return three leaves of four NICs, and four spines.

    Each NIC is on a host of its own, since NICs of one host would talk without any cable.
    """
    return clos(leaves=3, spines=4, nics_per_leaf=4, nics_per_host=1)


@contextmanager
def lab_of(name: str, *, programs: bool) -> Iterator[tuple[Lab, Programs | None]]:
    """Bring up the fabric as a converged lab, whose hosts send no segments larger than packets."""
    with Lab(mark.claim(name), lay_out(fabric()), LabOptions(MBIT, seed=3)) as lab:
        running = Programs(lab) if programs else None
        try:
            bring_up(lab, running)
            witness.place(lab)
            segments_as_packets(lab)
            yield lab, running
        finally:
            if running is not None:
                running.close()


def played(lab: Lab, case: Case, programs: Programs | None = None) -> Both:
    """Play one case in both worlds. Afterwards the lab is whole again, apart from its queues.

    Raises:
        LabError: something does not arrive in time.
    """
    whole = lab.layout.fabric
    rows = whole.find_links("l0", "s0") if case.down else ()
    cut = whole.with_links(dict.fromkeys(rows, State.DOWN))
    flows = flows_between(whole, case.pattern, seed=case.seed, gbps=400.0)
    for row in rows:
        lab.set_link(row, up=False)
    if rows:
        wait_converged(lab, PATIENCE, cut)
    if case.pinned:
        assert programs is not None
        asyncio.run(_planned(programs, flows))
    packets, ways = _sent(lab, case, flows)
    for row in rows:
        lab.set_link(row, up=True)
    if rows:
        wait_converged(lab, PATIENCE)
    return Both(case, _reckoned(cut, flows, ways, case), packets, ways)


async def _planned(programs: Programs, flows: Flows) -> None:
    async with LabClient(programs) as control:
        await control.demand(flows, PATIENCE)


def _sent(lab: Lab, case: Case, flows: Flows) -> tuple[Told, list[Ways]]:
    ids = lab.layout.fabric.structure.nodes.ids
    pairs = [
        (ids[a], ids[b])
        for a, b in zip(flows.source.tolist(), flows.destination.tolist(), strict=True)
    ]
    probes = [
        probe_flow(lab, pair, (FIRST_PORT + row, PORT), 0.0, protocol=TCP)
        for row, pair in enumerate(pairs)
    ]
    queue_each(lab, probes if case.alike else ())
    before = witness.hear(lab)
    came = transfer(probes, case.size, PATIENCE)
    seen = witness.hear(lab).since(before)
    first = min(one.end for one in came)
    slowest = min(one.rate(STEADY * first, first) for one in came)
    told = Told(slowest * 1e3 * TCP_SEGMENTS.swelling, max(one.end for one in came))
    return told, _ways(lab, probes, seen)


def _ways(lab: Lab, probes: Sequence[ProbeFlow], seen: witness.Testimony) -> list[Ways]:
    paths = Pathfinder(lab)
    return [(paths.follow(probe, seen), paths.follow(_back(probe), seen)) for probe in probes]


def _back(flow: ProbeFlow) -> ProbeFlow:
    """Return the flow of the acknowledgements of a flow."""
    return replace(
        flow,
        source_space=flow.destination_space,
        destination_space=flow.source_space,
        source=flow.destination,
        destination=flow.source,
        source_port=flow.destination_port,
        destination_port=flow.source_port,
    )


def _reckoned(cut: Fabric, flows: Flows, ways: Sequence[Ways], case: Case) -> Told:
    """Simulate the flows in the fluid world over the same cables."""
    gbps = MBIT / 1e3
    slower = gbps / cut.structure.capacity.max()
    capacity = cut.structure.capacity * slower
    flows = replace(flows, gbps=flows.gbps * slower)
    paths, parts = _paths(cut, flows, ways)
    count, nobody = len(flows), np.empty(0, dtype=np.int64)
    each = np.ones(count)
    streams = Streams(each, each * np.inf, paths.first, paths.arcs, parts)
    gbit = each * case.size * 8e-9 * TCP_SEGMENTS.swelling
    schedule = Schedule(
        np.zeros(count), np.zeros(count), nobody, nobody, streams, np.arange(count), gbit
    )
    slowest = float((flow_ratios(capacity, flows, paths, parts) * flows.gbps).min())
    return Told(slowest * 1e3, FluidSimulation(capacity, schedule).run().makespan)


def _paths(cut: Fabric, flows: Flows, ways: Sequence[Ways]) -> tuple[Paths, Floats]:
    """Return the arcs of each flow and its acknowledgements, and their parts of the flow's rate."""
    found = [
        (_arcs(cut, int(flows.source[row]), on), _arcs(cut, int(flows.destination[row]), back))
        for row, (on, back) in enumerate(ways)
    ]
    lengths = np.array([len(on) + len(back) for on, back in found], dtype=np.int64)
    rows = np.arange(len(flows), dtype=np.int64)
    nothing = np.zeros_like(rows)
    arcs = np.concatenate([np.concatenate(pair) for pair in found])
    parts = [np.repeat([1.0, TCP_ACKNOWLEDGED], [len(on), len(back)]) for on, back in found]
    return Paths(rows, nothing, nothing, starts(lengths), arcs), np.concatenate(parts)


def _arcs(cut: Fabric, node: int, way: Way) -> Ints:
    """Return the arcs along the cables of a way, starting at a node."""
    arcs = []
    for link in way:
        own = [arc for arc in (2 * link, 2 * link + 1) if cut.structure.tail[arc] == node]
        arcs += own
        node = int(cut.structure.head[own[0]])
    return np.array(arcs, dtype=np.int64)


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return a row for each case."""
    lacking = tools.missing()
    if lacking:
        return [Row(TITLE, "fluid world", "not measured", note=lacking)]
    runs = 1 if scale.name == "quick" else 3
    rows: list[Row] = []
    with screen.progress(TITLE, len(CASES)) as advance:
        for pinned in (False, True):
            cases = [case for case in CASES if case.pinned is pinned]
            with lab_of(mark.fresh_name(), programs=pinned) as (lab, programs):
                for case in cases:
                    rows.append(_row([played(lab, case, programs) for _ in range(runs)]))
                    advance(len(rows))
    return rows


def _row(found: list[Both]) -> Row:
    case = found[0].case
    worst = max(found, key=lambda one: one.worst)
    slowest, seconds = worst.apart
    return Row(
        TITLE,
        case.name,
        f"slowest flow {slowest:+.1%}, makespan {seconds:+.1%} at worst of {len(found)}",
        f"within {CLOSE:.0%}" if case.alike else "",
        worst.worst <= CLOSE if case.alike else None,
        f"packets {worst.packets.slowest:.2f} Mbit/s and {worst.packets.seconds:.2f} s,"
        f" fluid {worst.fluid.slowest:.2f} and {worst.fluid.seconds:.2f}",
        {"slowest": [one.apart[0] for one in found], "makespan": [one.apart[1] for one in found]},
    )
