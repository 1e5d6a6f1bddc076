"""Hashing alone: the same walk over the same kind of tables, left empty.

``ecmp`` hashes each flow as it is. ``e_ecmp`` first makes it so many equal QPs, each
hashed on its own: the strongest baseline that needs no controller.
"""

from __future__ import annotations

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_emulator.switches import Switches
from heddle_emulator.walk import Measurement, measure


def ecmp(fabric: Fabric, flows: Flows, seed: int) -> Measurement:
    """Every QP that a flow has by itself, hashed. ``seed`` makes the hashes of all switches."""
    return measure(fabric, flows, Switches(fabric, seed))


def e_ecmp(fabric: Fabric, flows: Flows, seed: int, qps: int) -> Measurement:
    """Every flow as ``qps`` equal QPs, hashed."""
    return ecmp(fabric, flows.with_qps(qps), seed)
