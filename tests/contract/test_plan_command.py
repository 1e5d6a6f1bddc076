"""``heddle plan`` as outside tools see it: input files, output files, one line, an exit code."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.plan_world import (
    heddle_plan,
    hops_of,
    judge,
    read,
    write_clos,
    write_permutation,
)

JOBS = """
- job: train
  hosts: [h0, h1, h2, h3]
  gpus_per_host: 4
  parallelism: {tp: 4, dp: 4}
"""


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A folder with a fabric of 16 leaves of 4 NICs under 4 spines, and a permutation."""
    write_clos(tmp_path / "fabric.json", 16, 4, 4)
    write_permutation(tmp_path / "flows.csv", 64)
    return tmp_path


def files(world: Path) -> list[str | Path]:
    """The options that name fabric and flows."""
    return ["--fabric", world / "fabric.json", "--flows", world / "flows.csv"]


def test_permutation_at_the_bound(tmp_path: Path) -> None:
    """A permutation of 1,024 NICs has no link above 1.0, which is proven, and the file agrees."""
    write_clos(tmp_path / "fabric.json", 64, 16, 16)
    write_permutation(tmp_path / "flows.csv", 1024)
    result = heddle_plan(*files(tmp_path), "--out", tmp_path / "p.json", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    judged = judge(tmp_path / "p.json", tmp_path / "fabric.json", tmp_path / "flows.csv")
    certificate = judged.plan["certificate"]
    assert judged.worst == certificate["max_utilization"] == certificate["lower_bound"] == 1.0
    assert (certificate["gap"], certificate["proof"]) == (0.0, "cut")
    assert certificate["tiers"] == {"nic-leaf": 1.0, "leaf-spine": 1.0}
    assert certificate["tier_bounds"].keys() == certificate["tiers"].keys()
    assert judged.plan["changed"] == 0


def test_one_line_of_json_and_nothing_else(world: Path) -> None:
    """With --json, standard output is one JSON line that agrees with the file."""
    result = heddle_plan(*files(world), "--out", world / "p.json.gz", "--json")
    line = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert result.stderr == ""
    plan = read(world / "p.json.gz")
    assert line["certificate"] == plan["certificate"]
    assert line["timing"].keys() >= {"load_seconds", "solve_seconds", "write_seconds"}
    assert line["timing"]["solve_seconds"] == plan["timing"]["solve_seconds"]
    assert (line["changed"], line["flows"], line["unrouted"]) == (0, 64, [])


def test_ignored_columns_are_named_beside_the_plan(world: Path) -> None:
    """Standard error names a column that is ignored; a refusal is still one line."""
    path = world / "flows.csv"
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([f"{header},size", *(f"{row},64" for row in rows), ""]))
    result = heddle_plan(*files(world), "--json")
    assert (result.exit_code, result.stdout.count("\n")) == (0, 1)
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"note: {path}: line 1: ignored: 'size'; the known columns are flow, ")
    path.write_text(path.read_text().replace("n0", "elsewhere", 1))
    assert heddle_plan(*files(world)).stderr.startswith(f"error: {path}: ")


def test_ignored_keys_of_a_fabric_are_named_beside_the_plan(world: Path) -> None:
    """Standard error names keys at the top level and in records that the format does not have."""
    path = world / "fabric.json"
    document = json.loads(path.read_text())
    document["nodes"][3]["hosst"] = "h0"
    document["edges"][5]["stat"] = "down"
    path.write_text(json.dumps(document | {"forwarding": "ecmp"}))
    result = heddle_plan(*files(world), "--json")
    assert (result.exit_code, result.stdout.count("\n")) == (0, 1)
    for line, where in zip(
        result.stderr.splitlines(),
        ("top level: ignored: 'forwarding'", "nodes: ignored: 'hosst'", "edges: ignored: 'stat'"),
        strict=True,
    ):
        assert line.startswith(f"note: {path}: {where}; the known keys are ")


def test_backups_stand_beside_paths(world: Path) -> None:
    """A backup has the ends of its path and none of the path's links between switches."""
    heddle_plan(*files(world), "--out", world / "p.json")
    judged = judge(world / "p.json", world / "fabric.json", world / "flows.csv")
    seen = 0
    for route in judged.plan["routes"]:
        for way, backup in zip(route["paths"], route["backups"], strict=bool(route["backups"])):
            if backup["nodes"]:
                seen += 1
                assert (
                    backup["nodes"][:: len(backup["nodes"]) - 1]
                    == way["nodes"][:: len(way["nodes"]) - 1]
                )
                inner = {frozenset(hop) for hop in hops_of(way)[1:-1]}
                assert not inner & {frozenset(hop) for hop in hops_of(backup)[1:-1]}
    assert seen > 0


def test_same_input_same_plan(world: Path) -> None:
    """The same command gives the same plan twice, except for the time it took."""
    plans = []
    for name in ("a.json", "b.json"):
        heddle_plan(*files(world), "--out", world / name)
        plan = read(world / name)
        del plan["timing"]
        plans.append(plan)
    assert plans[0] == plans[1]


def test_repair_moves_what_crossed_the_dead_link(world: Path) -> None:
    """With --previous and a dead link, no path uses it and ``changed`` counts the moved flows."""
    heddle_plan(*files(world), "--out", world / "old.json")
    old = judge(world / "old.json", world / "fabric.json", world / "flows.csv")
    dead = next(hop for hop in old.load if hop[0] == "leaf3" and hop[1].startswith("spine"))
    down = ["--down", f"{dead[1]},{dead[0]}", "--previous", world / "old.json"]
    result = heddle_plan(*files(world), *down, "--out", world / "new.json", "--json")
    line = json.loads(result.stdout)
    new = judge(world / "new.json", world / "fabric.json", world / "flows.csv")
    assert result.exit_code == 0
    assert dead not in new.load
    before, after = old.ways(), new.ways()
    moved = [flow for flow in before if before[flow] != after[flow]]
    struck = [f for f, ways in before.items() if any(dead in hops for _, hops in ways)]
    assert line["changed"] == new.plan["changed"] == len(moved)
    assert set(struck) <= set(moved)
    assert len(moved) < len(before) / 4
    assert 0 < line["timing"]["repair_seconds"] <= line["timing"]["solve_seconds"]


def test_repair_of_nothing_changes_nothing(world: Path) -> None:
    """A repair without a failure changes no path."""
    heddle_plan(*files(world), "--out", world / "old.json.gz")
    result = heddle_plan(
        *files(world), "--previous", world / "old.json.gz", "--out", world / "new.json", "--json"
    )
    assert json.loads(result.stdout)["changed"] == 0
    assert read(world / "new.json")["routes"] == read(world / "old.json.gz")["routes"]


def test_switch_down(world: Path) -> None:
    """A switch named by --down is off every path."""
    result = heddle_plan(*files(world), "--down", "spine2", "--out", world / "p.json")
    assert result.exit_code == 0
    judged = judge(world / "p.json", world / "fabric.json", world / "flows.csv")
    assert not [hop for hop in judged.load if "spine2" in hop]


def test_one_of_two_parallel_links_down(world: Path) -> None:
    """With a key, --down takes one of the parallel links; without a key it takes all of them.

    Ids may have commas, as those of networkx's grids.
    """
    fabric = json.loads((world / "fabric.json").read_text().replace('"spine0"', '"(0, 0)"'))
    spines = [node["id"] for node in fabric["nodes"] if node["kind"] == "spine"]
    doubled = [edge | {"key": "b"} for edge in fabric["edges"] if edge["target"] in spines]
    fabric["edges"] += doubled
    (world / "fabric.json").write_text(json.dumps(fabric))
    for down, left in (("leaf0,(0, 0),b", {"0"}), ("(0, 0),leaf0", set())):
        heddle_plan(*files(world), "--qps", "8", "--down", down, "--out", world / "p.json")
        judged = judge(world / "p.json", world / "fabric.json", world / "flows.csv")
        used = {hop[2] for hop in judged.load if {"leaf0", "(0, 0)"} == {*hop[:2]}}
        assert used == left
        assert {ways[-1][0][1] for ways in judged.ways().values()} == {7}


def test_flow_without_a_path_is_exit_3(world: Path) -> None:
    """Flows of a NIC that is cut off are reported with the reason; the others are planned."""
    options = ["--down", "n5,leaf1", "--out", world / "p.json"]
    result = heddle_plan(*files(world), *options)
    assert result.exit_code == 3
    judged = judge(world / "p.json", world / "fabric.json", world / "flows.csv")
    told = {one["flow"]: one["reason"] for one in judged.plan["unrouted"]}
    assert len(told) == 2
    assert all("n5" in reason for reason in told.values())
    assert "62 routed, 2 without a path" in result.stdout
    assert all(f"no path for {flow}: " in result.stdout for flow in told)


def test_jobs_instead_of_flows_and_on_top_of_them(world: Path) -> None:
    """Jobs become flows; with a flow file they are added to its flows."""
    (world / "jobs.yaml").write_text(JOBS)
    jobs = ["--jobs", world / "jobs.yaml", "--json"]
    alone = heddle_plan("--fabric", world / "fabric.json", *jobs)
    both = heddle_plan(*files(world), *jobs)
    assert (alone.exit_code, both.exit_code) == (0, 0)
    count = json.loads(alone.stdout)["flows"]
    assert count > 0
    assert json.loads(both.stdout)["flows"] == 64 + count


def test_summary_for_people(world: Path) -> None:
    """Without --json the certificate is printed for each tier, with its bound."""
    result = heddle_plan(*files(world), "--time-limit", "5")
    assert result.exit_code == 0
    assert "64 routed, 0 without a path" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("leaf-spine")]
    assert rows == [["leaf-spine", "1.000", "1.000"]]
    assert "1.000; no plan below 1.000 (cut), gap 0.0%" in result.stdout


def test_no_flows_is_a_plan(world: Path) -> None:
    """Without flows the plan is empty and the exit code is 0."""
    (world / "flows.csv").write_text("flow,src,dst,gbps,job,phase\n")
    result = heddle_plan(*files(world), "--out", world / "p.json")
    assert result.exit_code == 0
    assert "no load" in result.stdout
    assert read(world / "p.json")["routes"] == []


def test_installed_command(world: Path) -> None:
    """The installed command reads packed input and writes one JSON line with no escape codes."""
    for name in ("fabric.json", "flows.csv"):
        (world / f"{name}.gz").write_bytes(gzip.compress((world / name).read_bytes()))
    command = [str(Path(sys.executable).with_name("heddle")), "plan", "--json"]
    command += ["--fabric", f"{world}/fabric.json.gz", "--flows", f"{world}/flows.csv.gz"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["certificate"]["max_utilization"] == 1.0
    assert done.stderr == ""


BAD: dict[str, tuple[list[str], dict[str, str | bytes], str]] = {
    "no such fabric": (["--fabric", "x.json"], {}, "x.json: cannot be read: No such file"),
    "a folder": (["--flows", "."], {}, ".: cannot be read: Is a directory"),
    "empty fabric": ([], {"fabric.json": ""}, "fabric.json: the file is empty"),
    "no fabric": ([], {"fabric.json": "[1]"}, "fabric.json: not a JSON object"),
    "empty flows": ([], {"flows.csv": b""}, "flows.csv: the file is empty"),
    "binary flows": ([], {"flows.csv": bytes(range(128)) * 9}, "flows.csv: line 1: no header"),
    "unknown NIC": (
        [],
        {"flows.csv": "flow,src,dst,gbps,job,phase\nf1,n0,n999,1,j,\n"},
        "flows.csv: flow 'f1': destination 'n999' is not in the fabric",
    ),
    "flow of a switch": (
        [],
        {"flows.csv": "flow,src,dst,gbps,job,phase\nf1,leaf0,n9,1,j,\n"},
        "flows.csv: flow 'f1': source 'leaf0' is a switch",
    ),
    "negative": (
        [],
        {"flows.csv": "flow,src,dst,gbps,job,phase\nf1,n0,n9,-1,j,\n"},
        "flows.csv: line 2: gbps is '-1'",
    ),
    "down node": (["--down", "leaf99,spine0"], {}, "'leaf99' is not a node of the fabric; did you"),
    "down switch": (["--down", "spin1"], {}, "--down spin1: 'spin1' is not a node of the fabric"),
    "down link": (["--down", "leaf0,leaf1"], {}, "no link joins leaf0 and leaf1; leaf0 has links"),
    "down key": (["--down", "leaf0,spine1,7"], {}, "no link with key 7; there is 0"),
    "down form": (["--down", "a,b,c,d"], {}, "--down a,b,c,d: write A,B or A,B,KEY"),
    "previous": (["--previous", "flows.csv"], {}, "flows.csv: not a JSON object"),
    "previous of another fabric": (
        ["--previous", "old.json"],
        {
            "old.json": '{"routes": [{"flow": "f0", "paths": '
            '[{"qps": [0, 0], "nodes": ["n0", "x"], "keys": [0]}]}]}'
        },
        "old.json: route 'f0': node 'x' is not in the fabric",
    ),
    "jobs": (["--jobs", "jobs.yaml"], {"jobs.yaml": "- job: j\n  hosts: [no]\n"}, "jobs.yaml: "),
    "nowhere to write": (["--out", "none/p.json"], {}, "none/p.json: cannot be written"),
    "time limit": (["--time-limit", "nan"], {}, "--time-limit: 'nan' is not a number"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_2(
    case: str, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad input ends in exit 2 and one line that names file and record; nothing is written."""
    options, contents, expected = BAD[case]
    monkeypatch.chdir(world)
    for name, content in contents.items():
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    base = ["--fabric", "fabric.json", "--flows", "flows.csv", "--out", "p.json", "--json"]
    result = heddle_plan(*base, *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("p.json").exists()


def test_nothing_to_plan(world: Path) -> None:
    """Without flows and jobs there is one line that says so, and exit code 2."""
    result = heddle_plan("--fabric", world / "fabric.json")
    assert result.exit_code == 2
    assert result.stderr == "error: nothing to plan: give --flows, --jobs or both\n"


def test_flows_that_jobs_make_too(world: Path) -> None:
    """A flow id that is in the flow file and also made by a job is refused by name."""
    (world / "jobs.yaml").write_text(JOBS)
    jobs = ["--jobs", world / "jobs.yaml"]
    heddle_plan("--fabric", world / "fabric.json", *jobs, "--out", world / "p.json")
    flow = read(world / "p.json")["routes"][0]["flow"]
    (world / "flows.csv").write_text(f"flow,src,dst,gbps,job,phase\n{flow},n0,n9,1,j,\n")
    result = heddle_plan(*files(world), *jobs)
    assert result.exit_code == 2
    assert f"flow {flow!r}: {world / 'jobs.yaml'} makes a flow of the same id" in result.stderr


def test_failed_write_leaves_the_old_plan(world: Path) -> None:
    """The file at --out stays as it is until a whole new plan replaces it."""
    out = world / "p.json"
    heddle_plan(*files(world), "--out", out)
    before = out.read_bytes()
    heddle_plan(*files(world), "--down", "nobody", "--out", out)
    assert out.read_bytes() == before
    assert [path.name for path in world.iterdir() if path.name.startswith(".")] == []


def test_shares_are_multiples_of_a_qp(world: Path) -> None:
    """With 3 QPs, every share is a whole number of thirds and agrees with its QPs."""
    write_clos(world / "fabric.json", 16, 3, 4)
    heddle_plan(*files(world), "--qps", "3", "--out", world / "p.json")
    plan = read(world / "p.json")
    for route in plan["routes"]:
        qps = [way["qps"] for way in route["paths"]]
        assert sorted(qp for low, high in qps for qp in range(low, high + 1)) == [0, 1, 2]
        for way in route["paths"]:
            low, high = way["qps"]
            assert math.isclose(way["share"], (high - low + 1) / 3)
