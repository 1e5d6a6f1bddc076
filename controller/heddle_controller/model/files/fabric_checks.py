"""What must hold of a fabric as a graph, whatever the state of its links.

A fabric is half-connected where some pair of NICs could never talk, even with all
links up: such a file is a mistake, not a failure. Paths do not pass through NICs,
so two switches are joined only by links between switches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle.names import link_name
from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.errors import Problem
from heddle_controller.model.fabric import Forwarding, NodeKind, Structure

_NAMES_TOLD = 3


def graph_problems(structure: Structure) -> list[Problem]:
    """Why the graph cannot serve as a fabric; empty where it can."""
    nodes, links = structure.nodes, structure.links
    nic = nodes.kind == NodeKind.NIC
    if not nic.any():
        return [Problem("nodes", "none is a nic; flows start and end at nodes of kind nic")]
    alone = nic & (np.bincount(structure.tail, minlength=len(nic)) == 0)
    pairs = nic[links.a] & nic[links.b]
    found = [
        Problem(f"nic {nodes.ids[row]!r}", "has no link; give it one to a switch, or drop it")
        for row in np.flatnonzero(alone).tolist()
    ]
    found += [
        Problem(
            f"link {link_name(nodes.ids[links.a[row]], nodes.ids[links.b[row]])!r}",
            "joins a NIC to a NIC; NICs have links to switches only",
        )
        for row in np.flatnonzero(pairs).tolist()
    ]
    found += [
        Problem(f"nic {nodes.ids[row]!r}", "has a forwarding, which is of switches; drop it")
        for row in np.flatnonzero(nic & (nodes.forwarding != Forwarding.PROGRAMMED)).tolist()
    ]
    found += _gpu_problems(structure, nic)
    return found or _separate(structure, nic)


def _gpu_problems(structure: Structure, nic: Bools) -> list[Problem]:
    """NICs whose GPU another NIC of their host serves, or which their host cannot have."""
    nodes = structure.nodes
    told = nodes.gpu != NONE
    found = [
        Problem(f"node {nodes.ids[row]!r}", "has a gpu, but is not a nic; drop it")
        for row in np.flatnonzero(told & ~nic).tolist()
    ]
    nics = np.bincount(nodes.host[nic & (nodes.host != NONE)])
    served: dict[tuple[int, int], int] = {}
    for row in np.flatnonzero(told & nic).tolist():
        host, gpu = int(nodes.host[row]), int(nodes.gpu[row])
        label = f"nic {nodes.ids[row]!r}"
        if host == NONE:
            found.append(Problem(label, f"serves gpu {gpu} of no host; name its host"))
        elif served.setdefault((host, gpu), row) != row:
            other = nodes.ids[served[host, gpu]]
            found.append(Problem(label, f"serves gpu {gpu}, as {other!r} does; give each its own"))
        elif gpu >= nics[host]:
            name, count = structure.host_names[host], int(nics[host])
            reason = f"serves gpu {gpu}, but host {name!r} has {_count(count, 'NIC')}"
            found.append(Problem(label, f"{reason}; number them 0 to {count - 1}"))
    return found


def components(count: int, a: Ints, b: Ints) -> Ints:
    """Component of each of ``count`` nodes under links ``a[i]``-``b[i]``: its least node."""
    label = np.arange(count, dtype=np.int64)
    while (label[a] != label[b]).any():
        least = np.minimum(label[a], label[b])
        np.minimum.at(label, label[a], least)
        np.minimum.at(label, label[b], least)
        while (label[label] != label).any():
            label = label[label]
    return label


def _separate(structure: Structure, nic: Bools) -> list[Problem]:
    """NICs that no path joins to most others.

    A NIC with links into several parts is in all of them; two NICs can talk if
    they are in one part together.
    """
    links = structure.links
    inner = ~(nic[links.a] | nic[links.b])
    part = components(len(nic), links.a[inner], links.b[inner])
    arcs = np.flatnonzero(nic[structure.tail])
    nics, parts = structure.tail[arcs], part[structure.head[arcs]]
    sizes = np.bincount(parts[_firsts(nics, parts)], minlength=len(nic))
    if (sizes == np.count_nonzero(nic)).any():
        return []
    members: dict[int, set[int]] = {}
    for one, of in zip(nics.tolist(), parts.tolist(), strict=True):
        members.setdefault(one, set()).add(of)
    groups: dict[frozenset[int], list[int]] = {}
    for one, of_all in members.items():
        groups.setdefault(frozenset(of_all), []).append(one)
    main = max(groups, key=lambda group: len(groups[group]))
    return [
        _cut_off(structure, rows, part, len(members))
        for group, rows in groups.items()
        if any(not group & other for other in groups) and group != main
    ]


def _firsts(nics: Ints, parts: Ints) -> Ints:
    """One row of each pair of NIC and part."""
    rows: Ints = np.unique(np.stack([nics, parts]), axis=1, return_index=True)[1]
    return rows


def _cut_off(structure: Structure, nics: list[int], part: Ints, count: int) -> Problem:
    ids = structure.nodes.ids
    head = structure.head[np.isin(structure.tail, nics)]
    switches = np.flatnonzero(np.isin(part, part[head]) & (structure.nodes.kind != NodeKind.NIC))
    rest = f" and {_count(len(nics) - 1, 'more NIC')}" if len(nics) > 1 else ""
    return Problem(
        f"nic {ids[nics[0]]!r}{rest}",
        f"half-connected: no path joins them to all of the other {count - len(nics)} NICs; "
        f"join their switches ({_some([ids[row] for row in switches.tolist()])}) to the rest",
    )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_TOLD
    return ", ".join(names[:_NAMES_TOLD]) + (f" and {more} more" if more > 0 else "")


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
