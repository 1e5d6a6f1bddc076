"""Ports chosen for switches that hash, on real kernels; no switch has an agent."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest
from rich.console import Console

from heddle_controller.model.files.port_paths_file import parse_port_paths
from heddle_controller.model.port_paths import PortPaths
from heddle_emulator.demo.nic import Size, play_nic
from heddle_emulator.demo.screen import Screen
from heddle_emulator.drill.lab.probes import Pathfinder
from heddle_emulator.netns import tools
from heddle_emulator.netns.converge import wait_converged
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.probe.handle import probe_flow
from heddle_emulator.topology import hashing, with_ipv6
from tests.integration.labbing import fresh_name, require_lab, small_fabric, small_lab
from tests.integration.steering import AGENT, PORTS, Steered
from tests.support.waiting import PATIENCE, wait_until

SOURCE, DESTINATION = "l0-h0-n0", "l1-h0-n0"
DENY_ERRORS = """
table inet silent {
    chain out {
        type filter hook output priority 0; policy accept;
        icmp type time-exceeded drop
        icmpv6 type time-exceeded drop
    }
}
"""
DENY_FORWARDING = """
table inet silent {
    chain through {
        type filter hook forward priority 0; policy accept;
        oifname "%s" drop
    }
}
"""


@pytest.fixture(scope="module", params=["ipv4", "ipv6"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab of each address family without agents, shared by the tests of this file."""
    fabric = hashing(small_fabric())
    if request.param == "ipv6":
        fabric = with_ipv6(fabric)
    with small_lab(programs=False, fabric=fabric) as (lab, _):
        yield lab


def probed(lab: Lab) -> PortPaths:
    """Return what ``heddle-agent probe`` finds on the host of ``SOURCE``."""
    command = [AGENT, "probe", "--hops=3", f"--ports={PORTS[0]}-{PORTS[-1]}"]
    command += [f"--source={lab.layout.address(SOURCE)}"]
    command += [f"--destination={lab.layout.address(DESTINATION)}"]
    space = lab.spaces[lab.layout.nic_port[SOURCE].namespace]
    told = json.loads(tools.run_inside(space, command))
    return parse_port_paths(told, lab.layout.fabric, "probed")


def links_by_port(known: PortPaths) -> dict[int, tuple[int, ...]]:
    """Return the link rows of each port's path, from NIC to NIC."""
    return {
        port: tuple((known.arcs[known.first[way] : known.first[way + 1]] >> 1).tolist())
        for way in range(len(known))
        for port in known.ports[known.first_port[way] : known.first_port[way + 1]].tolist()
    }


def taken(lab: Lab) -> dict[int, tuple[int, ...]]:
    """Return the link rows that packets of each port take, by the kernels' counters."""
    flows = [probe_flow(lab, (SOURCE, DESTINATION), (port, 4791), 1.0) for port in PORTS]
    ways = Pathfinder(lab).ways(flows)
    return {port: tuple(way) for port, way in zip(PORTS, ways, strict=True)}


def test_probes_find_the_path_of_every_port(lab: Lab) -> None:
    """Probes find the paths that the switches' counters show."""
    found = links_by_port(probed(lab))
    assert found == taken(lab)
    assert len(set(found.values())) == 2


def test_a_spine_that_answers_nothing_leaves_no_wrong_path(lab: Lab) -> None:
    """Paths over a silent spine stay unknown, as another one could be silent; others are known."""
    before = links_by_port(probed(lab))
    tools.run_inside(lab.spaces["s0"], ["nft", "-f", "-"], DENY_ERRORS)
    try:
        found = links_by_port(probed(lab))
    finally:
        tools.run_inside(lab.spaces["s0"], ["nft", "delete", "table", "inet", "silent"])
    (silent,) = lab.layout.fabric.find_links("l0", "s0")
    assert found == {port: links for port, links in before.items() if silent not in links}
    assert 0 < len(found) < len(before)


def test_a_leaf_that_answers_nothing_is_filled_in(lab: Lab) -> None:
    """All paths are known though a leaf is silent, because each NIC has only one leaf."""
    before = links_by_port(probed(lab))
    tools.run_inside(lab.spaces["l0"], ["nft", "-f", "-"], DENY_ERRORS)
    try:
        found = links_by_port(probed(lab))
    finally:
        tools.run_inside(lab.spaces["l0"], ["nft", "delete", "table", "inet", "silent"])
    assert found == before


def test_another_hash_is_seen_by_probing_again(lab: Lab) -> None:
    """After new hash seeds, as after a reboot, probes find the new paths."""
    before = links_by_port(probed(lab))
    lab.reseed(7)
    try:
        found = links_by_port(probed(lab))
        assert found != before
        assert found == taken(lab)
    finally:
        lab.reseed(lab.options.seed)


def test_probing_takes_rights_and_an_address_of_the_host(lab: Lab) -> None:
    """Unusable addresses and a reversed port range are refused with one line and status 2."""
    space = lab.spaces[lab.layout.nic_port[SOURCE].namespace]
    known = f"--destination={lab.layout.address(DESTINATION)}"
    other = "192.0.2.1" if ":" in lab.layout.address(SOURCE) else "2001:db8::1"
    for words, reason in (
        ([f"--source={other}", f"--destination={other}"], f"{other} is no address of this host"),
        ([f"--source={other}", known], "two families"),
        ([f"--source={lab.layout.address(SOURCE)}", "--destination=h7"], "not names"),
        ([f"--source={lab.layout.address(SOURCE)}", known, "--ports=9-2"], "the lower one first"),
    ):
        command = ["ip", "netns", "exec", space, AGENT, "probe", *words]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert reason in line


@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
def test_the_demo_of_ports_holds(*, ipv6: bool) -> None:
    """By kernel counters all QPs take predicted paths, and the worst link is just full."""
    require_lab()
    text = io.StringIO()
    size = Size(leaves=4, spines=4, nics_per_leaf=4, probes=24)
    screen = Screen(Console(file=text, width=200))
    assert play_nic(screen, seed=1, ipv6=ipv6, size=size, name=fresh_name()), text.getvalue()
    assert "worst link by the kernels' counters 1.00" in text.getvalue()


def test_qps_of_a_lost_path_take_the_ports_of_their_backups(lab: Lab) -> None:
    """When a far link drops packets, the QPs on it change ports, and no others do.

    No controller and no switch agent runs, and BGP goes on, so only the hosts avoid the link. Some
    QPs use it, others do not. Agents that start while the link is lost avoid it too.
    """
    steered = Steered(lab, hold=3600)
    planned = steered.planned
    assert steered.told() == planned.ports.tolist()
    (link,) = lab.layout.fabric.find_links("s0", "l1")
    lost = np.array([link in [arc >> 1 for arc in way] for way in planned.ways])
    assert lost.any()
    assert not lost.all()
    (port,) = [end for end in lab.layout.cables[link].ends if end.node == "s0"]
    tools.run_inside(lab.spaces["s0"], ["nft", "-f", "-"], DENY_FORWARDING % port.name)
    try:
        wanted = np.where(lost, planned.backups, planned.ports).tolist()
        wait_until(lambda: steered.told() == wanted, "the ports of backups")
        steered.end()
        steered.start()
        wait_until(lambda: steered.told() == wanted, "the ports of backups after a restart")
    finally:
        tools.run_inside(lab.spaces["s0"], ["nft", "delete", "table", "inet", "silent"])


def test_qps_go_back_once_their_path_has_lived_for_a_while(lab: Lab) -> None:
    """Every QP gets its planned port back, and each host logs lost and restored paths."""
    steered = Steered(lab, hold=0.5)
    links = [lab.layout.fabric.find_links(spine, "l1")[0] for spine in ("s0", "s1")]
    for link in links:
        lab.set_link(link, up=False)
    wait_until(lambda: steered.logged("path lost"), "both hosts")
    for link in links:
        lab.set_link(link, up=True)
    wait_converged(lab, PATIENCE)
    wait_until(lambda: steered.logged("path is back"), "both hosts")
    wait_until(lambda: steered.told() == steered.planned.ports.tolist(), "the plan's ports")


def test_a_host_tells_which_ports_another_hash_sends_elsewhere(lab: Lab) -> None:
    """After new hash seeds a host lists the ports off their paths; with the old seeds, none."""
    steered = Steered(lab, hold=3600.5)
    planned, (source, *_) = steered.planned, steered.flows.source.tolist()
    nic = lab.layout.fabric.structure.nodes.ids[source]
    assert nic == SOURCE
    used = {*planned.ports[:2].tolist(), *planned.backups[:2].tolist()}
    before, address = taken(lab), lab.layout.address(SOURCE)
    wanted: set[tuple[str, int]] = set()
    try:
        for seed in count(7):
            lab.reseed(seed)
            after = taken(lab)
            wanted = {(address, port) for port in used if after[port] != before[port]}
            if wanted:
                break
        wait_until(
            lambda: {one for one in steered.astray() if one[0] == address} == wanted, "astray ports"
        )
    finally:
        lab.reseed(lab.options.seed)
    wait_until(lambda: not steered.astray(), "the old hash")
