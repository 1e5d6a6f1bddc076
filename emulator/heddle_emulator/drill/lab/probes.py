"""The probes of a scenario as streams of packets in the lab, and the cables that these take.

Paths are found by sending a few packets and reading what every switch has counted.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from heddle_controller.model.flows import FIRST_SOURCE_PORT, ROCE_PORT
from heddle_emulator.drill.scenario import EachFlow, ProbeSpec, Scenario, Variant
from heddle_emulator.netns import LabError, witness
from heddle_emulator.netns.kernel import inside
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.layout import Port
from heddle_emulator.netns.probe.handle import probe_flow
from heddle_emulator.netns.probe.spec import FULL_PAYLOAD, HEADERS, SMALL, UDP, ProbeFlow, family_of
from heddle_emulator.netns.steering import SteeringHosts

PACKETS = 5
"""Packets that are sent to find the path of a stream."""
ARRIVE_SECONDS = 2.0
"""Most seconds that packets are waited for, also on a busy machine; most come at once."""
_POLL_SECONDS = 0.02

Way = tuple[int, ...]
"""A path as link rows from the sending NIC on. It ends early where packets got no further."""


@dataclass(slots=True)
class Pathfinder:
    """Finds paths in one lab, whose switches have witnesses."""

    lab: Lab
    _behind: dict[tuple[str, str], tuple[int, Port]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for cable in self.lab.layout.cables:
            for port in cable.ends:
                self._behind[port.namespace, port.name] = (cable.link, port)

    def ways(self, flows: Sequence[ProbeFlow]) -> list[Way]:
        """Return the path that each stream takes now."""
        before = witness.hear(self.lab)
        for space in {flow.source_space for flow in flows}:
            inside(space, partial(_send, [flow for flow in flows if flow.source_space == space]))
        end = time.monotonic() + ARRIVE_SECONDS
        while True:
            seen = witness.hear(self.lab).since(before)
            found = [self.follow(flow, seen) for flow in flows]
            if all(map(self._arrives, flows, found)) or time.monotonic() >= end:
                return found
            time.sleep(_POLL_SECONDS)

    def _arrives(self, flow: ProbeFlow, way: Way) -> bool:
        """Return whether a path leads to the NIC that the stream is sent to."""
        ends = self.lab.layout.cables[way[-1]].ends
        return (flow.destination_space, flow.destination) in {
            (self.lab.spaces[port.namespace], port.address) for port in ends
        }

    def follow(self, flow: ProbeFlow, seen: witness.Testimony) -> Way:
        """Return the path that a stream took according to what the switches counted."""
        first = next(
            (link, port)
            for link, port in self._behind.values()
            if port.address == flow.source and self.lab.spaces[port.namespace] == flow.source_space
        )
        links, node, counted = [first[0]], first[1].peer, seen.ways(flow)
        while len(links) <= len(self.lab.layout.switches) + 1:
            leaving = {port: count for (at, port), count in counted.items() if at == node and count}
            if not leaving:
                break
            link, port = self._behind[node, max(leaving, key=lambda name: leaving[name])]
            links.append(link)
            node = port.peer
        return tuple(links)


def _send(flows: Sequence[ProbeFlow]) -> None:
    for flow in flows:
        with socket.socket(flow.family, socket.SOCK_DGRAM) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((flow.source, flow.source_port))
            for _ in range(PACKETS):
                with contextlib.suppress(OSError):
                    one.sendto(b"way?", (flow.destination, flow.destination_port))


CANDIDATES = 64
"""How many source ports are tried to find one that hashes onto the wanted path."""


@dataclass(frozen=True, slots=True)
class ProbeStreams:
    """One probe and its streams of packets."""

    name: str
    flows: tuple[ProbeFlow, ...]
    offered: float
    """Mbit/s of each stream; 0 if the probe is given in packets per second."""


def sendings(
    scenario: Scenario,
    variant: Variant,
    lab: Lab,
    paths: Pathfinder,
    steering: SteeringHosts | None = None,
) -> tuple[list[ProbeStreams], dict[str, Way]]:
    """Return the streams of all probes, and the paths of probes between two given NICs.

    All paths are found at once, because asking every switch takes time. If hosts steer for the
    variant, the streams of its demands use the ports that the hosts name.

    Raises:
        LabError: no source port leads a probe over the cables of the probe that it is beside.
    """
    singles = {
        probe.name: _candidates(lab, probe)
        for probe in scenario.probes
        if isinstance(probe, ProbeSpec)
    }
    asked = [flow for flows in singles.values() for flow in flows]
    answers = iter(paths.ways(asked) if asked else ())
    told = {name: [(flow, next(answers)) for flow in flows] for name, flows in singles.items()}
    found, ways = list[ProbeStreams](), dict[str, Way]()
    for probe in scenario.probes:
        if isinstance(probe, EachFlow):
            of = next((v for v in scenario.variants if v.name == probe.variant), variant)
            streams = tuple(_each(probe, of, lab, steering if of is variant else None))
            found.append(ProbeStreams(probe.name, streams, probe.mbit))
            continue
        flow, ways[probe.name] = _chosen(told[probe.name], probe, ways)
        found.append(ProbeStreams(probe.name, (flow,), probe.mbit))
    return found, ways


def _candidates(lab: Lab, probe: ProbeSpec) -> list[ProbeFlow]:
    """Return the probe's stream, or streams from many ports if it is beside another probe."""
    first = probe.source_port or FIRST_SOURCE_PORT
    flow = _flow(lab, probe, (probe.source, probe.destination), first)
    count = CANDIDATES if probe.beside else 1
    return [replace(flow, source_port=first + place) for place in range(count)]


def _chosen(
    told: Sequence[tuple[ProbeFlow, Way]], probe: ProbeSpec, ways: dict[str, Way]
) -> tuple[ProbeFlow, Way]:
    """Return the first stream that takes all inner cables of the probe that it is beside."""
    if not probe.beside:
        return told[0]
    wanted = ways[probe.beside][1:-1]
    for flow, way in told:
        if way[1:-1] == wanted:
            return flow, way
    raise LabError(f"none of {CANDIDATES} ports takes {probe.name} the way of {probe.beside}")


def _each(
    probe: EachFlow, variant: Variant, lab: Lab, steering: SteeringHosts | None
) -> Iterator[ProbeFlow]:
    """Yield a stream for every QP of the demands, from its source port."""
    flows, ids = variant.flows, lab.layout.fabric.structure.nodes.ids
    ports = flows.source_ports().tolist()
    for row, port in enumerate(ports):
        nics = ids[int(flows.source[row])], ids[int(flows.destination[row])]
        named = steering.named_ports(row) if steering is not None else None
        for qp in range(int(flows.qps[row])):
            flow = _flow(lab, probe, nics, port + qp)
            yield replace(flow, named=named[qp]) if named else flow


def _flow(lab: Lab, probe: ProbeSpec | EachFlow, nics: tuple[str, str], port: int) -> ProbeFlow:
    size = FULL_PAYLOAD if probe.mbit else SMALL
    rate = probe.rate or probe.mbit * 1e6 / 8 / (
        FULL_PAYLOAD + HEADERS[family_of(lab.layout.address(nics[0]))]
    )
    return probe_flow(
        lab,
        nics,
        (port, ROCE_PORT),
        rate,
        name=probe.name,
        size=size,
        protocol=probe.protocol or UDP,
    )
