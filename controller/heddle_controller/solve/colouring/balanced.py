"""Balanced edge colouring of bipartite multigraphs: the healthy fabric's whole problem.

Flows are edges from the leaf they leave to the leaf they enter, spines are
colours. Give every vertex each colour as often as every other colour, to within
one, and every uplink and downlink carries the floor or the ceiling of its fair
share: no plan does better. Such *equitable* colourings always exist for
bipartite graphs (de Werra 1971, after Konig 1916).

An even number of colours is halved: pair up the edges at each vertex of either
side; the two pairings together are even circles; colour each circle in turns
and every vertex has its edges split in two halves (Gabow 1976). Circles are
found by pointer doubling, so a level costs O(m log m) in numpy however the
edges lie. An odd number first gives up one colour as a perfect matching of a
regular graph (a maximum flow), after which it is even.

OR-Tools' maximum flow, as far as it is needed and with types that hold.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heddle_controller.model.arrays import Bools, Ints, stable_order

Nests = tuple[list[Ints], list[Ints]]
"""Sets of vertices of the left and of the right side, the smallest first, by edge."""


def equitable_colouring(left: Ints, right: Ints, colours: int, nests: Nests = ([], [])) -> Ints:
    """A colour, 0 to ``colours - 1``, for each edge ``left[i] - right[i]``.

    At every vertex each colour is used floor(degree / colours) or
    ceil(degree / colours) times. Vertices are any integers of 0 and above; the
    two sides have numbers of their own. Pure: equal input, equal output.

    ``nests`` number sets of vertices, each within one of the next. With a power of two of
    colours the same holds of all edges of such a set.
    """
    colour = np.zeros(len(left), dtype=np.int64)
    rows, part = np.arange(len(left), dtype=np.int64), colour
    sides = (
        [_dense(sets) for sets in (left, *nests[0])],
        [_dense(sets) for sets in (right, *nests[1])],
    )
    # Edges are divided into parts, each with so many colours from its least on; all parts at once.
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
        # Edges of a part stand together: circles are then followed within what caches hold.
        order = stable_order(part)
        rows, part = rows[order], part[order]
        sides = [sets[order] for sets in sides[0]], [sets[order] for sets in sides[1]]
    return colour


def _dense(vertex: Ints) -> Ints:
    """The same vertices by the fewest numbers."""
    number: Ints = np.cumsum(np.bincount(vertex) > 0) - 1
    return number[vertex]


def _of_parts(vertex: Ints, part: Ints) -> Ints:
    """Vertices numbered apart for each part that they have edges in."""
    return part * (int(vertex.max(initial=0)) + 1) + vertex


def _partners(levels: list[Ints]) -> Ints:
    """Pairs up the edges at each vertex, an odd one out with another of the next level's set.

    What is left of the last level is paired as it comes. The answer has an even number of
    rows: where there is an odd number of edges, one more is made up and paired with the
    last one out.
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
    """Splits edges in two so that each vertex's halves differ by at most one, as a mask.

    Walking from partner to partner's partner meets every second edge of a circle;
    the least edge met names the walk. A circle has two walks: the one of the
    greater name is the second half.
    """
    first, second = _partners(left), _partners(right)
    step = second[first]
    name = np.arange(len(step), dtype=np.int64)
    while True:
        least = np.minimum(name, name[step])
        if (least == name).all():  # twice as far along all walks there are no others
            break
        name, step = least, step[step]
    return (name > name[first])[: len(left[0])]


def _groups(vertex: Ints, size: int) -> Ints:
    """Splits vertices into vertices of at most ``size`` edges, all but one full."""
    order = stable_order(vertex)
    ordered = vertex[order]
    new = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    place = np.arange(len(order)) - np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    group = np.empty(len(vertex), dtype=np.int64)
    group[order] = np.cumsum(new | (place % size == 0)) - 1
    return group


def _matching(left: Ints, right: Ints, degree: int) -> Bools:
    """Edges of a matching that covers every vertex of full ``degree``, as a mask."""
    count = max(int(left.max()), int(right.max())) + 1
    missing = [degree - np.bincount(side, minlength=count) for side in (left, right)]
    fill = [np.repeat(np.arange(count, dtype=np.int64), m) for m in missing]
    # Both sides lack count * degree - edges, so the fillers pair up one to one and
    # make the graph regular, which has a perfect matching (Konig).
    tails = np.concatenate([left, fill[0]])
    heads = np.concatenate([right, fill[1]])
    return unit_flow(tails, heads, count)[: len(left)]


def unit_flow(left: Ints, right: Ints, count: int) -> Bools:
    """A largest matching of the bipartite multigraph ``left[i] - right[i]``, as a mask.

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
