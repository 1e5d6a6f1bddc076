"""What a campaign finds out about flows whose packets get lost: cut off or stranded."""

from __future__ import annotations

from heddle_controller.model.fabric import State
from heddle_emulator.campaign.warm_fabric import evaluate
from heddle_emulator.switches import Switches
from heddle_emulator.topology import dual_tor
from heddle_emulator.traffic import flows_between

FABRIC = dual_tor(pairs=2, spines=4, nics_per_pair=4, nics_per_host=1, planes=2)
FLOWS = flows_between(FABRIC, "shift", qps=4)


def _end(flow: int) -> tuple[str, str]:
    ids = FABRIC.structure.nodes.ids
    return ids[int(FLOWS.source[flow])], ids[int(FLOWS.destination[flow])]


def _without(switches: Switches, *cables: tuple[str, str]) -> None:
    switches.change({row: State.DOWN for pair in cables for row in FABRIC.find_links(*pair)})


def test_nics_with_two_links_do_not_connect_planes() -> None:
    """Two NICs that are left with one link each, in different planes, are cut off.

    Other NICs hang on leaves of both planes, but no packet goes through them.
    """
    switches = Switches(FABRIC)
    source, destination = _end(0)
    _without(switches, (source, "p0b"), (destination, "p1a"))
    switches.converge()
    found = evaluate(switches.world, FLOWS, switches)
    apart = [row for row in range(len(FLOWS)) if set(_end(row)) == {source, destination}]
    assert found.cut_off == len(apart)
    assert set(found.walk.flow[found.walk.lost].tolist()) >= set(apart)
    assert found.slowest > 0


def test_nics_with_a_plane_in_common_are_connected() -> None:
    """Packets that get lost in the other plane, where the far NIC has no link, are stranded."""
    switches = Switches(FABRIC)
    _without(switches, (_end(0)[1], "p1a"))
    switches.converge()
    found = evaluate(switches.world, FLOWS, switches)
    assert found.cut_off == 0
    assert found.stranded == len(found.walk.lost) > 0
