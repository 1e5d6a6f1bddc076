"""Proposes rank orders for given hosts.

Ranks are numbered tp innermost, then cp, dp and pp. So a group of one kind takes a run of adjacent
hosts, or one host of each of several runs. Runs nest: those of cp in those of ep, and these in
those of dp. An order is good if each run stays below few switches. Then rings and all-to-alls stay
inside leaves, or at least inside zones, and pipelines go between them. The opposite can also be
good: a ring leaves a leaf once, however many of its hosts are there, while every rank of a stage
sends to the next stage. So where leaves or zones are over-subscribed, whole pipelines below one
leaf send less traffic over the fabric.

Runs are cut from the hosts below one leaf as long as there are enough. The remaining hosts are
joined zone by zone, and what then remains is joined over all zones. This gives as many runs inside
a leaf and inside a zone as possible. Cutting the longest runs first favours dp, cutting the
shortest first favours cp and ep, and runs of whole pipelines favour pp. The planner decides which
is better.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np

from heddle_controller.model.arrays import NONE, Ints, distinct
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.job import Gpus, Job, Parallelism

Hosts = tuple[str, ...]


class Place(NamedTuple):
    """Where a host is attached. Hosts of one place are alike to the fabric.

    It is a tuple because hosts are sorted by place many times, and tuples compare fast.
    """

    zone: tuple[int, ...]
    """Numbers of the zones of its NICs and their switches, ascending; empty without zones."""
    leaves: tuple[int, ...]
    """Node rows of the switches that its NICs are attached to."""


def nics_of(held: Mapping[str, Gpus], fabric: Fabric) -> dict[str, tuple[int, ...]]:
    """Return the rows of the NICs that serve the held GPUs of each host; all NICs if none is named.

    All hosts must be in the fabric.
    """
    nics_of_host = fabric.structure.nics_of_host
    return {
        host: tuple(dict.fromkeys(nics[gpu % len(nics)] for gpu in gpus)) if gpus else nics
        for host, gpus in held.items()
        for nics in [nics_of_host[host]]
    }


def places(held: Mapping[str, Gpus], fabric: Fabric) -> dict[str, Place]:
    """Return the place of each host, as seen from the GPUs held of it.

    All hosts must be in the fabric.
    """
    structure = fabric.structure
    hosts, zone, nics_of_host = [*held], structure.zones, nics_of(held, fabric)
    first, arcs = structure.out
    nics = np.array([nic for host in hosts for nic in nics_of_host[host]], dtype=np.int64)
    of_host = np.repeat(np.arange(len(hosts)), [len(nics_of_host[host]) for host in hosts])
    links = first[nics + 1] - first[nics]
    start = np.cumsum(links) - links
    leaving = np.repeat(first[nics] - start, links) + np.arange(links.sum())
    leaf, owner = structure.head[arcs[leaving]], np.repeat(of_host, links)
    zones = np.concatenate([zone[nics], zone[leaf]])
    told = zones != NONE
    of_leaves = _distinct(owner, leaf, len(hosts))
    of_zones = _distinct(np.concatenate([of_host, owner])[told], zones[told], len(hosts))
    return {host: Place(of_zones[row], of_leaves[row]) for row, host in enumerate(hosts)}


def _distinct(owner: Ints, value: Ints, count: int) -> list[tuple[int, ...]]:
    """Return the distinct values of each of ``count`` owners, ascending."""
    width = int(value.max(initial=0)) + 1
    codes = distinct(owner * width + value)
    ends = np.searchsorted(codes, np.arange(count + 1) * width).tolist()
    values = (codes % width).tolist()
    return [tuple(values[low:high]) for low, high in pairwise(ends)]


def run_lengths(parallelism: Parallelism, gpus_per_host: int) -> list[int]:
    """Return how many hosts the runs of each kind take, longest first.

    Runs of a single host and of all hosts are left out. ``parallelism`` must be resolved. The
    result is empty if ``gpus_per_host`` is 0: hosts give different numbers of GPUs.
    """
    p = parallelism
    if not gpus_per_host:
        return []
    ranks = {p.tp * p.cp, p.tp * p.ep, p.tp * p.cp * p.dp}
    hosts = {count // gpus_per_host for count in ranks if count % gpus_per_host == 0}
    total = p.tp * p.cp * p.dp * p.pp // gpus_per_host
    return sorted((length for length in hosts if 1 < length < total), reverse=True)


def pipeline_lengths(parallelism: Parallelism, gpus_per_host: int) -> dict[int, int]:
    """Return how many hosts whole pipelines take, mapped to the hosts in a row that one stage has.

    There is one item for each length into which the hosts of a stage can be divided. The result is
    empty without pipelines, or if a host has ranks of several stages. ``parallelism`` must be
    resolved.
    """
    p = parallelism
    if p.pp == 1 or not gpus_per_host:
        return {}
    stage, rest = divmod(p.tp * p.cp * p.dp, gpus_per_host)
    if rest:
        return {}
    units = [*run_lengths(parallelism, gpus_per_host), 1]
    return {p.pp * unit: unit for unit in units if unit < stage and stage % unit == 0}


def candidates(job: Job, parallelism: Parallelism, where: Mapping[str, Place]) -> list[Hosts]:
    """Return different orders of a job's hosts, the alphabetical one first.

    Args:
        job: The job. The order of its hosts does not matter.
        parallelism: The job's parallelism, resolved.
        where: The place of each of its hosts, and perhaps of others.
    """
    alphabetical = tuple(sorted(job.hosts))
    lengths = run_lengths(parallelism, job.gpus_per_host)
    held, by_place = job.held, _by_place(alphabetical, where)
    found = [
        alphabetical,
        tuple(_nested(alphabetical, lengths, where)),
        tuple(_gathered(alphabetical, lengths, where)),
        tuple(by_place),
        # With hosts that give many GPUs first, more groups of ranks stay within a host.
        tuple(sorted(by_place, key=lambda host: -len(held[host]))),
    ]
    for length, unit in pipeline_lengths(parallelism, job.gpus_per_host).items():
        found.append(_by_stage(_nested(alphabetical, [length, unit], where), length, unit))
    return list(dict.fromkeys(found))


def _by_stage(hosts: Sequence[str], length: int, unit: int) -> Hosts:
    """Reorder hosts that come pipeline by pipeline, ``unit`` hosts a stage, into rank order."""
    rows = np.arange(len(hosts)).reshape(-1, length // unit, unit)
    return tuple(hosts[row] for row in rows.transpose(1, 0, 2).ravel().tolist())


def _nested(hosts: Sequence[str], lengths: Sequence[int], where: Mapping[str, Place]) -> list[str]:
    """Return hosts in runs of the first length, each ordered in runs of the further lengths."""
    ordered = _by_place(hosts, where)
    if not lengths or where[ordered[0]] == where[ordered[-1]]:
        return ordered
    runs = _runs(ordered, lengths[0], where)
    return [host for run in runs for host in _nested(run, lengths[1:], where)]


def _gathered(
    hosts: Sequence[str], lengths: Sequence[int], where: Mapping[str, Place]
) -> list[str]:
    """Return hosts in runs of the last, shortest length, which are joined to longer runs."""
    runs = [[host] for host in _by_place(hosts, where)]
    for length in reversed(lengths):
        of_first = {run[0]: run for run in runs}
        count = length // len(runs[0])
        if count * len(runs[0]) != length:
            return _nested(hosts, lengths, where)  # as of ep and cp, neither divides the other
        runs = [
            [host for first in firsts for host in of_first[first]]
            for firsts in _runs(_by_place([*of_first], where), count, where)
        ]
    return [host for run in runs for host in run]


def _by_place(hosts: Sequence[str], where: Mapping[str, Place]) -> list[str]:
    """Return hosts sorted by place and name, so that hosts of a leaf and of a zone are adjacent."""
    return sorted(hosts, key=lambda host: (where[host], host))


def _runs(hosts: Sequence[str], length: int, where: Mapping[str, Place]) -> list[list[str]]:
    """Cut hosts into runs of a length that divides their count, most of them within one place.

    The hosts are in the order of ``_by_place``.
    """
    found: list[list[str]] = []
    left_of_zones: list[list[str]] = []
    for _, in_zone in groupby(hosts, key=lambda host: where[host].zone):
        left: list[list[str]] = []
        for _, below in groupby(in_zone, key=lambda host: where[host].leaves):
            runs, rest = _cut(list(below), length)
            found += runs
            left.append(rest)
        runs, rest = _cut(_largest_first(left), length)
        found += runs
        left_of_zones.append(rest)
    runs, _ = _cut(_largest_first(left_of_zones), length)
    return sorted(found + runs, key=lambda run: (where[run[0]], run[0]))


def _cut(hosts: Sequence[str], length: int) -> tuple[list[list[str]], list[str]]:
    """Return whole runs of hosts, and the hosts that are left."""
    if len(hosts) < length:
        return [], list(hosts)
    whole = len(hosts) - len(hosts) % length
    return [list(hosts[at : at + length]) for at in range(0, whole, length)], list(hosts[whole:])


def _largest_first(parts: Sequence[Sequence[str]]) -> list[str]:
    """Return all hosts, largest parts first, so that a run is cut from few parts."""
    return list(_flat(sorted(parts, key=lambda part: -len(part))))


def _flat(parts: Sequence[Sequence[str]]) -> Iterator[str]:
    for part in parts:
        yield from part
