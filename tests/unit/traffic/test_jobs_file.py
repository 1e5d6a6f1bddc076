"""Reading jobs files, and refusing faulty ones in one line."""

from __future__ import annotations

import gzip
import os
from itertools import pairwise
from pathlib import Path

import pytest

from heddle_controller.model.errors import InputError
from heddle_controller.model.flows import TrafficClass
from heddle_controller.model.job import (
    Algorithm,
    Collective,
    Group,
    Job,
    Operation,
    Parallelism,
)
from heddle_controller.traffic.jobs_file import load_jobs

FULL = """
- job: train
  hosts: [a, "b[08-10]"]
  gpus_per_host: 8
  parallelism: {tp: 8, pp: 2}
  collectives:
    - {operation: all_reduce, group: tp, bytes: 1048576, algorithm: ring}
    - {operation: Send-Recv, group: PP, bytes: 1.5MiB, overlap: true}
  priority: 2
  class: latency
  qps: 4
- job: serve
  hosts: c[0-1]
  gpus_per_host: 4
"""
ONE = "- job: a\n  hosts: [h0, h1]\n  gpus_per_host: 8\n"
PART = "- job: a\n  hosts: [h0, h1]\n  gpus: [0, 1]\n"
TRACE = """comm_type,comm_group,comm_group_size,msg_size,stage
CommType.all_reduce,CommGroup.tp_group,4,33554432,forward
CommType.isend,CommGroup.pp_group,2,33554432,forward
CommType.reduce_scatter,CommGroup.dp_group,16,33554432,step
"""


def _written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "jobs.yaml"
    path.write_text(text)
    return path


def _laughs(one: str, next_: str) -> str:
    """Nine lines, each with nine aliases of the line before: a billion values written out."""
    lines = [f"- &a {one}"]
    for before, name in pairwise("abcdefghi"):
        lines.append(f"- &{name} {next_.format(','.join([f'*{before}'] * 9))}")
    return "\n".join(lines) + "\n"


LAUGHS = _laughs("[x, x, x, x, x, x, x, x, x]", "[{}]")
MERGES = _laughs("{k: 1, l: 2}", "{{<<: [{}], j: 1}}")


def test_every_field(tmp_path: Path) -> None:
    """Every field is read, host ranges are written out, and missing fields get defaults."""
    assert load_jobs(_written(tmp_path, FULL)) == (
        Job(
            "train",
            ("a", "b08", "b09", "b10"),
            8,
            Parallelism(tp=8, pp=2),
            (
                Collective(Operation.ALL_REDUCE, Group.TP, 1 << 20, Algorithm.RING),
                Collective(Operation.SEND_RECV, Group.PP, 3 << 19, overlap=True),
            ),
            priority=2.0,
            traffic_class=TrafficClass.LATENCY,
            qps=4,
        ),
        Job("serve", ("c0", "c1"), 4),
    )


def test_parts_of_hosts(tmp_path: Path) -> None:
    """A job's GPUs count for each of its hosts, those of an entry for the hosts of that entry."""
    one, two, three = load_jobs(
        _written(
            tmp_path,
            """
- {job: a, hosts: "h[0-1]", gpus: [0, 1]}
- {job: b, hosts: [{host: "h[0-1]", gpus: 2-3}, h2], gpus: [4, 5], gpus_per_host: 2}
- {job: c, hosts: [{host: h2, gpus: [7]}, {host: h3, gpus: "0,2-3"}], parallelism: {tp: 4}}
""",
        )
    )
    assert one == Job("a", ("h0", "h1"), 2, gpus=((0, 1), (0, 1)))
    assert two == Job("b", ("h0", "h1", "h2"), 2, gpus=((2, 3), (2, 3), (4, 5)))
    assert three == Job("c", ("h2", "h3"), 0, Parallelism(tp=4), gpus=((7,), (0, 2, 3)))


def test_a_job_without_hosts_gets_as_many_as_are_asked_for(tmp_path: Path) -> None:
    """A job that names no hosts gets made-up ones; one that names some keeps them."""
    both = ONE + "- {job: b, gpus_per_host: 8, parallelism: {tp: 8, dp: 3}}\n"
    named, anywhere = load_jobs(_written(tmp_path, both), 3)
    assert named.hosts == ("h0", "h1")
    assert (len({*anywhere.hosts}), anywhere.rank_count) == (3, 24)


def test_packed_file(tmp_path: Path) -> None:
    """A gzip file is read like a plain one."""
    path = tmp_path / "jobs.yaml.gz"
    path.write_bytes(gzip.compress(FULL.encode()))
    assert [job.name for job in load_jobs(path)] == ["train", "serve"]


def test_anchors_and_merges(tmp_path: Path) -> None:
    """Jobs may share fields by YAML anchors and merges, and override some."""
    text = "- &a {job: a, hosts: [h0], gpus_per_host: 8, qps: 2}\n"
    one, two = load_jobs(_written(tmp_path, text + "- {<<: *a, job: b, hosts: [h1]}\n"))
    assert (one.name, one.qps, two.name, two.qps, two.hosts) == ("a", 2, "b", 2, ("h1",))


def test_trace_fills_in_what_the_file_leaves_out(tmp_path: Path) -> None:
    """Degrees come from the trace unless the file has its own, and ``dp`` takes the rest."""
    (tmp_path / "t.csv").write_text(TRACE)
    (job,) = load_jobs(_written(tmp_path, ONE + "  trace: t.csv\n"))
    assert job.parallelism == Parallelism(tp=4, pp=2)
    assert [c.group for c in job.collectives] == [Group.TP, Group.PP, Group.DP]
    text = ONE + "  trace: t.csv\n  parallelism: {tp: 8, pp: 1}\n"
    (job,) = load_jobs(_written(tmp_path, text))
    assert job.parallelism == Parallelism(tp=8, pp=1)
    assert [c.group for c in job.collectives] == [Group.TP, Group.DP]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("# nothing\n", "the list of jobs is empty; give one or more '- job: NAME'"),
        ("job: a\n", "the list of jobs is {'job': 'a'}"),
        ("- job: a\n  hosts: [h0\n", "line 3, column 1: malformed YAML"),
        (ONE + "  qps: 1\n  qps: 2\n", "line 5, column 3: malformed YAML: the key 'qps' stands tw"),
        (ONE + "---\n" + ONE, "line 4: a second document starts here"),
        ("- 7\n", "jobs[0]: is 7; give a mapping"),
        (
            ONE + "  collectives: [{operation: all_reduce, group: dp, bytes: 1, overlap: 1}]\n",
            "collectives[0] (line 4): overlap is 1; give true or false",
        ),
        (ONE + "  gpu_per_host: 8\n", "job 'a' (line 1): unknown key 'gpu_per_host'; did you mean"),
        (ONE + "  priority: .nan\n", "priority is '.nan'; give a number above 0"),
        (ONE + "  priority: 1_000\n", "priority is '1_000'; give a number above 0"),
        (ONE + "  priority: !!float 1_000\n", "'1_000' is not a number: write it with the digits"),
        (ONE + "  qps: 1_0\n", "qps is '1_0'; give an integer, 1 or more"),
        (ONE + "  qps: !!int 1_0\n", "'1_0' is not an integer: write it with the digits 0 to 9"),
        (ONE + "  qps: 010\n", "qps is '010'; give an integer, 1 or more"),
        (ONE + "  qps: 1:30\n", "qps is '1:30'; give an integer, 1 or more"),
        (ONE + "  qps: ٣\n", "qps is '٣'; give an integer, 1 or more"),
        (
            ONE + "  collectives: [{operation: all_reduce, group: dp, bytes: ٣MiB}]\n",
            "bytes is '٣MiB'; give the bytes one rank puts in",
        ),
        (ONE.replace("[h0, h1]", "'h[\u0660-\u0661]'"), "is not a list of numbers; write [0-15]"),
        (ONE + "  priority: -1\n", "priority is -1; give a number above 0"),
        (ONE + "  compute_seconds: 0\n", "compute_seconds is 0; give a number above 0"),
        (ONE + "  compute_seconds: -0.1\n", "compute_seconds is -0.1; give a number above"),
        (ONE + "  network_seconds: .nan\n", "network_seconds is '.nan'; give a number"),
        (ONE + "  network_seconds: 1\n", "network_seconds: is told without compute_seconds"),
        (ONE + "  compute_seconds: 1\n", "network_seconds: is not told, nor collectives"),
        (ONE + "  qps: yes\n", "qps is True; give an integer, 1 or more"),
        (ONE + "  class: fast\n", "class is 'fast'; give one of bandwidth, latency"),
        (ONE + "  parallelism: 8\n", "parallelism is 8; give a mapping such as {tp: 8, dp: 4}"),
        (ONE + "  parallelism: {tp: 2.5}\n", "parallelism: tp is 2.5; give an integer, 0 or more"),
        (ONE + "  parallelism: {tq: 2}\n", "unknown key 'tq'; known are tp, pp, dp"),
        (ONE + "  parallelism: {tp: 3}\n", "tp 3 does not make up 2 hosts × 8 GPUs = 16 ranks"),
        (ONE + "  collectives: all\n", "collectives is 'all'; give a list"),
        (ONE + "  collectives: [1]\n", "collectives[0] is 1; give operation, group and bytes"),
        (
            ONE + "  collectives: [{operation: sing, group: dp, bytes: 1}]\n",
            "operation is 'sing'; give one of all_reduce, all_gather",
        ),
        (
            ONE + "  collectives: [{operation: all_reduce, group: dp, bytes: .inf}]\n",
            "collectives[0] (line 4): bytes is '.inf'; give the bytes one rank puts in",
        ),
        (
            ONE
            + "  collectives: [{operation: all_reduce, group: dp, bytes: 4611686018427387904}]\n",
            "64MiB, below 4611686018427387904",
        ),
        (ONE + "  collectives: [{operation: all_reduce, group: dp}]\n", "has no bytes"),
        (ONE + "  trace: gone.csv\n", "gone.csv: cannot be read: No such file"),
        (ONE + ONE, "job 'a': this name is used twice"),
        (ONE + ONE.replace("job: a", "job: b"), "job 'b', host 'h0': is in use by job 'a'"),
        (ONE.replace("h1", "h0"), "host 'h0': is named twice"),
        (PART + PART.replace("job: a", "job: b"), "host 'h0': its GPUs 0-1 are in use by job 'a'"),
        (PART + ONE.replace("job: a", "job: b"), "host 'h0': its GPUs 0-1 are in use by job 'a'"),
        (PART + "  gpus_per_host: 4\n", "gpus_per_host is 4, and gpus names 2; leave it out"),
        (PART.replace("[0, 1]", "[0, 0]"), "host 'h0': gives GPU 0 twice; name each once"),
        (PART.replace("[0, 1]", "[]"), "gpus is []; give the GPUs of a host, such as [0, 1]"),
        (PART.replace("[0, 1]", "[true]"), "gpus is [True]; give the GPUs of a host"),
        (PART.replace("[0, 1]", "[-1]"), "gives GPU -1; GPUs are numbered 0 to 1023"),
        (PART.replace("[0, 1]", "[1024]"), "gives GPU 1024; GPUs are numbered 0 to 1023"),
        (PART.replace("[0, 1]", "3-1"), "gpus: '3-1' runs backwards; put the lesser number first"),
        (PART.replace("[0, 1]", "all"), "gpus: 'all' is no list of GPUs; write 0-3 or 0,2,4-7"),
        (PART + "  parallelism: {tp: 3}\n", "tp 3 does not make up 2 hosts × 2 GPUs = 4 ranks"),
        (
            "- {job: a, hosts: [{host: h0, gpus: [0]}, h1], gpus_per_host: 1}\n",
            "host 'h1' has no gpus, others have; give them for each, or for the job",
        ),
        (
            PART.replace("[h0, h1]", "[{host: h0, gpus: [0]}, h1]") + "  parallelism: {tp: 2}\n",
            "tp 2 does not make up 2 hosts with 3 GPUs in all",
        ),
        ("- {job: a, hosts: [{name: h0}], gpus: [0]}\n", "hosts[0]: unknown key 'name'"),
        (ONE.replace("h1", "3"), "hosts[1] is 3; give a name, in quotes if need be"),
        (ONE.replace("[h0, h1]", "'h[3-1]'"), "hosts[0]: [3-1] runs backwards"),
        (ONE.replace("[h0, h1]", "'h[x]'"), "[x] is not a list of numbers; write [0-15]"),
        (ONE.replace("[h0, h1]", "'h[0-3'"), "a bracket without its other half"),
        (ONE.replace("[h0, h1]", "'h[0-99999999]'"), "names more than 1,048,576 hosts"),
        (ONE.replace("[h0, h1]", "[]"), "has no hosts; name them in rank order"),
        (ONE.replace("job: a", "job: a/b"), "the name 'a/b' cannot be used"),
        (ONE.replace("job: a", "qps: 1"), "jobs[0] (line 1): has no job; give 1 to 63 letters"),
        (ONE.replace("  gpus_per_host: 8\n", ""), "has no gpus_per_host; give an integer"),
        ("- job: !!python/object/apply:print [1]\n", "malformed YAML: could not determine a con"),
        ("- ? [a]\n  : b\n", "malformed YAML"),
        ("- &a [*a]\n", "line 1: *a stands within itself; take it out"),
        (LAUGHS, "more than 2,000,000 records and values, aliases written out; is it the right"),
        (MERGES, "more than 2,000,000 records and values, aliases written out; is it the right"),
        (
            "- &a [[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]\n- [[[[[[[[[[[[[[*a]]]]]]]]]]]]]]\n",
            "line 2: nest",
        ),
        ("[" * 100_000, "nested more than 32 deep; is it the right file?"),
    ],
)
def test_what_is_no_list_of_jobs_is_refused(tmp_path: Path, text: str, told: str) -> None:
    """A faulty file is refused in one line with file, place and cure; nothing else is raised."""
    path = _written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_jobs(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_list_of_endless_length_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading stops at a limit, lowered here, and the line where it is passed is told."""
    monkeypatch.setattr("heddle_controller.model.files.yaml_text.MAX_EVENTS", 10_000)
    with pytest.raises(InputError, match="line 9999: more than 10,000 records and values"):
        load_jobs(_written(tmp_path, "- a\n" * 11_000))


def test_trace_and_collectives_are_one_too_many(tmp_path: Path) -> None:
    """A job with both a trace and collectives is refused, since it is unclear which would count."""
    (tmp_path / "t.csv").write_text(TRACE)
    extra = "  trace: t.csv\n  collectives: [{operation: all_reduce, group: dp, bytes: 1}]\n"
    with pytest.raises(InputError, match="has both trace and collectives; keep one of them"):
        load_jobs(_written(tmp_path, ONE + extra))


def test_every_faulty_job_is_told(tmp_path: Path) -> None:
    """The error has every fault; its line names the first and counts the others."""
    with pytest.raises(InputError, match="and 2 more") as caught:
        load_jobs(_written(tmp_path, "- {job: a}\n- {job: b, hosts: [x]}\n"))
    assert [problem.record for problem in caught.value.problems] == [
        "job 'a' (line 1)",
        "job 'a' (line 1)",
        "job 'b' (line 2)",
    ]


def test_empty_and_missing_files(tmp_path: Path) -> None:
    """Empty and missing files are refused with plain messages."""
    with pytest.raises(InputError, match="the file is empty"):
        load_jobs(_written(tmp_path, ""))
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load_jobs(tmp_path / "gone.yaml")


def test_garbage_is_refused_whatever_its_size(tmp_path: Path) -> None:
    """Garbage is refused in one clear line: 100 MB on disk, 100 MB once unpacked, or a little."""
    path = tmp_path / "jobs.yaml"
    path.write_bytes(os.urandom(1 << 16))
    with pytest.raises(InputError, match="not YAML text"):
        load_jobs(path)
    with path.open("wb") as file:
        file.truncate(100_000_000)
    with pytest.raises(InputError, match="the file is 95 MiB, the ceiling is 16 MiB"):
        load_jobs(path)
    path.write_bytes(gzip.compress(bytes(100_000_000), 1))
    with pytest.raises(InputError, match="larger than 16 MiB"):
        load_jobs(path)
