"""Hop counts from every switch to every place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heddle_controller.model.arrays import Bools, Ints

Bits = npt.NDArray[np.uint8]
HopArray = npt.NDArray[np.int16]

UNREACHED = np.iinfo(np.int16).max
"""Distance where no path leads."""


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """Hop counts from every switch to every place; never written to once made."""

    place: Ints
    """Place of each node: ``NONE`` for switches and for NICs without a live link."""
    row: Ints
    """Row of each node in ``distance``; all NICs share the last one."""
    distance: HopArray
    """Links from a switch to the nearest switch of a place, shape (switches + 1,
    places); ``UNREACHED`` where there is no way, and all along the last row."""
    several: Bits
    """A bit for each distance above 0: is there more than one next hop?"""
    twin: Bools
    """Whether each arc runs to a NIC beside another one from the same switch."""
