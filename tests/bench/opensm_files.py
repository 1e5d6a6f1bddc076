"""What OpenSM and ibsim read and write: a network, roots, forwarding tables, a log.

Ports of a node are numbered as its links stand in the fabric's rows; node ids are the
names that both programs know nodes by. ibsim numbers what it reads: the GUID of the
n-th switch is fixed, which is how roots are told.
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
    """Of one sweep, in seconds."""

    route: float
    """Working out the forwarding tables, and nothing else."""
    total: float
    """From the start of discovery, or the notice of a change, to a subnet that is up."""


def network(fabric: Fabric) -> str:
    """The fabric as ibsim reads it; the first node is that which OpenSM runs on."""
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
    """The number, from 1, of the port each arc leaves its node by."""
    first, arcs = fabric.structure.out
    numbers = np.empty(len(arcs), dtype=np.int64)
    numbers[arcs] = np.arange(len(arcs)) - np.repeat(first[:-1], np.diff(first)) + 1
    return numbers


def switch_rows(fabric: Fabric) -> list[int]:
    """Node rows of all switches, in the order they are told."""
    rows: list[int] = np.flatnonzero(fabric.structure.nodes.kind != NodeKind.NIC).tolist()
    return rows


def roots(fabric: Fabric) -> str:
    """GUIDs of the switches of the topmost tier."""
    kind = fabric.structure.nodes.kind
    rows = switch_rows(fabric)
    top = max(int(kind[row]) for row in rows)
    guids = [FIRST_SWITCH_GUID + place for place, row in enumerate(rows) if kind[row] == top]
    return "".join(f"0x{guid:x}\n" for guid in guids)


def forwarding(fabric: Fabric, dump: Iterable[str]) -> Ints:
    """The arc by which each node sends on what is for each NIC, from a dump of all tables.

    Shape (nodes, nodes); ``NONE`` where the dump says nothing.
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
    """Of the first sweep in a log.

    Raises:
        ValueError: the log does not tell of one, routed by ftree, to its end.
    """
    return _times(log, BEGUN)


def times_again(log: str) -> Times:
    """Of the sweep that a notice of a change set off after the first.

    Raises:
        ValueError: as ``times``.
    """
    return _times(log[log.find(UP) + len(UP) :], AGAIN)


def sweeps(log: str) -> int:
    """How many sweeps ended with the subnet up."""
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
    # The log has no year; a leap year takes every day.
    return datetime.strptime(f"2024 {stamp['time']} {stamp['micro']}", "%Y %b %d %H:%M:%S %f")  # noqa: DTZ007 - only differences count
