"""Which ranks send to which, for each pattern of a collective."""

from __future__ import annotations

import numpy as np
import pytest

from heddle_controller.model.arrays import Ints
from heddle_controller.traffic import patterns
from heddle_controller.traffic.patterns import Layout, RankPairs, channels, double_tree


def _pairs(hops: RankPairs) -> set[tuple[int, int]]:
    found = list(zip(hops[0].tolist(), hops[1].tolist(), strict=True))
    assert len(found) == len(set(found))
    return set(found)


def _even(gpus: int) -> Ints:
    """The host of each of 32 ranks, with ``gpus`` ranks on each host."""
    return np.arange(32) // gpus


def _groups(*rows: list[int]) -> Ints:
    return np.array(rows, dtype=np.int64)


def test_ring_of_one_member_a_host_stays_on_its_rail() -> None:
    """Local rank 3 of four hosts: each sends to local rank 3 of the next host."""
    found = _pairs(patterns.ring(_groups([3, 11, 19, 27]), Layout(_even(8))))
    assert found == {(3, 11), (11, 19), (19, 27), (27, 3)}


def test_ring_has_a_channel_for_each_member_of_a_host() -> None:
    """Two members on each of two hosts: both NICs of each host carry one ring."""
    assert _pairs(patterns.ring(_groups([0, 2, 8, 10]), Layout(_even(8)))) == {
        (0, 8),
        (8, 0),
        (2, 10),
        (10, 2),
    }


def test_channels_are_as_many_as_the_poorest_host_has_members() -> None:
    """Three members on one host and one on the next share a single channel."""
    assert [line.tolist() for line in channels(_groups([5, 6, 7, 8]), _even(8))] == [[[5, 8]]]


def test_groups_of_different_spread_are_kept_apart() -> None:
    """Groups of 3 on 2-GPU hosts straddle two or three hosts and still find their channels."""
    lines = channels(_groups([0, 1, 2], [3, 4, 5], [6, 8, 10]), _even(2))
    assert sorted(row for line in lines for row in line.tolist()) == [[0, 2], [3, 4], [6, 8, 10]]


def test_group_inside_a_host_makes_no_hop() -> None:
    """A group inside one host makes no hop in any pattern, since NVLink carries it."""
    inside = _groups([0, 1, 2, 3])
    for pattern in (
        patterns.ring,
        patterns.chain,
        patterns.tree_down,
        patterns.tree_both,
        patterns.pairwise,
        patterns.neighbours,
        patterns.pass_round,
    ):
        assert _pairs(pattern(inside, Layout(_even(4)))) == set()


def test_chain_does_not_close() -> None:
    """A broadcast goes from the first host to the last and not back."""
    assert _pairs(patterns.chain(_groups([0, 1, 2, 3]), Layout(_even(1)))) == {
        (0, 1),
        (1, 2),
        (2, 3),
    }


def test_stages_talk_to_neighbours_both_ways() -> None:
    """Activations go forward, gradients back; the last stage is no neighbour of the first."""
    found = _pairs(patterns.neighbours(_groups([0, 1, 2]), Layout(_even(1))))
    assert found == {(0, 1), (1, 2), (1, 0), (2, 1)}


def test_interleaved_stages_close_the_circle() -> None:
    """With RING the last stage also feeds the first."""
    found = _pairs(patterns.neighbours_round(_groups([0, 1, 2]), Layout(_even(1))))
    assert found == {(0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2)}


def test_pairwise_is_everybody_to_everybody_on_other_hosts() -> None:
    """Every member has as partners all members on other hosts."""
    found = _pairs(patterns.pairwise(_groups([0, 1, 2, 3]), Layout(_even(2))))
    assert found == {(a, b) for a in range(4) for b in range(4) if a // 2 != b // 2}


def test_pxn_sends_from_the_destinations_rail() -> None:
    """With rails on, a hop leaves by the NIC of the sender's host that shares the rail."""
    rail = np.array([0, 1, 0, 1])
    source, destination = patterns.pairwise(_groups([0, 1, 2, 3]), Layout(_even(2), rail))
    assert (rail[source] == rail[destination]).all()
    assert set(zip(source.tolist(), destination.tolist(), strict=True)) == {
        (0, 2),
        (1, 3),
        (2, 0),
        (3, 1),
    }


def test_pxn_leaves_alone_what_it_cannot_help() -> None:
    """PXN changes nothing if no NIC of the host is on the destination's rail, or if it has none."""
    rail = np.array([0, 1, 2, -1])
    source, destination = patterns.pairwise(_groups([0, 3], [1, 2]), Layout(_even(2), rail))
    assert set(zip(source.tolist(), destination.tolist(), strict=True)) == {
        (0, 3),
        (3, 0),
        (1, 2),
        (2, 1),
    }


@pytest.mark.parametrize("members", [2, 3, 4, 5, 8, 13, 64])
def test_double_tree_reaches_all_and_shares_the_work(members: int) -> None:
    """Each tree joins all to 0 with at most two children; only 0 has children in both."""
    parent, child = double_tree(members)
    inner = []
    for tree in (slice(0, members - 1), slice(members - 1, None)):
        above = dict(zip(child[tree].tolist(), parent[tree].tolist(), strict=True))
        assert set(above) == set(range(1, members))
        for member in above:
            place, steps = member, 0
            while place != 0:
                place, steps = above[place], steps + 1
            assert steps <= members.bit_length() + 1
        children = np.bincount(parent[tree], minlength=members)
        assert children.max() <= 2
        inner.append(set(np.flatnonzero(children).tolist()) - {0})
    assert not inner[0] & inner[1]


def test_tree_all_reduce_goes_both_ways() -> None:
    """A tree all-reduce sends up and down every edge of the trees."""
    found = _pairs(patterns.tree_down(_groups([0, 1, 2, 3]), Layout(_even(1))))
    both = set(
        zip(*map(list, patterns.tree_both(_groups([0, 1, 2, 3]), Layout(_even(1)))), strict=True)
    )
    assert both == found | {(b, a) for a, b in found}
