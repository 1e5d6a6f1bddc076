"""A proven lower bound, and by what it was proven."""

from __future__ import annotations

from dataclasses import dataclass

from heddle_controller.model.fabric import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """No assignment of the same flows has a worst arc below this."""

    tiers: Floats
    """Least worst utilisation of each tier, shape (tiers,)."""
    overall: float
    """Least worst utilisation of any arc."""
    proof: str
    """"cut" or "lp"."""
    arcs: Floats | None = None
    """Where an arc need not be below: what is proven of the switches and zones that it
    leaves or enters, shape (arcs + 1,), infinite for the padding. A tier's bound is that of
    its worst place; a switch with one link left must not excuse collisions at the others."""
