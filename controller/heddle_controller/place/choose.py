"""Chooses hosts for a job: a few sets that are good in different ways, each with a rank order.

Hosts of one place are alike. A set is good if the ranks that exchange most traffic stay below few
switches. So zones are filled one after another, within each zone one place after another, and runs
of ranks (see ``order``) are kept whole. But where leaves are over-subscribed, all-to-all traffic is
better spread over many leaves, and busy zones and leaves are better avoided. Cuts estimate which of
these matters most (``estimate``). The planner then computes what the best sets are worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np

from heddle_controller.model.arrays import Bools, Ints
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.job import Job
from heddle_controller.place.ask import Choices, PlacementAsk
from heddle_controller.place.estimate import Estimate, Estimator, Surroundings
from heddle_controller.place.order import (
    Hosts,
    Place,
    candidates,
    nics_of,
    pipeline_lengths,
    places,
    run_lengths,
)
from heddle_controller.solve.cp_sat import finds, new_model, new_solver
from heddle_controller.traffic.groups import resolve_parallelism

_THINNING_EFFORT = 1.0
"""Seconds of deterministic time to search for the most hosts with so many below a leaf."""

FlowsOfJob = Callable[[Job, Fabric], Flows]


@dataclass(frozen=True, slots=True)
class _Block:
    """The free hosts of one place."""

    place: Place
    hosts: Hosts
    used: float
    """Utilisation out of or into its leaves, whichever is greatest."""
    each: float
    """How much a further host may raise it: line rate of its NICs over capacity of its leaves."""


def choose(ask: PlacementAsk, around: Surroundings, flows_of_job: FlowsOfJob) -> Choices:
    """Return sets of hosts for a job, given what others send.

    Args:
        ask: The job, and where it may run.
        around: The fabric with its states, and the flows of others. Hosts with a NIC that no link
            leads to are not taken.
        flows_of_job: ``traffic.jobs.flows_of_job``.
    """
    fabric, count = around.fabric, len(ask.job.hosts)
    held = ask.on(ask.hosts).held
    nics = nics_of(held, fabric)
    attached = usable = _whole(ask.hosts, nics, _attached(fabric))
    where = places({host: held[host] for host in usable}, fabric)
    if ask.hosts_per_leaf:
        usable = _thinned(usable, where, ask.hosts_per_leaf, count)
    if len(usable) < count:
        return Choices(refused=_too_few(ask, len(attached), len(usable), fabric))
    groups = [usable]
    if ask.isolated:
        below = [
            own
            for place, own in _by_place(usable, where).items()
            if len(place.leaves) == 1
            or len(own) < count
            or _stays_below(flows_of_job(ask.on(own[:count]), fabric), around)
        ]
        groups = [*below, *_unshared(usable, where, around, nics)]
    if ask.same_zone:
        groups = [part for group in groups for part in _by_zone(group, where)]
    fitting = [group for group in groups if len(group) >= count]
    if not fitting:
        most = max(map(len, groups), default=0)
        return Choices(refused=_too_narrow(ask, most))
    fits = [tuple(group[:count]) for group in fitting]
    first_fit = min(fits)
    parallelism = resolve_parallelism(ask.job)
    runs = run_lengths(parallelism, ask.job.gpus_per_host)
    lengths = list(dict.fromkeys([*runs, *pipeline_lengths(parallelism, ask.job.gpus_per_host)]))
    sets = list(fits)
    for group in fitting:
        sets += _sets(_blocks(group, where, around, nics), count, lengths, around)
    found = _ordered(ask, list(dict.fromkeys(map(_sorted, sets))), where, around, flows_of_job)
    best: dict[Hosts, tuple[Estimate, Hosts]] = {}
    for estimate, hosts in sorted(found, key=lambda pair: pair[0]):
        best.setdefault(_sorted(hosts), (estimate, hosts))
    others = [hosts for _, hosts in best.values() if hosts != first_fit]
    return Choices(first_fit, tuple(others[: ask.most]))


def _ordered(
    ask: PlacementAsk,
    sets: Sequence[Hosts],
    where: Mapping[str, Place],
    around: Surroundings,
    flows_of_job: FlowsOfJob,
) -> Iterator[tuple[Estimate, Hosts]]:
    """Yield each set in each order that may suit it, with its estimate."""
    fabric, parallelism = around.fabric, resolve_parallelism(ask.job)
    nics_of_host = fabric.structure.nics_of_host
    known: dict[tuple[object, ...], Estimator] = {}
    for hosts in sets:
        for order in candidates(ask.on(hosts), parallelism, where):
            alike = tuple(len(nics_of_host[host]) for host in order), ask.on(order).gpus
            if alike not in known:
                flows = flows_of_job(ask.on(order), fabric)
                known[alike] = Estimator(around, flows, order)
            yield known[alike].of(order), order


def _sets(
    blocks: Sequence[_Block], count: int, lengths: Sequence[int], around: Surroundings
) -> Iterator[Hosts]:
    """Yield sets of ``count`` hosts: within each zone that has enough, and over several zones."""
    of_zone: dict[tuple[int, ...], list[_Block]] = {}
    for block in blocks:
        of_zone.setdefault(block.place.zone, []).append(block)
    free = {zone: sum(len(block.hosts) for block in own) for zone, own in of_zone.items()}
    wide = [zone for zone in of_zone if free[zone] >= count]
    for zone in wide:
        yield from _filled(of_zone[zone], count, lengths)
    if len(of_zone) == 1:
        return
    yield from _filled(blocks, count, lengths)
    used = {zone: _use_of_zone(around, zone) for zone in of_zone}
    orders = [
        sorted(of_zone, key=lambda zone: (-free[zone], used[zone], zone)),
        sorted(of_zone, key=lambda zone: (used[zone], -free[zone], zone)),
    ]
    for order in orders:
        for length in dict.fromkeys([*lengths, 1]):
            yield from _over_zones([of_zone[zone] for zone in order], count, length, lengths)


def _over_zones(
    zones: Sequence[Sequence[_Block]], count: int, length: int, lengths: Sequence[int]
) -> Iterator[Hosts]:
    """Yield sets that take whole runs from one zone after another, then single hosts to fill up."""
    shares = [0] * len(zones)
    left = count
    for unit in (length, 1):
        for row, own in enumerate(zones):
            free = sum(len(block.hosts) for block in own) - shares[row]
            more = min(free, left) // unit * unit
            shares[row] += more
            left -= more
    fills = [
        list(_filled(own, share, lengths))
        for own, share in zip(zones, shares, strict=True)
        if share
    ]
    for way in range(max(map(len, fills))):
        yield tuple(host for fill in fills for host in fill[min(way, len(fill) - 1)])


def _filled(blocks: Sequence[_Block], count: int, lengths: Sequence[int]) -> Iterator[Hosts]:
    """Yield sets of ``count`` hosts: below few leaves, below idle leaves, in whole runs, spread."""
    fullest = sorted(blocks, key=lambda block: (-len(block.hosts), block.used, block.place))
    yield _packed(fullest, count)
    idle = sorted(blocks, key=lambda block: (block.used, -len(block.hosts), block.place))
    yield _packed(idle, count)
    for length in lengths:
        yield _in_runs(fullest, count, length)
    yield _spread(blocks, count)


def _packed(blocks: Sequence[_Block], count: int) -> Hosts:
    """Take one block after another. The last one taken is the smallest that is large enough."""
    found: list[str] = []
    for row, block in enumerate(blocks):
        left = count - len(found)
        if left <= len(block.hosts):
            enough = [other for other in blocks[row:] if len(other.hosts) >= left]
            found += min(enough, key=lambda other: len(other.hosts)).hosts[:left]
            break
        found += block.hosts
    return tuple(found)


def _in_runs(blocks: Sequence[_Block], count: int, length: int) -> Hosts:
    """Take whole runs from each block in turn, then single hosts from the first blocks."""
    taken = [0] * len(blocks)
    left = count
    for unit in (length, 1):
        for row, block in enumerate(blocks):
            more = min(len(block.hosts) - taken[row], left) // unit * unit
            taken[row] += more
            left -= more
    return tuple(
        host for block, many in zip(blocks, taken, strict=True) for host in block.hosts[:many]
    )


def _spread(blocks: Sequence[_Block], count: int) -> Hosts:
    """Take each host from the block whose leaves are then least used."""
    heap = [(block.used + block.each, row, 0) for row, block in enumerate(blocks)]
    heapify(heap)
    found: list[str] = []
    while len(found) < count:
        used, row, taken = heap[0]
        block = blocks[row]
        found.append(block.hosts[taken])
        more = used + block.each if taken + 1 < len(block.hosts) else float("inf")
        heapreplace(heap, (more, row, taken + 1))
    return tuple(found)


def _blocks(
    usable: Sequence[str],
    where: Mapping[str, Place],
    around: Surroundings,
    nics_of_host: Mapping[str, tuple[int, ...]],
) -> list[_Block]:
    of_place, cut = _by_place(usable, where), around.leaves
    line, used = around.fabric.structure.nic_line, cut.used().max(axis=0)
    capacity = np.maximum(cut.capacity.min(axis=0), 1e-9)
    nics = [nics_of_host[hosts[0]] for hosts in of_place.values()]
    owner, row = _laid_out(nics)
    part = cut.part[row]
    pairs, pair = np.unique(owner * len(used) + part, return_inverse=True)
    sent = np.bincount(pair, line[row]) / capacity[pairs % len(used)]
    ends = np.searchsorted(pairs // len(used), np.arange(len(nics)))
    each = np.maximum.reduceat(sent, ends).tolist()
    fullest = np.maximum.reduceat(used[pairs % len(used)], ends).tolist()
    return [
        _Block(place, tuple(hosts), fullest[number], each[number])
        for number, (place, hosts) in enumerate(of_place.items())
    ]


def _laid_out(nics: Sequence[tuple[int, ...]]) -> tuple[Ints, Ints]:
    """Join groups of NICs: return the index of each NIC's group, and its row."""
    owner = np.repeat(np.arange(len(nics)), [len(own) for own in nics])
    return owner, np.array([nic for own in nics for nic in own], dtype=np.int64)


def _whole(hosts: Hosts, nics: Mapping[str, tuple[int, ...]], up: Bools) -> list[str]:
    """Return the hosts all of whose NICs are marked by ``up``, shape (nodes,)."""
    owner, row = _laid_out([nics[host] for host in hosts])
    down = np.bincount(owner, ~up[row], len(hosts)) > 0
    return [host for host, lost in zip(hosts, down.tolist(), strict=True) if not lost]


def _use_of_zone(around: Surroundings, zone: tuple[int, ...]) -> float:
    used = around.zones.used()
    return max((float(used[:, row].max()) for row in zone), default=0.0)


def _attached(fabric: Fabric) -> Bools:
    """Whether each node has a link that takes new paths, shape (nodes,)."""
    leaving = fabric.structure.tail[fabric.plannable]
    found: Bools = np.bincount(leaving, minlength=fabric.node_count) > 0
    return found


def _thinned(hosts: Sequence[str], where: Mapping[str, Place], most: int, count: int) -> list[str]:
    """Return as many of the hosts as can be had with at most ``most`` of them below one leaf.

    If that needs a search, it may return fewer once it has ``count``.
    """
    of_place = _by_place(hosts, where)
    wanted = _nested(of_place, most)
    if sum(wanted.values()) < count:
        wanted = _most_of_each(of_place, most)
    kept = {host for place, own in of_place.items() for host in own[: wanted[place]]}
    return [host for host in hosts if host in kept]


def _nested(of_place: Mapping[Place, Sequence[str]], most: int) -> dict[Place, int]:
    """Return how many hosts to take of each place, those below the fewest leaves first.

    No choice has more hosts if, of two places that share a leaf, one has all leaves of the other.
    """
    room = dict.fromkeys((leaf for place in of_place for leaf in place.leaves), most)
    found = {}
    for place in sorted(of_place, key=lambda place: (len(place.leaves), of_place[place][0])):
        taken = min(len(of_place[place]), *(room[leaf] for leaf in place.leaves))
        found[place] = taken
        for leaf in place.leaves:
            room[leaf] -= taken
    return found


def _most_of_each(of_place: Mapping[Place, Sequence[str]], most: int) -> dict[Place, int]:
    """Return the same by integer programming, where places share some of their leaves."""
    model, solver = new_model(), new_solver(_THINNING_EFFORT)
    taken = {place: model.new_int_var(0, len(own), "") for place, own in of_place.items()}
    for leaf in {leaf for place in of_place for leaf in place.leaves}:
        model.add(sum(taken[place] for place in of_place if leaf in place.leaves) <= most)
    model.maximize(sum(taken.values()))
    if not finds(solver, model):
        return _nested(of_place, most)
    return {place: int(solver.value(one)) for place, one in taken.items()}


def _unshared(
    hosts: Sequence[str],
    where: Mapping[str, Place],
    around: Surroundings,
    nics_of_host: Mapping[str, tuple[int, ...]],
) -> list[list[str]]:
    """Return groups of hosts between which traffic meets no other job's, as far as cuts can tell.

    There is a group for each zone with the hosts whose leaves carry nothing to or from other
    leaves. A last group joins such hosts of all zones that carry nothing to or from others.
    """
    leaves = around.leaves
    quiet = leaves.load.max(axis=0) <= 0
    idle = [host for host in hosts if quiet[leaves.part[list(nics_of_host[host])]].all()]
    of_zone = _by_zone(idle, where)
    between = [
        host
        for group in of_zone
        if _use_of_zone(around, where[group[0]].zone) <= 0
        for host in group
    ]
    return [*of_zone, *([between] if len(of_zone) > 1 else [])]


def _stays_below(flows: Flows, around: Surroundings) -> bool:
    """Return whether each flow stays below a leaf, or below a pair of leaves with the same NICs."""
    part = around.leaves.part
    return bool((part[flows.source] == part[flows.destination]).all())


def _by_place(hosts: Sequence[str], where: Mapping[str, Place]) -> dict[Place, list[str]]:
    found: dict[Place, list[str]] = {}
    for host in hosts:
        found.setdefault(where[host], []).append(host)
    return found


def _by_zone(hosts: Sequence[str], where: Mapping[str, Place]) -> list[list[str]]:
    found: dict[tuple[int, ...], list[str]] = {}
    for host in hosts:
        found.setdefault(where[host].zone, []).append(host)
    return list(found.values())


def _sorted(hosts: Sequence[str]) -> Hosts:
    return tuple(sorted(hosts))


def _too_few(ask: PlacementAsk, attached: int, usable: int, fabric: Fabric) -> str:
    count, total, free = len(ask.job.hosts), len(fabric.structure.nics_of_host), len(ask.hosts)
    if count > total:
        return f"takes {count} hosts; the fabric has {total}"
    told, cures = f"takes {count} hosts; {free} are free", ["wait", "give more candidates"]
    if attached < free:
        told += f", {free - attached} of which no link leads to"
    if usable < attached:
        told += f", and {usable} can be had with at most {ask.hosts_per_leaf} below a leaf"
        cures.append("allow more below a leaf")
    return f"{told}: {', '.join(cures[:-1])}, or {cures[-1]}"


def _too_narrow(ask: PlacementAsk, most: int) -> str:
    wanted = [
        text
        for given, text in (
            (ask.same_zone, "in one zone"),
            (ask.hosts_per_leaf, f"with at most {ask.hosts_per_leaf} below a leaf"),
            (ask.isolated, "on links that no other job uses"),
        )
        if given
    ]
    count = len(ask.job.hosts)
    return f"takes {count} hosts; {' and '.join(wanted)} there are {most}: ask for less"
