"""What discovery programs and labs say of cables, and which errors in it are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from heddle_controller.importers import ImportOptions, load_fabric, parse_mapping
from heddle_controller.importers.containerlab import clab_text
from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.yaml_text import MAX_EVENTS
from heddle_emulator.topology import clos

SUBNET = """#
# Topology file: generated on Tue May  6 12:00:00 2025
#
# Initiated from node 946dae0300a1b2c4 port 946dae0300a1b2c4

vendid=0x2c9
devid=0xd2f2
sysimgguid=0xb0cf0e0300aa0000
switchguid=0xb0cf0e0300aa0000(b0cf0e0300aa0000)
Switch	65 "S-b0cf0e0300aa0000"		# "MF0;leaf01:MQM9700/U1" enhanced port 0 lid 2 lmc 0
[1]	"H-946dae0300a1b2c4"[1](946dae0300a1b2c4) 		# "node001 mlx5_0" lid 11 4xNDR
[2]	"H-946dae0300a1b2c8"[1](946dae0300a1b2c8) 		# "node001 mlx5_1" lid 12 4xNDR
[33][ext 17]	"S-b0cf0e0300bb0000"[1][ext 1]		# "MF0;ib-spine01:MQM9700/U1" lid 3 4xNDR
[65]	"H-b0cf0e0300aa0008"[1](b0cf0e0300aa0008) 	 # "SHARP Aggregation Node" lid 9 4xHDR

vendid=0x2c9
switchguid=0xb0cf0e0300bb0000(b0cf0e0300bb0000)
Switch	65 "S-b0cf0e0300bb0000"		# "MF0;ib-spine01:MQM9700/U1" enhanced port 0 lid 3 lmc 0
[1][ext 1]	"S-b0cf0e0300aa0000"[33][ext 17]		# "MF0;leaf01:MQM9700/U1" lid 2 4xNDR

vendid=0x2c9
caguid=0x946dae0300a1b2c4
Ca	1 "H-946dae0300a1b2c4"		# "node001 mlx5_0"
[1](946dae0300a1b2c4) 	"S-b0cf0e0300aa0000"[1]	# lid 11 lmc 0 "MF0;leaf01:MQM9700/U1" lid 2 4xNDR

caguid=0x946dae0300a1b2c8
Ca	1 "H-946dae0300a1b2c8"		# "node001 mlx5_1"
[1](946dae0300a1b2c8) 	"S-b0cf0e0300aa0000"[2]	# lid 12 lmc 0 "MF0;leaf01:MQM9700/U1" lid 2 4xNDR

caguid=0xb0cf0e0300aa0008
Ca	1 "H-b0cf0e0300aa0008"		# "SHARP Aggregation Node"
[1](b0cf0e0300aa0008) 	"S-b0cf0e0300aa0000"[65]	# lid 9 lmc 0 "MF0;leaf01:MQM9700/U1" lid 2 4xHDR
"""  # noqa: E501 - as it is printed

LAB = """name: ai
topology:
  kinds:
    arista_ceos: {image: ceos:4.32.0F}
  groups:
    server: {kind: linux}
  nodes:
    leaf1: {kind: arista_ceos}
    leaf2: {kind: arista_ceos}
    spine1: {kind: arista_ceos}
    gpu1: {group: server}
    gpu2: {group: server}
    grafana: {kind: linux}
  links:
    - endpoints: ["gpu1:eth1", "leaf1:eth1"]
    - endpoints: ["gpu1:eth2", "leaf2:eth1"]
    - endpoints: ["gpu2:eth1", "leaf2:eth2"]
    - endpoints: ["leaf1:eth9", "spine1:eth1"]
      vars: {gbps: 1.6T}
    - type: veth
      endpoints:
        - {node: leaf2, interface: eth9}
        - {node: spine1, interface: eth2}
    - endpoints: ["spine1:eth3", "host:veth0"]
    - type: mgmt-net
      endpoint: {node: leaf1, interface: eth7}
      host-interface: x
"""


def _loaded(tmp_path: Path, text: str, mapping: str = "", **options: Any) -> Fabric:
    path = tmp_path / "found.txt"
    path.write_text(text)
    return load_fabric(path, mapping=parse_mapping(mapping), options=ImportOptions(**options))


def _kinds(fabric: Fabric) -> dict[str, str]:
    nodes = fabric.structure.nodes
    return {
        name: NodeKind(kind).name.lower()
        for name, kind in zip(nodes.ids, nodes.kind.tolist(), strict=True)
    }


def _view(far: str, port: str, *, switch: bool, medium: str = "") -> dict[str, Any]:
    """Return what one port sees."""
    return {
        "chassis": {far: {"capability": [{"type": "Router", "enabled": switch}]}},
        "port": {
            "id": {"type": "ifname", "value": port},
            "auto-negotiation": {"current": medium},
        },
    }


def _sonic(far: str, alias: str, descr: str | None) -> dict[str, Any]:
    """Return what one port sees of a SONiC switch, which announces an alias of its port."""
    view = _view(far, alias, switch=True)
    view["port"]["id"]["type"] = "local"
    return view if descr is None else {**view, "port": {**view["port"], "descr": descr}}


def lldp_of(**machines: dict[str, Any]) -> dict[str, Any]:
    """Return what lldpctl prints on each machine."""
    return {
        name: {"lldp": {"interface": [{port: view} for port, view in ports.items()]}}
        for name, ports in machines.items()
    }


PAIR = {
    "leaf": {"swp1": _view("h1", "eth0", switch=False, medium="100GbaseCR4 - copper")},
    "h1": {"eth0": _view("leaf", "swp1", switch=True)},
    "h2": {"eth0": _view("leaf", "swp2", switch=True, medium="25GbaseCR")},
}


def test_a_subnet_is_understood(tmp_path: Path) -> None:
    """Hosts follow from the first word, tiers from neighbours, speeds from lanes.

    Nodes for SHARP are left out.
    """
    fabric = _loaded(tmp_path, SUBNET)
    assert _kinds(fabric) == {
        "node001-mlx5_0": "nic",
        "node001-mlx5_1": "nic",
        "MF0;leaf01:MQM9700/U1": "leaf",
        "MF0;ib-spine01:MQM9700/U1": "spine",
    }
    assert fabric.structure.host_names == ("node001",)
    assert fabric.structure.links.gbps.tolist() == [400.0] * 3


def test_adapters_that_no_host_has_described_are_hosts_of_their_own(tmp_path: Path) -> None:
    """Two adapters with the description of their firmware are not taken for one host."""
    lines = SUBNET
    for described in ("node001 mlx5_0", "node001 mlx5_1"):
        lines = lines.replace(described, "MT4129 ConnectX7   Mellanox Technologies")
    hosts = _loaded(tmp_path, lines).structure.host_names
    assert len(hosts) == 2
    assert all(host.startswith("MT4129-ConnectX7-Mellanox-Technologies-H-") for host in hosts)


def test_a_lab_is_understood(tmp_path: Path) -> None:
    """Kinds are inherited and either form of endpoints is read.

    A node without cables is left out.
    """
    fabric = _loaded(tmp_path, LAB, link_gbps=100)
    assert _kinds(fabric) == {
        "gpu1-eth1": "nic",
        "gpu1-eth2": "nic",
        "gpu2": "nic",
        "leaf1": "leaf",
        "leaf2": "leaf",
        "spine1": "spine",
    }
    assert sorted(fabric.structure.links.gbps.tolist()) == [100.0] * 4 + [1600.0]
    assert fabric.name == "ai"
    mapped = _kinds(_loaded(tmp_path, LAB, "core=spine*", link_gbps=100))
    assert mapped["spine1"] == "core"


def test_a_lab_as_large_as_the_largest_fabrics_is_read() -> None:
    """What is written of 24,576 NICs has fewer records than a file of YAML may have.

    One of 1,536 NICs with as many uplinks is written, and a larger one has as many per NIC.
    """
    lab = clab_text(clos(leaves=24, spines=64, nics_per_leaf=64))
    records = sum(1 for _ in yaml.parse(lab, Loader=yaml.CSafeLoader))
    assert records / 1536 * 24_576 < MAX_EVENTS


def test_neighbours_are_understood(tmp_path: Path) -> None:
    """Each cable is one link, seen from one end or both, as fast as its medium."""
    fabric = _loaded(tmp_path, json.dumps(lldp_of(**PAIR)))
    assert _kinds(fabric) == {"h1": "nic", "h2": "nic", "leaf": "leaf"}
    assert sorted(fabric.structure.links.gbps.tolist()) == [25.0, 100.0]


def test_a_machine_is_known_by_its_short_and_its_full_name(tmp_path: Path) -> None:
    """A machine has the name by which it was asked, though it announces a longer or shorter one."""
    told = {
        "leaf": {"swp1": _view("h1.pod", "eth0", switch=False)},
        "h1.pod": {"eth0": _view("leaf.pod", "swp1", switch=True)},
        "h2.pod": {"eth0": _view("leaf.pod", "swp2", switch=True)},
    }
    fabric = _loaded(tmp_path, json.dumps(lldp_of(**told)), link_gbps=100)
    assert _kinds(fabric) == {"h1.pod": "nic", "h2.pod": "nic", "leaf": "leaf"}
    assert fabric.link_count == 2
    full = {"leaf.pod": told["leaf"], "h2": {"eth0": _view("leaf", "swp2", switch=True)}}
    assert "leaf.pod" in _kinds(_loaded(tmp_path, json.dumps(lldp_of(**full)), link_gbps=100))


def test_like_names_of_several_machines_are_kept_apart(tmp_path: Path) -> None:
    """A short name that could stand for two machines stands for neither."""
    told = {
        "leaf": {
            "swp1": _view("h.east", "eth0", switch=False),
            "swp2": _view("h.west", "eth0", switch=False),
        },
        "h": {"eth0": _view("leaf", "swp3", switch=True)},
    }
    fabric = _loaded(tmp_path, json.dumps(lldp_of(**told)), link_gbps=100)
    assert _kinds(fabric) == {"h.east": "nic", "h.west": "nic", "h": "nic", "leaf": "leaf"}


def test_a_neighbour_without_a_name_is_known_by_its_id(tmp_path: Path) -> None:
    """The firmware of a NIC announces no name; lldpctl prints its other facts beside its id."""
    view = _view("", "eth0", switch=False)
    (facts,) = view["chassis"].values()
    view["chassis"] = {"id": {"type": "mac", "value": "02:00:00:00:00:02"}, **facts}
    fabric = _loaded(tmp_path, json.dumps(lldp_of(leaf={"swp1": view})), link_gbps=100)
    assert _kinds(fabric) == {"02:00:00:00:00:02": "nic", "leaf": "leaf"}


@pytest.mark.parametrize("described", [True, False])
def test_ports_of_sonic_are_known_by_their_aliases(tmp_path: Path, *, described: bool) -> None:
    """SONiC announces an alias of each port; what describes it may be its interface or any text."""

    def told(far: str, number: int) -> dict[str, Any]:
        descr = f"Ethernet{number * 8}" if described else "to the pod"
        return _sonic(far, f"etp{number}", descr)

    machines = {
        "leaf": {
            "Ethernet0": _view("h1", "eth0", switch=False),
            "Ethernet8": _view("h1", "eth1", switch=False),
            "Ethernet16": told("spine", 0),
        },
        "spine": {"Ethernet0": told("leaf", 2)},
        "h1": {"eth0": told("leaf", 0), "eth1": told("leaf", 1)},
    }
    fabric = _loaded(tmp_path, json.dumps(lldp_of(**machines)), link_gbps=100)
    assert _kinds(fabric) == {"h1-eth0": "nic", "h1-eth1": "nic", "leaf": "leaf", "spine": "spine"}
    assert fabric.link_count == 3
    machines["leaf"]["Ethernet24"], machines["spine"]["Ethernet8"] = (
        told("spine", 1),
        told("leaf", 3),
    )
    parallel = json.dumps(lldp_of(**machines))
    if described:
        assert _loaded(tmp_path, parallel, link_gbps=100).link_count == 4
        return
    with pytest.raises(InputError, match="spine:etp0, but spine has told of no such port"):
        _loaded(tmp_path, parallel, link_gbps=100)


def test_hosts_that_bridge_are_named_by_a_pattern(tmp_path: Path) -> None:
    """Hosts that run containers bridge like switches; --map tells them from the leaf."""
    seen = {f"swp{n}": _view(f"gpu{n}", "eth0", switch=True) for n in range(2)}
    text = json.dumps(lldp_of(leaf=seen))
    fabric = _loaded(tmp_path, text, "host=gpu*", link_gbps=100)
    assert _kinds(fabric) == {"gpu0": "nic", "gpu1": "nic", "leaf": "leaf"}


def test_a_graph_of_topograph_is_understood(tmp_path: Path) -> None:
    """Instances are hosts. Layers are leaf, spine and core, as in a host table."""
    instances = [
        {"id": "I21", "network_layers": ["sw11", "sw2"], "labels": {}},
        {"id": "I22", "network_layers": ["sw12", "sw2"]},
    ]
    fabric = _loaded(tmp_path, json.dumps({"instances": instances}), nics_per_host=2)
    table = _loaded(tmp_path, "host,leaf,spine\nI21,sw11,sw2\nI22,sw12,sw2\n", nics_per_host=2)
    assert _kinds(fabric) == _kinds(table)
    assert fabric.structure.links.gbps.tolist() == table.structure.links.gbps.tolist()


BOMB = "name: x\na: &a [1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (SUBNET.replace("4xNDR", "4xABC", 1), "line 11: the rate 'ABC' is none of SDR,"),
        (SUBNET.replace("Ca\t1", "Xy\t1", 1), "line 23: 'Xy\\t1 "),
        (SUBNET.replace('[1](946dae0300a1b2c4) \t"S', '[1](9) \t"T', 1), "goes to "),
        (SUBNET + SUBNET, "is told in line 10 already; give one run's output"),
        (SUBNET.replace("4xNDR", "4xHDR", 1), "Gbit/s here and"),
        ("# Topology file: generated\n", "tells no node; was ibnetdiscover run as root"),
        ("vendid=0\n" + "x" * 5000, "line 2: has 5,000 characters"),
        (LAB, "line 15: the link 'gpu1:eth1 to leaf1:eth1' tells no speed; give --link-gbps"),
        (LAB.replace("gpu2:eth1", "gpu9:eth1"), "line 17: 'gpu9' is no machine here; add it"),
        (LAB.replace("gpu2:eth1", "gpu1:eth1"), "'gpu1:eth1' has a cable already (line 15)"),
        (LAB.replace('"gpu2:eth1", ', ""), "line 17: endpoints is ['leaf2:eth2']; give two"),
        (LAB.replace("gpu2:eth1", "gpu2"), "'gpu2' is no endpoint; give NODE:INTERFACE"),
        (
            LAB.replace("leaf1: {kind: arista_ceos}", "leaf1: {}"),
            "node 'leaf1': kind is None; give",
        ),
        (LAB.replace("1.6T", "fast"), "line 18: 'fast' is not a speed"),
        (LAB.replace("  nodes:", "  knots:"), "nodes is None; give a containerlab topology"),
        (BOMB, "aliases written out; is it the right file?"),
        ('{"instances": []}', "instances: is []; give a list"),
        ('{"instances": [{"id": 1}]}', "instances[0]: id is 1; give the instance's name"),
        (
            '{"instances": [{"id": "a", "network_layers": ["x", "y", "z", "w"]}]}',
            "instances[0] ('a'): network_layers is",
        ),
        (
            json.dumps(
                {"instances": [{"id": "a", "network_layers": list("xy"[:n])} for n in (1, 2)]}
            ),
            "has 2 network_layers, others above 1; give all as many",
        ),
        (
            json.dumps({"instances": [{"id": c, "network_layers": ["a", "b", c]} for c in "xy"]}),
            "nothing joins the two; keep one of them, or join all spines: leave out the layer",
        ),
        ('[{"h1": {"lldp": {}}}]', "not a JSON object; it must start with '{'"),
        ('{"lldp": {"interface": []}}', "is what one machine sees, without its name; put all"),
        ('{"h1": {"lldp": {"interface": []}}}', "tells of no cable between two machines"),
        ('{"h1": {"lldp": 3}}', "h1: is {'lldp': 3}; give what lldpctl -f json prints there"),
        ('{"h1": {"lldp": {"interface": {"e": {}}}}}', "h1, port e: is {}; give what lldpctl"),
        (
            json.dumps(lldp_of(**(PAIR | {"h1": {"eth0": _view("leaf", "swp3", switch=True)}}))),
            "leaf, port swp1: sees h1:eth0, which sees leaf:swp3; ask both again",
        ),
        (
            json.dumps(lldp_of(**(PAIR | {"h1": {"e": _view("leaf", "swp1", switch=True)}}))),
            "but h1 has told of no such port; on h1: configure lldp portidsubtype ifname",
        ),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, text: str, wanted: str) -> None:
    """The error names the line or the object, and says what is wrong or what to give."""
    with pytest.raises(InputError) as told:
        _loaded(tmp_path, text)
    assert any(wanted in f"{problem}" for problem in told.value.problems), told.value.problems


def test_two_neighbours_of_one_port_are_refused(tmp_path: Path) -> None:
    """A cable has one other end. Two neighbours are seen behind a hub."""
    views = [{"eth0": _view("a", "x", switch=True)}, {"eth0": _view("b", "x", switch=True)}]
    with pytest.raises(InputError, match="h1, port eth0: sees 'a' and 'b'"):
        _loaded(tmp_path, json.dumps({"h1": {"lldp": {"interface": views}}}), link_gbps=100)


def test_a_pattern_that_fits_nothing_is_refused(tmp_path: Path) -> None:
    """The error names the pattern or the word."""
    with pytest.raises(InputError, match=r"mapping leaf=tor.*: no machine has such a name"):
        _loaded(tmp_path, SUBNET, "leaf=tor*")
    with pytest.raises(InputError, match=r"no machine in it is a host; .* --map host=PATTERN"):
        _loaded(tmp_path, SUBNET, "leaf=node*")
    with pytest.raises(InputError, match="unknown 'leef'; did you mean leaf"):
        _loaded(tmp_path, SUBNET, "leef=tor*")
