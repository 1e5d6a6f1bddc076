"""Heddle beside a real Slurm of eight nodes: what it writes for Slurm, and what Slurm tells it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from tests.support.slurm_world import EVEN, HEDDLE, ODD, World, slurm_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One for all tests of this file; its tree is what ``heddle slurm topology`` printed."""
    with slurm_world(tmp_path_factory.mktemp("world")) as world:
        world.slurm.topology.write_text(world.heddle("slurm", "topology"))
        world.slurm.start()
        yield world


def test_slurm_reads_the_tree_as_it_is_meant(world: World) -> None:
    """Leaves with the hosts below them, and one switch above; what scontrol shows is that."""
    shown = [
        dict(word.split("=") for word in line.split())
        for line in world.slurm.lines("scontrol", "show", "topology")
    ]
    assert [(one["SwitchName"], one["Level"], one["Nodes"]) for one in shown] == [
        ("l0", "0", "n[0,2,4,6]"),
        ("l1", "0", "n[1,3,5,7]"),
        ("top", "1", "n[0-7]"),
    ]
    assert shown[2]["Switches"] == "l[0-1]"


def test_newer_slurms_get_their_yaml(world: World) -> None:
    """A tree, or a block for each leaf, with just the same hosts."""
    (tree,) = yaml.safe_load(world.heddle("slurm", "topology", "--format", "yaml", "--top", "all"))
    assert (tree["topology"], tree["cluster_default"]) == ("heddle", True)
    assert tree["tree"]["switches"] == [
        {"switch": "all", "children": "l[0-1]"},
        {"switch": "l0", "nodes": "n[0,2,4,6]"},
        {"switch": "l1", "nodes": "n[1,3,5,7]"},
    ]
    (block,) = yaml.safe_load(world.heddle("slurm", "topology", "--format", "block"))
    assert block["block"] == {
        "block_sizes": [4],
        "blocks": [
            {"block": "l0", "nodes": "n[0,2,4,6]"},
            {"block": "l1", "nodes": "n[1,3,5,7]"},
        ],
    }


SHOW = "srun -l bash -c 'echo $SLURMD_NODENAME' | sort -n"


def ranks(output: str) -> list[str]:
    """Hosts by rank, as ``SHOW`` prints them."""
    return re.findall(r"^ *[0-9]+: (n[0-7])$", output, re.MULTILINE)


def hostfile(*words: str) -> str:
    """The line of a script that has ranks go in Heddle's order."""
    return f"export SLURM_HOSTFILE=$({HEDDLE} slurm hostfile {' '.join(words)})\n"


def test_ranks_go_over_the_hosts_in_the_order_that_crosses_least(world: World) -> None:
    """In a job that nobody submitted: hosts of a leaf stand together, each for all its ranks."""
    text = hostfile() + SHOW + "\n" + hostfile("--tasks-per-node 1") + SHOW.replace("-l", "-l -n8")
    environment = [f"{name}={value}" for name, value in world.environment.items()]
    job = world.slurm.sbatch(
        text, "-N8", "--ntasks-per-node=2", f"--export=ALL,{','.join(environment)}"
    )
    found = ranks(world.slurm.ended(job))
    twice, once = found[:16], found[16:]
    assert twice[::2] == twice[1::2] == once
    assert {frozenset(once[:4]), frozenset(once[4:])} == {frozenset(EVEN), frozenset(ODD)}


def test_a_job_runs_where_no_controller_answers(world: World) -> None:
    """The file has Slurm's own order, a note says why, and srun takes it. Slurm kept to a leaf."""
    environment = f"HEDDLE_SERVER=127.0.0.1:1,TMPDIR={world.slurm.folder}"
    job = world.slurm.sbatch(hostfile() + SHOW, "-N3", "-n3", f"--export=ALL,{environment}")
    output = world.slurm.ended(job)
    assert ranks(output) == ["n0", "n2", "n4"], output
    assert "note: no rank order, Slurm's own is kept: cannot reach the controller" in output
