"""Reading traces of AICB and SimAI as parallelism and collectives of a job."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from heddle_controller.model.errors import InputError
from heddle_controller.model.job import Collective, Group, Job, Operation, Parallelism
from heddle_controller.traffic.groups import NOMINAL_BYTES
from heddle_controller.traffic.jobs import flows_of_job
from heddle_controller.traffic.traces import load_trace
from tests.support.small_fabrics import clos, shared_data

HEADER = "comm_type,comm_group,comm_group_size,msg_size,stage"
MIB = 1 << 20


def _written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_sums_by_operation_and_group(tmp_path: Path) -> None:
    """Sums leave out set-up and control messages; a rank of an all-gather puts in one part only."""
    path = _written(
        tmp_path / "t.csv",
        "[rank0 ~ rank15]",
        HEADER,
        f"CommType.broadcast,CommGroup.dp_group,4,{900 * MIB},init._broadcast_model",
        "CommType.epoch_end,None,None,0,",
        f"CommType.all_gather,CommGroup.dp_group,4,{8 * MIB},forward",
        f"CommType.all_gather,CommGroup.dp_group,4,{8 * MIB},backward",
        f"CommType.all_reduce,CommGroup.tp_group,2,{2 * MIB},forward",
        "CommType.all_reduce,CommGroup.dp_group,4,8,step.grad_norm",
        "CommType.barrier,CommGroup.all,16,0,step",
        "CommType.epoch_end,None,None,0,",
    )
    trace = load_trace(path)
    assert trace.parallelism == Parallelism(tp=2, dp=4, pp=1)
    assert trace.collectives == (
        Collective(Operation.ALL_REDUCE, Group.TP, 2 * MIB),
        Collective(Operation.ALL_GATHER, Group.DP, 4 * MIB),
    )


def test_bytes_are_of_one_iteration_and_the_busiest_stage(tmp_path: Path) -> None:
    """Bytes are those of one iteration and of the stage that sends most."""
    send = f"CommType.isend,CommGroup.pp_group,1,{4 * MIB},forward_step"
    receive = f"CommType.irecv,CommGroup.pp_group,1,{4 * MIB},forward_step"
    end = "CommType.epoch_end,None,None,0,"
    stage = [HEADER, "CommType.all_reduce,CommGroup.pp_group,2,8,init.model_setup", end]
    path = _written(
        tmp_path / "t.csv",
        "[ pp_stage0: [rank0, rank1] ]",
        *[*stage, send, send, end, send, send, end],
        "[ pp_stage1: [rank2, rank3] ]",
        *[*stage, receive, send, end, receive, send, end],
    )
    trace = load_trace(path)
    assert trace.parallelism.pp == 2
    assert trace.collectives == (Collective(Operation.SEND_RECV, Group.PP, 8 * MIB),)


def test_workload_of_simai(tmp_path: Path) -> None:
    """Plain collectives are tp in the first two passes and dp in the third; line 1 gives pp."""
    path = _written(
        tmp_path / "w.txt",
        "HYBRID model_parallel_NPU_group: 2 ep: 2 pp: 4 vpp: 8 ga: 3 all_gpus: 64 "
        f"checkpoints: 0 checkpoint_initiates: 0 pp_comm {MIB}",
        "2",
        f"grads\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tREDUCESCATTER\t{16 * MIB}\t100",
        f"moe\t-1\t1\tALLTOALL_EP\t{MIB}\t1\tALLREDUCE\t{MIB}\t1\tALLGATHER_DP_EP\t{8 * MIB}\t100",
    )
    trace = load_trace(path)
    assert trace.parallelism == Parallelism(tp=2, pp=4, dp=8, ep=2)
    assert trace.collectives == (
        Collective(Operation.ALL_REDUCE, Group.TP, MIB),
        Collective(Operation.SEND_RECV, Group.PP, 6 * MIB),
        Collective(Operation.ALL_GATHER, Group.DP, 2 * MIB),
        Collective(Operation.REDUCE_SCATTER, Group.DP, 16 * MIB),
        Collective(Operation.ALL_TO_ALL, Group.EP, MIB),
    )


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["hello"], "line 1: no trace: a section's header has the columns"),
        (["[rank0]"], "line 1: no header; a trace has the columns"),
        ([HEADER, "all_reduce,tp_group"], "line 2: has 2 cells, fewer than its header"),
        ([HEADER, "all_reduse,tp_group,2,8,f"], "unknown comm_type 'all_reduse'; did you mean all"),
        ([HEADER, "all_reduce,tq_group,2,8,f"], "unknown comm_group 'tq_group'; did you mean t"),
        ([HEADER, "all_reduce,tp_group,2,nan,f"], "line 2: msg_size is 'nan'; give a number of"),
        ([HEADER, "all_reduce,tp_group,2,-5,f"], "msg_size is '-5'"),
        ([HEADER, "all_reduce,tp_group,None,8,f"], "comm_group_size is 'None'"),
        (["x model_parallel_NPU_group: 2", "1"], "0 layers, but line 2 tells 1; is the file cut"),
        (["x model_parallel_NPU_group: 2", "1", "a b"], "line 3: has 2 cells, a layer has 11"),
        (
            ["x model_parallel_NPU_group: 2", "1", "a -1 1 ALLSING 1 1 NONE 0 1 NONE 0 1"],
            "unknown collective 'ALLSING'; known are ALLREDUCE",
        ),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, lines: list[str], told: str) -> None:
    """A file that is no trace is refused with file, line and cure."""
    path = _written(tmp_path / "t.csv", *lines)
    with pytest.raises(InputError) as caught:
        load_trace(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert told in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """A packed file that is not text is refused."""
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"\xff\xd8\xff" * 1000))
    with pytest.raises(InputError, match="line 1: not UTF-8 text"):
        load_trace(path)


def test_llama65b_on_128_gpus() -> None:
    """TP 2, PP 8, DP 8 on 16 hosts: 224 pp flows of 200 Gbit/s and 128 dp flows of 400.

    TP stays inside hosts. A stage is two hosts, so dp is a ring of two hosts on each of 8 NICs, at
    line rate. The pp flows cross 7 borders of 16 ranks in both directions; middle stages send two
    ways, which halves the rate. The trace only sets dp up (8 to 64 bytes), so dp's bytes are the
    nominal ones.
    """
    trace = load_trace(shared_data("aicb_llama65b_tp2_pp8.csv.gz"))
    assert trace.parallelism == Parallelism(tp=2, pp=8, dp=8)
    assert trace.collectives == (
        Collective(Operation.ALL_REDUCE, Group.TP, 86_436_216_832),
        Collective(Operation.SEND_RECV, Group.PP, 16 * 33_554_432),
        Collective(Operation.ALL_REDUCE, Group.DP, NOMINAL_BYTES),
    )
    hosts = tuple(f"h{i}" for i in range(16))
    job = Job("llama65b", hosts, 8, trace.parallelism, trace.collectives)
    flows = flows_of_job(job, clos(16, 8, spines=8))
    assert flows.phase_names == ("pp", "dp")
    assert np.bincount(flows.phase).tolist() == [224, 128]
    assert set(flows.gbps[flows.phase == 0].tolist()) == {200.0}
    assert set(flows.gbps[flows.phase == 1].tolist()) == {400.0}
    assert {"llama65b/dp/h0-3->h1-3", "llama65b/pp/h0-3->h2-3"} <= set(flows.ids)


def test_llama65b_under_zero3() -> None:
    """All traffic is dp over 128 ranks; the broadcast of the weights is set-up and left out."""
    trace = load_trace(shared_data("aicb_llama65b_zero3.csv"))
    assert trace.parallelism == Parallelism(dp=128, pp=1)
    assert [(c.operation, c.group) for c in trace.collectives] == [
        (Operation.ALL_GATHER, Group.DP),
        (Operation.REDUCE_SCATTER, Group.DP),
    ]


def test_gpt13b_with_sequence_parallel() -> None:
    """TP 8 stays within hosts; dp scatters 6.4 GB of gradients and gathers half of that."""
    trace = load_trace(shared_data("aicb_gpt13b_tp8_pp1.csv"))
    assert trace.parallelism == Parallelism(tp=8, dp=16, pp=1)
    assert Collective(Operation.REDUCE_SCATTER, Group.DP, 6_422_958_080) in trace.collectives
    assert Collective(Operation.ALL_GATHER, Group.DP, 3_211_479_040 // 16) in trace.collectives
    assert all(c.operation is not Operation.BROADCAST for c in trace.collectives)


def test_moe_on_9216_gpus() -> None:
    """Expert groups of 16 are on 4 hosts: each rank has 12 partners at a twelfth of the line.

    The pipeline passes on 50 MB for each of 24 micro-batches, in both directions.
    """
    trace = load_trace(shared_data("simai_workload_9216gpu.txt"))
    assert trace.parallelism == Parallelism(tp=2, pp=12, dp=384, ep=16)
    assert Collective(Operation.ALL_TO_ALL, Group.EP, 768 * 100_663_296) in trace.collectives
    assert Collective(Operation.SEND_RECV, Group.PP, 48 * 50_331_648) in trace.collectives
    hosts = tuple(f"h{i}" for i in range(1152))
    job = Job("moe", hosts, 8, trace.parallelism, trace.collectives)
    flows = flows_of_job(job, clos(1152, 8, spines=1))
    assert flows.phase_names == ("pp", "dp", "ep")
    assert np.bincount(flows.phase).tolist() == [9216 * 22 // 12, 9216, 9216 * 12]
    assert set(flows.gbps[flows.phase == 2].tolist()) == {400 / 12}
