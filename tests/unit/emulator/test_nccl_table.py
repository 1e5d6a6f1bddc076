"""`heddle-emulator nccl`: the table, and bandwidths that can be calculated by hand."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_controller.model.files.flows_file import load_demands
from heddle_emulator.cli import run_command_line
from heddle_emulator.cli.output import bytes_of, sizes_of
from heddle_emulator.fluid.wire import Wire
from heddle_emulator.play.nccl import NcclRun, size_table
from heddle_emulator.play.play import Setting
from heddle_emulator.topology import clos, rail_optimised

MIB = 1 << 20


def _hosts(fabric: Fabric, count: int) -> tuple[str, ...]:
    return tuple([*fabric.structure.nics_of_host][:count])


@pytest.mark.parametrize(
    ("op", "algorithm", "nics"),
    [
        ("all_reduce", "ring", 4),
        ("all_gather", "ring", 4),
        ("reduce_scatter", "ring", 4),
        ("broadcast", "chain", 4),
        ("all_gather", "mesh", 1),
        ("sendrecv", "ring", 1),
    ],
)
def test_bus_bandwidth_is_what_the_nics_carry(op: str, algorithm: str, nics: int) -> None:
    """On a crossbar without headers and latency, each 400 Gbit/s NIC in use carries 50 GB/s."""
    fabric = clos(leaves=4, spines=4, nics_per_leaf=4, nics_per_host=4)
    trial = NcclRun(op, (_hosts(fabric, 4),), 4, algorithm, pxn=False)
    (line,) = size_table(fabric, trial, [64 * MIB], ["ideal"])["ideal"]
    over = 15 / 16 if op == "all_gather" and algorithm == "mesh" else 1
    inside = 12 / 15 if over < 1 else 1  # share of a mesh's data that leaves its host
    assert line.busbw == pytest.approx(nics * 50.0 / inside)


def test_headers_and_latency_by_hand() -> None:
    """Two hosts with a GPU each: 2 steps of 10 us, 4 links of 1 us and 525 headers a step."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=1, nics_per_host=1)
    wire = Wire(payload_bytes=1000, header_bytes=30, startup_seconds=1e-5, hop_seconds=1e-6)
    trial = NcclRun("all_reduce", (_hosts(fabric, 2),), 1)
    (line,) = size_table(fabric, trial, [MIB], ["ecmp"], setting=Setting(wire))["ecmp"]
    sent = (MIB + 2 * 525 * 30) * 8e-9 / 400
    assert line.seconds == pytest.approx(sent + 2 * (1e-5 + 4e-6))
    assert line.busbw == line.algbw == pytest.approx(MIB / 1e9 / line.seconds)


def test_nvlink_can_be_what_is_slow() -> None:
    """NVLink at a quarter of the speed of the host's NICs sets the pace, not the fabric."""
    fabric = clos(leaves=2, spines=4, nics_per_leaf=4, nics_per_host=4)
    trial = NcclRun("all_reduce", (_hosts(fabric, 2),), 4)
    slow = Setting(nvlink_gbps=400.0)
    (line,) = size_table(fabric, trial, [MIB], ["ideal"], setting=slow)["ideal"]
    assert line.busbw == pytest.approx(50.0)


def test_a_collision_halves_the_ring() -> None:
    """With one spine for two NICs, the ring goes at half speed, and the bound says the same."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=2, nics_per_host=2)
    trial = NcclRun("all_reduce", (_hosts(fabric, 2),), 2)
    found = size_table(fabric, trial, [MIB], ["ecmp", "te", "ideal"])
    assert found["ideal"][0].busbw == pytest.approx(100.0)
    assert found["ecmp"][0].busbw == pytest.approx(50.0)
    assert found["te"][0].busbw == pytest.approx(50.0)
    assert found["bound"][0].busbw == pytest.approx(50.0)


def test_heddle_reaches_the_bound_where_hashing_does_not() -> None:
    """Planned rings over a full-bisection fabric run as fast as on a crossbar."""
    fabric = rail_optimised(units=2, servers=4, rails=4, spines=4, parallel=1)
    hosts = [*fabric.structure.nics_of_host]
    groups = tuple((hosts[row], hosts[row + 4]) for row in range(4))
    found = size_table(
        fabric, NcclRun("all_reduce", groups, 4), [MIB], ["ecmp", "te", "ideal"], seed=3
    )
    assert found["te"][0].busbw == pytest.approx(found["ideal"][0].busbw)
    assert found["ecmp"][0].busbw < 0.7 * found["te"][0].busbw
    assert found["ecmp"][0].busbw <= found["ecmp"][0].busbw_mean


def test_one_host_needs_no_fabric() -> None:
    """Everything goes over NVLink: 3,600 Gbit/s of a GPU are 450 GB/s."""
    fabric = clos(leaves=1, spines=1, nics_per_leaf=8)
    found = size_table(fabric, NcclRun("all_reduce", (_hosts(fabric, 1),)), [MIB], ["ecmp"])
    assert found["ecmp"][0].busbw == pytest.approx(450.0)


def test_what_cannot_be_run_is_refused() -> None:
    """Unknown operations, algorithms and hosts, a repeated host and one rank are refused."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=2, nics_per_host=2)
    two = (_hosts(fabric, 2),)
    for trial, word in (
        (NcclRun("allreduce", two), "all_reduce"),
        (NcclRun("all_reduce", two, 2, "pairwise"), "ring, tree"),
        (NcclRun("all_reduce", (("x", "y"),)), "'?x"),
        (NcclRun("all_reduce", (_hosts(fabric, 1),), 1), "2 GPUs"),
        (NcclRun("all_reduce", (two[0], two[0])), "twice"),
    ):
        with pytest.raises(InputError, match=word):
            size_table(fabric, trial, [MIB], ["ideal"])


def test_sprayed_packets_pass_as_many_links_as_others() -> None:
    """A message of one byte takes the latency of its hops, over any number of paths."""
    fabric = clos(leaves=2, spines=8, nics_per_leaf=1, nics_per_host=1)
    wire = Wire(startup_seconds=0.0, hop_seconds=1e-6)
    trial = NcclRun("sendrecv", (_hosts(fabric, 2),), 1)
    found = size_table(fabric, trial, [1], ["ecmp", "spray"], setting=Setting(wire))
    assert found["spray"][0].seconds == pytest.approx(found["ecmp"][0].seconds)
    assert found["ecmp"][0].seconds == pytest.approx(4e-6, rel=1e-3)


@pytest.mark.parametrize(
    ("op", "columns"),
    [
        ("all_reduce", "1048576 262144 float sum -1"),
        ("all_gather", "1048576 32768 float none -1"),
        ("reduce_scatter", "1048576 32768 float sum -1"),
        ("broadcast", "1048576 262144 float none 0"),
        ("alltoall", "1048576 32768 float none -1"),
        ("sendrecv", "1048576 262144 float sum -1"),
    ],
)
def test_lines_begin_as_those_of_nccl_tests(
    op: str, columns: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The columns are bytes, elements a rank, type, reduction and root, here for 8 ranks."""
    words = ["nccl", "--op", op, "--hosts", "2", "--gpus", "4", "--sizes", "1M"]
    assert run_command_line([*words, "--strategies", "ideal"]) == 0
    shown = capfd.readouterr().out
    (line,) = [line.split() for line in shown.splitlines() if not line.startswith("#")]
    assert line[:5] == columns.split()
    assert len(line) == 8
    assert f"# Avg bus bandwidth    : {float(line[7]):.2f}"[:28] in shown


def test_the_table_people_know(capfd: pytest.CaptureFixture[str]) -> None:
    """Sizes ascend, columns are those of nccl-tests, and JSON has the same numbers."""
    words = ["nccl", "--hosts", "4", "--sizes", "1M..64M", "--strategies", "ecmp,ideal"]
    words += ["--down", "l00,s00"]
    assert run_command_line(words) == 0
    shown = capfd.readouterr().out
    assert "busbw" in shown
    assert run_command_line([*words, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    sizes = [line["size"] for line in told["strategies"]["ideal"]]
    assert sizes == [MIB, 8 * MIB, 64 * MIB]
    times = [line["seconds"] for line in told["strategies"]["ecmp"]]
    assert all(a < b for a, b in pairwise(times))
    assert f"{times[0] * 1e6:.1f}" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sizes", "8G..1M"], "--sizes: 8G..1M: ends below"),
        (["--sizes", "x"], "--sizes: 'x': is not a size"),
        (["--sizes", "1M..999999999T"], "--sizes: '999999999T': is too large"),
        (["--sizes", "1M..1T"], "--sizes: 1M..1T: is too large for the table; give at most 900G"),
        (["--factor", "1"], "--factor: 1: makes no sizes; give more than 1"),
        (["--piece", "-1"], "--piece: '-1': is not a size"),
        (["--hosts", "0"], "hosts"),
        (["--groups", "3"], "groups"),
        (["--down", "l00,l01"], "down"),
        (["--header", "-1"], "header"),
        (["--nvlink-gbps", "0"], "nvlink"),
        (["--fabric", "nowhere"], "nowhere"),
        (["--qps", "0"], "qps"),
    ],
)
def test_bad_words_are_refused_in_a_line(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 2, one line says which option is wrong, and nothing runs."""
    assert run_command_line(["nccl", *words]) == 2
    told = capfd.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert said in line


def test_columns_never_run_together(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A size that is longer than its column, from a matrix, is followed by a blank."""
    (tmp_path / "bytes.json").write_text('{"bytes": [[0, 100000000000000], [1, 0]]}')
    words = ["nccl", "--op", "alltoall", "--matrix", str(tmp_path / "bytes.json"), "--gpus", "1"]
    assert run_command_line([*words, "--strategies", "ideal"]) == 0
    (line,) = [line for line in capfd.readouterr().out.splitlines() if not line.startswith("#")]
    assert line.split()[:2] == ["100000000000000", "12500000000000"]


def test_sizes_as_people_write_them() -> None:
    """K, M, G and MiB are binary, and MB is decimal. Ranges go up by a factor."""
    assert sizes_of("1M..8M") == [MIB, 2 * MIB, 4 * MIB, 8 * MIB]
    assert sizes_of("1K, 3M", 4) == [1024, 3 * MIB]
    for text, count in (
        ("1.5MiB", 3 * MIB // 2),
        ("1.5MB", 1_500_000),
        ("64B", 64),
        ("2kB", 2000),
        ("2KiB", 2048),
        ("1G", 1 << 30),
    ):
        assert bytes_of(text, "--piece") == count
    for text in ("", "64iB", "64Mb", "64b"):
        with pytest.raises(InputError, match=r"--piece: '.*': is not a size"):
            bytes_of(text, "--piece")


@pytest.mark.parametrize(
    "command",
    [
        ["nccl", "--sizes", "1M", "--qps", "2", "--gpus", "2"],
        ["iterate", "--jobs", "{dir}/jobs.yaml"],
    ],
)
def test_what_is_saved_can_be_played_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """Lines, flows and paths are saved. Paths read back as a plan give the same results."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=4, nics_per_host=2)
    save_fabric_file(fabric, tmp_path / "fabric.json")
    hosts = ", ".join(fabric.structure.nics_of_host)
    (tmp_path / "jobs.yaml").write_text(
        f"- {{job: j, hosts: [{hosts}], gpus_per_host: 2, parallelism: {{dp: 8}}, "
        "collectives: [{operation: all_reduce, group: dp, bytes: 64MB}]}"
    )
    words = [word.format(dir=tmp_path) for word in command]
    words += ["--fabric", str(tmp_path / "fabric.json"), "--json", "--strategies"]
    assert run_command_line([*words, "ecmp,ideal", "--save", str(tmp_path / "o")]) == 0
    first = json.loads(capfd.readouterr().out)["strategies"]["ecmp"]
    names = {path.name for path in (tmp_path / "o").iterdir()}
    assert names == {"flows.csv", "ecmp.csv", "ecmp.json", "ideal.csv"}
    given = f"plan:{tmp_path / 'o' / 'ecmp.json'}"
    assert run_command_line([*words, given]) == 0
    assert json.loads(capfd.readouterr().out)["strategies"][given] == first
    assert len(load_demands(tmp_path / "o" / "flows.csv")) > 0
