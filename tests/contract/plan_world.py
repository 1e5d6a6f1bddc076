"""Files for ``heddle plan``, and a reader of its output that knows only the formats.

No code of the planner is used: plans are judged from the JSON, as outside tools do.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from click.testing import CliRunner, Result

from heddle_controller.cli.main import main

Json = dict[str, Any]
Hop = tuple[str, str, str]
"""The ids of the two nodes of a directed link, and its key."""


def heddle_plan(*words: object) -> Result:
    """Run ``heddle plan`` with these words."""
    return CliRunner().invoke(main, ["plan", *map(str, words)])


def write_clos(path: Path, leaves: int, spines: int, nics: int, **edge: object) -> Json:
    """Write a fabric.json of two tiers at 400 Gbit/s; NICs are n0, n1, … leaf by leaf."""
    nodes = [
        {"id": f"n{n}", "kind": "nic", "host": f"h{n // nics}", "rail": n % nics}
        for n in range(leaves * nics)
    ]
    nodes += [{"id": f"leaf{n}", "kind": "leaf"} for n in range(leaves)]
    nodes += [{"id": f"spine{n}", "kind": "spine"} for n in range(spines)]
    ends = [(f"n{n}", f"leaf{n // nics}") for n in range(leaves * nics)]
    ends += [(f"leaf{a}", f"spine{b}") for a in range(leaves) for b in range(spines)]
    document = {
        "directed": False,
        "multigraph": True,
        "graph": {"name": path.stem},
        "nodes": nodes,
        "edges": [{"source": a, "target": b, "key": 0, "gbps": 400} | edge for a, b in ends],
    }
    path.write_text(json.dumps(document))
    return document


def write_permutation(path: Path, nics: int, *, seed: int = 7) -> None:
    """Write a flows.csv in which every NIC sends to another at line rate."""
    order = [*range(nics)]
    Random(seed).shuffle(order)
    pairs = zip(order, order[1:] + order[:1], strict=True)
    lines = [f"f{a},n{a},n{b},400,j," for a, b in sorted(pairs)]
    path.write_text("\n".join(["flow,src,dst,gbps,job,phase", *lines, ""]))


@dataclass(frozen=True)
class Judged:
    """A plan file that was checked against its fabric and flows."""

    plan: Json
    load: dict[Hop, float]
    """Gbit/s on each directed link; all flows count, as none has a phase."""
    worst: float

    def ways(self) -> dict[str, list[tuple[list[int], list[Hop]]]]:
        """The QPs and hops of each flow's paths, by flow id."""
        return {
            route["flow"]: [(way["qps"], hops_of(way)) for way in route["paths"]]
            for route in self.plan["routes"]
        }


def read(path: Path) -> Any:
    """Read JSON, plain or gzip."""
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)


def hops_of(way: Json) -> list[Hop]:
    """The directed links of a path."""
    nodes = way["nodes"]
    ends = zip(nodes[:-1], nodes[1:], way["keys"], strict=True)
    return [(a, b, str(key)) for a, b, key in ends]


def judge(plan_file: Path, fabric_file: Path, flows_file: Path) -> Judged:
    """Assert that a plan is for these flows on this fabric, and measure it."""
    plan, fabric = read(plan_file), read(fabric_file)
    capacity: dict[Hop, float] = {}
    for edge in fabric["edges"]:
        for a, b in ((edge["source"], edge["target"]), (edge["target"], edge["source"])):
            capacity[a, b, str(edge["key"])] = edge["gbps"]
    nics = {node["id"] for node in fabric["nodes"] if node["kind"] == "nic"}
    with flows_file.open(newline="") as file:
        flows = {row["flow"]: row for row in csv.DictReader(file)}
    load: dict[Hop, float] = defaultdict(float)
    for route in plan["routes"]:
        flow = flows[route["flow"]]
        assert sum(way["share"] for way in route["paths"]) == 1
        for way in route["paths"]:
            assert (way["nodes"][0], way["nodes"][-1]) == (flow["src"], flow["dst"])
            assert len(set(way["nodes"])) == len(way["nodes"])
            assert not nics & set(way["nodes"][1:-1])
            for hop in hops_of(way):
                assert hop in capacity
                load[hop] += float(flow["gbps"]) * way["share"]
    told = [route["flow"] for route in plan["routes"]] + [u["flow"] for u in plan["unrouted"]]
    assert sorted(told) == sorted(flows)
    worst = max((load[hop] / capacity[hop] for hop in load), default=0.0)
    return Judged(plan, dict(load), worst)
