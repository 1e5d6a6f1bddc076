"""Which UDP source port each QP of a job has to use, as a document for programs.

``heddle job ports NAME --json`` prints it, and ``heddle-agent host`` writes it for each job::

    {"fabric": "fabrics/f1", "job": "j1", "generation": 7,
     "flows": [{"flow": "j1/dp/n0->n1",
                "source": "n0", "source_address": "10.0.0.1",
                "destination": "n1", "destination_address": "10.0.1.1",
                "ports": [49152, 49153, 49154, 49155]}]}

There is one object for each flow, in the order of the plan. ``ports`` has one port per QP, QP 0
first. A pair of NICs has as many objects as it has flows, and all its ports differ unless it has
more QPs than there are ports.

Where switches hash and the ports alone choose the path, QPs may share a port. The object then also
has ``backup_ports``: the port that takes each QP over its backup path, or 0 if there is no backup.
When a path is lost, the host's agent puts the backup's port into ``ports`` and the lost paths into
``lost`` (each a list of addresses that begins with the NIC's).

Addresses are empty if the fabric gives none. Readers must ignore keys that they do not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from heddle.v1 import plan_pb2 as pb

FIRST_PORT, PORT_COUNT = 49152, 16384
"""RoCEv2 source ports come from the dynamic range, 49152 to 65535."""


def ports_of(first_port: int, qp_count: int) -> list[int]:
    """Return the ports of a flow's QPs, QP 0 first; after the last port the range starts again."""
    start = first_port - FIRST_PORT
    return [FIRST_PORT + (start + qp) % PORT_COUNT for qp in range(qp_count)]


def ports_text(document: Mapping[str, Any]) -> str:
    """Return the document as lines ``SOURCE DESTINATION PORT...``, for programs without JSON.

    SOURCE and DESTINATION are addresses. There is one line for each flow whose NICs both have
    addresses, in the order of the document.
    """
    told = [
        [flow["source_address"], flow["destination_address"], *map(str, flow["ports"])]
        for flow in document["flows"]
    ]
    return "".join(f"{' '.join(words)}\n" for words in told if all(words[:2]))


def _ports_of_flows(part: pb.JobPorts) -> Iterator[dict[str, list[int]]]:
    """Yield each flow's ports, and backup ports if ports alone choose the flow's path."""
    begin = 0
    for row, (first, count) in enumerate(zip(part.first_ports, part.qp_counts, strict=True)):
        end = begin + count
        if not part.probe_counts or not part.probe_counts[row]:
            yield {"ports": ports_of(first, count)}
        else:
            ports, backups = part.qp_ports[begin:end], part.backup_ports[begin:end]
            yield {"ports": list(ports), "backup_ports": list(backups)}
        begin = end


def ports_document(fabric: str, job: str, parts: Iterable[pb.JobPorts]) -> dict[str, Any]:
    """Build the document of a job from all parts of the answer that carries its ports."""
    flows: list[dict[str, Any]] = []
    generation = 0
    for part in parts:
        generation = part.generation
        columns = (part.flows, part.sources, part.destinations, _ports_of_flows(part))
        flows += [
            {
                "flow": flow,
                "source": part.nics[source],
                "source_address": part.addresses[source],
                "destination": part.nics[destination],
                "destination_address": part.addresses[destination],
                **ports,
            }
            for flow, source, destination, ports in zip(*columns, strict=True)
        ]
    return {"fabric": fabric, "job": job, "generation": generation, "flows": flows}
