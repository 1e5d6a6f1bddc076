"""Iterations of jobs: times calculated by hand, overlap, and jobs side by side."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_controller.model.job import Algorithm, Collective, Group, Job, Operation, Parallelism
from heddle_controller.traffic.jobs import flows_of_job
from heddle_controller.traffic.patterns import patterns_of
from heddle_emulator.cli import run_command_line
from heddle_emulator.fluid.wire import ROCE
from heddle_emulator.play import play
from heddle_emulator.play.iteration import Iteration, Placed, iterate, iteration_script
from heddle_emulator.play.play import PLAIN, Setting
from heddle_emulator.strategy import choose
from heddle_emulator.topology import clos
from heddle_emulator.traffic.workload import WORKLOADS, Exchange, Workload, workload, workload_of

GB = 1e9


def _fabric(leaves: int = 4) -> Fabric:
    return clos(leaves=leaves, spines=2, nics_per_leaf=2, nics_per_host=2)


def _placed(fabric: Fabric, told: Workload, name: str = "j", hosts: slice = slice(None)) -> Placed:
    return Placed(name, told, tuple([*fabric.structure.nics_of_host][hosts]), 2)


def _played(
    fabric: Fabric, *placed: Placed, iterations: int = 1, setting: Setting = PLAIN
) -> list[Iteration]:
    script = iteration_script(fabric, placed, iterations)
    carried = choose("ideal", fabric, script.flows, 0).carried
    return iterate(fabric, placed, carried, script, setting)


def _ring(seconds: float, *, overlap: bool = False) -> Workload:
    """Return a second of computing and an all-reduce of ``seconds`` on two NICs of 50 GB/s."""
    size = seconds * 100 * GB / (2 * 7 / 8)
    exchange = Exchange("all_reduce", Group.DP, size, overlap=overlap)
    return Workload("test", Parallelism(), 1.0, (exchange,), slices=2)


def test_what_is_waited_for_adds_up() -> None:
    """A second of computing and half a second of exchange take one and a half."""
    (found,) = _played(fabric := _fabric(), _placed(fabric, _ring(0.5)))
    assert found.seconds == pytest.approx(1.5)
    assert found.network_share == pytest.approx(1 / 3)


def test_what_overlaps_hides() -> None:
    """All but the last slice of an overlapped exchange runs while GPUs compute."""
    (found,) = _played(fabric := _fabric(), _placed(fabric, _ring(0.5, overlap=True)))
    assert found.seconds == pytest.approx(1.25)
    (long,) = _played(fabric, _placed(fabric, _ring(4.0, overlap=True)))
    assert long.seconds == pytest.approx(0.5 + 4.0)


def test_iterations_follow_one_another() -> None:
    """Three iterations take three times as long, so their mean is that of one."""
    (found,) = _played(fabric := _fabric(), _placed(fabric, _ring(0.5)), iterations=3)
    assert found.seconds == pytest.approx(1.5)


def test_times_are_messages_too() -> None:
    """A thousand small exchanges cost at least a thousand times their latency."""
    small = Exchange("all_reduce", Group.DP, 1000.0, 1000)
    told = Workload("test", Parallelism(), 0.0, (small,), slices=1)
    setting = Setting(replace(ROCE, hop_seconds=0.0, store_and_forward=False))
    (found,) = _played(fabric := _fabric(), _placed(fabric, told), setting=setting)
    header = 2 * 3 * ROCE.header_bytes  # one packet in each step, on either channel
    wire = 1000 * (1000 / 2 * (2 * 7 / 8) + header) / (50 * GB)
    assert found.seconds == pytest.approx(1000 * 2 * 3 * ROCE.startup_seconds + wire)


def test_jobs_share_what_they_share() -> None:
    """Two jobs share uplinks half as wide as both need, so exchanges take twice as long."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=4, nics_per_host=2, uplink_gbps=800.0)
    hosts = [*fabric.structure.nics_of_host]
    size = 0.5 * 100 * GB / (2 * 3 / 4)
    exchange = Exchange("all_reduce", Group.DP, size)
    told = Workload("test", Parallelism(), 1.0, (exchange,), slices=1)
    one, other = (
        Placed(name, told, (a, b), 2) for name, a, b in zip("ab", hosts, hosts[2:], strict=False)
    )
    for placed, seconds in (([one], 1.5), ([one, other], 2.0)):
        script = iteration_script(fabric, placed)
        found = iterate(fabric, placed, choose("ecmp", fabric, script.flows, 0).carried, script)
        assert [job.seconds for job in found] == pytest.approx([seconds] * len(placed))


def test_no_host_in_two_jobs() -> None:
    """The error names the host."""
    fabric = _fabric()
    both = [_placed(fabric, _ring(1.0), name, slice(2)) for name in ("a", "b")]
    with pytest.raises(InputError, match="is in use by job 'a'"):
        iteration_script(fabric, both)


@pytest.mark.parametrize("name", sorted(set(WORKLOADS) - {"llama3-131k"}))
def test_named_workloads_play(name: str) -> None:
    """Each workload takes longer than it computes, by less than twice that time."""
    told = workload(name)
    fabric = clos(leaves=16, spines=16, nics_per_leaf=16)
    hosts = max(told.hosts(8), 4)
    placed = Placed(name, told, tuple([*fabric.structure.nics_of_host][:hosts]))
    (found,) = _played(fabric, placed, setting=Setting(ROCE))
    assert told.seconds < found.seconds < 2 * told.seconds
    assert found.compute_seconds == told.seconds


def test_queue_pairs_in_step_take_about_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The approximation for very many QPs changes an iteration by at most 1 %."""
    fabric = clos(leaves=8, spines=8, nics_per_leaf=8)
    hosts = tuple(fabric.structure.nics_of_host)
    placed = Placed("j", workload("recommendation"), hosts, 8, 8, pxn=False)
    script = iteration_script(fabric, [placed])
    carried = choose("ecmp", fabric, script.flows, 0).carried
    (alone,) = iterate(fabric, [placed], carried, script)
    monkeypatch.setattr(play, "_MOST", 0)
    (in_step,) = iterate(fabric, [placed], carried, script)
    assert in_step.seconds == pytest.approx(alone.seconds, rel=0.01)
    assert in_step.seconds != alone.seconds


def test_iterate_on_the_command_line(capfd: pytest.CaptureFixture[str]) -> None:
    """Jobs side by side are listed by strategy, with the same numbers as in JSON."""
    words = ["iterate", "--job", "recommendation:4", "--job", "llama3-decode:4"]
    words += ["--strategies", "ecmp,ideal"]
    assert run_command_line([*words, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)["strategies"]
    for ecmp, ideal in zip(told["ecmp"], told["ideal"], strict=True):
        assert ideal["seconds"] <= ecmp["seconds"]
        assert 0 < ideal["network_share"] <= ecmp["network_share"] < 1
    assert run_command_line(words) == 0
    assert f"{told['ecmp'][0]['seconds']:.4f}" in capfd.readouterr().out


@pytest.mark.parametrize(("more", "told"), [([], "hosts and hashes"), (["--packed"], "hashes")])
def test_the_seed_is_told_for_what_it_draws(
    more: list[str], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Hosts in order are not drawn."""
    words = ["iterate", "--job", "recommendation:4", "--strategies", "ideal", *more]
    assert run_command_line(words) == 0
    assert capfd.readouterr().out.splitlines()[-1] == f"{told} drawn from seed 0"


def test_an_unknown_workload_is_told_all_that_there_are(capfd: pytest.CaptureFixture[str]) -> None:
    """The error names every workload that --job takes, the user's own matrix too."""
    assert run_command_line(["iterate", "--job", "llama:4"]) == 2
    known = capfd.readouterr().err.strip().partition("give one of ")[2].split(", ")
    assert known == [*WORKLOADS, "matrix"]


@pytest.mark.parametrize("job", ["x", "mixtral:0", "mixtral:40", "llama3-8k:8", "mixtral:a"])
def test_jobs_that_cannot_be_are_refused(job: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The exit status is 2, and one line is printed."""
    assert run_command_line(["iterate", "--job", job]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_jobs_of_a_file_run_their_collectives(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """After a millisecond of computing, 100 MB are all-reduced over two NICs of 50 GB/s."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2, nics_per_host=2)
    save_fabric_file(fabric, tmp_path / "fabric.json")
    (tmp_path / "jobs.yaml").write_text(
        "- job: a\n  hosts: [l0-h0, l1-h0]\n  gpus_per_host: 2\n  collectives:\n"
        "  - {operation: all_reduce, group: world, bytes: 100000000}\n"
    )
    words = ["iterate", "--jobs", str(tmp_path / "jobs.yaml"), "--seconds", "0.001", "--json"]
    words += ["--fabric", str(tmp_path / "fabric.json"), "--strategies", "ideal"]
    assert (
        run_command_line(
            [*words, "--header", "0", "--startup-us", "0", "--hop-us", "0", "--cut-through"]
        )
        == 0
    )
    (told,) = json.loads(capfd.readouterr().out)["strategies"]["ideal"]
    assert told["seconds"] == pytest.approx(0.001 + 0.1 * 1.5 / 100)
    assert told["name"] == "a"


def test_collectives_of_a_file_all_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two all-reduces of 100 MB share the NICs. With --overlap, 3/4 of the computing is hidden."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2, nics_per_host=2)
    save_fabric_file(fabric, tmp_path / "fabric.json")
    line = "    - {operation: all_reduce, group: world, bytes: 100000000}\n"
    head = "- job: a\n  hosts: [l0-h0, l1-h0]\n  gpus_per_host: 2\n  collectives:\n"
    (tmp_path / "jobs.yaml").write_text(head + 2 * line)
    words = ["iterate", "--jobs", str(tmp_path / "jobs.yaml"), "--seconds", "0.001", "--json"]
    words += ["--fabric", str(tmp_path / "fabric.json"), "--strategies", "ideal"]
    words += ["--header", "0", "--startup-us", "0", "--hop-us", "0", "--cut-through"]
    for more, seconds in ([], 0.001 + 0.003), (["--overlap"], 0.001 / 4 + 0.003):
        assert run_command_line([*words, *more]) == 0
        (told,) = json.loads(capfd.readouterr().out)["strategies"]["ideal"]
        assert told["seconds"] == pytest.approx(seconds), more


def test_collectives_that_overlap_run_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A ring and an all-to-all of one group run in turns at full rate, or both at once.

    The NICs send as much either way, but only in turns do the start-ups add up. What another group
    sends begins after both.
    """
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2, nics_per_host=2)
    save_fabric_file(fabric, tmp_path / "fabric.json")
    head = "- job: a\n  hosts: [l0-h0, l1-h0]\n  gpus_per_host: 2\n  collectives:\n"
    words = ["iterate", "--jobs", str(tmp_path / "jobs.yaml"), "--json", "--strategies", "ideal"]
    words += ["--fabric", str(tmp_path / "fabric.json"), "--header", "0", "--hop-us", "0"]
    words += ["--cut-through", "--startup-us"]
    found = {}
    for overlap in ("false", "true"):
        lines = [
            f"    - {{operation: all_to_all, group: world, bytes: 100000000, overlap: {overlap}}}",
            "    - {operation: all_reduce, group: dp, bytes: 100000000}",
            "    - {operation: all_reduce, group: world, bytes: 100000000}",
        ]
        (tmp_path / "jobs.yaml").write_text(head + "\n".join(lines) + "\n")
        for startup in ("0", "1000"):
            assert run_command_line([*words, startup]) == 0
            (told,) = json.loads(capfd.readouterr().out)["strategies"]["ideal"]
            found[overlap, startup] = told["seconds"]
    wire = (0.05 + 2 * 0.075) / 50
    assert found["true", "0"] == pytest.approx(wire)
    assert found["false", "0"] == pytest.approx(wire)
    assert wire < found["true", "1000"] < found["false", "1000"] - 0.0009


def test_collectives_of_jobs_as_exchanges() -> None:
    """Every operation and algorithm of a job can be played, with the controller's amounts."""
    fabric = clos(leaves=4, spines=2, nics_per_leaf=2, nics_per_host=2)
    hosts = tuple(fabric.structure.nics_of_host)
    for operation in Operation:
        for group in (Group.WORLD, Group.PP):
            for algorithm in patterns_of(operation, group):
                one = Collective(operation, group, 1 << 20, algorithm)
                job = Job("j", hosts, 2, Parallelism(pp=4), (one,), qps=2)
                placed = Placed("j", workload_of(job, 0.0), hosts, 2, 2, pxn=False)
                script = iteration_script(fabric, [placed])
                asked = flows_of_job(job, fabric, pxn=False)
                case = (operation, group, algorithm)
                assert script.flows.ids == asked.ids, case
                crossing = script.flow >= 0
                sent = np.bincount(script.flow[crossing], script.gbit[crossing])
                assert sent * 1e9 / 8 == pytest.approx(asked.bytes), case


def test_flows_of_jobs_come_as_the_controller_has_them() -> None:
    """Flows have the controller's order, whatever the order of a job's collectives.

    Where NICs meet twice, the port of a QP depends on this order.
    """
    fabric = clos(leaves=4, spines=2, nics_per_leaf=2, nics_per_host=2)
    hosts = tuple(fabric.structure.nics_of_host)
    wanted = [
        Collective(Operation.ALL_TO_ALL, Group.WORLD, 1 << 20),
        Collective(Operation.SEND_RECV, Group.PP, 1 << 20),
        Collective(Operation.ALL_REDUCE, Group.WORLD, 1 << 20),
        Collective(Operation.ALL_REDUCE, Group.DP, 1 << 20, overlap=True),
        Collective(Operation.ALL_REDUCE, Group.DP, 1 << 20, Algorithm.TREE),
    ]
    for one in (wanted, wanted[::-1]):
        job = Job("j", hosts, 2, Parallelism(pp=2), tuple(one), qps=3)
        placed = Placed("j", workload_of(job, 0.0), hosts, 2, 3)
        flows, asked = iteration_script(fabric, [placed]).flows, flows_of_job(job, fabric)
        assert flows.ids == asked.ids
        assert [flows.phase_names[p] for p in flows.phase] == [
            asked.phase_names[p] for p in asked.phase
        ]
        assert flows.source_ports().tolist() == asked.source_ports().tolist()
        assert flows.gbps == pytest.approx(asked.gbps)


def _half_wide(tmp_path: Path) -> list[str]:
    """Return options for two jobs that share uplinks of half the width that they need together.

    Each computes for 20 ms and, alone, sends for 15 ms.
    """
    fabric = clos(leaves=2, spines=1, nics_per_leaf=4, nics_per_host=2, uplink_gbps=800.0)
    save_fabric_file(fabric, tmp_path / "fabric.json")
    line = "  gpus_per_host: 2\n  collectives:\n"
    line += "  - {operation: all_reduce, group: world, bytes: 1000000000}\n"
    (tmp_path / "jobs.yaml").write_text(
        "".join(
            f"- job: {name}\n  hosts: [l0-h{at}, l1-h{at}]\n{line}" for at, name in enumerate("ab")
        )
    )
    words = ["iterate", "--jobs", str(tmp_path / "jobs.yaml"), "--seconds", "0.02"]
    return [*words, "--fabric", str(tmp_path / "fabric.json"), "--strategies", "ecmp"]


def test_an_iteration_in_turns_lasts_until_the_next_turn(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One iteration with turns takes as long as each of many, though it ends before its pace."""
    seconds = []
    for iterations in ("1", "8"):
        words = [*_half_wide(tmp_path), "--iterations", iterations, "--turns", "--json"]
        assert run_command_line(words) == 0
        told = json.loads(capfd.readouterr().out)
        paces = [turn["pace_seconds"] for turn in told["turns"]["ecmp, turns"].values()]
        seconds.append([job["seconds"] for job in told["strategies"]["ecmp, turns"]])
        assert seconds[-1] == pytest.approx(paces)
    assert seconds[0] == seconds[1]


@pytest.mark.parametrize("drift", ["0", "0.02"])
def test_jobs_in_turns_do_not_wait_for_each_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], drift: str
) -> None:
    """Iterations keep the pace of their turns, even if one job is slower than it says."""
    words = [*_half_wide(tmp_path), "--iterations", "8", "--turns", "--drift", drift]
    assert run_command_line([*words, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    without, taken = told["strategies"]["ecmp"], told["strategies"]["ecmp, turns"]
    for before, after in zip(without, taken, strict=True):
        pace = told["turns"]["ecmp, turns"][after["name"]]["pace_seconds"]
        assert 0.035 < after["seconds"] <= pace < before["seconds"]
    assert run_command_line(words) == 0
    shown = capfd.readouterr().out
    assert "ecmp, turns: a begins at" in shown
    assert f"expected to save {told['turns']['ecmp, turns']['a']['saved']:.1%}" in shown


def test_turns_are_saved_with_what_they_gain(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The folder has a line for each job in turns, with the numbers of JSON and the job's turn."""
    words = [*_half_wide(tmp_path), "--turns", "--save", str(tmp_path / "o"), "--json"]
    assert run_command_line(words) == 0
    told = json.loads(capfd.readouterr().out)
    for file, name in (("ecmp.csv", "ecmp"), ("ecmp--turns.csv", "ecmp, turns")):
        rows = [*csv.DictReader((tmp_path / "o" / file).read_text().splitlines())]
        assert [(row["job"], float(row["seconds"])) for row in rows] == [
            (job["name"], job["seconds"]) for job in told["strategies"][name]
        ]
        for row in rows:
            turn = told["turns"].get(name, {}).get(row["job"], {})
            assert {column: float(row[column]) for column in turn if column != "job"} == {
                column: value for column, value in turn.items() if column != "job"
            }
    assert told["turns"]["ecmp, turns"]


def test_jobs_that_part_by_themselves_are_not_slowed_by_turns(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Flows over links that are not shared go on while others wait, so little is lost.

    Turns would need a pace that both jobs keep, which is longer than what they take by themselves.
    """
    fabric = clos(leaves=3, spines=2, nics_per_leaf=2, nics_per_host=1, uplink_gbps=100.0)
    save_fabric_file(fabric, tmp_path / "fabric.json")
    gathers = "[{operation: all_gather, group: world, bytes: 3410719630}]"
    (tmp_path / "jobs.yaml").write_text(
        "".join(
            f"- job: j{at}\n  hosts: [l0-h{at}, l1-h{at}, l2-h{at}]\n  gpus_per_host: 1\n"
            f"  qps: 4\n  compute_seconds: {seconds}\n  collectives: {gathers}\n"
            for at, seconds in enumerate((0.171, 0.0855))
        )
    )
    files = ["--jobs", str(tmp_path / "jobs.yaml"), "--fabric", str(tmp_path / "fabric.json")]
    words = [*files, "--strategies", "ecmp", "--seed", "2041", "--iterations", "14", "--turns"]
    assert run_command_line(["iterate", *words, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)["strategies"]
    pairs = zip(told["ecmp"], told["ecmp, turns"], strict=True)
    assert sum(before["seconds"] / after["seconds"] for before, after in pairs) >= 2.0


def test_jobs_that_never_end_have_no_turns(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """If the only spine is cut off, no iteration of either job ends, and nothing warns."""
    save_fabric_file(
        clos(leaves=2, spines=1, nics_per_leaf=2, nics_per_host=1), tmp_path / "fabric.json"
    )
    (tmp_path / "jobs.yaml").write_text(
        "".join(
            f"- job: {name}\n  hosts: [l0-h{host}, l1-h{host}]\n  gpus_per_host: 1\n"
            "  compute_seconds: 0.1\n  collectives:\n"
            "  - {operation: all_reduce, group: world, bytes: 1GB}\n"
            for host, name in enumerate("ab")
        )
    )
    words = ["iterate", "--jobs", str(tmp_path / "jobs.yaml"), "--turns", "--down", "l0,s0"]
    words += ["--fabric", str(tmp_path / "fabric.json"), "--strategies", "ideal", "--json"]
    assert run_command_line(words) == 0
    told = json.loads(capfd.readouterr().out)
    assert [job["seconds"] for job in told["strategies"]["ideal, turns"]] == [None, None]
    assert told["turns"] == {}


def test_jobs_that_never_meet_have_no_turns(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """If links can carry everything, turns change nothing."""
    words = _half_wide(tmp_path)
    fabric = clos(leaves=2, spines=1, nics_per_leaf=4, nics_per_host=2, uplink_gbps=1600.0)
    save_fabric_file(fabric, tmp_path / "fabric.json")
    assert run_command_line([*words, "--turns", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["strategies"]["ecmp, turns"] == told["strategies"]["ecmp"]
    assert told["turns"] == {}
