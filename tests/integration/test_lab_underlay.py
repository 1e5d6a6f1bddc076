"""The lab's underlay on real packets: hashing over equal ways, and failures with FRR alone."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from heddle_controller.model.fabric import State
from heddle_emulator.drill.lab.probes import Pathfinder
from heddle_emulator.netns import mark, tools, witness
from heddle_emulator.netns.converge import expected_ways, kernel_ways, lacks, wait_converged
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.probe.handle import Probe, probe_flow
from heddle_emulator.netns.probe.spec import ProbeFlow
from heddle_emulator.topology import with_ipv6
from tests.integration.labbing import small_fabric, small_lab
from tests.support.waiting import PATIENCE, wait_until

SOURCE, DESTINATION = "l0-h0-n0", "l1-h0-n0"
UDP = 4791


@pytest.fixture(scope="module", params=["ipv4", "ipv6"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab of each address family without agents, shared by the tests of this file."""
    fabric = with_ipv6(small_fabric()) if request.param == "ipv6" else small_fabric()
    with small_lab(programs=False, fabric=fabric) as (lab, _):
        yield lab


def test_every_switch_has_all_equal_ways(lab: Lab) -> None:
    """The kernels have exactly the next hops that hop counts in the graph give."""
    for switch, wanted in expected_ways(lab, lab.layout.fabric).items():
        found = kernel_ways(lab, switch)
        assert {address: found.get(address) for address in wanted} == wanted, switch


def test_nothing_appears_among_the_machine_s_own_interfaces(lab: Lab) -> None:
    """Cables are made inside namespaces, so the machine itself has none of them."""
    own = tools.run_program(["ip", "-oneline", "link"])
    for port in (port for cable in lab.layout.cables for port in cable.ends):
        assert f" {port.name}@" not in own


def test_the_ends_of_a_cable_have_unlike_indexes(lab: Lab) -> None:
    """Both ends of a cable have different interface indexes.

    The kernel would report a lost carrier late if they were equal.
    """
    for switch in lab.layout.switches:
        told = tools.run_program(
            ["ip", "-json", "-netns", lab.spaces[switch], "link", "show", "type", "veth"]
        )
        ends = [(link["ifindex"], link["link_index"]) for link in json.loads(told)]
        assert len(ends) == len(lab.layout.ports[switch]) + 1  # management
        assert all(own != other for own, other in ends)


def test_packets_spread_over_both_spines_and_each_flow_keeps_to_one(lab: Lab) -> None:
    """32 source ports use both spines, and all packets of a port use the same one."""
    flows = [probe_flow(lab, (SOURCE, DESTINATION), (49152 + qp, UDP), 100.0) for qp in range(32)]
    before = witness.hear(lab)

    def seen(flow: ProbeFlow) -> bool:
        ways = witness.hear(lab).since(before).ways(flow)
        return sum(count for (switch, _), count in ways.items() if switch == "l0") >= 20

    with Probe(lab, flows) as probe:
        wait_until(lambda: all(seen(flow) for flow in flows), "a packet of each flow")
        notes = probe.stop()
    found = witness.hear(lab).since(before)
    uplinks = [
        {port for (switch, port), count in found.ways(flow).items() if switch == "l0" and count}
        for flow in flows
    ]
    assert all(len(ports) == 1 for ports in uplinks), uplinks
    assert set.union(*uplinks) == {"s0", "s1"}
    assert sum(one.lost_count() for one in notes) == 0
    assert {int(ttl) for one in notes for ttl in one.ttl} == {61}


def test_same_seed_hashes_alike(lab: Lab) -> None:
    """The lab's seed decides each port's path: looking twice finds the same paths."""
    flows = [probe_flow(lab, (SOURCE, DESTINATION), (50000 + qp, UDP), 1.0) for qp in range(16)]
    paths = Pathfinder(lab)
    first = paths.ways(flows)
    assert paths.ways(flows) == first
    assert len(set(first)) == 2


def test_bgp_takes_a_cut_cable_out_and_back_in(lab: Lab) -> None:
    """After a cut BGP takes the cable's paths away, and after the repair all are back."""
    (row,) = lab.layout.fabric.find_links("l0", "s0")
    lab.set_link(row, up=False)
    cut = lab.layout.fabric.with_links({row: State.DOWN})
    source = lab.layout.address(SOURCE)
    wait_until(lambda: kernel_ways(lab, "l2").get(source) == frozenset({"s1"}), "BGP")
    wait_until(lambda: not lacks(lab, cut), "all switches")
    wait_until(lambda: source not in kernel_ways(lab, "s0"), "s0 to drop, where l1 knows a detour")
    lab.set_link(row, up=True)
    wait_converged(lab, PATIENCE)


def test_a_nic_without_a_cable_is_announced_again_when_it_is_back(lab: Lab) -> None:
    """While its cable is cut, nobody has a route to a NIC; afterwards packets reach it again."""
    (row,) = lab.layout.fabric.find_links(DESTINATION, "l1")
    address = lab.layout.address(DESTINATION)
    lab.set_link(row, up=False)
    wait_until(
        lambda: not any(address in kernel_ways(lab, switch) for switch in lab.layout.switches),
        "BGP to withdraw the NIC",
    )
    assert not lacks(lab, lab.layout.fabric.with_links({row: State.DOWN}))
    lab.set_link(row, up=True)
    wait_converged(lab, PATIENCE)
    flow = probe_flow(lab, (SOURCE, DESTINATION), (49152, UDP), 1.0)
    (way,) = Pathfinder(lab).ways([flow])
    assert way[-1] == row


@contextmanager
def paused(lab: Lab, switch: str, program: str) -> Iterator[None]:
    """Stop a daemon of a switch for a while."""
    (daemon,) = [
        process
        for process in mark.processes([lab.spaces[switch]])
        if Path(f"/proc/{process}/comm").read_text().strip() == program
    ]
    os.kill(daemon, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(daemon, signal.SIGCONT)


def test_packets_lost_to_a_remote_cut_are_counted(lab: Lab) -> None:
    """When only BGP reacts, a cut beyond the spine loses packets, and their numbers show it.

    The near leaf learns of the cut only once it has sent packets that are lost.
    """
    flow = probe_flow(lab, (SOURCE, DESTINATION), (49152, UDP), 2000.0)
    way = Pathfinder(lab).ways([flow])[0]
    assert len(way) == 4
    (first,) = {end.node for end in lab.layout.cables[way[1]].ends} - {"l0"}
    with Probe(lab, [flow]) as probe:
        begun = witness.hear(lab)
        wait_until(lambda: witness.hear(lab).since(begun).ways(flow)["l0", first] > 400, "packets")
        with paused(lab, "l0", "bgpd"):
            fault = time.time_ns()
            lab.set_link(way[2], up=False)
            cut = witness.hear(lab)
            wait_until(lambda: witness.hear(lab).since(cut).ways(flow)["l0", first] > 20, "losses")
        wait_until(lambda: len(kernel_ways(lab, "l0")[lab.layout.address(DESTINATION)]) == 1, "BGP")
        (spine,) = kernel_ways(lab, "l0")[lab.layout.address(DESTINATION)]
        settled = witness.hear(lab)
        wait_until(lambda: witness.hear(lab).since(settled).ways(flow)["l0", spine] > 400, "more")
        (notes,) = probe.stop()
    lab.set_link(way[2], up=True)
    notes = notes.within(0, int(notes.sent[-1]) - 50_000_000)
    assert notes.lost_count() > 0
    assert 0 < notes.recovered(fault) < math.inf
    gap = notes.sent[notes.lost]
    assert gap[0] >= fault - 50_000_000
    wait_converged(lab, PATIENCE)
