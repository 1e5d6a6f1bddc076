"""Writes a plan as text for Arista EOS: a traffic policy for each switch, to be read and pasted.

Nothing here opens a session to a switch. A policy is a list of rules, and the first that matches
decides. A rule matches source and destination NIC, UDP source ports and RoCE's destination port.
Its action is ``redirect next-hop`` to the far end of the link that the plan uses. Rules with ports
come before rules for whole pairs of NICs. Packets that match no rule are routed as before. Rules
are named by what they match, so the texts of two plans differ only where the plans do.

The text contains no backups. After a loss, routing decides until the text of the next plan is
applied.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from ipaddress import ip_address

import numpy as np

from heddle.text import clean
from heddle_controller.model.arrays import distinct
from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem
from heddle_controller.model.fabric import NodeKind, Structure
from heddle_controller.model.flows import ROCE_PORT
from heddle_controller.model.plan import Plan
from heddle_controller.model.program import ANY_PORT, Entries
from heddle_controller.plan.programs import entries_of

POLICY = "HEDDLE"

Match = tuple[bool, str, str, str]
"""Whether any port matches, then the addresses of source, destination and next hop."""


def eos_texts(plan: Plan, origin: str) -> dict[str, str]:
    """Return the configuration of every programmed switch, by its id.

    Switches that only hash are left out.

    Raises:
        InputError: If NICs or links of entries have no address. It names them, and ``origin`` as
            the source.
    """
    structure, entries = plan.fabric.structure, entries_of(plan)
    problems = list(_unaddressed(structure, entries))
    if problems:
        raise InputError(origin, *problems[:MAX_PROBLEMS])
    switches = (structure.nodes.kind != NodeKind.NIC) & ~structure.hashes
    return {
        structure.nodes.ids[switch]: _text(structure, switch, entries.of_switch(switch))
        for switch in np.flatnonzero(switches).tolist()
    }


def _unaddressed(structure: Structure, entries: Entries) -> Iterator[Problem]:
    nodes = structure.nodes
    for nic in distinct(np.concatenate([entries.source, entries.destination])).tolist():
        if not nodes.address[nic]:
            yield Problem(f"nic {nodes.ids[nic]!r}", "has no address, which rules match; give one")
    for arc in distinct(entries.primary).tolist():
        if not _next_hop(structure, arc):
            ends = "-".join(nodes.ids[row] for row in (structure.tail[arc], structure.head[arc]))
            end = "source_address" if arc & 1 else "target_address"
            reason = f"has no {end}, which traffic is redirected to; give the edge both addresses"
            yield Problem(f"link {ends!r}", reason)


def _next_hop(structure: Structure, arc: int) -> str:
    """Return the address of the link at the far end of an arc, or else of the NIC there.

    Empty if there is neither.
    """
    ends = structure.links.address
    told = ends[arc >> 1][0 if arc & 1 else 1] if ends else ""
    head = int(structure.head[arc])
    at_nic = structure.nodes.kind[head] == NodeKind.NIC
    return told or (structure.nodes.address[head] if at_nic else "")


def _text(structure: Structure, switch: int, entries: Entries) -> str:
    ports: dict[Match, list[int]] = defaultdict(list)
    address = structure.nodes.address
    columns = (entries.source, entries.destination, entries.source_port, entries.primary)
    for source, destination, port, arc in zip(*(c.tolist() for c in columns), strict=True):
        hop = _next_hop(structure, arc)
        ports[port == ANY_PORT, address[source], address[destination], hop].append(port)
    lines = [
        f"! {clean(structure.nodes.ids[switch])}: {len(ports)} rules for {len(entries)} entries",
        f"! Apply it where traffic of hosts and switches comes in: traffic-policy input {POLICY}",
        "traffic-policies",
        f"   no traffic-policy {POLICY}",
        f"   traffic-policy {POLICY}",
    ]
    for match in sorted(ports):
        lines += _rule(match, ports[match])
    lines += ["      match ipv4-all-default ipv4", "      match ipv6-all-default ipv6", "!"]
    return "\n".join([*lines, ""])


def _rule(match: Match, ports: Iterable[int]) -> list[str]:
    anyhow, source, destination, hop = match
    version = ip_address(source).version
    length = 32 if version == 4 else 128  # noqa: PLR2004 - of an address
    told = "" if anyhow else f" source port {_ranges(sorted(ports))} destination port {ROCE_PORT}"
    name = f"{source}_{destination}_{hop}{'_any' if anyhow else ''}".replace(":", ".")
    return [
        f"      match {name} ipv{version}",
        f"         source prefix {source}/{length}",
        f"         destination prefix {destination}/{length}",
        *([f"         protocol udp{told}"] if told else []),
        "         !",
        "         actions",
        f"            redirect next-hop {hop}",
        "      !",
    ]


def _ranges(ports: list[int]) -> str:
    """Return ascending ports as text; adjacent ones as a range, as in ``49152, 49154-49157``."""
    found: list[list[int]] = []
    for port in ports:
        if found and found[-1][-1] == port - 1:
            found[-1] = [found[-1][0], port]
        else:
            found.append([port])
    return ", ".join("-".join(map(str, run)) for run in found)
