"""The certificate of single losses holds on real kernels: each cable is cut without a replan."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from heddle.v1 import common_pb2
from heddle_controller.model.demand import resolve
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import ROCE_PORT, Flows
from heddle_emulator.drill.lab.control import LabClient
from heddle_emulator.netns import tools, witness
from heddle_emulator.netns.converge import wait_converged
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.layout import MGMT
from heddle_emulator.netns.probe.handle import Notes, Probe, probe_flow
from heddle_emulator.netns.probe.spec import FULL_PAYLOAD, HEADERS, ProbeFlow, family_of
from heddle_emulator.netns.programs import Programs
from heddle_emulator.netns.up import wait_links_up
from heddle_emulator.topology import clos
from tests.integration.demanding import demands_of
from tests.integration.labbing import small_lab
from tests.support.waiting import PATIENCE, until, wait_until

MBIT = 20.0
"""Rate of each cable in Mbit/s, for the fabric's 400 Gbit/s."""
FABRIC = clos(leaves=2, spines=3, nics_per_leaf=3, nics_per_host=3)
PAIRS = [(f"l0-h0-n{nic}", f"l1-h0-n{nic}") for nic in range(3)]
GBPS = np.array([380.0, 200.0, 100.0])
"""Demand of each flow. Each has its own spine; backups decide which one it falls back to."""
SETTLED, MEASURED = 150, 1000
"""Packets of each flow before measuring, so that queues are steady, and while measuring."""
SLICE = 250_000_000
"""Nanoseconds over which a rate is measured. The median counts, so short stalls do not."""
CLOSE = 0.05


async def _certified(lab: Lab, programs: Programs) -> dict[str, common_pb2.AfterLoss]:
    """Wait for the certificate of single losses; return what it says, by kind of loss."""
    async with LabClient(programs) as control:
        await control.demand(_flows(lab), PATIENCE)

        def told() -> list[common_pb2.AfterLoss]:
            plan = control.view.plan
            return [*plan.certificate.after_loss] if plan is not None else []

        await until(told, "a certificate of single losses")
        return {one.kind: one for one in told()}


def _flows(lab: Lab) -> Flows:
    demands = replace(demands_of(PAIRS), gbps=GBPS)
    return resolve(demands, lab.layout.fabric, origin="test")


def _streams(lab: Lab) -> list[ProbeFlow]:
    """Return each flow as a probe at its demanded rate, from the port that its entry matches."""
    bits = 8 * (FULL_PAYLOAD + HEADERS[family_of(lab.layout.address(PAIRS[0][0]))])
    rates = (GBPS * lab.mbit_per_gbps * 1e6 / bits).tolist()
    ports = _flows(lab).source_ports().tolist()
    return [
        probe_flow(lab, pair, (port, ROCE_PORT), rate, size=FULL_PAYLOAD)
        for pair, port, rate in zip(PAIRS, ports, rates, strict=True)
    ]


def _serve_in_turns(lab: Lab, streams: list[ProbeFlow]) -> None:
    """Let every cable of a switch serve the streams in turn, as the certificate assumes.

    The senders keep step, so a single queue would always drop packets of the same streams.
    """
    for switch in lab.layout.switches:
        lines = []
        for port in lab.layout.ports[switch]:
            on = f"dev {port.name}"
            for number, stream in enumerate(streams, start=101):
                limits = f"rate 8kbit ceil {MBIT:g}mbit burst 3200 cburst 3200 quantum 1514 prio 1"
                match = f"match ip src {stream.source}/32"
                lines += [
                    f"class add {on} parent 1:1 classid 1:{number} htb {limits}",
                    f"qdisc add {on} parent 1:{number} handle {number}: pfifo limit 20",
                    f"filter add {on} parent 1: protocol ip prio 3 u32 {match} flowid 1:{number}",
                ]
        script = "\n".join(lines) + "\n"
        tools.run_inside(lab.spaces[switch], ["tc", "-batch", "-"], script)


def _first_hops(lab: Lab, streams: list[ProbeFlow]) -> list[str]:
    """Return the spine to which the first leaf sends most packets of each stream now."""
    before = witness.hear(lab)

    def seen() -> list[str]:
        heard = witness.hear(lab).since(before)
        counts = [heard.ways(one) for one in streams]
        sent = [{to: n for (at, to), n in one.items() if at == "l0"} for one in counts]
        if min(sum(one.values()) for one in sent) < SETTLED:
            return []
        return [max(one, key=lambda to: one[to]) for one in sent]

    wait_until(seen, "packets")
    return seen()


def _sent(lab: Lab, streams: list[ProbeFlow], packets: int) -> None:
    """Wait until the first leaf has forwarded this many packets of each stream."""
    before = witness.hear(lab)

    def enough() -> bool:
        heard = witness.hear(lab).since(before)
        return all(
            sum(n for (at, _), n in heard.ways(one).items() if at == "l0") >= packets
            for one in streams
        )

    wait_until(enough, f"{packets} packets of each flow")


def _losses() -> dict[str, dict[str, list[int]]]:
    """Return the cables that each single loss takes, by kind and name."""
    found: dict[str, dict[str, list[int]]] = {"link": {}, "switch": {}}
    ids = FABRIC.structure.nodes.ids
    for spine in [ids[row] for row in FABRIC.rows_of_kind(NodeKind.SPINE).tolist()]:
        for leaf in ("l0", "l1"):
            cables = [*FABRIC.find_links(leaf, spine)]
            found["link"][f"{leaf},{spine},0"] = cables
            found["switch"].setdefault(spine, []).extend(cables)
    return found


def _slowest(lab: Lab, notes: Sequence[Notes], begin: int, end: int) -> float:
    """Return the least share of its demand that a flow got between two times in nanoseconds."""
    offered = GBPS * lab.mbit_per_gbps
    slices = range(begin, end - SLICE, SLICE)
    rates = [np.median([one.mbit(at, at + SLICE) for at in slices]) for one in notes]
    return float((np.array(rates) / offered).min())


def test_no_flow_is_slower_than_the_certificate_says() -> None:
    """Each cable between switches, and each spine, is lost while the controller is dead.

    The loss that the certificate names slows a flow as much as it says, and no other by more.
    """
    with small_lab(programs=True, rate_mbit=MBIT, fabric=FABRIC) as (lab, programs):
        assert programs is not None
        told = asyncio.run(_certified(lab, programs))
        streams = _streams(lab)
        _serve_in_turns(lab, streams)
        programs.kill(MGMT)
        measured: dict[str, tuple[int, int]] = {}
        with Probe(lab, streams) as probe:
            planned = _first_hops(lab, streams)
            for name, rows in [pair for kind in _losses().values() for pair in kind.items()]:
                spine = name.rpartition(",")[2]
                wait_until(lambda: _first_hops(lab, streams) == planned, "the planned ways")
                for row in rows:
                    lab.set_link(row, up=False)
                wait_until(lambda: spine not in _first_hops(lab, streams), "another spine")  # noqa: B023
                _sent(lab, streams, SETTLED)
                begin = time.time_ns()
                _sent(lab, streams, MEASURED)
                measured[name] = begin, time.time_ns()
                for row in rows:
                    lab.set_link(row, up=True)
                wait_converged(lab, PATIENCE)
                wait_links_up(programs, PATIENCE)
            notes = probe.stop()
    assert sorted(planned) == ["s0", "s1", "s2"]
    found = {name: _slowest(lab, notes, *span) for name, span in measured.items()}
    for kind, names in _losses().items():
        one = told[kind]
        assert found[one.of] == pytest.approx(one.slowest_flow, abs=CLOSE), found
        least = min(found[name] for name in names)
        assert least == pytest.approx(one.slowest_flow, abs=CLOSE), found
