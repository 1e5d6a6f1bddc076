"""PXN: over NVSwitch first, to the GPU beside that sits on the destination's rail.

What several GPUs of a host send to one NIC then leaves together, by one NIC and on one
rail, so that on a rail-optimised fabric it passes a single leaf.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Ints
from heddle_emulator.traffic.moves import Moves, Ranks


def relayed(moves: Moves, ranks: Ranks, rail: Ints) -> Moves:
    """Moves that each are an activity, with those between hosts relayed and put together.

    An activity of the answer is all that one relay sends one rank, and what brings it
    to the relay; the two go in step.
    """
    apart = ranks.host(moves.source) != ranks.host(moves.destination)
    relay = np.where(apart, _relay(moves, ranks, rail), moves.source)
    width = int(moves.destination.max(initial=0)) + 1
    codes, activity = np.unique(relay * width + moves.destination, return_inverse=True)
    together = np.bincount(activity, weights=moves.bytes, minlength=len(codes))
    brought: Bools = relay != moves.source
    none = np.empty(0, dtype=np.int64)
    return Moves(
        np.ones(len(codes), dtype=np.int64),
        np.concatenate([np.arange(len(codes)), activity[brought]]).astype(np.int64),
        np.concatenate([codes // width, moves.source[brought]]),
        np.concatenate([codes % width, relay[brought]]),
        np.concatenate([together, moves.bytes[brought]]),
        none,
        none,
    )


def _relay(moves: Moves, ranks: Ranks, rail: Ints) -> Ints:
    """The least rank beside each source on the destination's rail, or the source itself."""
    per_host = ranks.gpus_per_host
    beside = rail.reshape(-1, per_host)[ranks.host(moves.source)]
    same = (beside == rail[moves.destination][:, None]) & (beside != NONE)
    first = ranks.host(moves.source) * per_host + same.argmax(axis=1)
    own = ~same.any(axis=1) | (rail[moves.source] == rail[moves.destination])
    return np.where(own, moves.source, first)
