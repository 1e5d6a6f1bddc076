"""Edge colouring where some vertices lack colours, for damaged fabrics.

First comes an equitable colouring as if nothing was missing. Edges whose colour is missing at an
end, or has less room there than the others, change it. Where no colour has room at both ends, the
edge takes one with room at the left end, and an alternating chain (Kempe) of this colour and one
with room at the right end makes room there, or the other way round. The shortest chain is found
breadth first, since a vertex has several edges of a colour. A little room helps much, because each
edge of a chain has many continuations. Where chains find none, the edge takes the colour that is
least too full.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints, stable_order, starts
from heddle_controller.solve.colouring.balanced import equitable_colouring

_MOST_LOOKED_AT = 400
"""Most edges looked at for one chain."""
_MOST_PAIRS = 12
"""Most pairs of colours tried for one edge."""
_EFFORT = 300
"""Most edges looked at in all, for each edge that has to change its colour."""
_CLOSE = 1e-9


def colour_around_holes(left: Ints, right: Ints, width: tuple[Floats, Floats], line: float) -> Ints:
    """Return a colour for each edge ``left[i] - right[i]``; ``NONE`` if its ends share none.

    Args:
        left: Vertices, integers from 0.
        right: Vertices of the other side, numbered separately.
        width: Relative width of each colour at each vertex, for either side: 0 for a colour that is
            missing there, 1 for a whole one; shapes (vertices, colours).
        line: Number of edges that a whole colour has room for. With more it is too full.
    """
    some = np.flatnonzero((width[0] > 0).any(axis=0) & (width[1] > 0).any(axis=0))
    if not len(some) or not len(left):
        return np.full(len(left), NONE, dtype=np.int64)
    colour = equitable_colouring(left, right, len(some))
    first, second = (
        _Side.of(vertex, colour, wide[:, some], line)
        for vertex, wide in zip((left, right), width, strict=True)
    )
    return np.append(some, NONE)[_Chains(colour, (first, second)).settled()]


@dataclass(slots=True, eq=False)
class _Side:
    """One side of the graph. Lists are by vertex and colour, vertex by vertex."""

    vertex: list[int]
    """Vertex of each edge, shape (edges,)."""
    colours: int
    count: list[int]
    """Number of edges with a colour at a vertex."""
    room: list[int]
    """Number of edges up to which a colour is not too full: its even share, but at most its
    line."""
    most: list[int]
    """Even share of the vertex's edges, rounded up; 0 for a missing colour."""
    spare: list[int]
    """Room left at all vertices together, by colour."""
    order: list[int]
    """Edges by vertex and colour, as they were at first."""
    first: list[int]
    """Where the edges of each vertex and colour begin in ``order``."""
    changed: dict[int, list[int]]
    """Current edges of a vertex and colour, once they were looked up."""

    @classmethod
    def of(cls, vertex: Ints, colour: Ints, wide: Floats, line: float) -> _Side:
        """Return a side. ``wide`` and ``line`` are as in ``colour_around_holes``."""
        vertices, colours = wide.shape
        code = vertex * colours + colour
        count = np.bincount(code, minlength=wide.size)
        whole = np.maximum(wide.sum(axis=1, keepdims=True), _CLOSE)
        degree = np.bincount(vertex, minlength=vertices)[:, None]
        most = np.ceil(degree * wide / whole - _CLOSE).astype(np.int64)
        room = np.minimum(most, np.floor(line * wide + _CLOSE).astype(np.int64))
        spare = np.maximum(room - count.reshape(wide.shape), 0).sum(axis=0)
        return cls(
            vertex.tolist(),
            colours,
            count.tolist(),
            room.ravel().tolist(),
            most.ravel().tolist(),
            spare.tolist(),
            stable_order(code).tolist(),
            starts(count).tolist(),
            {},
        )

    def at(self, edge: int, colour: int) -> int:
        """Return the place of a colour at the vertex of an edge."""
        return self.vertex[edge] * self.colours + colour

    def members(self, place: int) -> list[int]:
        """Return the edges of a vertex and colour. Only ``add`` and ``remove`` change the list."""
        found = self.changed.get(place)
        if found is None:
            found = self.order[self.first[place] : self.first[place + 1]]
            self.changed[place] = found
        return found

    def add(self, edge: int, colour: int) -> None:
        """Give an edge a colour."""
        place = self.at(edge, colour)
        self.members(place).append(edge)
        if self.count[place] < self.room[place]:
            self.spare[colour] -= 1
        self.count[place] += 1

    def remove(self, edge: int, colour: int) -> None:
        """Remove the colour of an edge."""
        place = self.at(edge, colour)
        self.members(place).remove(edge)
        self.count[place] -= 1
        if self.count[place] < self.room[place]:
            self.spare[colour] += 1

    def free(self, edge: int, limit: list[int]) -> list[int]:
        """Return the colours below ``limit`` at the vertex of an edge, least full first."""
        low = self.vertex[edge] * self.colours
        count = self.count[low : low + self.colours]
        found = [c for c in range(self.colours) if count[c] < limit[low + c]]
        found.sort(key=count.__getitem__)
        return found


class _Chains:
    """Edges that are being coloured anew."""

    def __init__(self, colour: Ints, sides: tuple[_Side, _Side]) -> None:
        self._colour: list[int] = colour.tolist()
        self._sides = sides
        self._effort = 0

    def settled(self) -> Ints:
        """Return the colours, after necessary changes; ``NONE`` for edges without one."""
        loose = self._loose()
        self._effort = _EFFORT * len(loose)
        for edge in loose:
            self._settle(edge)
        return np.array(self._colour, dtype=np.int64)

    def _loose(self) -> list[int]:
        """Uncolour edges where a vertex has too many of a colour, and return these edges."""
        loose: dict[int, None] = {}
        for side in self._sides:
            over = np.array(side.count) - np.array(side.most)
            for place in np.flatnonzero(over > 0).tolist():
                own = [edge for edge in side.members(place) if edge not in loose]
                extra = len(own) - side.most[place]
                loose |= dict.fromkeys(own[-extra:] if extra > 0 else [])
        for edge in loose:
            for side in self._sides:
                side.remove(edge, self._colour[edge])
            self._colour[edge] = NONE
        return [*loose]

    def _settle(self, edge: int) -> None:
        """Give an edge without a colour the one that makes its vertices least too full."""
        left, right = self._sides
        for one, other in (
            (left.room, right.room),
            (left.most, right.room),
            (left.room, right.most),
            (left.most, right.most),
        ):
            free = left.free(edge, one), right.free(edge, other)
            both = set(free[1])
            for colour in free[0]:
                if colour in both:
                    self._take(edge, colour)
                    return
            if self._make_room(edge, free):
                return
        open_ = [
            colour
            for colour in range(left.colours)
            if left.most[left.at(edge, colour)] and right.most[right.at(edge, colour)]
        ]
        if open_:
            self._take(edge, min(open_, key=lambda colour: self._excess(edge, colour)))

    def _excess(self, edge: int, colour: int) -> tuple[int, int]:
        """Return how much too full a colour makes an edge's vertices, and how full they are."""
        over = full = 0
        for side in self._sides:
            place = side.at(edge, colour)
            over += max(side.count[place] + 1 - side.most[place], 0)
            full += side.count[place]
        return over, full

    def _take(self, edge: int, colour: int) -> None:
        for side in self._sides:
            side.add(edge, colour)
        self._colour[edge] = colour

    def _make_room(self, edge: int, free: tuple[list[int], list[int]]) -> bool:
        """Give an edge a colour that is free at one end, if a chain frees it at the other end."""
        pairs = 0
        for near, far in ((0, 1), (1, 0)):
            here, there = self._sides[near], self._sides[far]
            for colour in free[near]:
                if not there.most[there.at(edge, colour)]:
                    continue
                for instead in free[far]:
                    if not here.spare[instead] and not there.spare[colour]:
                        continue
                    pairs += 1
                    if pairs > _MOST_PAIRS or self._effort <= 0:
                        return False
                    chain = self._chain(there.vertex[edge], far, colour, instead)
                    if chain:
                        self._carry_out(chain, colour, instead)
                        self._take(edge, colour)
                        return True
        return False

    def _chain(self, vertex: int, side: int, colour: int, instead: int) -> list[int]:
        """Return the edges of the shortest chain that frees a colour at a vertex; empty if none.

        The edges begin at the vertex and have ``colour`` and ``instead`` alternately.
        """
        colours = self._sides[0].colours
        pair = colour, instead
        seen = {(side, vertex)}
        queue: list[tuple[int, int, int]] = []
        """Edges to be changed, each with the index of its predecessor, and its depth."""
        looked = 0

        def expand(at: int, which: int, turn: int, before: int) -> list[int]:
            """Look at edges of a vertex; return the chain if one completes it, else []."""
            nonlocal looked
            own, other = self._sides[which], self._sides[1 - which]
            for edge in own.members(at * colours + pair[turn % 2]):
                looked += 1
                end = other.vertex[edge]
                place = end * colours + pair[1 - turn % 2]
                if other.count[place] < other.room[place]:
                    chain = [edge]
                    while before >= 0:
                        chain.append(queue[before][0])
                        before = queue[before][1]
                    return chain[::-1]
                if other.most[place] and (1 - which, end) not in seen:
                    seen.add((1 - which, end))
                    queue.append((edge, before, turn))
            return []

        found = expand(vertex, side, 0, NONE)
        at = 0
        while not found and at < len(queue) and looked < _MOST_LOOKED_AT:
            edge, _, turn = queue[at]
            which = (side + turn + 1) % 2
            found = expand(self._sides[which].vertex[edge], which, turn + 1, at)
            at += 1
        self._effort -= looked
        return found

    def _carry_out(self, chain: list[int], colour: int, instead: int) -> None:
        """Exchange the two colours along a chain."""
        pair = colour, instead
        for turn, edge in enumerate(chain):
            for side in self._sides:
                side.remove(edge, pair[turn % 2])
            self._take(edge, pair[1 - turn % 2])
