"""What others send, as an estimate for a new job counts it."""

from __future__ import annotations

import pytest

from heddle_controller.place.estimate import Surroundings
from heddle_controller.solve import solve
from heddle_emulator.topology import clos
from tests.support.solve_flows import flows_of, nic_ids


@pytest.mark.parametrize("leaves", [2, 3, 5])
def test_a_plan_counts_on_a_fabric_that_was_replaced(leaves: int) -> None:
    """Flows of the old plan count at the leaves of their NICs, as far as these still exist.

    The plan is of three leaves; the flow of the third one is gone where there are but two.
    """
    old, new = (clos(leaves=count, spines=2, nics_per_leaf=1) for count in (3, leaves))
    nics = nic_ids(old)
    plan = solve(
        old,
        flows_of(old, (nics[0], nics[1], 100.0, 1, "a", ""), (nics[2], nics[0], 50.0, 1, "b", "")),
    )
    around = Surroundings.of_plan(new, plan).leaves
    index = new.structure.index
    out, into = (
        {nic: float(load[around.part[index[nic]]]) for nic in nics if nic in index}
        for load in around.load
    )
    if leaves == 2:
        assert (out, into) == ({nics[0]: 100.0, nics[1]: 0.0}, {nics[0]: 0.0, nics[1]: 100.0})
    else:
        assert out == {nics[0]: 100.0, nics[1]: 0.0, nics[2]: 50.0}
        assert into == {nics[0]: 50.0, nics[1]: 100.0, nics[2]: 0.0}
