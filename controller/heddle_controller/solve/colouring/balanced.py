"""Balanced edge colouring of bipartite multigraphs, which solves healthy fabrics completely.

Flows are edges from the leaf that they leave to the leaf that they enter, and spines are colours.
If every vertex has each colour as often as every other colour, to within one, then every uplink and
downlink carries the floor or the ceiling of its fair share, and no plan does better. Such
*equitable* colourings always exist for bipartite graphs (de Werra 1971, after Konig 1916).

An even number of colours is halved: pair up the edges at each vertex of either side. The two
pairings together form even circles. Colour each circle alternately, and every vertex has its edges
split into two halves (Gabow 1976). Circles are found by pointer doubling, so a level costs O(m log
m) in numpy whatever the graph. An odd number first gives up one colour as a perfect matching of a
regular graph (a maximum flow by OR-Tools), after which it is even.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heddle_controller.model.arrays import Bools, Ints, stable_order

Nests = tuple[list[Ints], list[Ints]]
"""Sets of vertices for the left and the right side, as set numbers by edge, smallest sets first."""


def equitable_colouring(left: Ints, right: Ints, colours: int, nests: Nests = ([], [])) -> Ints:
    """Return a colour, 0 to ``colours - 1``, for each edge ``left[i] - right[i]``.

    At every vertex each colour is used floor(degree / colours) or ceil(degree / colours) times.
    Vertices are integers from 0 on, numbered separately on the two sides. Pure: equal input gives
    equal output.

    ``nests`` are sets of vertices, each within one set of the next level. If the number of colours
    is a power of two, the same also holds for the edges of each such set.
    """
    colour = np.zeros(len(left), dtype=np.int64)
    rows, part = np.arange(len(left), dtype=np.int64), colour
    sides = (
        [_dense(sets) for sets in (left, *nests[0])],
        [_dense(sets) for sets in (right, *nests[1])],
    )
    # Edges are divided into parts that share the same ``colours`` colours. All parts are handled at
    # once.
    while colours > 1 and len(rows):
        if colours % 2:
            # From here on vertices are groups of at most `colours` edges: the matching
            # takes one edge from every full group, which keeps the rest balanced.
            for side in sides:
                side[0] = _groups(_of_parts(side[0], part), colours)
            rest = np.flatnonzero(~_matching(sides[0][0], sides[1][0], colours))
            rows, part, colours = rows[rest], part[rest], colours - 1
            sides = [sets[rest] for sets in sides[0]], [sets[rest] for sets in sides[1]]
            colour[rows] += 1
        half = _halve(*([*(_of_parts(sets, part) for sets in side), part] for side in sides))
        colours //= 2
        colour[rows] += half * colours
        part = 2 * part + half
        # Keep the edges of a part together, so that circles are followed within processor caches.
        order = stable_order(part)
        rows, part = rows[order], part[order]
        sides = [sets[order] for sets in sides[0]], [sets[order] for sets in sides[1]]
    return colour


def striped_colouring(left: Ints, right: Ints, colours: int) -> Ints:
    """Return an equitable colouring that also gives edges of one kind different colours.

    At every vertex, the first ``colours`` edges in the order given have different colours, then the
    next ones, and so on. If edges of one kind follow one another, each colour has about as many of
    them as every other colour, whatever else there is. Otherwise it is as ``equitable_colouring``.
    """
    return equitable_colouring(_groups(left, colours), _groups(right, colours), colours)


def _dense(vertex: Ints) -> Ints:
    """Return the same vertices, numbered from 0 without gaps."""
    number: Ints = np.cumsum(np.bincount(vertex) > 0) - 1
    return number[vertex]


def _of_parts(vertex: Ints, part: Ints) -> Ints:
    """Return vertices numbered separately for each part in which they have edges."""
    return part * (int(vertex.max(initial=0)) + 1) + vertex


def _partners(levels: list[Ints]) -> Ints:
    """Pair up the edges at each vertex; an odd one is paired within its set of the next level.

    What is left over on the last level is paired as it comes. The result has an even number of
    rows: if the number of edges is odd, a made-up edge is added and paired with the last one left
    over.
    """
    rest = np.arange(len(levels[0]), dtype=np.int64)
    pairs: list[Ints] = []
    for vertex in levels:
        order = rest[stable_order(vertex[rest])]
        ordered = vertex[order]
        starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        degree = np.diff(np.append(starts, len(order)))
        odd = starts[degree % 2 == 1] + degree[degree % 2 == 1] - 1
        paired = np.ones(len(order), dtype=bool)
        paired[odd] = False
        pairs.append(order[paired])
        rest = order[odd]
        if not len(rest):
            break
    made_up = np.arange(len(levels[0]), len(levels[0]) + len(rest) % 2)
    line = np.concatenate([*pairs, rest, made_up])
    partner = np.empty(len(line), dtype=np.int64)
    partner[line[0::2]] = line[1::2]
    partner[line[1::2]] = line[0::2]
    return partner


def _halve(left: list[Ints], right: list[Ints]) -> Bools:
    """Split edges in two so that each vertex's halves differ by at most one; return a mask.

    Going from an edge to its partner's partner visits every second edge of a circle. The smallest
    edge that is visited names the walk. Each circle has two walks, and the one with the greater
    name is the second half.
    """
    first, second = _partners(left), _partners(right)
    step = second[first]
    name = np.arange(len(step), dtype=np.int64)
    while True:
        least = np.minimum(name, name.take(step))
        if (least == name).all():  # no walk has a smaller name twice as far along
            break
        name, step = least, step.take(step)
    return (name > name[first])[: len(left[0])]


def _groups(vertex: Ints, size: int) -> Ints:
    """Split each vertex into vertices with at most ``size`` edges, all but one of them full."""
    order = stable_order(vertex)
    ordered = vertex[order]
    new = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    place = np.arange(len(order)) - np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    group = np.empty(len(vertex), dtype=np.int64)
    group[order] = np.cumsum(new | (place % size == 0)) - 1
    return group


def _matching(left: Ints, right: Ints, degree: int) -> Bools:
    """Return a mask of edges that form a matching which covers every vertex of full ``degree``."""
    count = max(int(left.max()), int(right.max())) + 1
    missing = [degree - np.bincount(side, minlength=count) for side in (left, right)]
    fill = [np.repeat(np.arange(count, dtype=np.int64), m) for m in missing]
    # Both sides lack count * degree - edges, so the fillers pair up one to one and
    # make the graph regular, which has a perfect matching (Konig).
    tails = np.concatenate([left, fill[0]])
    heads = np.concatenate([right, fill[1]])
    return unit_flow(tails, heads, count)[: len(left)]


def unit_flow(left: Ints, right: Ints, count: int) -> Bools:
    """Return a largest matching of the bipartite multigraph ``left[i] - right[i]``, as a mask.

    Vertices of each side are 0 to ``count - 1``.
    """
    from ortools.graph.python.max_flow import SimpleMaxFlow  # noqa: PLC0415 - see cp_sat

    # The stubs that OR-Tools ships name no valid array type.
    flow: Any = SimpleMaxFlow()
    one = np.ones(count, dtype=np.int64)
    vertices = np.arange(count, dtype=np.int64)
    source, sink = np.full(count, 2 * count), np.full(count, 2 * count + 1)
    flow.add_arcs_with_capacity(left, right + count, np.ones(len(left), dtype=np.int64))
    flow.add_arcs_with_capacity(source, vertices, one)
    flow.add_arcs_with_capacity(vertices + count, sink, one)
    flow.solve(2 * count, 2 * count + 1)
    used = np.asarray(flow.flows(np.arange(len(left))), dtype=np.int64)
    return used > 0
