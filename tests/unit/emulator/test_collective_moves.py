"""What collectives move: every byte is accounted for, by rank and by NIC."""

from __future__ import annotations

import numpy as np
import pytest

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.errors import InputError
from heddle_emulator.traffic import collective
from heddle_emulator.traffic.moves import Moves, Ranks

HOSTS, GPUS = 6, 4
WORLD = np.arange(HOSTS * GPUS)[None, :]
RANKS = Ranks(np.arange(HOSTS * GPUS) // GPUS)
RAILS = Ranks(RANKS.hosts, np.tile(np.arange(GPUS), HOSTS))


def _between(moves: Moves) -> Ints:
    """Return the rows of moves that leave their host."""
    return np.flatnonzero(moves.source // GPUS != moves.destination // GPUS)


def _by_rank(rank: Ints, amount: Floats) -> Floats:
    return np.bincount(rank, amount, minlength=WORLD.size).astype(np.float64)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_ring_uses_every_nic_alike(rounds: int) -> None:
    """Each NIC sends and gets its channel's part. Each GPU passes all of it on over NVLink."""
    found = collective.ring_all_gather if rounds == 1 else collective.ring_all_reduce
    moves = found(WORLD, RANKS, 960.0)
    wire = _between(moves)
    whole = rounds * 960.0 * (WORLD.size - 1) / WORLD.size
    assert len(moves) == GPUS
    assert set(moves.steps.tolist()) == {rounds * (HOSTS - 1)}
    for side in (moves.source, moves.destination):
        assert _by_rank(side[wire], moves.bytes[wire]) == pytest.approx(whole / GPUS)
    inside = np.setdiff1d(np.arange(len(moves.bytes)), wire)
    sent = _by_rank(moves.source[inside], moves.bytes[inside]).reshape(HOSTS, GPUS)
    assert sent[:, :-1] == pytest.approx(whole)
    assert (sent[:, -1] == 0).all()


@pytest.mark.parametrize("hosts", [2, 3, 6, 7, 16])
def test_a_tree_hands_everyone_all_but_his_own(hosts: int) -> None:
    """In an all-gather with one GPU a host, every host gets all parts except its own."""
    groups = np.arange(hosts)[None, :]
    moves = collective.tree_all_gather(groups, Ranks(np.arange(hosts)), float(hosts))
    got = np.bincount(moves.destination, moves.bytes, minlength=hosts)
    sent = np.bincount(moves.source, moves.bytes, minlength=hosts)
    assert got == pytest.approx(hosts - 1.0)
    assert sent.sum() == pytest.approx(hosts * (hosts - 1.0))


def test_a_tree_all_reduce_is_up_and_down_by_halves() -> None:
    """Each edge of both trees carries half of the channel's data each way."""
    moves = collective.tree_all_reduce(WORLD, RANKS, 960.0)
    wire = _between(moves)
    assert set(moves.bytes[wire].tolist()) == {960.0 / GPUS / 2}
    assert len(wire) == GPUS * 2 * 2 * (HOSTS - 1)


def test_groups_on_one_host_stay_there() -> None:
    """Groups within a host need no fabric, and each has one line in its host."""
    groups = np.arange(HOSTS * GPUS).reshape(HOSTS, GPUS)
    for algorithm in (collective.ring_all_reduce, collective.tree_all_reduce):
        moves = algorithm(groups, RANKS, 8.0)
        assert len(moves) == HOSTS
        assert not len(_between(moves))


def test_groups_of_unlike_hosts_each_get_their_lines() -> None:
    """One group is on one host and one on two. Each line carries its own group's part."""
    groups = np.array([[0, 1, 2, 3], [4, 5, 8, 9]])
    moves = collective.ring_all_gather(groups, RANKS, 4.0)
    wire = _between(moves)
    assert len(moves) == 3
    assert sorted(moves.source[wire].tolist()) == [4, 5, 8, 9]
    assert moves.bytes[wire] == pytest.approx(1.5)


def test_halving_doubling_waits_for_its_partner() -> None:
    """Eight ranks take six steps: halves, quarters, eighths and back, one after the other."""
    moves = collective.halving_doubling(np.arange(8)[None, :], Ranks(np.arange(8)), 8.0)
    assert len(moves) == 48
    assert np.bincount(moves.source, moves.bytes) == pytest.approx(2 * 8.0 * 7 / 8)
    assert moves.bytes.reshape(6, 8)[:, 0].tolist() == [4.0, 2.0, 1.0, 1.0, 2.0, 4.0]
    for before, after in zip(moves.before.tolist(), moves.after.tolist(), strict=True):
        assert after // 8 == before // 8 + 1
        assert moves.source[after] in {moves.source[before], moves.destination[before]}
    assert len(moves.before) == 2 * 5 * 8


def test_halving_doubling_needs_a_power_of_two() -> None:
    """Another number of ranks is refused."""
    with pytest.raises(InputError, match="not 24"):
        collective.halving_doubling(WORLD, RANKS, 8.0)


def test_pxn_stays_on_the_rail_and_loses_nothing() -> None:
    """Only equal rails talk between hosts, and every rank gets what it gets without PXN."""
    plain = collective.all_to_all(WORLD, RANKS, 24.0)
    relayed = collective.all_to_all(WORLD, RAILS, 24.0)
    wire, before = _between(relayed), _between(plain)
    assert (relayed.source[wire] % GPUS == relayed.destination[wire] % GPUS).all()
    assert _by_rank(relayed.destination[wire], relayed.bytes[wire]) == pytest.approx(
        _by_rank(plain.destination[before], plain.bytes[before])
    )
    # NVLink brings what is not on its rail yet to it: 3 of 4 parts, from each of 4 GPUs.
    extra = relayed.bytes.sum() - plain.bytes.sum()
    assert extra == pytest.approx(plain.bytes[before].sum() * (GPUS - 1) / GPUS)
    assert len(wire) == HOSTS * GPUS * (HOSTS - 1)


def test_all_to_all_v_sends_what_it_is_told() -> None:
    """Zeros make no move, and all other sizes are those of the matrix."""
    sizes = np.random.default_rng(3).integers(0, 3, (24, 24)).astype(float)
    moves = collective.all_to_all_v(WORLD, RANKS, sizes)
    found = np.zeros((24, 24))
    found[moves.source, moves.destination] = moves.bytes
    np.fill_diagonal(sizes, 0.0)
    assert (found == sizes).all()
    assert (moves.bytes > 0).all()


def test_stages_hand_on_and_back() -> None:
    """``hand_on`` sends both ways between pipeline stages.

    ``send_on`` sends round, once a stage.
    """
    stages = np.arange(0, 24, 4)[None, :]
    moves = collective.hand_on(stages, RANKS, 5.0)
    assert np.bincount(moves.source, moves.bytes)[::4].tolist() == [5, 10, 10, 10, 10, 5]
    assert len(collective.send_on(stages, RANKS, 5.0)) == 6


def test_a_mesh_all_reduce_adds_up_before_it_hands_out() -> None:
    """Each sum waits for all parts, and is sent afterwards. Both halves move the same amount."""
    moves = collective.mesh_all_reduce(WORLD, RANKS, 24.0)
    ranks, sends = WORLD.size, WORLD.size * (WORLD.size - 1)
    assert len(moves) == 2 * sends + ranks
    assert _by_rank(moves.source, moves.bytes) == pytest.approx(2.0 * (ranks - 1))
    for before, after in zip(moves.before.tolist(), moves.after.tolist(), strict=True):
        if before < sends:
            assert after - 2 * sends == moves.destination[before]
        else:
            assert before - 2 * sends == moves.source[after]
    assert np.bincount(moves.after, minlength=len(moves))[2 * sends :].tolist() == [ranks - 1] * 24


def test_a_tree_broadcast_reaches_everyone_by_halves() -> None:
    """Every host but the first gets half of the data over each of two trees."""
    moves = collective.tree_broadcast(np.arange(7)[None, :], Ranks(np.arange(7)), 10.0)
    assert _by_rank(moves.destination, moves.bytes)[:7].tolist() == [0.0, *[10.0] * 6]


def test_skewed_experts_get_three_times_as_much() -> None:
    """A rank sends the size in total, itself included.

    Every eighth rank gets three times as much.
    """
    moves = collective.all_to_all_skewed(WORLD, RANKS, 60.0)
    got = _by_rank(moves.destination, moves.bytes)
    assert got[0] == pytest.approx(3 * got[1])
    assert moves.bytes.max() == pytest.approx(3 * 60.0 / 30)
