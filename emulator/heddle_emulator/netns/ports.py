"""Source ports on real kernels: hosts probe where ports lead, send from ports, kernels count.

Nothing of Heddle runs on a switch here: FRR gives equal ways, and the kernel hashes.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from heddle_agent.host.trace import ROCE_PORT, Pace, Tracer, traced_document
from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.load import phased_loads, utilization
from heddle_emulator.netns import LabError, witness
from heddle_emulator.netns.kernel import inside
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.probe.spec import family_of

PROBES_PER_SECOND = 5000.0
_PATIENCE = 30.0
_POLL_SECONDS = 0.1
_QUIET_SECONDS = 2.0
"""A packet that has not arrived when none has for so long is lost."""


def learn(lab: Lab, flows: Flows, ports: Sequence[int]) -> dict[str, Any]:
    """What hosts find out by probing, as a port-paths.json.

    Raises:
        LabError: a host cannot probe.
    """
    cores = lab.layout.fabric.rows_of_kind(NodeKind.CORE)
    pace = Pace(hops=5 if len(cores) else 3, per_second=PROBES_PER_SECOND)
    targets: dict[int, list[int]] = {}
    for source, destination in zip(flows.source.tolist(), flows.destination.tolist(), strict=True):
        targets.setdefault(source, []).append(destination)
    pairs: list[dict[str, Any]] = []
    for source, destinations in targets.items():
        address = _address(lab, source)
        try:
            tracer = inside(_space(lab, source), lambda at=address: Tracer(at, pace))  # type: ignore[misc]
        except ValueError as error:
            raise LabError(str(error)) from error
        with tracer:
            to = [_address(lab, nic) for nic in dict.fromkeys(destinations)]
            pairs += traced_document(address, tracer.trace(to, ports))
    return {"pairs": pairs}


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """What the kernels of switches counted of some QPs."""

    utilization: Floats
    """Of each arc that leaves a switch, as if each QP had sent at its rate; shape (arcs,)."""
    arcs: list[frozenset[int]]
    """Arcs that packets of each QP took, that from the NIC left out."""


def count_packets(lab: Lab, flows: Flows, ports: Ints, packets: int = 16) -> Counted:
    """Send so many packets of each QP, and hear from the kernels where they went.

    Args:
        lab: It needs its witnesses.
        flows: No two of one pair of NICs.
        ports: UDP source port of each QP, by flow and then QP.
        packets: Of each QP.

    Raises:
        LabError: not all packets arrive.
    """
    flow = np.repeat(np.arange(len(flows)), flows.qps)
    keys = [
        (_address(lab, source), _address(lab, destination), port, ROCE_PORT)
        for source, destination, port in zip(
            flows.source[flow].tolist(),
            flows.destination[flow].tolist(),
            ports.tolist(),
            strict=True,
        )
    ]
    arcs, sources = _arc_of_port(lab), flows.source[flow].tolist()
    sent = {key: packets * keys.count(key) for key in set(keys)}
    found = _delivered(lab, arcs, sent, lambda: _send(lab, sources, keys, packets))
    used: list[int] = []
    gbps: list[float] = []
    taken: list[frozenset[int]] = []
    row: list[int] = []
    for qp, key in enumerate(keys):
        ways = {arcs[way]: n for way, n in found.packets[key].items() if n}
        taken.append(frozenset(ways))
        used += ways
        gbps += [
            float(flows.gbps[flow[qp]] / flows.qps[flow[qp]]) * n / sent[key] for n in ways.values()
        ]
        row += [int(flow[qp])] * len(ways)
    fabric = lab.layout.fabric
    loads = phased_loads(
        2 * fabric.link_count, np.array(used), np.array(gbps), flows.job[row], flows.phase[row]
    )
    return Counted(utilization(fabric, loads), taken)


def _send(
    lab: Lab, sources: Sequence[int], keys: Sequence[tuple[str, str, int, int]], packets: int
) -> None:
    """Packets of all QPs in turns."""
    with ExitStack() as stack:
        opened: dict[tuple[str, int], socket.socket] = {}
        for source, (address, _, port, _) in zip(sources, keys, strict=True):
            if (address, port) not in opened:
                one = inside(
                    _space(lab, source),
                    lambda at=address: socket.socket(family_of(at), socket.SOCK_DGRAM),  # type: ignore[misc]
                )
                opened[address, port] = stack.enter_context(one)
                one.bind((address, port))
        for _ in range(packets):
            for address, to, port, to_port in keys:
                opened[address, port].sendto(b"heddle", (to, to_port))


def _delivered(
    lab: Lab,
    arcs: dict[tuple[str, str], int],
    sent: dict[witness.FlowKey, int],
    send: Callable[[], None],
) -> witness.Testimony:
    """What switches count of one sending of which every packet leaves the last switch.

    All namespaces share the kernel's queues with the rest of the machine, which may overflow
    and drop a packet. So what is lost is sent again, all of it, and counted anew.
    """
    last = {arc for arc in arcs.values() if _is_last(lab, arc)}
    deadline = time.monotonic() + _PATIENCE
    while True:
        before = witness.hear(lab)
        send()
        counts: dict[witness.FlowKey, int] = {}
        arrived, quiet = -1, time.monotonic() + _QUIET_SECONDS
        while time.monotonic() < quiet:
            found = witness.hear(lab).since(before)
            counts = {
                key: sum(n for way, n in found.packets.get(key, {}).items() if arcs[way] in last)
                for key in sent
            }
            if all(counts[key] >= wanted for key, wanted in sent.items()):
                return found
            if sum(counts.values()) > arrived:
                arrived, quiet = sum(counts.values()), time.monotonic() + _QUIET_SECONDS
            time.sleep(_POLL_SECONDS)
        if time.monotonic() > deadline:
            missing = [key for key, wanted in sent.items() if counts.get(key, 0) < wanted]
            raise LabError(
                f"packets of {len(missing)} of {len(sent)} ports did not arrive: {missing[:1]}"
            )


def _arc_of_port(lab: Lab) -> dict[tuple[str, str], int]:
    """The arc that leaves a switch by an interface."""
    return {
        (port.node, port.name): 2 * cable.link + side
        for cable in lab.layout.cables
        for side, port in enumerate(cable.ends)
        if port.namespace == port.node
    }


def _is_last(lab: Lab, arc: int) -> bool:
    fabric = lab.layout.fabric
    return fabric.structure.nodes.ids[fabric.structure.head[arc]] in lab.layout.nic_port


def _address(lab: Lab, nic: int) -> str:
    return lab.layout.fabric.structure.nodes.address[nic]


def _space(lab: Lab, nic: int) -> str:
    return lab.spaces[lab.layout.nic_port[lab.layout.fabric.structure.nodes.ids[nic]].namespace]
