"""The linear relaxation solved in one go, from coarse to fine."""

from __future__ import annotations

from heddle_controller.model.arrays import Floats
from heddle_controller.solve.bounds.relaxation import FRESH, Descent, Relaxation
from heddle_controller.solve.commodities import Commodities
from heddle_controller.solve.network import Network
from heddle_controller.solve.options import Deadline


def relax(
    network: Network, commodities: Commodities, scale: Floats, deadline: Deadline
) -> Relaxation:
    """Solve it. ``scale`` is each tier's proven least, shape (tiers,)."""
    descent = Descent(network, commodities, scale)
    descent.refine(FRESH, deadline)
    return descent.relaxation()
