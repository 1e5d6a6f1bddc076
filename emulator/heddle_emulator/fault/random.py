"""What breaks, drawn from a seed."""

from __future__ import annotations

import numpy as np

from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Bools, Fabric, State


def draw_link(fabric: Fabric, among: Bools, seed: int) -> int:
    """A link that is up, among those marked (shape (links,)), the same for the same seed.

    Raises:
        InputError: none of those marked is up.
    """
    rows = np.flatnonzero(among & (fabric.effective == State.UP))
    if not len(rows):
        raise refuse("fault", "link", "none of those to choose from is up")
    return int(np.random.default_rng(seed).choice(rows))
