"""What others found on real fabrics, in the fluid world: the direction of it, and the size."""

from __future__ import annotations

import pytest

from heddle_emulator.topology import clos, rail_optimised, three_tier
from tests.bench.collectives import SHAPES, experts, gathered, reduced
from tests.bench.published import replaced


@pytest.mark.parametrize(("last", "static"), [(4, 1.0), (5, 0.5)])
def test_static_pinning_breaks_when_server_4_is_replaced(last: int, static: float) -> None:
    """Racks of two servers: 1 with 3 and 2 with 4 are apart; with 5 for 4 they share uplinks.

    Pinning goes by a server's place in its rack, and 5 has the place of 3. A plan sees
    that half of the uplinks are idle.
    """
    found = replaced(last)
    assert found["static"] == pytest.approx(static)
    assert found["te"] == pytest.approx(1.0)


def test_eight_all_reduces_with_an_uplink_down() -> None:
    """Planned, all jobs get 98 % of what seven eighths allow; whole flows and hashes do not."""
    found = reduced(SHAPES[-1], ("ecmp", "greedy", "te", "spray"), seed=1)
    assert found.limit == pytest.approx(350.0)
    assert found.lines["te"].busbw >= 0.98 * found.limit
    assert found.lines["spray"].busbw == pytest.approx(found.limit)
    assert found.lines["greedy"].busbw == pytest.approx(200.0)
    assert found.lines["ecmp"].busbw < 0.85 * found.lines["te"].busbw


def test_a_mesh_loses_where_zones_are_joined_by_little() -> None:
    """All-gather under ECMP: a mesh beats rings in a zone, and loses across two."""
    near = clos(leaves=8, spines=16, nics_per_leaf=16)
    far = three_tier(zones=2, leaves=4, spines=16, nics_per_leaf=16, cores=16, taper=7.0)
    assert gathered(near, "mesh", "ecmp", 0) < gathered(near, "ring", "ecmp", 0)
    mesh = gathered(far, "mesh", "ecmp", 0)
    assert mesh > 1.5 * gathered(far, "ring", "ecmp", 0)
    assert mesh > 1.2 * gathered(far, "tree", "ecmp", 0)


def test_pxn_pays_where_spines_are_narrow() -> None:
    """All-to-all on rails: nothing crosses a spine with PXN; at 2:1 that is worth a tenth."""
    for parallel, low, high in ((2, -0.001, 0.03), (1, 0.08, 0.25)):
        fabric = rail_optimised(units=1, servers=10, rails=8, spines=5, parallel=parallel)
        with_pxn, without = (experts(fabric, "ecmp", 0, pxn=pxn) for pxn in (True, False))
        assert low < 1 - with_pxn.seconds / without.seconds < high
