"""Paths from the answers of probes: by address, and by inference where one switch fits."""

from __future__ import annotations

from typing import Any

import pytest

from heddle_controller.model.errors import InputError
from heddle_controller.model.files.fabric_file import fabric_document, parse_fabric
from heddle_controller.model.files.port_paths_file import parse_port_paths

NIC_A, NIC_B = "10.0.0.1", "10.0.0.2"


def document(parallel: int = 1) -> dict[str, Any]:
    """Two leaves and two spines; links between switches have addresses that Linux answers from."""
    nodes = [
        {"id": name, "kind": kind, "address": address}
        for name, kind, address in (
            ("a", "nic", NIC_A),
            ("b", "nic", NIC_B),
            ("l0", "leaf", "10.1.0.1"),
            ("l1", "leaf", "10.1.0.2"),
            ("s0", "spine", "10.1.0.3"),
            ("s1", "spine", "10.1.0.4"),
        )
    ]
    edges: list[dict[str, Any]] = [
        {"source": "a", "target": "l0", "key": 0, "gbps": 400.0},
        {"source": "b", "target": "l1", "key": 0, "gbps": 400.0},
    ]
    for leaf in (0, 1):
        for spine in (0, 1):
            for key in range(parallel):
                number = (leaf * 2 + spine) * 4 + key
                edges.append(
                    {
                        "source": f"l{leaf}",
                        "target": f"s{spine}",
                        "key": key,
                        "gbps": 400.0,
                        "source_address": f"10.2.{number}.0",
                        "target_address": f"10.2.{number}.1",
                    }
                )
    return {"graph": {"name": ""}, "directed": False, "multigraph": True, "nodes": nodes} | {
        "edges": edges
    }


def nodes_of(hops: list[str | None], parallel: int = 1) -> list[tuple[str, int]]:
    """Nodes and link keys of the path with these answers; empty if the path is not certain."""
    fabric = parse_fabric(document(parallel), "test")
    pair = {"source": NIC_A, "destination": "b", "paths": [{"hops": hops, "ports": [50000]}]}
    known = parse_port_paths({"pairs": [pair]}, fabric, "test")
    structure = fabric.structure
    return [
        (structure.nodes.ids[structure.head[arc]], int(structure.links.key[arc >> 1]))
        for arc in known.arcs.tolist()
    ]


WAY = [("l0", 0), ("s1", 0), ("l1", 0), ("b", 0)]


@pytest.mark.parametrize(
    "hops",
    [
        ["10.1.0.1", "10.1.0.4", "10.1.0.2"],
        ["10.1.0.1", "10.2.4.1", "10.2.8.0"],
        [None, "10.2.4.1", None],
        ["10.1.0.1", "10.1.0.4"],
    ],
    ids=["of-nodes", "of-links", "leaves-silent", "last-silent"],
)
def test_what_answered_is_the_path(hops: list[str | None]) -> None:
    """Any address of a switch counts; a silent leaf is inferred, as the NIC hangs on one only."""
    assert nodes_of(hops) == WAY


@pytest.mark.parametrize("hops", [["10.1.0.1", None, "10.1.0.2"], ["10.1.0.1"], []])
def test_what_stays_open_teaches_nothing(hops: list[str | None]) -> None:
    """If either of two spines may be the silent one, no path is learned."""
    assert not nodes_of(hops)


def test_parallel_links_are_told_apart_by_their_own_addresses() -> None:
    """A switch that answers from a link's own address names that link; else no path is known."""
    hops: list[str | None] = ["10.1.0.1", "10.2.5.1", "10.2.12.0"]
    assert nodes_of(hops, 2) == [("l0", 0), ("s1", 1), ("l1", 0), ("b", 0)]
    assert not nodes_of(["10.1.0.1", "10.1.0.4", "10.1.0.2"], 2)


def test_an_address_of_nobody_is_refused() -> None:
    """An unknown address is refused, with the address and the cure."""
    with pytest.raises(InputError, match=r"10\.9\.9\.9.*name the addresses of links"):
        nodes_of(["10.9.9.9"])


def test_addresses_of_links_are_kept_in_fabric_files() -> None:
    """Link addresses are written as they were read, and malformed ones are refused."""
    fabric = parse_fabric(document(2), "test")
    assert fabric_document(fabric) == document(2)
    bad = document()
    bad["edges"][2]["target_address"] = "here"
    with pytest.raises(InputError, match="target_address is 'here'"):
        parse_fabric(bad, "test")
