"""Two binary trees over the same members, so that none does the inner work twice.

In one binary tree half of the members are leaves and only receive, while inner
members send everything twice: half of the bandwidth lies idle. Two trees that
each carry half of the data, in which the inner members of one are leaves of the
other, use it all (Sanders, Speck, Träff 2009). Member 0 stands above both.

The first tree is the in-order tree on positions 1 to n: the level of a position
is the number of its trailing zero bits, so odd positions are leaves. The second
is the first with every position moved on by one, round the end.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Ints

ROOT = 0
"""Stands above both trees; as a parent in ``_in_order`` it means "none"."""


def double_tree(members: int) -> tuple[Ints, Ints]:
    """Parent and child of each edge of both trees over ``members`` members.

    Members are 0 to ``members - 1``, each but 0 a child once in each tree, so both
    arrays have shape (2 x (members - 1),): the first tree's edges, then the second's.
    """
    inner = members - 1
    child = np.arange(1, members, dtype=np.int64)
    parent = _in_order(child, inner)
    parents = np.concatenate([parent, _moved_on(parent, inner)])
    return parents, np.concatenate([child, _moved_on(child, inner)])


def _in_order(places: Ints, inner: int) -> Ints:
    """Parents of positions in the in-order tree on 1 to ``inner``; ROOT for its top."""
    parent = places
    low = parent & -parent
    outside = np.ones(len(places), dtype=np.bool_)
    while outside.any():
        parent = np.where(outside, (parent ^ low) | low << 1, parent)
        parent = np.where(outside & (low > inner), ROOT, parent)
        low = parent & -parent
        outside = parent > inner
    return parent


def _moved_on(places: Ints, inner: int) -> Ints:
    return np.where(places == ROOT, ROOT, places % max(inner, 1) + 1)
