"""Small fabrics on which the fluid simulation is compared with packets."""

from __future__ import annotations

from hypothesis import strategies as st

from heddle_controller.model.fabric import Fabric
from heddle_emulator.topology import clos, random_regular, three_tier


@st.composite
def small_fabrics(draw: st.DrawFn, *, least_gbps: float, most_taper: float) -> Fabric:
    """Draw two tiers, two zones or a random graph of switches, with one NIC on each host."""
    kind = draw(st.sampled_from(["clos", "zones", "regular"]))
    if kind == "clos":
        spines, speed = draw(st.integers(1, 4)), draw(st.sampled_from([least_gbps, 400.0, 800.0]))
        return clos(leaves=4, spines=spines, nics_per_leaf=3, nics_per_host=1, uplink_gbps=speed)
    if kind == "zones":
        taper = draw(st.sampled_from([1.0, 2.0, most_taper]))
        return three_tier(
            zones=2, leaves=2, spines=2, nics_per_leaf=3, cores=2, taper=taper, nics_per_host=1
        )
    seed = draw(st.integers(0, 99))
    return random_regular(switches=6, degree=3, nics_per_switch=2, nics_per_host=1, seed=seed)
