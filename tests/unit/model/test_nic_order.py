"""Which NIC is the i-th of a host, and so serves its GPU i."""

from __future__ import annotations

from heddle.names import natural
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import fabric_document, parse_fabric


def _host(*nics: dict[str, object]) -> Fabric:
    nodes = [{"kind": "nic", "host": "h"} | nic for nic in nics]
    edges = [{"source": node["id"], "target": "s", "gbps": 400} for node in nodes]
    return parse_fabric({"nodes": [*nodes, {"id": "s", "kind": "leaf"}], "edges": edges}, "a test")


def _order(fabric: Fabric) -> list[str]:
    return [fabric.structure.nodes.ids[row] for row in fabric.structure.nics_of_host["h"]]


def test_numbers_in_names_count_as_numbers() -> None:
    """Numbers in names of any length count as numbers, and no two names are equal in order."""
    names = ["a1", "a01", "a2", "a10", "a10b2", "a10b10", "b", "", "7", "10", "9" * 5000]
    ordered = ["", "7", "10", "9" * 5000, "a01", "a1", "a2", "a10", "a10b2", "a10b10", "b"]
    assert sorted(names, key=natural) == ordered
    assert len({repr(natural(name)) for name in names}) == len(names)


def test_nics_of_a_host_without_rails_are_counted_by_number() -> None:
    """mlx5_10 is the eleventh, not the third, whatever the file's order."""
    names = [f"h-mlx5_{nic}" for nic in range(16)]
    told: list[dict[str, object]] = [{"id": name} for name in sorted(names)]
    fabric = _host(*told)
    assert _order(fabric) == names


def test_rails_come_before_names() -> None:
    """NICs are ordered by rail, and within a rail by name with its numbers as numbers."""
    fabric = _host(
        {"id": "n10", "rail": 0}, {"id": "n9", "rail": 1}, {"id": "n2", "rail": 0}, {"id": "x"}
    )
    assert _order(fabric) == ["x", "n2", "n10", "n9"]


def test_a_gpu_that_is_told_wins() -> None:
    """A NIC with a gpu has that place; the others fill what is left, in their order."""
    told: list[dict[str, object]] = [
        {"id": "a", "gpu": 2},
        {"id": "b", "gpu": 0},
        {"id": "c", "gpu": 1},
    ]
    assert _order(_host(*told)) == ["b", "c", "a"]
    assert _order(_host({"id": "n1"}, {"id": "n0"}, {"id": "n2", "gpu": 0})) == ["n2", "n0", "n1"]


def test_gpu_survives_the_file() -> None:
    """A NIC's gpu is written as it was read, and left out where none was given."""
    fabric = _host({"id": "a", "gpu": 1}, {"id": "b"})
    nodes = fabric_document(fabric)["nodes"]
    assert [node.get("gpu") for node in nodes] == [1, None, None]
    assert _order(parse_fabric(fabric_document(fabric), "a test")) == _order(fabric) == ["b", "a"]


def test_hosts_come_in_the_order_that_people_count_in() -> None:
    """Host h10 comes after h9, as the default rank order and hosts drawn from a seed need it."""
    nodes = [{"id": f"n{h}", "kind": "nic", "host": f"h{h}"} for h in (10, 9, 2, 1)]
    edges = [{"source": node["id"], "target": "s", "gbps": 400} for node in nodes]
    nodes.append({"id": "s", "kind": "leaf"})
    fabric = parse_fabric({"nodes": nodes, "edges": edges}, "a test")
    assert [*fabric.structure.nics_of_host] == ["h1", "h2", "h9", "h10"]
