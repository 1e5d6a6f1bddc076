"""Which cables packets take in the lab, found by sending some and asking every switch."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from heddle_emulator.netns import witness
from heddle_emulator.netns.kernel import inside
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.layout import Port
from heddle_emulator.netns.probe.spec import ProbeFlow

PACKETS = 5
"""Of each stream that is asked for."""
ARRIVE_SECONDS = 0.05

Way = tuple[int, ...]
"""Link rows from the sending NIC on; ends early where packets went no further."""


@dataclass(slots=True)
class Pathfinder:
    """Finds ways in one lab, whose switches have witnesses."""

    lab: Lab
    _behind: dict[tuple[str, str], tuple[int, Port]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for cable in self.lab.layout.cables:
            for port in cable.ends:
                self._behind[port.namespace, port.name] = (cable.link, port)

    def ways(self, flows: Sequence[ProbeFlow]) -> list[Way]:
        """The cables that each stream takes now."""
        before = witness.hear(self.lab)
        for space in {flow.source_space for flow in flows}:
            inside(space, partial(_send, [flow for flow in flows if flow.source_space == space]))
        time.sleep(ARRIVE_SECONDS)
        seen = witness.hear(self.lab).since(before)
        return [self.follow(flow, seen) for flow in flows]

    def follow(self, flow: ProbeFlow, seen: witness.Testimony) -> Way:
        """The cables that a stream took, by what the switches have counted of it."""
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
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((flow.source, flow.source_port))
            for _ in range(PACKETS):
                with contextlib.suppress(OSError):
                    one.sendto(b"way?", (flow.destination, flow.destination_port))
