"""Edge colouring where some vertices lack colours: damaged fabrics.

An equitable colouring comes first, as if nothing was missing. Edges whose colour is missing at an
end, or has less room there than the others, change it. Where no colour has room at both ends, one
that has at the left end is taken, and an alternating chain of it and one with room at the right end
makes room there (Kempe): the shortest, found breadth first, as a vertex has several edges of a
colour. A little room goes a long way: each edge of a chain has as many continuations. Where chains
find none, the colour is taken that is least too full.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints, stable_order, starts
from heddle_controller.solve.colouring.balanced import equitable_colouring

_MOST_LOOKED_AT = 400
"""Edges looked at for one chain."""
_MOST_PAIRS = 12
"""Pairs of colours tried for one edge."""
_EFFORT = 300
"""Edges looked at in all, for each that has to change its colour."""
_CLOSE = 1e-9


def colour_around_holes(left: Ints, right: Ints, width: tuple[Floats, Floats], line: float) -> Ints:
    """A colour for each edge ``left[i] - right[i]``; ``NONE`` where its ends share none.

    Args:
        left: Vertices, integers from 0.
        right: The same on the other side, of numbers of their own.
        width: Of each vertex by colour, for either side, in proportion: 0 for a colour that is
            missing there, 1 for a whole one; shapes (vertices, colours).
        line: Edges that a whole colour has room for, beyond which it is too full.
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
    """One side of the graph; lists are by vertex and colour, vertex by vertex."""

    vertex: list[int]
    """Vertex of each edge."""
    colours: int
    count: list[int]
    """Edges of a colour at a vertex."""
    room: list[int]
    """Edges up to which that is not too full."""
    most: list[int]
    """An even share of all edges at the vertex, where that is more."""
    spare: list[int]
    """Room that all vertices together have left, by colour."""
    order: list[int]
    """Edges by vertex and colour, as they were at first."""
    first: list[int]
    """Where those of each vertex and colour begin."""
    changed: dict[int, list[int]]
    """Edges of a vertex and colour as they are now, where that was asked for."""

    @classmethod
    def of(cls, vertex: Ints, colour: Ints, wide: Floats, line: float) -> _Side:
        """``wide`` and ``line`` are as ``colour_around_holes`` has them."""
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
        """Place of a colour at the vertex of an edge."""
        return self.vertex[edge] * self.colours + colour

    def members(self, place: int) -> list[int]:
        """The edges of a vertex and colour; to be changed by ``move`` alone."""
        found = self.changed.get(place)
        if found is None:
            found = self.order[self.first[place] : self.first[place + 1]]
            self.changed[place] = found
        return found

    def add(self, edge: int, colour: int) -> None:
        """Gives an edge a colour."""
        place = self.at(edge, colour)
        self.members(place).append(edge)
        if self.count[place] < self.room[place]:
            self.spare[colour] -= 1
        self.count[place] += 1

    def remove(self, edge: int, colour: int) -> None:
        """Takes an edge its colour."""
        place = self.at(edge, colour)
        self.members(place).remove(edge)
        self.count[place] -= 1
        if self.count[place] < self.room[place]:
            self.spare[colour] += 1

    def free(self, edge: int, limit: list[int]) -> list[int]:
        """Colours with less than a limit at the vertex of an edge, least full first."""
        low = self.vertex[edge] * self.colours
        count = self.count[low : low + self.colours]
        found = [c for c in range(self.colours) if count[c] < limit[low + c]]
        found.sort(key=count.__getitem__)
        return found


class _Chains:
    """Edges being coloured anew."""

    def __init__(self, colour: Ints, sides: tuple[_Side, _Side]) -> None:
        self._colour: list[int] = colour.tolist()
        self._sides = sides
        self._effort = 0

    def settled(self) -> Ints:
        """The colours, with those changed that had to; ``NONE`` where there is none."""
        loose = self._loose()
        self._effort = _EFFORT * len(loose)
        for edge in loose:
            self._settle(edge)
        return np.array(self._colour, dtype=np.int64)

    def _loose(self) -> list[int]:
        """Takes edges their colours where a vertex has more of one than its share."""
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
        """Gives an edge without a colour the one that makes vertices least too full."""
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
        """How much too full an edge would make its vertices, and how full."""
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
        """Takes a colour that is free at one end, where a chain makes it so at the other."""
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
        """The shortest chain that frees a colour at a vertex: edges, from there; none if none.

        They are of the colour and of the one instead, in turns.
        """
        colours = self._sides[0].colours
        pair = colour, instead
        seen = {(side, vertex)}
        queue: list[tuple[int, int, int]] = []
        """Edges to be changed, each with the place of the one before, and how many are before."""
        looked = 0

        def expand(at: int, which: int, turn: int, before: int) -> list[int]:
            """Looks at edges of a vertex; the chain, if one of them ends it."""
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
        """Changes the edges of a chain."""
        pair = colour, instead
        for turn, edge in enumerate(chain):
            for side in self._sides:
                side.remove(edge, pair[turn % 2])
            self._take(edge, pair[1 - turn % 2])
