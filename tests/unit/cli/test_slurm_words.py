"""How the commands for Slurm read names, environments and shapes."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import grpc
import pytest
from click.testing import CliRunner
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.shape import ShapeError, parse_shape, shape_text
from heddle.v1 import fabric_pb2
from heddle.v1 import placement_pb2 as pb
from heddle_controller.cli.client import Terms
from heddle_controller.cli.failure import Failure
from heddle_controller.cli.slurm.allocation import allocation
from heddle_controller.cli.slurm.hooks import Patience, handover_options, pay
from heddle_controller.cli.slurm.jobs_folder import JobsFolder
from heddle_controller.cli.slurm.shape import read_shape, shape_of, told_gpus, with_gpus
from heddle_controller.cli.slurm.topology import units_of
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import parse_fabric
from heddle_controller.model.host_lists import expand_list, fold
from heddle_controller.serve.codec.fabric import fabric_to_pb
from heddle_emulator.topology import clos, three_tier
from tests.support.depth import examples
from tests.support.waiting import PATIENCE

NAMES = st.builds(
    "{}{}{}".format,
    st.sampled_from(["n", "n0", "z1-", "", "a.b"]),
    st.sampled_from(["0", "00", "1", "x"]),
    st.integers(0, 120),
)


@given(names=st.sets(NAMES, min_size=1, max_size=40))
@settings(max_examples=examples(60, 2000), deadline=None)
def test_a_folded_list_names_what_was_folded(names: set[str]) -> None:
    """Folding and expanding gives each name once, and no other name."""
    assert sorted(expand_list(fold(names))) == sorted(names)


def test_lists_are_short_and_in_the_order_people_count_in() -> None:
    """Ranges are in brackets, in numeric order, and keep leading zeros."""
    assert fold(f"n{number}" for number in range(3072)) == "n[0-3071]"
    assert fold(["a10", "a08", "a09", "b", "a12"]) == "a[08-10,12],b"
    assert expand_list("n[0-2],m7,k[08-09,3]") == ["n0", "n1", "n2", "m7", "k08", "k09", "k3"]
    with pytest.raises(ValueError, match="comma without a name"):
        expand_list("n0,,n1")


def test_a_shape_may_name_single_gpus() -> None:
    """A comma before a digit continues a list of GPUs; any other comma ends a word."""
    spec = parse_shape("gpus=0,4-6,tp=2,pp=1").spec
    assert [(*part.gpus,) for part in spec.gpus] == [(0, 4, 5, 6)]
    assert (spec.gpus_per_host, spec.parallelism.tp, spec.parallelism.pp) == (4, 2, 1)
    with pytest.raises(ShapeError, match="'tp=2,4': '2,4' is not an integer"):
        parse_shape("gpus=8,tp=2,4")


SLURM = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n[0-2]", "SLURM_CLUSTER_NAME": "alps"}


def test_an_allocation_is_known_by_its_cluster_its_job_and_its_restarts() -> None:
    """The attempt has the cluster, the job's id and its restarts. Components have their own ids.

    A job that asks for no tasks has none, though Slurm then tells the CPUs of its nodes.
    """
    cpus = {**SLURM, "SLURM_TASKS_PER_NODE": "2(x2),1"}
    found = allocation({**cpus, "SLURM_NTASKS": "5", "SLURM_RESTART_COUNT": "3"})
    assert (found.name, found.attempt) == ("alps-42", "alps-42.3")
    assert (found.hosts, found.tasks) == (("n0", "n1", "n2"), (2, 2, 1))
    assert allocation(cpus).tasks == ()
    parts = {
        f"{name}_HET_GROUP_1": value
        for name, value in {"SLURM_JOB_ID": "43", "SLURM_JOB_NODELIST": "m7"}.items()
    }
    assert allocation({**SLURM, **parts}, 1).attempt == "alps-43.0"
    odd = {"SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "2(x9999999)"}
    assert allocation({**SLURM, **odd}).tasks == ()
    for lacking in ({}, {"SLURM_JOB_ID": "42"}, {"SLURM_JOB_ID": "x", "SLURM_JOB_NODELIST": "n"}):
        with pytest.raises(Failure, match="no allocation of Slurm"):
            allocation(lacking)
    with pytest.raises(Failure, match="no component 2"):
        allocation({**SLURM, **parts}, 2)


def test_a_prolog_has_one_time_limit_for_all_of_its_calls(tmp_path: Path) -> None:
    """A call that comes late has only the rest of the time, so that the job is not kept waiting."""
    left: list[float] = []

    def delete(_: pb.DeleteJobRequest, context: grpc.ServicerContext) -> pb.DeleteJobResponse:
        left.append(context.time_remaining() or math.inf)
        return pb.DeleteJobResponse()

    handler = grpc.unary_unary_rpc_method_handler(
        delete,
        request_deserializer=pb.DeleteJobRequest.FromString,
        response_serializer=pb.DeleteJobResponse.SerializeToString,
    )
    server, jobs = grpc.server(ThreadPoolExecutor(1)), JobsFolder(tmp_path)
    served = grpc.method_handlers_generic_handler(
        "heddle.v1.PlacementService", {"DeleteJob": handler}
    )
    server.add_generic_rpc_handlers((served,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        client = Terms(f"127.0.0.1:{port}", 1000.0, json=False, named_fabric="f1")
        with client.api:
            for spent in (0, 400):
                jobs.owe("alps-1")
                pay(client, jobs, Patience(1000.0, 1.0, time.monotonic() - spent))
    finally:
        server.stop(None)
    early, late = left
    assert early > 700 > late  # gRPC rounds long times up
    assert jobs.debts() == []


@pytest.mark.parametrize(("answer", "told"), [("0.5", "2.0 0.5"), ("9", "2.0 2.0")])
def test_a_controller_has_no_more_time_to_answer_than_the_job_may_wait(
    answer: str, told: str
) -> None:
    """The whole limit also holds for the part of it in which a controller must answer."""

    @click.command()
    @handover_options
    def probe(directory: Path, patience: Patience) -> None:
        del directory
        click.echo(f"{patience.wait} {patience.answer}")

    result = CliRunner().invoke(probe, ["--wait", "2", "--answer", answer])
    assert result.output.strip() == told


def test_the_log_tells_that_a_job_keeps_the_order_of_slurm(tmp_path: Path) -> None:
    """A controller that finds no order in time is asked to plan the job all the same."""
    submitted: list[list[str]] = []

    def fabrics(_: fabric_pb2.ListFabricsRequest, __: Any) -> fabric_pb2.ListFabricsResponse:
        return fabric_pb2.ListFabricsResponse(fabrics=[fabric_pb2.Fabric(name="fabrics/f1")])

    def order(_: pb.OrderRanksRequest, context: grpc.ServicerContext) -> pb.OrderRanksResponse:
        context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "it takes too long")

    def submit(request: pb.UpdateJobRequest, _: grpc.ServicerContext) -> pb.Job:
        submitted.append([*request.spec.hosts])
        return pb.Job(name=request.name, spec=request.spec)

    def method(answer: Any, kind: Any) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=kind.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    jobs = {
        "OrderRanks": method(order, pb.OrderRanksRequest),
        "UpdateJob": method(submit, pb.UpdateJobRequest),
    }
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("heddle.v1.PlacementService", jobs),
            grpc.method_handlers_generic_handler(
                "heddle.v1.FabricService",
                {"ListFabrics": method(fabrics, fabric_pb2.ListFabricsRequest)},
            ),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    (tmp_path / "alps-42").mkdir()
    environment = {"SLURM_JOB_COMMENT": "heddle: gpus=1", **SLURM}
    settings = {
        "HEDDLE_SERVER": f"127.0.0.1:{port}",
        "HEDDLE_SLURM_DIRECTORY": str(tmp_path),
        "HEDDLE_SLURM_WAIT": "25",
        "HEDDLE_SLURM_ANSWER": "20",
    }
    try:
        done = subprocess.run(
            [Path(sys.executable).with_name("heddle"), "slurm", "prolog"],
            env={**os.environ, **environment, **settings},
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
    finally:
        server.stop(None)
    assert submitted == [["n0", "n1", "n2"]]
    assert "alps-42 keeps Slurm's order of nodes: " in done.stderr


def units(fabric: Fabric, *chosen: str) -> dict[str, list[str]]:
    """Return the hosts of each unit."""
    found = units_of(fabric_to_pb("f1", fabric), set(chosen) or None, "top")
    return {unit.name: unit.hosts for unit in found}


def test_hosts_on_the_same_rails_are_below_one_switch(capsys: pytest.CaptureFixture[str]) -> None:
    """The rails of one set of hosts form one unit. A leaf with hosts of its own is a unit, too.

    Hosts that the fabric does not have are named and left out; an error if there are no others.
    """
    assert units(clos(leaves=2, spines=2, nics_per_leaf=4, nics_per_host=2)) == {
        "l0": ["l0-h0", "l0-h1"],
        "l1": ["l1-h0", "l1-h1"],
    }
    nodes: list[dict[str, Any]] = [{"id": f"rail {r}", "kind": "leaf"} for r in range(4)]
    nodes.append({"id": "s", "kind": "spine"})
    edges = [{"source": f"rail {r}", "target": "s", "key": 0, "gbps": 400} for r in range(4)]
    for host in range(4):
        for rail in range(2):
            leaf = rail + 2 * (host // 2)
            nodes.append({"id": f"{host}/{rail}", "kind": "nic", "host": f"h{host}"})
            edges.append(
                {"source": f"{host}/{rail}", "target": f"rail {leaf}", "key": 0, "gbps": 400}
            )
    rails = parse_fabric({"graph": {"name": "r"}, "nodes": nodes, "edges": edges}, "rails")
    assert units(rails) == {"rail-0+1": ["h0", "h1"], "rail-2+1": ["h2", "h3"]}
    assert units(rails, "h3") == {"rail-2+1": ["h3"]}
    assert units(rails, "h3", "h9") == {"rail-2+1": ["h3"]}
    assert "no host 'h9'" in capsys.readouterr().err
    with pytest.raises(Failure, match="no host 'h9'"):
        units(rails, "h9")


def test_units_know_their_zones() -> None:
    """Each unit names its zone, so that a switch for each zone can be made."""
    fabric = three_tier(
        zones=2, leaves=2, spines=2, nics_per_leaf=2, nics_per_host=1, cores=2, taper=1.0
    )
    found = units_of(fabric_to_pb("f1", fabric), None, "top")
    assert [(unit.name, unit.zone) for unit in found] == [
        ("z0-l0", "z0"),
        ("z0-l1", "z0"),
        ("z1-l0", "z1"),
        ("z1-l1", "z1"),
    ]


def test_names_that_slurm_cannot_read_are_refused() -> None:
    """A name that Slurm would read as several names is refused before Slurm reads it."""
    fabric = parse_fabric(
        {
            "graph": {"name": "odd"},
            "nodes": [
                {"id": "l0", "kind": "leaf"},
                {"id": "a", "kind": "nic", "host": "n0,n1"},
                {"id": "b", "kind": "nic", "host": "n2"},
            ],
            "edges": [{"source": nic, "target": "l0", "key": 0, "gbps": 1} for nic in "ab"],
        },
        "odd",
    )
    with pytest.raises(Failure, match="cannot read the name of host 'n0,n1'"):
        units(fabric)
    assert units(fabric, "n2") == {"l0": ["n2"]}


def test_a_shape_stands_in_a_comment_among_other_words() -> None:
    """A shape follows ``heddle:``, in any case, and ends at a semicolon."""
    assert shape_text("project x; heddle: gpus=8 tp=8; see wiki") == "gpus=8 tp=8"
    assert shape_text("heddle:gpus=8") == "gpus=8"
    assert shape_text("Heddle: @shape") == "@shape"
    assert shape_text("my-heddle:gpus=8") is None
    assert shape_text("") is None


def test_words_become_a_specification() -> None:
    """A shape can say all that jobs.yaml can say of a job, except its hosts."""
    shape = parse_shape(
        "gpus=8, tp=8,pp=4 all_reduce=dp:2GiB:tree:overlap send-recv=pp qps=4 "
        "priority=2.5 class=latency order=slurm"
    )
    assert shape.order == "slurm"
    assert MessageToDict(shape.spec, preserving_proto_field_name=True) == {
        "gpus_per_host": 8,
        "parallelism": {"tp": 8, "pp": 4},
        "collectives": [
            {
                "operation": "COLLECTIVE_OPERATION_ALL_REDUCE",
                "group": "GROUP_KIND_DP",
                "bytes": str(2 << 30),
                "algorithm": "COLLECTIVE_ALGORITHM_TREE",
                "overlap": True,
            },
            {
                "operation": "COLLECTIVE_OPERATION_SEND_RECV",
                "group": "GROUP_KIND_PP",
                "bytes": str(1 << 30),
            },
        ],
        "qps": 4,
        "priority": 2.5,
        "traffic_class": "TRAFFIC_CLASS_LATENCY",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no gpus"),
        ("gpus=8 training", "'training' is no word of a shape"),
        ("gpus=8 qp=2", "did you mean qps"),
        ("gpus=8 all_redcue=dp", "did you mean all_reduce"),
        ("gpus=8 gpus=4", "gpus is there twice"),
        ("gpus=eight", "is not an integer"),
        ("gpus=0", "from 1 to"),
        ("gpus=3-0", "runs backwards"),
        ("gpus=0-4096", "GPU 4096 is none"),
        ("gpus=99999999999999999999", "from 1 to"),
        ("gpus=8 priority=-1", "above 0"),
        ("gpus=8 priority=nan", "not a number"),
        ("gpus=8 class=fast", "give one of"),
        ("gpus=8 all_reduce=xp", "give one of tp, pp"),
        ("gpus=8 all_reduce=dp:many", "'many' is none of bytes"),
        ("gpus=8 all_reduce=dp:1e400", "'1e400' is none of bytes"),
    ],
)
def test_what_is_no_shape_is_named(text: str, said: str) -> None:
    """The error names the word or says what to give."""
    with pytest.raises(Failure, match=said):
        shape_of(text)


def test_a_file_is_read_only_if_it_is_the_users_own(tmp_path: Path) -> None:
    """A file of another user is refused, and nothing of its content is shown.

    The command may run as a user who can read more than the job's user.
    """
    file = tmp_path / "shape"
    file.write_text("gpus=8  # of each\ntp=8\n")
    owner = file.stat().st_uid
    assert read_shape("@shape", str(tmp_path), owner).spec.parallelism.tp == 8
    assert read_shape(f"@{file}", "/", owner).spec.gpus_per_host == 8
    file.write_text("gpus=4\n", encoding="utf-8-sig")
    assert read_shape("@shape", str(tmp_path), owner).spec.gpus_per_host == 4
    with pytest.raises(Failure, match="no plain file of the user"):
        read_shape("@shape", str(tmp_path), owner + 1)
    with pytest.raises(Failure, match="no plain file of the user"):
        read_shape("@/dev/zero", "/", owner)
    with pytest.raises(Failure, match="No such file"):
        read_shape("@nothing", str(tmp_path), owner)
    file.write_bytes(b"x" * 100_000)
    with pytest.raises(Failure, match="larger than 64 KiB"):
        read_shape("@shape", str(tmp_path), owner)
    file.write_bytes(b"\xff")
    with pytest.raises(Failure, match="not UTF-8"):
        read_shape("@shape", str(tmp_path), owner)


TOLD = (
    "JobId=7 JobName=x JOB_GRES=gpu:4   Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1) "
    "  Nodes=n[2-3] CPU_IDs=0-1 Mem=0 GRES=gpu:a100:1(IDX:3),gpu:v100:2(IDX:5,7)   Features=\n"
    "JobId=8 HetJobId=7   Nodes=n4 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:6) MinCPUsNode=1\n"
)


def test_gpus_are_those_that_slurm_numbers() -> None:
    """GPUs are those of this job or component, with or without a type, that have numbers."""
    assert told_gpus("7", TOLD) == {"n1": (0, 1), "n2": (3, 5, 7), "n3": (3, 5, 7)}
    assert told_gpus("8", TOLD) == {"n4": (6,)}
    assert told_gpus("9", TOLD) == {}
    assert told_gpus("7", TOLD.replace("(IDX:0-1)", "(CNT:2)").replace("(IDX:3)", "")) == {
        "n2": (5, 7),
        "n3": (5, 7),
    }


def test_a_shape_and_slurm_agree_on_gpus() -> None:
    """The GPUs that Slurm numbers are used, or the first of them. A shape may name others."""
    parts = [pb.HostGpus(gpus=[0, 1]), pb.HostGpus(gpus=[2, 3])]
    spec = shape_of("gpus=2 tp=2").spec
    with_gpus(spec, parts, ["n1", "n2"])
    assert [list(part.gpus) for part in spec.gpus] == [[0, 1], [2, 3]]
    spec = shape_of("tp=2", gpus_told=True).spec
    with_gpus(spec, parts[:1] * 2, ["n1", "n2"])
    assert [list(part.gpus) for part in spec.gpus] == [[0, 1]]
    spec = shape_of("gpus=1").spec
    with_gpus(spec, parts, ["n1", "n2"])
    assert [list(part.gpus) for part in spec.gpus] == [[0], [2]]
    named = shape_of("gpus=4-7").spec
    with_gpus(named, parts, ["n1", "n2"])
    assert [list(part.gpus) for part in named.gpus] == [[4, 5, 6, 7]]
    assert named.gpus_per_host == 4
    with pytest.raises(Failure, match="says gpus=4, and Slurm gives the job 2 of n1"):
        with_gpus(shape_of("gpus=4").spec, parts, ["n1", "n2"])
    with pytest.raises(Failure, match="has no gpus, and Slurm gives the job none"):
        with_gpus(shape_of("tp=2", gpus_told=True).spec, [], ["n1", "n2"])
