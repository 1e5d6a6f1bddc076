"""Edge colouring around missing colours."""

from __future__ import annotations

import numpy as np
import pytest

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints
from heddle_controller.solve.colouring.holes import colour_around_holes


def tallies(vertex: Ints, colour: Ints, shape: tuple[int, ...]) -> Ints:
    """The number of edges of each vertex by colour."""
    count = np.bincount(vertex * shape[1] + colour, minlength=int(np.prod(shape)))
    return count.reshape(shape)


def drawn(seed: int, *, spare: int) -> tuple[Ints, Ints, Floats]:
    """Edges between two sides of 48 vertices, and the width of each colour at each vertex.

    Each vertex has ``spare`` edges less than 8 of each of 64 colours; 1 % of the colours are
    missing.
    """
    random = np.random.default_rng(seed)
    left = np.tile(np.arange(48), 512 - spare)
    right = np.concatenate([random.permutation(48) for _ in range(512 - spare)])
    wide = (random.random((48, 64)) > 0.01).astype(np.float64)
    return left, right, wide


@pytest.mark.parametrize("seed", range(3))
def test_with_a_little_room_no_vertex_has_too_many_of_a_colour(seed: int) -> None:
    """With room for a twentieth more edges at each vertex, none has too many of a colour."""
    left, right, wide = drawn(seed, spare=24)
    colour = colour_around_holes(left, right, (wide, wide), 8.0)
    for side in (left, right):
        used = tallies(side, colour, wide.shape)
        degree = np.bincount(side)[:, None]
        most = np.maximum(8, -(-degree // wide.sum(axis=1, keepdims=True)))
        assert (used <= most * wide).all()


def test_without_room_few_vertices_have_one_more() -> None:
    """Without room, vertices that miss a colour have one more of some others.

    The excess is at most twice what is missing, and no vertex gets a colour that it misses.
    """
    left, right, wide = drawn(0, spare=0)
    colour = colour_around_holes(left, right, (wide, wide), 8.0)
    over = [np.maximum(tallies(side, colour, wide.shape) - 8, 0) for side in (left, right)]
    missing = 8 * int((wide == 0).sum())
    assert all(int(side.max()) == 1 for side in over)
    assert all(missing <= int(side.sum()) <= 2 * missing for side in over)
    assert all((tallies(side, colour, wide.shape)[wide == 0] == 0).all() for side in (left, right))


def test_half_of_a_colour_takes_half_as_many() -> None:
    """A vertex with half of the cables of a colour gets half as many of it as of others."""
    left, right = np.zeros(14, dtype=np.int64), np.arange(14)
    wide = np.array([[1.0, 1.0, 1.0, 0.5]]), np.ones((14, 4))
    colour = colour_around_holes(left, right, wide, 4.0)
    assert sorted(np.bincount(colour, minlength=4).tolist()) == [2, 4, 4, 4]
    assert np.count_nonzero(colour == 3) == 2


def test_ends_that_share_no_colour_get_none() -> None:
    """An edge whose ends share no colour gets none, and edges beside it are still coloured."""
    apart: Bools = np.array([[True, False], [True, True]])
    other: Bools = np.array([[False, True], [True, True]])
    wide = apart.astype(np.float64), other.astype(np.float64)
    left, right = np.array([0, 0, 1]), np.array([0, 1, 0])
    assert colour_around_holes(left, right, wide, 1.0).tolist() == [NONE, 0, 1]


def test_equal_input_gives_equal_output() -> None:
    """Equal input gives equal colours, because chains are searched in a fixed order."""
    left, right, wide = drawn(1, spare=8)
    first, second = (colour_around_holes(left, right, (wide, wide), 8.0) for _ in range(2))
    assert first.tolist() == second.tolist()
