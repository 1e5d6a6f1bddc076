"""Results that others published for real fabrics, repeated in the fluid simulation."""

from __future__ import annotations

import pytest

from heddle_emulator.topology import clos, rail_optimised, three_tier
from tests.bench.collectives import SHAPES, experts, gathered, reduced
from tests.bench.published import replaced


@pytest.mark.parametrize(("last", "static"), [(4, 1.0), (5, 0.5)])
def test_static_pinning_breaks_when_server_4_is_replaced(last: int, static: float) -> None:
    """Servers 1 and 3 run one job, servers 2 and ``last`` the other, in racks of two servers.

    Pinning goes by a server's place in its rack. Server 5 has the place of server 3, so with 5
    instead of 4 both jobs use the same half of the uplinks. A plan uses the other half, too.
    """
    found = replaced(last)
    assert found["static"] == pytest.approx(static)
    assert found["te"] == pytest.approx(1.0)


def test_eight_all_reduces_with_an_uplink_down() -> None:
    """With 7/8 of the uplinks, planned jobs get 98 % of the limit.

    Whole flows and hashes do not.
    """
    found = reduced(SHAPES[-1], ("ecmp", "greedy", "te", "spray"), seed=1)
    assert found.limit == pytest.approx(350.0)
    assert found.lines["te"].busbw >= 0.98 * found.limit
    assert found.lines["spray"].busbw == pytest.approx(found.limit)
    assert found.lines["greedy"].busbw == pytest.approx(200.0)
    assert found.lines["ecmp"].busbw < 0.85 * found.lines["te"].busbw


def test_a_mesh_loses_where_zones_are_joined_by_little() -> None:
    """For all-gather under ECMP, a mesh beats rings in one zone, and loses across two."""
    near = clos(leaves=8, spines=16, nics_per_leaf=16)
    far = three_tier(zones=2, leaves=4, spines=16, nics_per_leaf=16, cores=16, taper=7.0)
    assert gathered(near, "mesh", "ecmp", 0) < gathered(near, "ring", "ecmp", 0)
    mesh = gathered(far, "mesh", "ecmp", 0)
    assert mesh > 1.5 * gathered(far, "ring", "ecmp", 0)
    assert mesh > 1.2 * gathered(far, "tree", "ecmp", 0)


def test_pxn_pays_where_spines_are_narrow() -> None:
    """With PXN, all-to-all on rails crosses no spine. At 2:1 that saves about a tenth or more."""
    for parallel, low, high in ((2, -0.001, 0.03), (1, 0.08, 0.25)):
        fabric = rail_optimised(units=1, servers=10, rails=8, spines=5, parallel=parallel)
        with_pxn, without = (experts(fabric, "ecmp", 0, pxn=pxn) for pxn in (True, False))
        assert low < 1 - with_pxn.seconds / without.seconds < high
