"""A queue for each flow at every cable's end, so that flows which share a cable share it equally.

Cables of a lab have one queue for all flows, as most switches have for a class of traffic. The
share that a flow gets there depends on its congestion control. With TCP it is not the fair share
that lossless fabrics with rate control aim at. Where this is not the question, every flow gets a
queue of its own, and the kernel serves the queues in turns. Segments are then as large as packets,
since a shaper cannot send less than a segment at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from heddle_emulator.netns import tools
from heddle_emulator.netns.lab import Lab, shaping_script
from heddle_emulator.netns.layout import Port
from heddle_emulator.netns.probe.spec import ProbeFlow

QUEUE_PACKETS = 100
FIRST_CLASS = 0x100
FULL_PACKET = 1514
"""Bytes that a flow may send in its turn."""


def queue_each(lab: Lab, flows: Sequence[ProbeFlow]) -> None:
    """Give each flow a queue on every cable of a lab whose speed is limited.

    Other traffic gets no queue of its own. All cables are shaped anew, which removes the queues of
    earlier calls.

    Raises:
        LabError: the kernel refuses the commands.
    """
    rate = {port: c.gbps * lab.mbit_per_gbps for c in lab.layout.cables for port in c.ends}

    def one(space: str) -> None:
        ports = lab.layout.ports[space]
        lines = [f"qdisc del dev {port.name} root" for port in ports]
        lines += shaping_script(lab.layout, space, lab.mbit_per_gbps).splitlines()
        lines += [line for port in ports for line in _queues(port, rate[port], flows)]
        tools.run_inside(lab.spaces[space], ["tc", "-batch", "-"], "\n".join(lines) + "\n")

    tools.each(one, (*lab.layout.switches, *lab.layout.hosts))


def segments_as_packets(lab: Lab) -> None:
    """Keep hosts from sending segments that are larger than a packet."""

    def one(host: str) -> None:
        lines = [f"link set {port.name} gso_max_segs 1" for port in lab.layout.ports[host]]
        tools.run_inside(lab.spaces[host], ["ip", "-batch", "-"], "\n".join(lines) + "\n")

    tools.each(one, lab.layout.hosts)


def _queues(port: Port, mbit: float, flows: Sequence[ProbeFlow]) -> Iterator[str]:
    on, burst = f"dev {port.name}", max(3200, round(mbit * 1e6 / 8 * 0.001))
    own = max(round(mbit * 0.8e6 / max(len(flows), 1)), 8)
    limits = f"ceil {round(mbit * 1e6)}bit burst {burst} cburst {burst} quantum {FULL_PACKET}"
    for number, flow in enumerate(flows):
        name = f"{FIRST_CLASS + number:x}"
        yield f"class add {on} parent 1:1 classid 1:{name} htb rate {own}bit {limits} prio 1"
        yield f"qdisc add {on} parent 1:{name} handle {name}: pfifo limit {QUEUE_PACKETS}"
        yield (
            f"filter add {on} parent 1: protocol ip prio 3 u32"
            f" match ip src {flow.source}/32 match ip dst {flow.destination}/32"
            f" match ip sport {flow.source_port} 0xffff flowid 1:{name}"
        )
