"""The lab of a fabric on paper: names, addresses and scripts, without a kernel."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from ipaddress import ip_address
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric
from heddle_emulator.netns import frr, lab
from heddle_emulator.netns.layout import IPV4, LONGEST, MANAGEMENT, MGMT, Layout, lay_out
from heddle_emulator.topology import clos, dual_tor, random_regular, three_tier


def _renamed(fabric: Fabric, old: str, new: str) -> Fabric:
    nodes = fabric.structure.nodes
    ids = tuple(new if node == old else node for node in nodes.ids)
    return replace(fabric, structure=replace(fabric.structure, nodes=replace(nodes, ids=ids)))


def _addressed(fabric: Fabric, addresses: dict[int, str]) -> Fabric:
    nodes = fabric.structure.nodes
    new = tuple(addresses.get(row, address) for row, address in enumerate(nodes.address))
    return replace(fabric, structure=replace(fabric.structure, nodes=replace(nodes, address=new)))


@given(
    leaves=st.integers(1, 5),
    spines=st.integers(1, 4),
    nics=st.integers(1, 4),
    hosts=st.integers(1, 4),
    parallel=st.integers(1, 3),
)
def test_every_interface_and_address_is_there_once(
    leaves: int, spines: int, nics: int, hosts: int, parallel: int
) -> None:
    """In any shape, names fit the kernel, and no two ends in a namespace or on a cable clash."""
    layout = lay_out(
        clos(
            leaves=leaves,
            spines=spines,
            nics_per_leaf=nics * hosts,
            nics_per_host=nics,
            parallel=parallel,
        )
    )
    for node, ports in layout.ports.items():
        names = [port.name for port in ports]
        assert len(set(names)) == len(names)
        assert all(0 < len(name) <= LONGEST for name in names)
        if node in layout.switches:  # a host's NICs may all lead to one leaf
            assert len({port.alias for port in ports}) == len(ports)
    inner = [
        port.address
        for cable in layout.cables
        for port in cable.ends
        if ip_address(port.address) in IPV4.cables
    ]
    assert len(set(inner)) == len(inner) == 2 * leaves * spines * parallel
    managed = [layout.management(node) for node in (MGMT, *layout.switches)]
    assert len(set(managed)) == len(managed)
    assert all(ip_address(address) in MANAGEMENT for address in managed)


def test_long_names_become_short_interfaces() -> None:
    """If a neighbour's name is too long for the kernel, the alias still has all of it."""
    name = "a-leaf-with-quite-a-long-name-for-an-interface"
    layout = lay_out(_renamed(clos(leaves=2, spines=1, nics_per_leaf=1), "l0", name))
    (port,) = [port for port in layout.ports["s0"] if port.peer == name]
    assert len(port.name) <= LONGEST
    assert port.alias == f"{name},0"


@pytest.mark.parametrize("name", ["mgmt", "a/b", "a b", "..", "-x"])
def test_names_that_no_namespace_can_have_are_refused(name: str) -> None:
    """The error says that the name cannot be a namespace's."""
    fabric = _renamed(clos(leaves=2, spines=1, nics_per_leaf=1), "l0", name)
    with pytest.raises(InputError, match="cannot name a namespace"):
        lay_out(fabric)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("198.18.0.7", "which the lab uses itself"),
        ("169.254.0.1", "which the lab uses itself"),
        ("fd00::1", "a lab speaks one of them"),
        ("10.0.0.300", "no IP address"),
    ],
)
def test_addresses_that_the_lab_cannot_have_are_refused(address: str, said: str) -> None:
    """The error comes before anything is built and says why the address cannot be used."""
    with pytest.raises(InputError, match=said):
        lay_out(_addressed(clos(leaves=2, spines=1, nics_per_leaf=1), {0: address}))


def test_an_address_given_twice_is_refused() -> None:
    """Two nodes with one address could not both be reached."""
    with pytest.raises(InputError, match="belongs to another node too"):
        lay_out(
            _addressed(clos(leaves=2, spines=1, nics_per_leaf=1), {0: "10.9.9.9", 1: "10.9.9.9"})
        )


def test_nodes_without_address_are_given_free_ones() -> None:
    """Addresses in the file stay, and the other nodes get free ones."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=2)
    rows = range(fabric.node_count)
    layout = lay_out(_addressed(fabric, dict.fromkeys(rows, "") | {4: "10.0.0.1"}))
    addresses = layout.fabric.structure.nodes.address
    assert addresses[4] == "10.0.0.1"
    assert all(addresses)
    assert len(set(addresses)) == len(addresses)


def test_a_nic_with_several_links_is_refused() -> None:
    """A lab has one link for each NIC, so a dual-ToR fabric is refused by the NIC's name."""
    with pytest.raises(InputError, match="p0-h0-n0: has several links"):
        lay_out(dual_tor(pairs=1, spines=1, nics_per_pair=1, nics_per_host=1))


def test_too_large_a_fabric_is_refused() -> None:
    """The error says how much one machine carries."""
    with pytest.raises(InputError, match="one machine carries"):
        lay_out(clos(leaves=300, spines=4, nics_per_leaf=3, nics_per_host=1))


def _as_numbers(layout: Layout) -> dict[str, int]:
    return {switch: frr.as_number(layout, switch) for switch in layout.switches}


def test_spines_of_a_zone_share_an_as_and_leaves_do_not() -> None:
    """With these AS numbers, a route that came down never climbs again."""
    layout = lay_out(three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=2, cores=2))
    numbers = Counter(_as_numbers(layout).values())
    assert sorted(numbers.values()) == [1, 1, 1, 1, 2, 2, 2]  # leaves, spines by zone, cores


def test_switches_of_a_graph_without_tiers_have_an_as_each() -> None:
    """In such a graph any switch may be on the way between any two."""
    layout = lay_out(random_regular(switches=8, degree=3, nics_per_switch=1, seed=1))
    assert len(set(_as_numbers(layout).values())) == len(layout.switches)


def test_bgp_speaks_to_every_neighbour_of_the_switch_and_to_no_host() -> None:
    """There is one session for each cable between switches, including parallel ones."""
    layout = lay_out(clos(leaves=2, spines=2, nics_per_leaf=2, parallel=2))
    text = frr.bgpd_config(layout, "l0", frr.Bfd(100))
    assert text.count("remote-as") == 4
    assert text.count(" bfd 3 100 100") == 4
    assert text.count("  network 10.") == 2
    assert "no zebra nexthop kernel enable" in frr.zebra_config("l0")


def test_shaping_is_in_proportion_and_lets_control_through_first() -> None:
    """A cable of half the speed has half the rate. CS6 has a class of its own."""
    layout = lay_out(clos(leaves=1, spines=1, nics_per_leaf=1, nic_gbps=400, uplink_gbps=200))
    script = lab.shaping_script(layout, "l0", 0.05)
    assert "rate 20000000bit" in script
    assert "rate 10000000bit" in script
    assert script.count("match ip dsfield 0xc0 0xff flowid 1:10") == 2


def test_agents_are_told_what_their_cables_are_meant_for() -> None:
    """Speeds are in Gbit/s of the lab. If speeds are not limited, none is given."""
    layout = lay_out(clos(leaves=1, spines=1, nics_per_leaf=1, nic_gbps=400, uplink_gbps=200))
    assert "alias s0,0,0.01 up" in lab.switch_script(layout, "l0", 0.05)
    assert "alias s0,0 up" in lab.switch_script(layout, "l0")


def test_no_two_interfaces_have_an_index_in_common() -> None:
    """If both ends had one index, a lost carrier would be reported late.

    This includes the ends in the management network.
    """
    layout = lay_out(clos(leaves=2, spines=2, nics_per_leaf=2, parallel=2))
    script = lab.cables_script(layout, {node: node for node in layout.namespaces})
    words = script.split()
    indexes = [number for word, number in pairwise(words) if word == "index"]
    assert len(indexes) == len(set(indexes)) == 2 * (len(layout.cables) + len(layout.switches))


def test_hash_seeds_differ_by_switch_and_by_seed() -> None:
    """Switches with equal seeds would all hash alike, and so polarise."""
    seeds = {lab.hash_seed(f"s{row}", seed) for row in range(50) for seed in range(4)}
    assert len(seeds) == 200
    assert 0 not in seeds
