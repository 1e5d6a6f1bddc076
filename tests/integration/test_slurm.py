"""Heddle beside a real Slurm of eight nodes: what it writes for Slurm, and how it plans jobs."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from heddle.v1.placement_pb2 import JobSpec
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_controller.model.host_lists import fold
from heddle_emulator.fleet.controller import Controller
from tests.support.needs import missing
from tests.support.slurm import CLUSTER, patiently, slurm_files
from tests.support.slurm_world import (
    EVEN,
    HEDDLE,
    NODES,
    ODD,
    PAGE,
    ROOT,
    World,
    even_and_odd,
    slurm_world,
)
from tests.support.waiting import wait_until

SETUP, _, USE = PAGE.read_text().partition("\n## A job\n")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One world for all tests of this file, set up as the page says."""
    with slurm_world(tmp_path_factory.mktemp("world")) as world:
        world.follow(SETUP)
        world.set()
        world.slurm.start()
        yield world


@pytest.fixture(autouse=True)
def quiet(world: World) -> Iterator[None]:
    """After each test, cancel all jobs and wait until the controller has forgotten them."""
    yield
    world.slurm.cancel_all()
    patiently(lambda: not world.jobs(), "the controller to forget all jobs")


def test_slurm_reads_the_tree_as_it_is_meant(world: World) -> None:
    """Slurm shows a switch for each leaf, with the hosts below it, and one switch above."""
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
    """The YAML for newer Slurms has a tree, or a block for each leaf, with the same hosts."""
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


def test_nodes_that_the_fabric_does_not_have_are_left_out_of_the_tree(world: World) -> None:
    """Nodes of Slurm outside the fabric are named in a note; a list of only such nodes is refused.

    A cluster has such nodes, for logins for example.
    """
    asked = str(HEDDLE), "--server", world.address, "slurm", "topology", "--nodes"
    told = world.slurm.type(*asked, "login[0-1],n[0-2]")
    assert "SwitchName=l0 Nodes=n[0,2]\nSwitchName=l1 Nodes=n1\n" in told.stdout
    assert (told.returncode, told.stderr) == (
        0,
        "note: the fabric has no host 'login0' and 1 more: below no switch\n",
    )
    none = world.slurm.type(*asked, "login[0-1]")
    assert (none.returncode, none.stdout, "hosts such as 'n0'" in none.stderr) == (2, "", True)


SHOW = "srun -l bash -c 'echo $SLURMD_NODENAME' | sort -n"


def ranks(output: str) -> list[str]:
    """Return the hosts by rank from the output of ``SHOW``."""
    return re.findall(r"^ *[0-9]+: (n[0-7])$", output, re.MULTILINE)


def hostfile(*words: str) -> str:
    """Return the line of a script that puts ranks into Heddle's order."""
    return f"export SLURM_HOSTFILE=$({HEDDLE} slurm hostfile {' '.join(words)})\n"


def test_ranks_go_over_the_hosts_in_the_order_that_crosses_least(world: World) -> None:
    """Hosts of a leaf are next to each other in the order of ranks, and so are a host's ranks.

    The job itself is not known to the controller.
    """
    text = hostfile() + SHOW + "\n" + hostfile("--tasks-per-node 1") + SHOW.replace("-l", "-l -n8")
    environment = [f"{name}={value}" for name, value in world.environment.items()]
    job = world.slurm.sbatch(
        text, "-N8", "--ntasks-per-node=2", f"--export=ALL,{','.join(environment)}"
    )
    found = ranks(world.slurm.ended(job))
    twice, once = found[:16], found[16:]
    assert twice[::2] == twice[1::2] == once
    assert {frozenset(once[:4]), frozenset(once[4:])} == {frozenset(EVEN), frozenset(ODD)}


def test_a_shape_may_keep_the_order_of_slurm(world: World) -> None:
    """With ``order=slurm`` in its words, a shape leaves the nodes in Slurm's order."""
    allocation = {
        "SLURM_CLUSTER_NAME": CLUSTER,
        "SLURM_JOB_ID": "901",
        "SLURM_JOB_NODELIST": "n[0-7]",
        "SLURM_TASKS_PER_NODE": "1(x8)",
    }
    best, kept = (
        world.slurm.must(
            *(HEDDLE, "--json", "slurm", "hostfile", "--shape", f"gpus=1 order={order}"),
            **world.environment,
            **allocation,
        )
        for order in ("best", "slurm")
    )
    assert json.loads(kept)["hosts"] == [*NODES]
    assert json.loads(best)["hosts"] != json.loads(kept)["hosts"]


def test_a_job_runs_where_no_controller_answers(world: World) -> None:
    """Without a controller, the file has Slurm's own order, which srun takes, and a note says why.

    Slurm itself keeps the job to one leaf. The job asks for no number of tasks: srun starts one on
    each node, with the file as without it.
    """
    environment = f"HEDDLE_SERVER=127.0.0.1:1,TMPDIR={world.slurm.folder}"
    job = world.slurm.sbatch(hostfile() + SHOW, "-N3", f"--export=ALL,{environment}")
    output = world.slurm.ended(job)
    assert ranks(output) == ["n0", "n2", "n4"], output
    assert "note: no rank order, Slurm's own is kept: cannot reach the controller" in output


RING = "all_reduce=dp:1GiB"
SHAPE = f"heddle: gpus=1 {RING}"


def look(world: World) -> str:
    """Return the line of a script that saves the states of all jobs when the script begins."""
    seen = f"{world.slurm.folder}/seen.$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}"
    return f"{HEDDLE} --server {world.address} job list --json > {seen}.new; mv {seen}.new {seen}\n"


def seen(world: World, job: int, restart: int = 0) -> dict[str, Any]:
    """Return what ``look`` saved of the job itself."""
    path = world.slurm.folder / f"seen.{job}.{restart}"
    wait_until(path.exists, f"start {restart} of job {job}")
    listed = {one["name"].rpartition("/")[2]: one for one in json.loads(path.read_text())}
    assert listed.keys() >= {name(job)}, world.log()
    return dict(listed[name(job)])


def staying(world: World) -> str:
    """Return lines of a script that goes on until ``let_go``."""
    return f"until [ -e {world.slurm.folder}/go.$SLURM_JOB_ID ]; do sleep 0.1; done\n"


def let_go(world: World, *jobs: int) -> list[str]:
    """Let jobs end, wait for that, and return what they printed."""
    for job in jobs:
        (world.slurm.folder / f"go.{job}").touch()
    return [world.slurm.ended(job) for job in jobs]


def name(job: int) -> str:
    """Return the controller's name for a job of Slurm."""
    return f"{CLUSTER}-{job}"


def gone(world: World, *jobs: int) -> None:
    """Wait until the controller knows none of the jobs."""
    names = {name(job) for job in jobs}
    patiently(lambda: not names & world.jobs().keys(), f"the controller to forget {names}")


def submitted(world: World, text: str, *options: str) -> int:
    """Submit a batch job that knows its controller's address, and return its id."""
    told = ",".join(f"{name}={value}" for name, value in world.environment.items())
    return world.slurm.sbatch(text, *options, f"--export=ALL,{told}")


def test_a_job_is_programmed_before_its_first_step(world: World) -> None:
    """A job is programmed when it begins, has its order and ports, and is gone when it ends."""
    text = look(world) + hostfile() + SHOW + "\nsrun bash -c 'cat $HEDDLE_PORTS_FILE'\n"
    job = submitted(world, text, "-N8", "-n8", "--comment", SHAPE)
    output = world.slurm.ended(job)
    found = seen(world, job)
    assert found["state"] == "JOB_STATE_PROGRAMMED", world.log()
    assert ranks(output) == found["spec"]["hosts"]
    halves = {frozenset(ranks(output)[:4]), frozenset(ranks(output)[4:])}
    assert halves == {frozenset(EVEN), frozenset(ODD)}
    hosts = re.findall(r'"host": "(n[0-7])"', output)
    sources = re.findall(r'"source": "(n[0-7])-nic"', output)
    assert (sorted(hosts), sorted(sources)) == (list(NODES), list(NODES))
    gone(world, job)
    assert f"{name(job)} is programmed" in world.log()
    wait_until(lambda: not (world.spool / name(job)).exists(), "its folder to go")


def test_the_page_is_typed_and_true(world: World) -> None:
    """The commands of the page work: its job is programmed, and its ranks need no note."""
    assert len(re.findall(r"^<!--", PAGE.read_text(), re.MULTILINE)) == 6
    begun = world.log()
    world.follow(USE)
    (path,) = world.slurm.folder.glob("slurm-*.out")
    number = int(path.stem.partition("-")[2])
    assert path.read_text().count("\n") == 4, path.read_text()
    assert "note:" not in path.read_text()
    assert f"{name(number)} is programmed" in world.log().removeprefix(begun)


def test_the_lines_for_schedulers_are_true(world: World) -> None:
    """The lines of README.md work: the job is programmed, and its ranks are in Heddle's order."""
    block = (ROOT / "README.md").read_text().partition("Slurm:\n\n```\n")[2].partition("```")[0]
    lines = [line.partition("  #")[0].strip() for line in world.here(block).splitlines()]
    typed, script = lines[:2], lines[2:]
    (world.slurm.folder / "train.py").write_text(
        "import os; print(os.environ['SLURM_PROCID'] + ': ' + os.environ['SLURMD_NODENAME'])"
    )
    (world.slurm.folder / "train.sh").write_text("\n".join(["#!/bin/bash", look(world), *script]))
    path = f"PATH={HEDDLE.parent}:{os.environ['PATH']}"
    world.slurm.must("bash", "-euc", f"export {path}\n" + typed[0], **world.environment)
    said = world.slurm.must("bash", "-euc", f"export {path}\n" + typed[1], **world.environment)
    number = int(said.split()[-1])
    output = (world.slurm.ended(number), (world.slurm.folder / f"slurm-{number}.out").read_text())
    by_rank = sorted(re.findall(r"^([0-9]): (n[0-7])$", output[1], re.MULTILINE))
    found = seen(world, number)
    assert found["state"] == "JOB_STATE_PROGRAMMED", world.log()
    assert [host for _, host in by_rank] == found["spec"]["hosts"], output


def test_a_job_that_starts_anew_is_planned_anew(world: World) -> None:
    """A job is planned again after ``scontrol requeue``, and on other nodes after a failure."""
    text = look(world) + staying(world) + hostfile() + SHOW
    job = submitted(world, text, "-N4", "-n4", "--requeue", "--comment", SHAPE)
    assert sorted(seen(world, job)["spec"]["hosts"]) == sorted(EVEN)
    world.slurm.must("scontrol", "requeue", str(job))
    world.slurm.starts_again(job)
    again = seen(world, job, 1)
    assert (again["state"], sorted(again["spec"]["hosts"])) == (
        "JOB_STATE_PROGRAMMED",
        sorted(EVEN),
    )
    world.slurm.fail("n0")
    try:
        world.slurm.starts_again(job)
        elsewhere = seen(world, job, 2)
        assert elsewhere["state"] == "JOB_STATE_PROGRAMMED"
        assert sorted(elsewhere["spec"]["hosts"]) == sorted(ODD), world.log()
        (output,) = let_go(world, job)
        assert ranks(output) == elsewhere["spec"]["hosts"]
        gone(world, job)
    finally:
        world.slurm.mend("n0")


def test_nodes_that_a_job_gave_up_are_free_for_the_next(world: World) -> None:
    """A running job shrinks: the next job on its node is planned, and the first one is smaller."""
    text = look(world) + staying(world)
    first = submitted(world, text, "-N8", "-n8", "--comment", SHAPE)
    seen(world, first)
    submitted(world, text, "-N2", "--begin=now+1hour", "--comment", SHAPE)  # has no nodes yet
    world.slurm.must("scontrol", "update", f"JobId={first}", f"NodeList={fold(NODES[:6])}")
    second = submitted(world, text, "-N2", "-n2", "--comment", SHAPE)
    found = seen(world, second)
    assert found["state"] == "JOB_STATE_PROGRAMMED", world.log()
    assert sorted(found["spec"]["hosts"]) == list(NODES[6:])
    assert sorted(world.jobs()[name(first)].spec.hosts) == list(NODES[:6])
    let_go(world, first, second)
    gone(world, first, second)


def test_a_job_whose_shape_does_not_fit_its_smaller_size_is_ended(world: World) -> None:
    """Its nodes are then free for the next job, and its user keeps a running job."""
    text = look(world) + staying(world)
    shape = "heddle: gpus=1 pp=8"
    first = submitted(world, text, "-N8", "-n8", "--comment", shape)
    seen(world, first)
    world.slurm.must("scontrol", "update", f"JobId={first}", f"NodeList={fold(NODES[:6])}")
    second = submitted(world, text, "-N2", "-n2", "--comment", SHAPE)
    assert seen(world, second)["state"] == "JOB_STATE_PROGRAMMED", world.log()
    assert world.jobs().keys() == {name(second)}
    let_go(world, first, second)


def test_a_job_that_ended_without_an_epilog_makes_way(world: World) -> None:
    """Slurm knows nothing of a job that Heddle has: the next job on its nodes takes its place.

    Its folder goes too.
    """
    lost = name(4_000_000)
    (world.spool / lost).mkdir()
    with world.client() as client:
        client.submit_job(lost, JobSpec(hosts=NODES, gpus_per_host=1))
    job = submitted(world, look(world), "-N8", "-n8", "--comment", SHAPE)
    assert seen(world, job)["state"] == "JOB_STATE_PROGRAMMED", world.log()
    gone(world, job)
    assert not world.jobs()
    assert not (world.spool / lost).exists()


def test_a_job_whose_epilog_runs_now_makes_way(world: World) -> None:
    """Slurm gives nodes to the next job before the epilog has deleted the job that had them."""
    ending = name(4_000_001)
    owed = world.spool / "owed" / ending
    owed.parent.mkdir(exist_ok=True)
    with owed.open("w") as note, world.client() as client:
        fcntl.flock(note, fcntl.LOCK_EX)  # as an epilog does
        client.submit_job(ending, JobSpec(hosts=NODES, gpus_per_host=1))
        job = submitted(world, look(world), "-N8", "-n8", "--comment", SHAPE)
        found = seen(world, job)["state"]
        owed.unlink()
    assert found == "JOB_STATE_PROGRAMMED", world.log()
    gone(world, job)
    assert not world.jobs()


def test_a_job_that_ends_while_heddle_is_updated_is_ended_later(world: World) -> None:
    """The epilog finds no program ``heddle``: the next job ends it, on whatever nodes it runs.

    The log names the job, also where the prolog finds no program. A file beside
    its note whose name no job can have does not matter.
    """
    number = 4_000_002
    lost = name(number)
    (world.spool / lost).mkdir()
    with world.client() as client:
        client.submit_job(lost, JobSpec(hosts=["n7"], gpus_per_host=1))
    of_job = {"SLURM_CLUSTER_NAME": CLUSTER, "SLURM_JOB_ID": str(number)}
    try:
        world.set(HEDDLE="/nowhere/heddle")
        for program in ("epilog", "prolog"):
            begun = world.log()
            world.slurm.must(world.slurm.folder / program, **of_job, SLURM_JOB_COMMENT=SHAPE)
            told = world.log().removeprefix(begun)
            assert f"job {number}: heddle ended with status 127" in told
            assert not (world.spool / lost).exists()
    finally:
        world.set()
    (world.spool / "owed" / f"a copy of {lost}~").touch()
    job = submitted(world, look(world), "-N2", "-w", "n[0-1]", "--comment", SHAPE)
    world.slurm.ended(job)
    assert seen(world, job)["state"] == "JOB_STATE_PROGRAMMED", world.log()
    gone(world, number, job)
    wait_until(lambda: not any((world.spool / "owed").iterdir()), "nothing to be owed")


@contextmanager
def held_up(world: World, slow: str, **settings: str) -> Iterator[tuple[Path, Path]]:
    """Have prologs wait for a program that they call: ``heddle`` itself, or ``scontrol``.

    Yields the file that appears when a prolog waits, and the file whose creation lets it go on.
    """
    with tempfile.TemporaryDirectory(dir=world.slurm.folder) as place:
        folder = Path(place)
        begun, go, program = (folder / name for name in ("begun", "go", slow))
        real = HEDDLE if slow == "heddle" else shutil.which(slow)
        program.write_text(
            f'#!/bin/sh\n[ "$2" = epilog ] || {{ touch {begun}\n'
            f'until [ -e {go} ]; do sleep 0.05; done; }}\nexec {real} "$@"\n'
        )
        program.chmod(0o755)
        heddle = program if slow == "heddle" else HEDDLE
        world.set(HEDDLE=str(heddle), PATH=f"{folder}:{os.environ['PATH']}", **settings)
        try:
            yield begun, go
        finally:
            go.touch()
            world.set()


def ended_by_hand(world: World, job: int) -> bool:
    """Run an epilog, since slurmctld may kill its own; return whether the job is no more."""
    of_job = {"SLURM_CLUSTER_NAME": name(job).rpartition("-")[0], "SLURM_JOB_ID": str(job)}
    told = ("--server", world.address, "slurm", "epilog", "--directory", world.spool, "--answer=20")
    world.slurm.must(HEDDLE, *told, **of_job)
    of_it = (world.spool / name(job), world.spool / "owed" / name(job))
    return not any(path.exists() for path in of_it)


@pytest.mark.parametrize("slow", ["heddle", "scontrol"])
def test_a_job_that_is_cancelled_while_its_prolog_runs_leaves_nothing(
    world: World, slow: str
) -> None:
    """The epilog runs beside the prolog: the job is not at Heddle, and has no folder.

    It comes before Heddle's command starts, or before that command submits the job.
    """
    with held_up(world, slow) as (begun, go):
        job = submitted(world, "true\n", "-N2", "--comment", SHAPE)
        wait_until(begun.exists, "the prolog to begin")
        world.slurm.must("scancel", str(job))
        wait_until(lambda: ended_by_hand(world, job), "the epilog to end")
        go.touch()
        # A prolog that was not let go in time submitted the job, and the epilog deleted it.
        told = re.compile(rf"job {job}: |{name(job)} is programmed")
        wait_until(lambda: told.search(world.log()), "the prolog to end")
    assert not world.jobs(), world.log()
    assert not (world.spool / name(job)).exists()


def test_a_prolog_turns_to_the_next_controller_if_its_own_dies(
    world: World, tmp_path: Path
) -> None:
    """The controller that answered first is killed: the job is planned by the one named next."""
    first = Controller(tmp_path)
    world.background.run(first.__aenter__())
    try:
        save_fabric_file(even_and_odd(), tmp_path / "fabric.json")
        to_first = ("--server", first.api)
        world.heddle("fabric", "import", tmp_path / "fabric.json", "--fabric", "f1", *to_first)
        servers = f"{first.api},{world.address}"
        with held_up(world, "scontrol", HEDDLE_SERVER=servers) as (begun, go):
            job = submitted(world, look(world), "-N2", "--comment", SHAPE)
            wait_until(begun.exists, "the first controller to have answered")
            world.background.run(first.kill())
            go.touch()
            found = seen(world, job)
    finally:
        world.background.run(first.__aexit__())
    assert found["state"] == "JOB_STATE_PROGRAMMED", world.log()


def test_tasks_of_an_array_and_components_are_jobs_of_their_own(world: World) -> None:
    """Array tasks and components of a mixed job are jobs with the ids that Slurm gave them."""
    text = look(world) + staying(world)
    array = submitted(world, text, "-N2", "--array=0-1", "--comment", SHAPE)
    mixed = submitted(
        world, text, "-N2", "--comment", SHAPE, ":", "-N2", "--comment", "heddle: gpus=1 dp=2"
    )
    patiently(lambda: len(world.jobs()) == 4, "four jobs to be submitted")
    ids = [int(line) for line in world.slurm.lines("squeue", "-h", "-r", "-o", "%A")]
    assert {array, mixed} < set(ids)
    assert world.jobs().keys() == set(map(name, ids))
    jobs = list(world.jobs().values())
    hosts = [host for job in jobs for host in job.spec.hosts]
    assert sorted(hosts) == list(NODES)
    assert {job.spec.parallelism.dp for job in jobs} == {0, 2}
    for number in ids:
        (world.slurm.folder / f"go.{number}").touch()
    gone(world, *ids)


def test_jobs_that_start_at_once_take_turns(world: World) -> None:
    """Tasks of an array are planned, and at most eight of their prologs call controllers at once.

    Controllers that hear of hundreds of jobs at once do not answer in time. On a busy machine, the
    turns of some tasks come too late, which the log says. Other users cannot open the files that
    prologs and epilogs lock, or they could hold up all jobs.
    """
    with tempfile.TemporaryDirectory(dir=world.slurm.folder) as place:
        slow = Path(place) / "scontrol"  # a prolog calls it while it is its turn
        slow.write_text(
            f"#!/bin/sh\ncd {place}\ntouch now.$$; sleep 0.5; ls now.* | wc -l >>seen; rm now.$$\n"
            f'exec {shutil.which("scontrol")} "$@"\n'
        )
        slow.chmod(0o755)
        world.set(PATH=f"{place}:{os.environ['PATH']}", HEDDLE_SLURM_ANSWER="5")
        try:
            share = ("-p", "shared", "-N1", "-n1", "--gpus-per-node=1", "--comment", "heddle:")
            first = submitted(world, "true\n", *share, "--array=1-16")
            ids = range(first, first + 16)
            planned = re.compile(rf"\b{CLUSTER}-([0-9]+) is programmed")
            told = re.compile(rf"{planned.pattern}|\bjob ([0-9]+): ")
            patiently(
                lambda: {*map(str, ids)} <= {a or b for a, b in told.findall(world.log())},
                "the log to say of each task whether it is programmed",
            )
            log = world.log()
        finally:
            world.set()
        counts = [int(count) for count in (Path(place) / "seen").read_text().split()]
    programmed = {*ids}.intersection(map(int, planned.findall(log)))
    assert 0 < len(programmed) <= len(counts), (counts, log)
    assert max(counts) <= 8, counts
    gone(world, *ids)
    locked = [*world.spool.glob(".turn-*"), world.spool / "owed"]
    assert not any(path.stat().st_mode & 0o077 for path in locked)


def ports_of(world: World, job: int, node: str) -> dict[tuple[str, str], str]:
    """Return the port of the only QP from a node, by the addresses of its ends."""
    told = (world.spool / name(job) / "0" / f"{node}.ports").read_text()
    lines = [line.split() for line in told.splitlines() if not line.startswith("#")]
    return {(source, destination): port for source, destination, port in lines}


def test_jobs_share_nodes_by_their_gpus(world: World) -> None:
    """Jobs that share nodes have the GPUs that Slurm gives them, also different numbers of them.

    Each has a port of its own between the same two NICs. A job whose shape has another number of
    GPUs than Slurm gives it is told so.
    """
    text = look(world) + staying(world)
    share = ("-p", "shared", "-w", "n[0-1]", "-N2", "-n2")
    first = submitted(world, text, *share, "--gpus-per-node=1", "--comment", SHAPE)
    of_first = seen(world, first)
    second = submitted(
        world, text, *share, "--gpus-per-node=2", "--comment", f"heddle: tp=2 {RING}"
    )
    of_second = seen(world, second)
    third = submitted(world, text, *share, "--gpus-per-node=1", "--comment", "heddle: gpus=3")
    (world.slurm.folder / f"go.{third}").touch()
    said = world.slurm.ended(third)
    assert "the shape says gpus=3, and Slurm gives the job 1 of n0" in said, world.log()
    told = [one["spec"]["gpus"] for one in (of_first, of_second)]
    assert told == [[{"gpus": [0]}], [{"gpus": [1, 2]}]], world.log()
    assert [one["state"] for one in (of_first, of_second)] == ["JOB_STATE_PROGRAMMED"] * 2
    for node in NODES[:2]:
        (pair,), (same_pair,) = own = [ports_of(world, job, node) for job in (first, second)]
        assert pair == same_pair
        assert own[0][pair] != own[1][pair]
    let_go(world, first, second)
    uneven = ("-p", "shared", "-w", "n[0-1]", "-N2", "-n3", "--gpus=3", "--gpus-per-task=1")
    job = submitted(world, text, *uneven, "--comment", "heddle: all_reduce=dp")
    spec = seen(world, job)["spec"]
    assert sorted(len(one["gpus"]) for one in spec["gpus"]) == [1, 2], world.log()
    assert spec["gpus_per_host"] == 0
    let_go(world, job)


def chosen_sbatch(world: World, server: str, text: str, *words: str) -> tuple[int, str, str]:
    """Submit by ``heddle slurm sbatch``; return the job, the nodes it asks for, and the note."""
    script = world.slurm.script(text)
    told = world.slurm.type(
        *(str(HEDDLE), "--server", server, "slurm", "sbatch", "--parsable"),
        *("-o", f"{world.slurm.folder}/out.%j", *words, str(script)),
    )
    assert told.returncode == 0, told.stderr
    job = int(told.stdout.split(";")[0])
    shown = world.slurm.must("scontrol", "-o", "show", "job", str(job))
    return job, shown.partition("ReqNodeList=")[2].split()[0], told.stderr


def test_idle_nodes_are_chosen_for_the_traffic_of_a_job(world: World) -> None:
    """Four idle nodes below one leaf are chosen, by the options in the script."""
    busy = submitted(world, staying(world), "-N1", "-w", "n1")
    patiently(lambda: world.slurm.state(busy) == "RUNNING", "the first job to run")
    lines = f"#SBATCH --nodes 4\n#SBATCH --comment '{SHAPE}'\ntrue\n"
    job, nodes, note = chosen_sbatch(world, world.address, lines)
    assert nodes == "n[0,2,4,6]", note
    assert "note: 4 of 7 idle nodes: " in note
    world.slurm.ended(job)
    let_go(world, busy)


def test_a_job_on_chosen_nodes_starts_again_on_others(world: World) -> None:
    """A job whose nodes Heddle chose does not wait for a node that has failed.

    Nodes that the user names are kept, as Slurm's own users expect.
    """
    words = ("-p", "shared", "-N2", "-n2", "--requeue", "--comment", SHAPE)
    job, nodes, note = chosen_sbatch(world, world.address, staying(world), *words)
    assert nodes == "n[0,2]", note
    own = submitted(world, staying(world), *words, "-w", nodes)
    running = {"RUNNING"}
    patiently(lambda: {*map(world.slurm.state, (job, own))} == running, "both jobs to run")
    world.slurm.fail("n0")
    try:
        world.slurm.starts_again(job)
        patiently(lambda: world.slurm.state(job) == "RUNNING", "the job to run elsewhere")
        world.slurm.starts_again(own)
        shown = world.slurm.must("scontrol", "-o", "show", "job", str(own))
        assert "JobState=PENDING" in shown
        assert "ReqNodeList=n[0,2] " in shown
        world.slurm.must("scancel", str(own))
        let_go(world, job)
    finally:
        world.slurm.cancel_all()
        world.slurm.mend("n0")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("-N9", "--comment", SHAPE), "it wants 9 nodes, and 8 are idle"),
        (("-N2",), "its --comment has no shape"),
        (("-N2", "--comment", "heddle: gpus=eight"), "'gpus=eight'"),
        (("-N2", "--comment", SHAPE, "--array=1-2"), "tasks of an array start one by one"),
        (("--comment", SHAPE), "give --nodes a number"),
        (("-N2", "--comment", SHAPE, "--hold"), "it starts later"),
        (("-H", "-N2", "--comment", SHAPE), "it starts later"),
        (("-N2", "--comment", SHAPE, "--depend=singleton"), "it starts later"),
        (("-N2", "--comment", SHAPE, "--nodel=n[1,3]"), "--nodelist names its nodes"),
        (("-N2", "--comment", SHAPE, "-sOwn[1,3]"), "--nodelist names its nodes"),
        (("-N2", "--comment", SHAPE, "--mem=1T"), "on the best nodes the job may not run"),
        (("-N2", "--comment", SHAPE, "-p", "all,shared"), "any of several partitions"),
        (("-N2", "--comment", SHAPE, "-M", "other"), "--clusters names another cluster"),
    ],
)
def test_slurm_chooses_where_heddle_cannot(world: World, words: tuple[str, ...], why: str) -> None:
    """If Heddle cannot choose, sbatch gets its options unchanged, and a note says why."""
    told = world.slurm.type(
        *(str(HEDDLE), "--server", world.address, "slurm", "sbatch", "--test-only", *words),
        world.slurm.script("true\n"),
    )
    assert "note: Slurm chooses the nodes: " in told.stderr
    assert why in told.stderr
    assert (told.returncode == 0) == {"-N9", "--mem=1T", "-M"}.isdisjoint(words), told.stderr


@pytest.mark.parametrize(
    ("lines", "variable", "why"),
    [
        ("#SBATCH hetjob\n#SBATCH -N1\n", "", "components of a heterogeneous job"),
        ("  # Nodes:\n#SBATCH -w n[1,3]\n", "", "--nodelist names its nodes"),
        ("", "SBATCH_ARRAY_INX=0-3", "tasks of an array start one by one"),
        ("", "SBATCH_CLUSTERS=other", "--clusters names another cluster"),
        ("", "SBATCH_RESERVATION=maint", "Slurm knows which nodes --reservation has"),
    ],
)
def test_slurm_chooses_for_what_script_and_variables_ask(
    world: World, lines: str, variable: str, why: str
) -> None:
    """Heddle leaves the choice to Slurm for a heterogeneous script, and for sbatch's variables."""
    told = world.slurm.type(
        *("env", variable or "NONE=0", str(HEDDLE), "--server", world.address, "slurm", "sbatch"),
        *("--test-only", "-N2", "--comment", SHAPE),
        world.slurm.script(lines + "true\n"),
    )
    assert "note: Slurm chooses the nodes: " in told.stderr
    assert why in told.stderr


def test_nodes_on_which_slurm_starts_no_job_are_not_chosen(world: World) -> None:
    """Slurm calls nodes idle that are drained or do not respond: they are no candidates."""
    world.slurm.stop("n2")  # or it would respond to the next ping
    world.slurm.must("scontrol", "update", "NodeName=n2", "State=NORESP")
    world.slurm.must("scontrol", "update", "NodeName=n0", "State=DRAIN", "Reason=test")
    try:
        told = world.slurm.type(
            *(str(HEDDLE), "--server", world.address, "slurm", "sbatch"),
            *("--test-only", "-N3", "--comment", SHAPE),
            world.slurm.script("true\n"),
        )
    finally:
        world.slurm.must("scontrol", "update", "NodeName=n0", "State=RESUME")
        world.slurm.must("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
        world.slurm.mend("n2")
    assert "note: 3 of 6 idle nodes: " in told.stderr
    assert "n[1,3,5]" in told.stderr


def test_nodes_outside_the_fabric_are_left_out(world: World) -> None:
    """Nodes that the fabric does not have are no candidates, and do not prevent a choice."""
    small, whole = (world.slurm.folder / f"{name}.json" for name in ("small", "whole"))
    save_fabric_file(even_and_odd(hosts=NODES[:5]), small)
    save_fabric_file(even_and_odd(), whole)
    world.heddle("fabric", "import", small)
    try:
        told = world.slurm.type(
            *(str(HEDDLE), "--server", world.address, "slurm", "sbatch"),
            *("--test-only", "-N3", "--comment", SHAPE),
            world.slurm.script("true\n"),
        )
    finally:
        world.heddle("fabric", "import", whole)
    assert "note: 3 of 5 idle nodes: " in told.stderr
    assert "n[0,2,4]" in told.stderr


@pytest.mark.parametrize("words", [("/nonexistent",), ()])
def test_a_note_tells_that_there_is_no_script_to_read(world: World, words: tuple[str, ...]) -> None:
    """Without a file that it can read, Heddle does not say where the script comes from."""
    told = world.slurm.type(
        *(str(HEDDLE), "--server", world.address, "slurm", "sbatch", "--test-only"),
        *("-N2", "--comment", SHAPE, *words),
    )
    assert told.stderr.startswith(
        "note: Slurm chooses the nodes: none of its words is a script that can be read: give a "
        "file that begins with '#!'\n"
    )


def test_sbatch_works_where_no_controller_answers(world: World) -> None:
    """Without a controller the job is submitted all the same, and Slurm chooses its nodes."""
    job, nodes, note = chosen_sbatch(world, "127.0.0.1:1", "true\n", "-N2", "--comment", SHAPE)
    assert nodes == "(null)"
    assert "note: Slurm chooses the nodes: cannot reach the controller" in note
    world.slurm.ended(job)


def test_jobs_run_while_no_controller_does(world: World) -> None:
    """Jobs begin and end without a controller, and the next one learns which have ended."""
    before = submitted(world, look(world) + staying(world), "-N4", "--comment", SHAPE)
    assert seen(world, before)["state"] == "JOB_STATE_PROGRAMMED"
    world.kill_controller()
    job = submitted(world, hostfile() + SHOW, "-N4", "-n4", "--comment", SHAPE)
    output = world.slurm.ended(job)
    assert ranks(output) == list(ODD)
    assert "not all routes of this job are programmed: cannot reach the controller" in output
    assert f"job {job}: cannot reach the controller" in world.log()
    let_go(world, before)
    wait_until((world.spool / "owed" / name(before)).exists, "the epilog to note what is owed")
    world.start_controller()
    assert name(before) in world.jobs()
    later = submitted(world, look(world), "-N8", "--comment", SHAPE)
    world.slurm.ended(later)
    assert seen(world, later)["state"] == "JOB_STATE_PROGRAMMED"
    gone(world, before, job, later)
    wait_until(lambda: not any((world.spool / "owed").iterdir()), "all that is owed to be paid")


def test_a_comment_that_is_no_shape_is_told_to_its_user(world: World) -> None:
    """A job whose comment is no shape runs unplanned, and its output begins with the reason."""
    job = submitted(world, "srun hostname\n", "-N1", "--comment", "heddle: gpus=8 tq8")
    output = world.slurm.ended(job)
    said = "'tq8' is no word of a shape: write KEY=VALUE, such as gpus=8"
    assert output.startswith(f"heddle: not all routes of this job are programmed: {said}\n")
    assert f"job {job}: {said}" in world.log()
    assert world.jobs() == {}


SHADOW = {"SLURM_JOB_COMMENT": "heddle: @/etc/shadow", "SLURM_JOB_UID": "7"}
PROLOG = {
    "SLURM_CLUSTER_NAME": CLUSTER,
    "SLURM_JOB_ID": "900",
    "SLURM_JOB_NODELIST": "n[0-1]",
    "SLURM_JOB_COMMENT": SHAPE,
    "SLURM_JOB_UID": "0",
}


@pytest.mark.parametrize(
    ("said", "settings", "environment"),
    [
        ("'x9' is not in the fabric; name one of", {}, {"SLURM_JOB_NODELIST": "n[0-1],x9"}),
        ("is in use by job 'taken'", {}, {"SLURM_JOB_NODELIST": "n[1-2]"}),
        ("job 900: host 'n2': is in use by job 'taken'", {}, {"SLURM_JOB_NODELIST": "n[2-3]"}),
        ("tp", {}, {"SLURM_JOB_COMMENT": "heddle: gpus=1 tp=3"}),
        ("tp", {}, {"SLURM_JOB_COMMENT": "Heddle: gpus=1 tp=3"}),
        (
            f"'/nowhere': No such file or directory on {socket.gethostname()}",
            {},
            {"SLURM_JOB_COMMENT": "heddle: @/nowhere"},
        ),
        ("no plain file of the user", {}, SHADOW),
        ("f2", {"HEDDLE_FABRIC": "f2"}, {}),
        ("cannot reach the controller", {"HEDDLE_SERVER": "127.0.0.1:1"}, {}),
        ("is not an address", {"HEDDLE_SERVER": "nonsense"}, {}),
        ("", {"HEDDLE": "/nowhere/heddle"}, {}),
        ("", {"HEDDLE": "'"}, {}),
    ],
)
def test_what_cannot_be_planned_changes_nothing(
    world: World, said: str, settings: dict[str, str], environment: dict[str, str]
) -> None:
    """Every program succeeds all the same, no job changes, and the log says why."""
    with world.client() as client:
        client.submit_job("taken", JobSpec(hosts=["n2", "n3"], gpus_per_host=1))
    try:
        before = world.etags()
        world.set(**settings)
        for program in ("prolog", "task-prolog", *(["epilog"] if settings else [])):
            begun = world.log()
            world.slurm.must(world.slurm.folder / program, **PROLOG | environment)
            assert program == "task-prolog" or said in world.log().removeprefix(begun)
        assert world.etags() == before
    finally:
        world.set()
        with world.client() as client:
            client.delete_job("taken")


def test_no_gpus_are_assumed_while_slurm_is_busy(world: World, tmp_path: Path) -> None:
    """If Slurm does not say in time which GPUs a job has, the job takes none from other jobs."""
    silent = tmp_path / "scontrol"
    silent.write_text("#!/bin/sh\nexec sleep 30\n")
    silent.chmod(0o755)
    try:
        world.set(PATH=f"{tmp_path}:{os.environ['PATH']}", HEDDLE_SLURM_WAIT="1")
        world.slurm.must(world.slurm.folder / "prolog", **PROLOG)
        told = world.log()
        world.slurm.must(world.slurm.folder / "epilog", **PROLOG)
    finally:
        world.set()
    assert re.search("job 900: scontrol did not say in 0.[0-9] s which GPUs the job has", told)
    assert not world.jobs()


def test_a_job_whose_turn_does_not_come_runs_at_once(world: World) -> None:
    """While other prologs have the turn, heddle is not even started, and the user is told why.

    That is so whatever options of the shell the settings turn on.
    """
    turn = world.spool / f".turn-{int(PROLOG['SLURM_JOB_ID']) % 8}"
    begun = world.log()
    try:
        world.set(HEDDLE_SLURM_WAIT="0.5", HEDDLE="/nowhere/heddle")
        with (world.slurm.folder / "heddle.env").open("a") as settings:
            settings.write("set -eu\n")
        turn.touch(0o600)
        with turn.open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            world.slurm.must(world.slurm.folder / "prolog", **PROLOG)
        of_job = world.spool / name(int(PROLOG["SLURM_JOB_ID"])) / "0"
        said = (of_job / "said").read_text()
    finally:
        world.set()
        world.slurm.must(world.slurm.folder / "epilog", **PROLOG)
    assert said == "its turn did not come in time, because many jobs start at once\n"
    assert world.log().removeprefix(begun).splitlines()[0].endswith(f"job 900: {said.strip()}")
    assert not of_job.parent.exists()


def system_log(place: Path) -> Path:
    """Write a ``logger`` that writes to a file, and return it: there may be no system log here."""
    told = place / "told"
    (place / "logger").write_text(f'#!/bin/sh\necho "$@" >>{told}\n')
    (place / "logger").chmod(0o755)
    return told


@contextmanager
def small_disk(spool: Path, limit: str) -> Iterator[None]:
    """Mount a file system with a limit, such as ``size=8k``, in place of a folder."""
    spool.mkdir(exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", limit, "tmpfs", spool], check=False)
    if mounted.returncode:
        missing("the right to mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", spool], check=True)


@pytest.mark.parametrize("broken", ["folder", "log", "disk"])
def test_the_system_log_tells_that_the_folder_cannot_be_written(world: World, broken: str) -> None:
    """Heddle's own log is in the folder, so the reason is in the system log."""
    place = world.slurm.folder / f"broken-{broken}"
    place.mkdir()
    spool = place / "spool"
    told = system_log(place)
    with ExitStack() as stack:
        if broken == "folder":
            spool.touch()
        elif broken == "log":
            (spool / "log").mkdir(parents=True)
        else:
            stack.enter_context(small_disk(spool, "size=8k"))
            (spool / "other").write_bytes(bytes(8 << 10))
        stack.callback(world.set)
        world.set(HEDDLE_SLURM_DIRECTORY=str(spool), PATH=f"{place}:{os.environ['PATH']}")
        world.slurm.must(world.slurm.folder / "prolog", **PROLOG)
    text = told.read_text()
    assert text.startswith("-t heddle job 900 is not planned: "), text
    assert str(spool) in text
    assert not world.jobs()


def test_a_job_ends_at_heddle_although_the_disk_takes_no_more_files(world: World) -> None:
    """The files of the job make room for the note that it has ended."""
    spool = world.slurm.folder / "few-files"
    with small_disk(spool, "nr_inodes=6"), ExitStack() as stack:
        stack.callback(world.set)
        world.set(HEDDLE_SLURM_DIRECTORY=str(spool))
        start = spool / name(900) / "0"
        start.mkdir(parents=True)
        for file in (spool / "log", start / "hosts", start / "n0.json"):
            file.touch()
        with pytest.raises(OSError, match="No space left"):
            (spool / "another").touch()
        with world.client() as client:
            client.submit_job(name(900), JobSpec(hosts=["n7"], gpus_per_host=1))
        world.slurm.must(world.slurm.folder / "epilog", **PROLOG)
        assert f"{name(900)} is ended" in (spool / "log").read_text()
    assert not world.jobs()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("HEDDLE='", "Unterminated quoted string|unexpected EOF"),
        ("HEDDLE_SERVER=10.0.0.1:7400 10.0.0.2:7400", "10.0.0.2:7400: .*not found"),
    ],
)
def test_the_system_log_tells_what_is_wrong_in_the_settings(
    tmp_path: Path, text: str, said: str
) -> None:
    """Every program succeeds all the same, and names the file and the error once."""
    told = system_log(tmp_path)
    (tmp_path / "heddle.env").write_text(f"HEDDLE_SLURM_DIRECTORY={tmp_path}\n{text}\n")
    for name in ("prolog", "epilog", "task-prolog"):
        program = tmp_path / name
        whole = (PAGE.parent / name).read_text()
        program.write_text(whole.replace("\nPATH=", f"\nPATH={tmp_path}:"))
        program.chmod(0o755)
        path = f"{tmp_path}:{os.environ['PATH']}"
        done = subprocess.run([program], env={"PATH": path, **PROLOG}, check=False)
        (line,) = told.read_text().splitlines()
        told.unlink()
        assert (done.returncode, line.startswith("-t heddle ")) == (0, True)
        assert re.search(f"{tmp_path}/heddle.env: .*({said})", line), line


def test_no_step_outlives_the_cluster_of_a_test() -> None:
    """A job's script ends with the cluster, even if nothing is left there that could cancel it."""
    with slurm_files(NODES[:1]) as slurm:
        slurm.start()
        # The script leaves the folder and its output, as any script may.
        job = slurm.sbatch("echo $$\ncd / && exec sleep infinity > /dev/null 2>&1")
        wait_until(lambda: slurm.output(job).endswith("\n"), "the script to tell its process")
        with os.fdopen(os.pidfd_open(int(slurm.output(job)))) as script:
            for name in ("slurmctld", *NODES[:1]):
                slurm.stop(name)
            slurm.close()
            assert select.select([script], [], [], 0.0)[0], "the script still runs"
