"""Import the output of ``ibnetdiscover``: the switches and adapters of an InfiniBand subnet.

Each node is a block of lines: some ``key=value``, a header with its kind and GUID, and a line for
each port with a cable. Both nodes of a cable list it, and it is one link. A node is named by its
description, with "-" between its words. The description of an adapter is usually the host and the
device ("node001 mlx5_0"), so its first word is taken as the host. The description that firmware
gives ("MT4129 ConnectX7   Mellanox Technologies") names no host: such an adapter is a host of its
own. If a description is empty or not unique, the GUID is added to the name. Adapters inside
switches (for reductions in the network) send no flows and are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from heddle_controller.importers.cabling import ANY_SWITCH, Cable, Machine, Port, fabric_of
from heddle_controller.importers.options import HOST, ImportOptions
from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem, refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.content import read_text
from heddle_controller.model.files.records import short

MARKS = ("# Topology file:", "vendid=", "switchguid=", "caguid=")
"""Beginnings of lines by which the output is recognised."""

GBPS_OF_LANE = {
    "SDR": 2.5, "DDR": 5.0, "QDR": 10.0, "FDR10": 10.0, "FDR": 14.0,
    "EDR": 25.0, "HDR": 50.0, "NDR": 100.0, "XDR": 200.0,
}  # fmt: skip
"""Gbit/s of a lane by the usual name of its rate: 4xNDR is 400 Gbit/s."""
_MAX_LINE = 4096
AGGREGATION = "Aggregation Node"
"""Part of the description of adapters inside switches."""
_FIRMWARE = re.compile(r"MT[0-9]+ .*Mellanox Technologies")
"""Description of an adapter that no host has described."""

_HEADER = re.compile(
    r'(?P<kind>Switch|Ca|Rt)\s+[0-9]+\s+"(?P<guid>[^"]+)"\s*#\s*"(?P<told>.*?)"(?:\s[^"]*)?'
)
_PORT = re.compile(
    r"\[(?P<port>[0-9]+)\](?:\[ext [^\]]*\])?(?:\([0-9a-fA-F]+\))?\s+"
    r'"(?P<guid>[^"]+)"\[(?P<far>[0-9]+)\](?:\[ext [^\]]*\])?(?:\([0-9a-fA-F]+\))?'
    r"(?:\s*#.*?(?P<width>[0-9]+)x(?P<rate>[A-Z]+[0-9]*)\s*)?(?:\s*#.*)?"
)
_FACT = re.compile(r"[a-z]+=.*")


@dataclass(slots=True)
class _Node:
    """A block: one switch or adapter."""

    kind: str
    told: str
    line: int
    ports: dict[str, tuple[str, str, float | None, int]] = field(default_factory=dict)
    """By port number: GUID and port of the other end, Gbit/s (None if not known), and the line."""


def import_subnet(path: Path, mapping: Mapping[str, str], options: ImportOptions) -> Fabric:
    """Read the fabric of a subnet. ``mapping`` gives patterns of names for tiers.

    Raises:
        InputError: the file cannot be read, a line is not understood, the two ends of a cable
            disagree, or the result is not a valid fabric.
    """
    origin = str(path)
    nodes = _read(read_text(path, "output of ibnetdiscover").splitlines(), origin)
    if not nodes:
        raise refuse(origin, "", "tells no node; was ibnetdiscover run as root, on a node with IB?")
    _check_ends(nodes, origin)
    nodes = {guid: node for guid, node in nodes.items() if AGGREGATION not in node.told}
    names = _names(nodes)
    machines = {names[guid]: _machine(node) for guid, node in nodes.items()}
    cables = []
    for guid, node in nodes.items():
        for port, (far, far_port, gbps, line) in node.ports.items():
            if far in nodes and (guid, int(port)) < (far, int(far_port)):
                ends = Port(names[guid], port), Port(names[far], far_port)
                speed = {} if gbps is None else {"gbps": gbps}
                cables.append(Cable(*ends, f"line {line}", speed))
    return fabric_of(
        path.name.split(".")[0], machines, cables, mapping=mapping, options=options, origin=origin
    )


def _read(lines: list[str], origin: str) -> dict[str, _Node]:
    nodes: dict[str, _Node] = {}
    current: _Node | None = None
    problems: list[Problem] = []
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if len(line) > _MAX_LINE:
            reason = f"has {len(line):,} characters; is it the right file?"
            raise refuse(origin, f"line {number}", reason)
        if not line or line.startswith("#") or _FACT.fullmatch(line):
            continue
        try:
            if header := _HEADER.fullmatch(line):
                current = _Node(header["kind"], header["told"], number)
                _add_node(header["guid"], current, nodes)
            else:
                _add_port(line, current, number)
        except ValueError as error:
            problems.append(Problem(f"line {number}", str(error)))
            if len(problems) == MAX_PROBLEMS:
                break
    if problems:
        raise InputError(origin, *problems)
    return nodes


def _add_node(guid: str, node: _Node, nodes: dict[str, _Node]) -> None:
    known = nodes.setdefault(guid, node)
    if known is not node:
        raise ValueError(f"{guid} is told in line {known.line} already; give one run's output")


def _add_port(line: str, node: _Node | None, number: int) -> None:
    port = _PORT.fullmatch(line)
    if port is None or node is None:
        reason = f"{short(line)} is no line of ibnetdiscover's; give its output as it is"
        raise ValueError(f"{reason}, without options such as -p or -l")
    told = (port["guid"], port["far"], _gbps(port["width"], port["rate"]), number)
    if node.ports.setdefault(port["port"], told) is not told:
        raise ValueError(f"port {port['port']} is told twice; keep one")


def _gbps(width: str | None, rate: str | None) -> float | None:
    if width is None or rate is None:
        return None
    if rate not in GBPS_OF_LANE:
        raise ValueError(f"the rate {short(rate)} is none of {', '.join(GBPS_OF_LANE)}")
    return int(width) * GBPS_OF_LANE[rate]


def _check_ends(nodes: Mapping[str, _Node], origin: str) -> None:
    """Check that both ends of each cable list each other, with the same speed."""
    problems = []
    for guid, node in nodes.items():
        for port in list(node.ports):
            far, far_port, gbps, line = node.ports[port]
            other = nodes.get(far)
            back = other.ports.get(far_port) if other else None
            if back is None or back[:2] != (guid, port):
                reason = f"goes to {far}[{far_port}], which does not tell of it"
                cure = "run ibnetdiscover again, on a subnet that is at rest"
                problems.append(Problem(f"line {line}", f"{reason}; {cure}"))
            elif back[2] != gbps:
                reason = f"is {gbps} Gbit/s here and {back[2]} in line {back[3]}; give one speed"
                problems.append(Problem(f"line {line}", reason))
    if problems:
        raise InputError(origin, *problems[:MAX_PROBLEMS])


def _names(nodes: Mapping[str, _Node]) -> dict[str, str]:
    """Return a unique name for each node, by GUID."""
    told = {guid: "-".join(node.told.split()) for guid, node in nodes.items()}
    count = Counter(told.values())
    return {
        guid: name if name and count[name] == 1 else f"{name or _called(nodes[guid])}-{guid}"
        for guid, name in told.items()
    }


def _called(node: _Node) -> str:
    """Return the name of a node without a description, before its GUID."""
    return "hca" if node.kind == "Ca" else "switch"


def _machine(node: _Node) -> Machine:
    if node.kind != "Ca":
        return Machine(ANY_SWITCH)
    words = node.told.split()
    described = words and not _FIRMWARE.fullmatch(node.told.strip())
    return Machine(HOST, {"host": words[0]} if described else {})
