"""Traffic that NCCL Inspector measured, compared with what the job states."""

from __future__ import annotations

import gzip
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heddle_controller.model.errors import InputError
from heddle_controller.model.job import Collective, Group, Job, Operation, Parallelism
from heddle_controller.traffic.inspector import load_measured
from heddle_controller.traffic.measured import compare_measured, corrected
from tests.support.depth import fresh_seeds
from tests.support.inspecting import metadata, run_of, write_run

MIB = 1 << 20
JOB = Job("j1", ("h0", "h1", "h2", "h3"), 2, Parallelism(tp=2, pp=2, dp=2))
TOLD = (
    Collective(Operation.ALL_REDUCE, Group.DP, 100 * MIB),
    Collective(Operation.SEND_RECV, Group.PP, 10 * MIB),
)
PROM = """\
nccl_bus_bandwidth_gbs{version="v5.1",slurm_job_id="7",node="n1",gpu="GPU0",comm_name="DP Group 0",\
n_nodes="2",nranks="4",collective="AllReduce",message_size="4-5GB",algo_proto="Ring_ll"} 678.263
nccl_collective_exec_time_microseconds{version="v5.1",slurm_job_id="7",node="n1",gpu="GPU0",\
comm_name="DP Group 0",n_nodes="2",nranks="4",collective="AllReduce",message_size="4-5GB",\
algo_proto="Ring_ll"} 9498.47
"""
"""As on NVIDIA's page, except for the nodes."""


def with_bytes(told: tuple[Collective, ...], *sizes: int) -> tuple[Collective, ...]:
    """The same collectives with other bytes."""
    return tuple(replace(one, bytes=size) for one, size in zip(told, sizes, strict=True))


def ranged(seed: int) -> tuple[Job, tuple[Collective, ...], tuple[Collective, ...]]:
    """A job whose groups differ in ranks or hosts, what it states, and what it moves."""
    chance = random.Random(seed)
    tp, pp, dp = chance.choice([(2, 2, 3), (2, 3, 4), (4, 2, 4), (1, 2, 3), (4, 3, 8)])
    shape = Parallelism(tp=tp, pp=pp, dp=dp)
    job = Job("j", tuple(f"h{row}" for row in range(pp * dp)), tp, shape)
    operations = [one for one in Operation if one is not Operation.SEND_RECV]
    kinds = [(chance.choice(operations), Group.DP), (Operation.SEND_RECV, Group.PP)]
    if tp > 1:
        kinds.append((chance.choice(operations), Group.TP))
    whole = 64 * tp * pp * dp * 1024
    sizes = [chance.randrange(1, 1 << 20) * whole for _ in kinds * 2]
    told = tuple(Collective(*kind, size) for kind, size in zip(kinds, sizes, strict=False))
    moved = with_bytes(told, *sizes[len(kinds) :])
    return replace(job, collectives=told), told, moved


@pytest.mark.deep
def test_what_a_run_moved_is_found_to_the_byte(tmp_path: Path) -> None:
    """Measured bytes are exact for drawn jobs, every version, and calls in one piece or buckets."""
    for seed in fresh_seeds(12):
        check_run(tmp_path / str(seed), seed)


def check_run(folder: Path, seed: int) -> None:
    """Check one drawn case."""
    folder.mkdir()
    job, _, moved = ranged(seed)
    chance = random.Random(seed)
    iterations, buckets = chance.choice([(1, 1), (3, 1), (2, 8), (5, 4)])
    version = chance.choice(["v4.0", "v4.2", "v4.3"])
    write_run(folder, run_of(job, moved, iterations=iterations, buckets=buckets), version)
    measured = load_measured([folder])
    assert corrected(compare_measured(job, measured, {}, iterations)) == moved, seed
    each_call = corrected(compare_measured(job, measured, {}))
    assert each_call == with_bytes(moved, *(one.bytes // buckets for one in moved)), seed


def test_text_for_prometheus_tells_sizes_by_bandwidth_and_time(tmp_path: Path) -> None:
    """Bytes follow from bus bandwidth and time: 4 GiB from 678 GB/s over 9.5 ms."""
    (tmp_path / "a.prom.gz").write_bytes(gzip.compress(PROM.encode()))
    told = (Collective(Operation.ALL_REDUCE, Group.DP, MIB),)
    job = Job("j", ("h0", "h1"), 2, Parallelism(dp=4), told)
    (found,) = compare_measured(job, load_measured([tmp_path]), {})
    assert found.bytes is not None
    assert abs(found.bytes / (4 << 30) - 1) < 1e-4
    assert found.bus_gbps == pytest.approx(678.263 * 8, rel=1e-3)


def test_calls_that_move_nothing_are_no_measurement(tmp_path: Path) -> None:
    """Text for Prometheus has a line for empty calls, which changes nothing.

    A collective whose calls are all empty is refused, because a job cannot have it.
    """
    file, job = tmp_path / "a", Job("j", ("h0", "h1"), 2, Parallelism(dp=4))
    empty = PROM.replace("4-5GB", "0B").replace("678.263", "0").replace("9498.47", "12")
    file.write_text(PROM)
    (found,) = compare_measured(job, load_measured([file]), {})
    file.write_text(empty + PROM)
    assert compare_measured(job, load_measured([file]), {}) == (found,)
    calls = record(header__n_ranks=4, coll_perf__coll_msg_size_bytes=0)
    file.write_text(lines(calls))
    with pytest.raises(InputError, match="all_reduce of dp: its calls moved no bytes; measure"):
        compare_measured(job, load_measured([file]), {})


def test_buckets_of_several_sizes_need_the_number_of_iterations(tmp_path: Path) -> None:
    """Two collectives of the same kind share the measured sum by what the job states.

    Without the number of iterations, the comparison is refused.
    """
    told = with_bytes((TOLD[0], TOLD[0]), 30 * MIB, 10 * MIB)
    job = replace(JOB, collectives=told)
    moved = with_bytes(told, 60 * MIB, 20 * MIB)
    write_run(tmp_path, run_of(job, moved, iterations=2), "v4.3")
    measured = load_measured([tmp_path])
    assert corrected(compare_measured(job, measured, {}, 2)) == moved
    with pytest.raises(InputError, match=r"the job tells it 2 times.*--iterations"):
        compare_measured(job, measured, {})


def test_groups_that_look_alike_are_told_apart_by_whoever_knows(tmp_path: Path) -> None:
    """Dp and cp groups that look alike are refused until the caller says which is which."""
    told = with_bytes((TOLD[0], replace(TOLD[0], group=Group.CP)), 30 * MIB, 10 * MIB)
    job = Job("j", ("h0", "h1", "h2", "h3"), 1, Parallelism(dp=2, cp=2), told)
    write_run(tmp_path, run_of(job, told), "v4.2")
    measured = load_measured([tmp_path])
    with pytest.raises(InputError, match=re.escape("may be cp or dp: say which")):
        compare_measured(job, measured, {})
    kinds = {call.communicator: call.communicator[2:4] for call in measured}
    assert corrected(compare_measured(job, measured, kinds)) == told


def test_a_communicator_that_is_none_of_the_jobs_is_an_error(tmp_path: Path) -> None:
    """A communicator that fits no group is an error, unless it is left out or on one host.

    If no call fits any collective of the job, that is an error too.
    """
    job = replace(JOB, collectives=TOLD)
    write_run(tmp_path, run_of(job, TOLD), "v4.3")
    world = Job("w", JOB.hosts, 2, Parallelism(dp=8))
    strange = (Collective(Operation.ALL_REDUCE, Group.WORLD, MIB),)
    write_run(tmp_path / "more", run_of(world, strange), "v4.3")
    alone = Job("a", ("h0",), 2, Parallelism(tp=2))
    write_run(tmp_path / "inside", run_of(alone, (replace(TOLD[0], group=Group.TP),)), "v4.3")
    measured = load_measured([tmp_path])
    with pytest.raises(InputError, match=r"8 ranks on 4 hosts, and no group of the job has"):
        compare_measured(job, measured, {})
    assert corrected(compare_measured(job, measured, {"0xworld0": "none"})) == TOLD
    others = load_measured([tmp_path / "inside"])
    with pytest.raises(InputError, match="no call of a collective of the job was measured"):
        compare_measured(job, others, {})


def test_a_name_that_no_communicator_has_is_an_error(tmp_path: Path) -> None:
    """A misspelt name of a communicator is refused; otherwise it would count where it must not."""
    job = replace(JOB, collectives=TOLD)
    write_run(tmp_path, run_of(job, TOLD), "v4.3")
    with pytest.raises(InputError, match="communicator '0xdq0': none of that name was measured"):
        compare_measured(job, load_measured([tmp_path]), {"0xdq0": "none"})


def test_more_bytes_than_a_job_may_have_are_refused(tmp_path: Path) -> None:
    """Calls that together move more than a job may state are an error, not a broken request."""
    job = replace(JOB, collectives=TOLD)
    write_run(tmp_path, run_of(job, with_bytes(TOLD, 1 << 61, MIB), iterations=4), "v4.3")
    with pytest.raises(InputError, match=r"all_reduce of dp: .* below 4611686018427387904"):
        compare_measured(job, load_measured([tmp_path]), {}, 1)


def record(**changes: Any) -> dict[str, Any]:
    """A good record of v4.2 with some fields changed, by path: ``header__rank=3``."""
    good: dict[str, Any] = {
        "header": {"id": "0x1", "rank": 0, "n_ranks": 2, "nnodes": 2},
        "metadata": metadata("v4.2"),
        "coll_perf": {
            "coll": "AllReduce",
            "coll_msg_size_bytes": MIB,
            "coll_exec_time_us": 100,
            "coll_busbw_gbs": 1.0,
        },
    }
    for path, value in changes.items():
        part, _, name = path.partition("__")
        if name:
            good[part] = {**good[part], name: value}
        else:
            good[part] = value
    return good


MARKER = {
    "header": record()["header"],
    "metadata": metadata("v4.3"),
    "dump_stats": {"coll_records": 2, "coll_dropped_total": 0},
}
PAYLOAD = {"coll_perf": record()["coll_perf"]}


def lines(*records: dict[str, Any]) -> str:
    """Records as JSON lines."""
    return "".join(json.dumps(one) + "\n" for one in records)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (lines(record())[:-30], "line 1: no JSON"),
        (lines(record()) + lines(record())[40:], "line 2: no JSON"),
        (lines(record(metadata__inspector_output_format_version="v5.0")), "the format is 'v5.0'"),
        (lines(record(metadata={})), "the format is 'None'"),
        (lines(PAYLOAD), "it has no metadata"),
        (lines(MARKER, PAYLOAD), "1 records are missing"),
        (lines(MARKER, PAYLOAD, MARKER), "1 records are missing"),
        (lines(MARKER, PAYLOAD, PAYLOAD, PAYLOAD), "line 4: a record 'coll_perf' more"),
        (
            lines({**MARKER, "dump_stats": {"coll_dropped_total": 5}}),
            "5 calls were overwritten",
        ),
        (lines(record(header__rank=2)), "do not fit 2 ranks"),
        (lines(record(header__n_ranks=-1)), "n_ranks is '-1'"),
        (lines(record(header__nnodes=0)), "do not fit"),
        (lines(record(coll_perf__coll_msg_size_bytes=-5)), "coll_msg_size_bytes is '-5'"),
        (lines(record(coll_perf__coll_exec_time_us=float("nan"))), "no JSON"),
        (lines(record(coll_perf__coll_exec_time_us=1e300)), "coll_exec_time_us is '1e+300'"),
        (lines(record(coll_perf__coll=["AllReduce"])), "coll is"),
        (lines(record(coll_perf="x")), "it has no coll_perf"),
        (lines({**record(), "coll_perf": None}), "it has no coll_perf"),
        ("[1]\n", "no line of Prometheus"),
        ("", "the file is empty"),
        ("up 1\n", "neither JSON nor text of NCCL Inspector"),
        (PROM.splitlines()[0] + "\n", "has no time; the file was cut"),
        (PROM[:-200], "no line of Prometheus"),
        (PROM.replace("678.263", "NaN"), "is nan; it should be above 0"),
        (PROM.replace("678.263", "-1"), "is -1; it should be above 0"),
        (PROM.replace("v5.1", "v5.2"), "the version is 'v5.2'"),
        (PROM.replace("4-5GB", "4 GB"), "message_size is '4 GB'"),
        (PROM.replace("4-5GB", "5-4GB"), "message_size is '5-4GB'"),
        (PROM.replace("4-5GB", f"4-{'9' * 400}GB"), "line 1: message_size is '4-999"),
        (PROM.replace("4-5GB", "4000000-5000000TB"), "line 1: message_size is '4000000"),
        (PROM[:-3], "line 2: the line was cut"),
        (PROM.replace('nranks="4"', 'nranks="x"'), "nranks is 'x'"),
        (PROM.replace('n_nodes="2"', 'n_nodes="9"'), "are no communicator"),
        (PROM.replace('comm_name="DP Group 0",', ""), "has no label comm_name"),
    ],
)
def test_what_cannot_be_read_is_refused_by_file_and_line(
    tmp_path: Path, text: str, why: str
) -> None:
    """A faulty file is refused by name with the exact reason, whatever else is there."""
    (tmp_path / "a.log").write_text(lines(record()))
    (tmp_path / "b.log").write_text(text)
    with pytest.raises(InputError) as refused:
        load_measured([tmp_path])
    assert "b.log" in str(refused.value)
    assert why in str(refused.value)
