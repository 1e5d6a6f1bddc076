"""Exchanges of colours that keep every leaf balanced and even out what leaves its zone.

An equitable colouring of flows by plane is fair to every leaf. But of the flows that leave a zone
one plane may have more than its links can take, and no tier of cores can correct that. Take two
colours. At every leaf, pair up its edges of one colour with its edges of the other. Edges and pairs
form chains and circles of alternating colours (Kempe). Turning one around exchanges its colours: at
each leaf the count of a colour changes by at most its one unpaired edge, and only the number of
each colour that leaves a zone changes. There are many chains, and others for every pairing. Those
that bring the zones nearer to an even share, in squares summed over zones, are turned around, and
now and then one that does not. In the few small and tight cases that this does not solve, CP-SAT
(OR-Tools) divides the edges of a few colours anew, within a budget of deterministic time.

``colour_zones`` colours flows within and between zones so that leaves and cores both get the least
load. A flow between zones needs spines of one *plane* in both zones: spines that share cores. Flows
are first coloured by plane, all together, which is fair to every leaf. What leaves a zone is then
evened out over planes by exchanges, as far as links to the cores need it. Within a plane with
several spines in a zone, up to all of them (a full mesh), each zone is then coloured by itself.
Flows that leave or enter it end at one more vertex, which represents the rest of the fabric. So a
zone's spines get even shares of these flows, too, and a flow may go up by one spine and come down
by another. A fair share of a fair share is a fair share, rounded once, so each tier reaches its
least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Ints, distinct, stable_order
from heddle_controller.model.graphs import joined_parts
from heddle_controller.solve import cp_sat
from heddle_controller.solve.colouring.balanced import striped_colouring

PATIENCE = 60
"""Pairings tried in a row without gain before giving up; a count, so that plans repeat."""
WORSE = (0, 0, 0, 1, 2)
"""How much worse an exchange may be, in quarters of the growth of a squared gap, drawn for each
pairing. This leads out of states where no single chain helps. The best colouring that was met
counts."""
_MOST_CHOICES = 20_000
"""Edges times colours above which a case is not small."""
_FEW = 5
"""Number of colours that CP-SAT divides anew at a time."""
PARTS = 20
"""Most times that CP-SAT is used."""
_EFFORT_SECONDS = 0.1
"""CP-SAT's deterministic time for each of these."""
SEED = 20
"""Seed of the pairings. Any number does if it is always the same."""


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """Flows between leaves that all count the same. Arrays have shape (flows,)."""

    left: Ints
    """Leaf that each flow leaves."""
    right: Ints
    """Leaf that each flow enters."""
    zone_left: Ints
    zone_right: Ints

    @property
    def cross(self) -> Ints:
        """Rows of the flows that leave their zone."""
        return np.flatnonzero(self.zone_left != self.zone_right)

    def take(self, rows: Ints) -> Edges:
        """Return some of the flows, in the order given."""
        columns = (self.left, self.right, self.zone_left, self.zone_right)
        return Edges(*(column[rows] for column in columns))


def even_out(edges: Edges, colour: Ints, colours: int, most: int) -> Ints:
    """Return a colouring with at most ``most`` edges of each colour out of, or into, any zone.

    Each leaf keeps the floor and the ceiling of its fair share. If ``most`` is not reached, the
    most even colouring that was met is returned.
    """
    shares = _Shares(edges, colours)
    random = np.random.default_rng(SEED)
    best, least, tries = colour, shares.unevenness(colour), 0
    while (pair := shares.too_many(colour, most, random)) is not None:
        if tries == PATIENCE:
            return _solved_by_parts(shares, best, most, random)
        colour = shares.exchange(colour, pair, random)
        found, tries = shares.unevenness(colour), tries + 1
        if found < least:
            best, least, tries = colour, found, 0
    return colour


class _Shares:
    """The number of edges of each colour that leave and enter each zone."""

    def __init__(self, edges: Edges, colours: int) -> None:
        self.edges = edges
        self.colours = colours
        self._cross = edges.cross
        ends = np.concatenate([2 * edges.zone_left, 2 * edges.zone_right + 1])
        zones, row = np.unique(ends, return_inverse=True)
        self._count = len(zones)
        self._row = row.reshape(2, -1)
        """Number of the zone that each edge leaves, and of the zone that it enters; shape (2,
        edges)."""

    def _table(self, colour: Ints) -> Ints:
        """Return the edges that leave or enter a zone, shape (zones left and entered, colours)."""
        rows, of = self._row[:, self._cross], colour[self._cross]
        code = (rows * self.colours + of).ravel()
        size = self._count * self.colours
        return np.bincount(code, minlength=size).reshape(self._count, self.colours)

    def unevenness(self, colour: Ints) -> int:
        """Return the sum over zones and colours of the squared number of edges."""
        return int((self._table(colour) ** 2).sum())

    def too_many(
        self, colour: Ints, most: int, random: np.random.Generator
    ) -> tuple[int, int] | None:
        """Return a colour that some zone has too many of, and one that it has fewest of.

        None if no zone has too many of any colour.
        """
        table = self._table(colour)
        uneven = np.flatnonzero(table.max(axis=1, initial=0) > most)
        if not len(uneven):
            return None
        row = table[random.choice(uneven)]
        fewest = np.flatnonzero(row == row.min())
        return int(random.choice(np.flatnonzero(row == row.max()))), int(random.choice(fewest))

    def exchange(self, colour: Ints, pair: tuple[int, int], random: np.random.Generator) -> Ints:
        """Exchange two colours along chains, where that makes the whole not much less even."""
        allowed = int(random.choice(WORSE))
        rows = random.permutation(np.flatnonzero((colour == pair[0]) | (colour == pair[1])))
        first = colour[rows] == pair[0]
        chain = _chains(self.edges.left[rows], self.edges.right[rows], first)
        crossing = np.isin(rows, self._cross)
        effects = self._effects(rows[crossing], chain[crossing], first[crossing])
        table = self._table(colour)
        gap = table[:, pair[0]] - table[:, pair[1]]
        turned = np.zeros(int(chain.max(initial=0)) + 1, dtype=np.bool_)
        for number, zone, by in effects:
            # A quarter of the growth of the squared gap: (gap - 2 by)^2 - gap^2.
            if int((by * (by - gap[zone])).sum()) <= allowed:
                gap[zone] -= 2 * by
                turned[number] = True
        chosen = turned[chain]
        result = colour.copy()
        result[rows[chosen]] = np.where(first[chosen], pair[1], pair[0])
        return result

    def _effects(self, rows: Ints, chain: Ints, first: Ints) -> list[tuple[int, Ints, Ints]]:
        """Return for each chain its number, zones, and the first colour's surplus in each zone."""
        sign = np.where(first, 1, -1)
        code = np.concatenate([chain * self._count + self._row[side, rows] for side in (0, 1)])
        place, inverse = np.unique(code, return_inverse=True)
        by = np.bincount(inverse, weights=np.tile(sign, 2)).astype(np.int64)
        place, by = place[by != 0], by[by != 0]
        number, zone = place // self._count, place % self._count
        edges = np.flatnonzero(np.diff(number, prepend=-1, append=-1))
        return [
            (int(number[low]), zone[low:high], by[low:high])
            for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        ]


def _solved_by_parts(shares: _Shares, colour: Ints, most: int, random: np.random.Generator) -> Ints:
    """Return the colouring with the edges of few colours divided anew, several times in a row."""
    for _ in range(PARTS):
        pair = shares.too_many(colour, most, random)
        if pair is None:
            break
        others = [c for c in random.permutation(shares.colours).tolist() if c not in pair]
        chosen = np.sort([*pair, *others[: _FEW - len(pair)]])
        rows = np.flatnonzero(np.isin(colour, chosen))
        divided = _solved(shares.edges.take(rows), len(chosen), most)
        if divided is not None:
            colour = colour.copy()
            colour[rows] = chosen[divided]
    return colour


def _solved(edges: Edges, colours: int, most: int) -> Ints | None:
    """Return a colouring fair to leaves with at most ``most`` edges a colour and zone, or None.

    None where the case is too large, or no such colouring is found in time.
    """
    count = len(edges.left)
    if count * colours > _MOST_CHOICES:
        return None
    model = cp_sat.new_model()
    takes = [[model.new_bool_var("") for _ in range(colours)] for _ in range(count)]
    for row in takes:
        model.add_exactly_one(row)
    for vertex in (edges.left, edges.right):
        for own in _by_vertex(vertex, np.arange(count)):
            for column in range(colours):
                total = sum(takes[edge][column] for edge in own)
                model.add_linear_constraint(total, len(own) // colours, -(-len(own) // colours))
    for zone in (edges.zone_left, edges.zone_right):
        for own in _by_vertex(zone, edges.cross):
            for column in range(colours):
                model.add(sum(takes[edge][column] for edge in own) <= most)
    solver = cp_sat.new_solver(_EFFORT_SECONDS)
    if not cp_sat.finds(solver, model):
        return None
    chosen = [[solver.value(v) for v in row].index(1) for row in takes]
    return np.array(chosen, dtype=np.int64)


def _by_vertex(vertex: Ints, rows: Ints) -> list[list[int]]:
    """Return the rows of each vertex that has any."""
    return [rows[vertex[rows] == value].tolist() for value in distinct(vertex[rows]).tolist()]


def _chains(left: Ints, right: Ints, first: Ints) -> Ints:
    """Return the number of each edge's chain or circle, with pairs taken in the order given."""
    count = len(left)
    links = [_pairs(side, first) for side in (left, right)]
    tails, heads = (np.concatenate(ends) for ends in zip(*links, strict=True))
    return joined_parts(tails, heads, count)


def _pairs(vertex: Ints, first: Ints) -> tuple[Ints, Ints]:
    """Pair edges of one colour with edges of the other at each vertex, as far as they go."""
    order = np.lexsort((first, vertex))
    group = np.flatnonzero(np.diff(2 * vertex[order] + first[order], prepend=-1))
    size = np.diff(group, append=len(order))
    place = np.arange(len(order)) - np.repeat(group, size)
    again = np.lexsort((place, vertex[order]))
    edge, where, turn = order[again], vertex[order][again], place[again]
    both = np.flatnonzero((where[1:] == where[:-1]) & (turn[1:] == turn[:-1]))
    return edge[both], edge[both + 1]


def colour_zones(edges: Edges, group: Ints, links: int) -> tuple[Ints, Ints]:
    """Return the colour of each flow where it goes up and where it comes down.

    ``group`` is the plane of each colour, shape (colours,). ``links`` is how many links lead from a
    spine to cores; 0 if flows have unequal rates and therefore cannot be exchanged.
    """
    plane, size = np.unique(group, return_counts=True)
    if not len(edges.cross) or size.max() == 1 or size.min() != size.max():
        colour = _by_plane(edges, len(group), links)
        return colour, colour
    chosen = _by_plane(edges, len(plane), links * int(size[0]))
    inside = _by_spine(edges, chosen, len(plane), int(size[0]))
    # Colours of one plane need not be adjacent.
    table = np.argsort(group, kind="stable").reshape(len(plane), -1)
    return table[chosen, inside[0]], table[chosen, inside[1]]


def _by_plane(edges: Edges, planes: int, links: int) -> Ints:
    if planes == 1:
        return np.zeros(len(edges.left), dtype=np.int64)
    left, right = edges.left, edges.right
    cross = edges.zone_left != edges.zone_right
    colour = np.zeros(len(left), dtype=np.int64)
    if _separable(edges, planes):
        parts = [np.flatnonzero(cross), np.flatnonzero(~cross)]
    else:
        # Flows between zones first: at every leaf they are then paired with each other.
        parts = [np.argsort(~cross, kind="stable")]
    for rows in parts:
        chosen = striped_colouring(left[rows], right[rows], planes)
        if links and cross[rows].any():
            most = _least(edges, planes * links) * links
            chosen = even_out(edges.take(rows), chosen, planes, most)
        colour[rows] = chosen
    return colour


def _least(edges: Edges, links: int) -> int:
    """Return the load of the fullest link of the fullest zone, if each zone has ``links`` links."""
    zones = (edges.zone_left[edges.cross], edges.zone_right[edges.cross])
    return -(-max(int(np.bincount(zone).max()) for zone in zones) // links)


def _by_spine(edges: Edges, plane: Ints, planes: int, spines: int) -> tuple[Ints, Ints]:
    """Return the spine within its plane where each flow goes up and where it comes down."""
    cross = edges.zone_left != edges.zone_right
    inside, between = np.flatnonzero(~cross), np.flatnonzero(cross)
    outside = int(max(edges.left.max(), edges.right.max())) + 1
    far_left, far_right = outside + edges.zone_left, outside + edges.zone_right
    # Rows: within a zone, out of it, into it. Vertices: a leaf, or all the rest, in one plane.
    rows = np.concatenate([inside, between, between])
    first = [edges.left[inside], edges.left[between], far_right[between]]
    second = [edges.right[inside], far_left[between], edges.right[between]]
    left, right = (np.concatenate(ends) * planes + plane[rows] for ends in (first, second))
    order = stable_order(rows)
    colour = np.empty(len(rows), dtype=np.int64)
    colour[order] = striped_colouring(left[order], right[order], spines)
    own, out, into = np.split(colour, [len(inside), len(inside) + len(between)])
    up, down = np.zeros_like(plane), np.zeros_like(plane)
    up[inside] = down[inside] = own
    up[between], down[between] = out, into
    return up, down


def _separable(edges: Edges, colours: int) -> bool:
    """Return whether colouring flows within and between zones separately costs no leaf anything.

    Separate colouring is better for the cores, because each zone's flows to them are then balanced.
    """
    cross = edges.zone_left != edges.zone_right
    if not cross.any() or cross.all():
        return True
    together = apart = 0
    for side in (edges.left, edges.right):
        between = np.bincount(side[cross], minlength=int(side.max()) + 1)
        within = np.bincount(side[~cross], minlength=int(side.max()) + 1)
        together = max(together, int((-(-(between + within) // colours)).max()))
        apart = max(apart, int((-(-between // colours) + -(-within // colours)).max()))
    return apart <= together
