"""What OpenSM and ibsim read and write: a network, roots, forwarding tables, a log.

The ports of a node are numbered in the order of its links in the fabric's rows. Both programs know
nodes by their ids as names. ibsim numbers the nodes as it reads them, so the GUID of the n-th
switch is known, and roots are named by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.fabric import Fabric, NodeKind

FIRST_SWITCH_GUID = 0x200000
HEADER = re.compile(r"Unicast lids .* of switch .*\('(?P<id>.*)'\):")
ENTRY = re.compile(r"0x[0-9a-f]+ (?P<port>[0-9]+) # Channel Adapter .*: '(?P<id>.*)'")
STAMP = re.compile(r"(?P<time>[A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d) (?P<micro>\d{6}) \[")
BEGUN, AGAIN, ROUTING, ROUTED, UP = (
    "Entering DISCOVERING state",
    "Forcing heavy sweep",
    "building routing with 'ftree'",
    "FatTree routing is done",
    "-> SUBNET UP",
)


@dataclass(frozen=True, slots=True)
class Times:
    """Times of one sweep, in seconds."""

    route: float
    """Computing the forwarding tables, and nothing else."""
    total: float
    """From the start of discovery, or the notice of a change, until the subnet is up."""


def network(fabric: Fabric) -> str:
    """Return the fabric in the format of ibsim, all switches before all NICs."""
    structure = fabric.structure
    port = ports(fabric)
    first, arcs = structure.out
    ids = structure.nodes.ids
    lines: list[str] = []
    for node in [*switch_rows(fabric), *fabric.rows_of_kind(NodeKind.NIC).tolist()]:
        own = arcs[first[node] : first[node + 1]].tolist()
        kind = "Hca" if structure.nodes.kind[node] == NodeKind.NIC else "Switch"
        lines.append(f'{kind} {len(own)} "{ids[node]}"')
        lines += [f'[{port[a]}] "{ids[structure.head[a]]}"[{port[a ^ 1]}]' for a in own]
        lines.append("")
    return "\n".join(lines)


def ports(fabric: Fabric) -> Ints:
    """Return the number, from 1, of the port by which each arc leaves its node, shape (arcs,)."""
    first, arcs = fabric.structure.out
    numbers = np.empty(len(arcs), dtype=np.int64)
    numbers[arcs] = np.arange(len(arcs)) - np.repeat(first[:-1], np.diff(first)) + 1
    return numbers


def switch_rows(fabric: Fabric) -> list[int]:
    """Return the node rows of all switches, in the order of the file."""
    rows: list[int] = np.flatnonzero(fabric.structure.nodes.kind != NodeKind.NIC).tolist()
    return rows


def roots(fabric: Fabric) -> str:
    """Return the GUIDs of the switches of the topmost tier, one per line."""
    kind = fabric.structure.nodes.kind
    rows = switch_rows(fabric)
    top = max(int(kind[row]) for row in rows)
    guids = [FIRST_SWITCH_GUID + place for place, row in enumerate(rows) if kind[row] == top]
    return "".join(f"0x{guid:x}\n" for guid in guids)


def forwarding(fabric: Fabric, dump: Iterable[str]) -> Ints:
    """Read a dump of all tables: the arc by which each node forwards to each NIC.

    The shape is (nodes, nodes); ``NONE`` where the dump has no entry.
    """
    index = fabric.structure.index
    first, arcs = fabric.structure.out
    table = np.full((fabric.node_count, fabric.node_count), NONE, dtype=np.int64)
    switch = NONE
    for line in dump:
        if header := HEADER.match(line):
            switch = index[header["id"]]
        elif (entry := ENTRY.match(line)) and int(entry["port"]):
            table[switch, index[entry["id"]]] = arcs[first[switch] + int(entry["port"]) - 1]
    return table


def times(log: str) -> Times:
    """Return the times of the first sweep in a log.

    Raises:
        ValueError: the log has no complete sweep that was routed by ftree.
    """
    return _times(log, BEGUN)


def times_again(log: str) -> Times:
    """Return the times of the sweep that a change set off after the first one.

    Raises:
        ValueError: as ``times``.
    """
    return _times(log[log.find(UP) + len(UP) :], AGAIN)


def sweeps(log: str) -> int:
    """Return how many sweeps ended with the subnet up."""
    return log.count(UP)


def _times(log: str, begin: str) -> Times:
    at = {mark: _moment(log, mark) for mark in (begin, ROUTING, ROUTED, UP)}
    return Times(
        route=(at[ROUTED] - at[ROUTING]).total_seconds(),
        total=(at[UP] - at[begin]).total_seconds(),
    )


def _moment(log: str, mark: str) -> datetime:
    place = log.find(mark)
    if place < 0:
        raise ValueError(f"OpenSM's log never says {mark!r}")
    stamp = STAMP.match(log, log.rfind("\n", 0, place) + 1)
    if stamp is None:
        raise ValueError(f"OpenSM's log says {mark!r} without saying when")
    # The log has no year. A leap year accepts every date.
    return datetime.strptime(f"2024 {stamp['time']} {stamp['micro']}", "%Y %b %d %H:%M:%S %f")  # noqa: DTZ007 - only differences count
