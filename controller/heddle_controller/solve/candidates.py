"""The paths that a flow may take, found when they are first needed.

In a fabric with tiers a path goes up to an *apex* and down again. The candidates between two leaves
are all such paths over the lowest apexes that they share: the segments up from the one leaf, joined
at the apex with those of the other. Where two leaves share no apex (links are down), and in graphs
without tiers, candidates are the loop-free paths with the fewest hops, then with one and two hops
more, up to a limit (depth-first search, pruned by the distance to the destination).

A set of candidates is a matrix of arcs, with one row for each path, padded on the right with
``Network.pad``.

Where prices of arcs are given, the cheapest paths between terminals are found over all usable arcs
by Dijkstra's algorithm (scipy, compiled), with one tree for each terminal that paths leave.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import Flows, TrafficClass
from heddle_controller.model.plan import Paths
from heddle_controller.solve.network import Network

MOST_PAIRS = 400
"""Number of pairs above which each pair begins with few paths, found for all pairs at once."""
BENDS = (0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
"""Most by which random lengths of arcs exceed 1, for each of these few paths."""
EXTRA_HOPS = 2
"""Hops by which a path may exceed the shortest in a graph without tiers."""
MOST_JOINED = 4096
"""Most paths over apexes of one tier that are looked at when more candidates are wanted."""
MOST_WAYS, MOST_LOOKED = 16, 1000
"""Most paths of any length that are returned, and most partial paths looked at to find them."""
_LONGEST = 2 * (NodeKind.CORE - NodeKind.NIC)
"""Hops of the longest path up and down again."""


class Candidates:
    """Candidate paths between terminals of one network, cached."""

    def __init__(self, network: Network, limit: int) -> None:
        self.network = network
        self.limit = limit
        self._found: dict[tuple[int, int], Ints] = {}
        self._distances: dict[int, dict[int, int]] = {}
        self._onwards: dict[int, list[tuple[int, int, bool]]] = {}

    @cached_property
    def cheapest(self) -> CheapestPaths:
        """All usable arcs, to find paths that are not candidates yet."""
        return CheapestPaths(self.network)

    def ends_of(self, flows: Flows, flow: int) -> tuple[int, int]:
        """Return the terminals of a flow, between which its candidates lead."""
        terminal = self.network.terminal
        return int(terminal[flows.source[flow]]), int(terminal[flows.destination[flow]])

    def between(self, source: int, destination: int) -> Ints:
        """Return the paths from one terminal to another, shape (paths, hops); no rows if none."""
        key = (source, destination)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._search(source, destination)
        return found

    def prepare(self, source: Ints, destination: Ints) -> bool:
        """Find paths of many pairs together, where one by one would take too long.

        In a graph without tiers each pair gets shortest paths under random arc lengths, drawn anew
        for each path. Prices show later which others are worth having. Returns False, and does
        nothing, in fabrics with tiers and for few pairs: there ``between`` finds all near-shortest
        paths.
        """
        pairs = np.unique(np.stack([source, destination]), axis=1)
        pairs = pairs[:, pairs[0] != pairs[1]]
        if self.network.tiered or pairs.shape[1] <= MOST_PAIRS:
            return False
        random = np.random.default_rng(0)
        drawn = []
        for bend in BENDS:
            length = 1 + bend * random.random(self.network.arc_count)
            drawn.append(self.cheapest.paths(length, *pairs)[1])
        width, pad = max(paths.shape[1] for paths in drawn), self.network.pad
        wide = [np.pad(p, ((0, 0), (0, width - p.shape[1])), constant_values=pad) for p in drawn]
        ends = zip(*pairs.tolist(), strict=True)
        for key, paths in zip(ends, np.stack(wide, axis=1), strict=True):
            if key not in self._found:
                first = np.sort(np.unique(paths, axis=0, return_index=True)[1])
                some = paths[first]
                self._found[key] = some[some[:, :1].ravel() != pad]
        return True

    def shortest(self, source: int, destination: int) -> Ints:
        """Return the candidates between two terminals that have the fewest hops."""
        paths = self.between(source, destination)
        hops = np.count_nonzero(paths != self.network.pad, axis=1)
        least: Ints = paths[hops == hops.min(initial=paths.shape[1])]
        return least

    def of_class(self, source: int, destination: int, traffic_class: int) -> Ints:
        """Return the paths for a traffic class: all for bandwidth, the shortest for latency."""
        latency = traffic_class == TrafficClass.LATENCY
        return (self.shortest if latency else self.between)(source, destination)

    def detours(self, flows: Flows, paths: Paths) -> Ints:
        """Return the rows of paths of latency flows that are longer than the shortest candidates.

        ``paths`` lead between terminals.
        """
        lengths = np.diff(paths.first)

        def longer(row: int) -> bool:
            shortest = self.shortest(*self.ends_of(flows, int(paths.flow[row])))
            return bool(
                (np.count_nonzero(shortest != self.network.pad, axis=1) < lengths[row]).any()
            )

        latency = np.flatnonzero(flows.traffic_class[paths.flow] == TrafficClass.LATENCY)
        return np.array([row for row in latency.tolist() if longer(row)], dtype=np.int64)

    def add(self, source: int, destination: int, paths: Ints) -> bool:
        """Add paths, as rows of arcs, to the candidates; False if all of them were known."""
        known = self.between(source, destination)
        both = _united(known, paths, self.network.pad)
        self._found[source, destination] = both
        return len(both) > len(known)

    def with_longer(self, source: int, destination: int) -> Ints:
        """Return the candidates and some longer paths. In tiers these only go up, then down."""
        if not self.network.tiered:
            return self.with_detours(source, destination)
        known = self.between(source, destination)
        if source == destination or not len(known):
            return known
        return _united(known, self.over_every_apex(source, destination), self.network.pad)

    def with_detours(self, source: int, destination: int) -> Ints:
        """Return the candidates and up to ``MOST_WAYS`` loop-free paths of any kind."""
        known = self.between(source, destination)
        if source == destination or not len(known):
            return known
        return _united(known, self._any_length(source, destination), self.network.pad)

    def over_every_apex(self, source: int, destination: int) -> Ints:
        """Return loop-free paths over apexes of any tier, in a fabric with tiers."""
        levels, found = self.network.level, []
        low = (int(levels[source]), int(levels[destination]))
        for apex_level in range(max(low), int(NodeKind.CORE) + 1):
            up_apex, up = self.network.segments(source, apex_level - low[0])
            down_apex, down = self.network.segments(destination, apex_level - low[1])
            first, second = _join(up_apex, down_apex, MOST_JOINED)
            paths = np.concatenate([up[first], down[second][:, ::-1] ^ 1], axis=1)
            found.append(self._padded(paths[self._loop_free(paths)]))
        return np.concatenate(found)

    def _loop_free(self, paths: Ints) -> Bools:
        ends = self.network.head[paths[:, -1:]]
        nodes = np.sort(np.concatenate([self.network.tail[paths], ends], axis=1), axis=1)
        result: Bools = (np.diff(nodes, axis=1) != 0).all(axis=1)
        return result

    def _padded(self, paths: Ints) -> Ints:
        """Pad paths to the width of the longest path over a core."""
        more = max(0, _LONGEST - paths.shape[1])
        return np.pad(paths, ((0, 0), (0, more)), constant_values=self.network.pad)

    def _search(self, source: int, destination: int) -> Ints:
        if source == destination:
            return np.empty((1, 0), dtype=np.int64)
        if self.network.tiered:
            found = self._over_apex(source, destination)
            if len(found):
                return found
        return self._by_hops(source, destination)

    def _over_apex(self, source: int, destination: int) -> Ints:
        levels = self.network.level
        low = (int(levels[source]), int(levels[destination]))
        for apex_level in range(max(low), int(NodeKind.CORE) + 1):
            up_apex, up = self.network.segments(source, apex_level - low[0])
            down_apex, down = self.network.segments(destination, apex_level - low[1])
            rows_up, rows_down = _join(up_apex, down_apex, self.limit)
            if len(rows_up):
                return np.concatenate([up[rows_up], down[rows_down][:, ::-1] ^ 1], axis=1)
        return np.empty((0, 0), dtype=np.int64)

    def _by_hops(self, source: int, destination: int) -> Ints:
        distance = self._distance_to(destination)
        following = self.network.head[self.network.out(source)].tolist()
        reached = [distance[node] for node in following if node in distance]
        if not reached:
            return np.empty((0, 0), dtype=np.int64)
        paths: list[list[int]] = []
        least = 1 + min(reached)
        for hops in range(least, least + EXTRA_HOPS + 1):
            self._walk(source, destination, hops, paths)
        return self._matrix(paths)

    def _matrix(self, paths: list[list[int]]) -> Ints:
        width = max(map(len, paths), default=0)
        matrix = np.full((len(paths), width), self.network.pad, dtype=np.int64)
        for row, path in enumerate(paths):
            matrix[row, : len(path)] = path
        return matrix

    def _walk(self, source: int, destination: int, hops: int, paths: list[list[int]]) -> None:
        """Append the loop-free paths of exactly ``hops`` hops, up to the limit in all."""
        distance = self._distance_to(destination)
        stack: list[tuple[int, list[int], frozenset[int]]] = [(source, [], frozenset([source]))]
        while stack and len(paths) < self.limit:
            node, path, seen = stack.pop()
            if node == destination:
                if len(path) == hops:
                    paths.append(path)
                continue
            left = hops - len(path) - 1
            for arc, following, _ in reversed(self._onward(node)):
                if following not in seen and distance.get(following, hops + 1) <= left:
                    stack.append((following, [*path, arc], seen | {following}))

    def _any_length(self, source: int, destination: int) -> Ints:
        """Return loop-free paths, the shortest first."""
        found: list[list[int]] = []
        unfinished: deque[tuple[int, list[int], frozenset[int]]] = deque()
        unfinished.append((source, [], frozenset([source])))
        left = MOST_LOOKED - 1
        while unfinished and len(found) < MOST_WAYS:
            node, path, seen = unfinished.popleft()
            if node == destination:
                found.append(path)
                continue
            for arc, following, is_nic in self._onward(node):
                if left and following not in seen and (not is_nic or following == destination):
                    unfinished.append((following, [*path, arc], seen | {following}))
                    left -= 1
        return self._matrix(found)

    def _distance_to(self, destination: int) -> dict[int, int]:
        """Return the hops to a terminal from every switch that reaches it."""
        found = self._distances.get(destination)
        if found is None:
            found = self._distances[destination] = self._breadth_first(destination)
        return found

    def _breadth_first(self, start: int) -> dict[int, int]:
        # Links carry both directions, so distances to a node equal those from it.
        distance = {start: 0}
        queue = deque([start])
        while queue:
            node = queue.popleft()
            for _, following, is_nic in self._onward(node):
                if following not in distance and not is_nic:
                    distance[following] = distance[node] + 1
                    queue.append(following)
        return distance

    def _onward(self, node: int) -> list[tuple[int, int, bool]]:
        """Return each usable arc from a node, the node it enters, and whether that is a NIC.

        NICs with one link are left out.
        """
        found = self._onwards.get(node)
        if found is None:
            arcs = self.network.out(node)
            head = self.network.head[arcs]
            is_nic = self.network.level[head] == NodeKind.NIC
            kept = ~is_nic | self.network.several[head]
            columns = (column[kept].tolist() for column in (arcs, head, is_nic))
            found = self._onwards[node] = [*zip(*columns, strict=True)]
        return found


def _united(first: Ints, second: Ints, pad: int) -> Ints:
    """Return the rows of one matrix of paths, and those rows of another that it lacks."""
    width = max(first.shape[1], second.shape[1])
    wide = [
        np.pad(m, ((0, 0), (0, width - m.shape[1])), constant_values=pad) for m in (first, second)
    ]
    seen = {row.tobytes() for row in wide[0]}
    new = [row for row in wide[1] if row.tobytes() not in seen]
    return np.concatenate([wide[0], np.stack(new)]) if new else first


def _join(first: Ints, second: Ints, limit: int) -> tuple[Ints, Ints]:
    """Return the rows of two ascending arrays that hold equal numbers, as pairs.

    Above ``limit`` pairs, each row of ``first`` meets only a share of its partners. The share
    shifts from row to row, so that all partners are met equally often.
    """
    low = np.searchsorted(second, first, side="left")
    counts = np.searchsorted(second, first, side="right") - low
    total = int(counts.sum())
    kept = counts
    if total > limit:
        share = max(1, limit // max(1, int(np.count_nonzero(counts))))
        kept = np.minimum(counts, share)
    rows = np.repeat(np.arange(len(first)), kept)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(kept) - kept, kept)
    if total > limit:
        within = (within + rows) % counts[rows]
    return rows, low[rows] + within


_AT_ONCE = 1_000_000
"""Most sources times nodes in one call. No other thread runs during a call, and memory is
finite."""


class CheapestPaths:
    """The usable arcs of a network, sorted to find cheapest paths between terminals.

    A path begins and ends at switches or at NICs with several links, and passes through no other
    NIC. So each such NIC is two nodes here: one that paths leave and one that they enter.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        ends = np.flatnonzero((network.level != NodeKind.NIC) | network.several)
        nics = ends[network.several[ends]]
        self._leave = np.full(network.fabric.node_count, NONE, dtype=np.int64)
        self._leave[ends] = np.arange(len(ends))
        self._enter = self._leave.copy()
        self._enter[nics] = len(ends) + np.arange(len(nics))
        self._size = len(ends) + len(nics)
        tail, head = self._leave[network.tail], self._enter[network.head]
        arcs = np.flatnonzero(network.usable & (tail != NONE) & (head != NONE))
        pair = tail[arcs] * self._size + head[arcs]
        order = np.argsort(pair, kind="stable")
        self._arcs, pair = arcs[order], pair[order]
        self._first = np.flatnonzero(np.diff(pair, prepend=-1))
        """Where the arcs between each two neighbours begin. Of parallel arcs the cheapest
        counts."""
        self._pair = pair[self._first]
        counts = np.bincount(self._pair // self._size, minlength=self._size)
        self._begin = np.append(0, np.cumsum(counts))

    def costs(self, price: Floats, source: Ints, destination: Ints) -> Floats:
        """Return the least cost of a path for each pair of terminals; infinite where there is none.

        Args:
            price: Cost of each arc, 0 or more, shape (arcs,).
            source: Node where each path begins, shape (pairs,).
            destination: Node where it ends, different from the source, shape (pairs,).
        """
        return self._trees(price, (source, destination), None, np.inf)

    def paths(
        self, price: Floats, source: Ints, destination: Ints, limit: float = np.inf
    ) -> tuple[Floats, Ints]:
        """Return the least costs, as ``costs`` does, and a path of that cost for each pair.

        Paths are rows of arcs, padded, shape (pairs, hops). Paths that cost more than ``limit``
        count as none.
        """
        steps: list[tuple[Ints, Ints]] = []
        cost = self._trees(price, (source, destination), steps, limit)
        owner = np.concatenate([np.empty(0, dtype=np.int64), *(rows for rows, _ in steps)])
        back = np.concatenate([np.empty(0, dtype=np.int64), *(arcs for _, arcs in steps)])
        length = np.bincount(owner, minlength=len(source))
        paths = np.full(
            (len(source), int(length.max(initial=0))), self._network.pad, dtype=np.int64
        )
        order = np.argsort(owner, kind="stable")
        owner, back = owner[order], back[order]
        place = np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length)
        paths[owner, length[owner] - 1 - place] = back
        return cost, paths

    def _trees(
        self,
        price: Floats,
        pairs: tuple[Ints, Ints],
        steps: list[tuple[Ints, Ints]] | None,
        limit: float,
    ) -> Floats:
        """Return costs, and append the arcs of paths to ``steps`` unless it is None.

        Arcs come with the rows of their paths, the last arc of each path first.
        """
        source, destination = self._leave[pairs[0]], self._enter[pairs[1]]
        cost = np.full(len(source), np.inf)
        if not len(self._first) or not len(source):
            return cost
        priced = price[self._arcs]
        least = np.minimum.reduceat(priced, self._first)
        size = self._size
        from scipy.sparse import csr_matrix  # noqa: PLC0415 - see model.graphs
        from scipy.sparse.csgraph import dijkstra  # noqa: PLC0415 - see model.graphs

        graph = csr_matrix((least, self._pair % size, self._begin), shape=(size, size))
        sources, of_row = np.unique(source, return_inverse=True)
        width = max(1, _AT_ONCE // size)
        for low in range(0, len(sources), width):
            own = np.flatnonzero((of_row >= low) & (of_row < low + width))
            part, end = of_row[own] - low, destination[own]
            some = sources[low : low + width]
            if steps is None:
                cost[own] = dijkstra(graph, indices=some)[part, end]
                continue
            distance, before = dijkstra(graph, indices=some, return_predecessors=True, limit=limit)
            cost[own] = distance[part, end]
            self._walk(before.astype(np.int64), self._best(priced, least), (own, part, end), steps)
        return cost

    def _best(self, priced: Floats, least: Floats) -> Ints:
        """Return the cheapest arc between each two neighbours."""
        counts = np.diff(np.append(self._first, len(priced)))
        cheapest = np.flatnonzero(priced == np.repeat(least, counts))
        pair = np.searchsorted(self._first, cheapest, side="right") - 1
        best = np.empty(len(self._first), dtype=np.int64)
        best[pair[::-1]] = self._arcs[cheapest[::-1]]
        return best

    def _walk(
        self,
        before: Ints,
        best: Ints,
        ends: tuple[Ints, Ints, Ints],
        steps: list[tuple[Ints, Ints]],
    ) -> None:
        """Follow paths back from their ends. ``ends`` has the row, tree and node of each path."""
        rows, tree, node = ends
        while len(rows):
            last = before[tree, node]
            going = last >= 0
            rows, tree, node, last = rows[going], tree[going], node[going], last[going]
            pair = np.searchsorted(self._pair, last * self._size + node)
            steps.append((rows, best[pair]))
            node = last
