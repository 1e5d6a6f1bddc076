"""Campaigns with a real controller and real agents, played by processes of this machine."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_emulator.campaign.campaign import Campaign
from heddle_emulator.campaign.run import Journal, run_campaign
from heddle_emulator.campaign.trials import FaultEvent, FaultKind, Trial
from heddle_emulator.campaign.warm_fabric import WarmFabric
from heddle_emulator.cli import run_command_line
from heddle_emulator.executor import ExecutorError, ProcessExecutor
from heddle_emulator.topology import clos
from heddle_emulator.traffic import flows_between, save_flows
from tests.support.campaigns import FABRIC, FLOWS, small
from tests.support.waiting import PATIENCE, wait_until


def _children() -> set[int]:
    """Return the processes that this one has started, except Python's resource tracker."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if "resource_tracker" not in str(child.cmdline()):
                found.add(child.pid)
    return found


def test_processes_play_what_others_were_kept_from(tmp_path: Path) -> None:
    """An interrupted campaign that is resumed plays each trial once and leaves no process.

    One lost link of a full leaf leaves three links for sixteen QPs, so six are on the fullest.
    """
    before = _children()
    campaign = small(6)

    def stop(done: int, _: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with Journal(tmp_path, campaign, resume=False) as journal, pytest.raises(KeyboardInterrupt):
        run_campaign(campaign, ProcessExecutor(2), journal, stop)
    assert _children() <= before
    with Journal(tmp_path, campaign, resume=True) as journal:
        assert len(journal.results) == 2
        results = run_campaign(campaign, ProcessExecutor(1), journal, lambda *_: None)
    assert _children() <= before
    assert sorted(result.number for result in results) == list(range(6))
    for result in results:
        assert not result.bad, result
        assert result.affected >= 1
        assert result.worst == pytest.approx(1.5)
        assert result.slowest == pytest.approx(4 / 6)
        assert result.acked_seconds > 0


def test_an_interrupt_while_workers_start_ends_the_campaign_in_order(tmp_path: Path) -> None:
    """Ctrl-C at a terminal reaches workers, too; they leave it to the campaign, which says why."""
    fabric, flows = tmp_path / "fabric.json", tmp_path / "flows.csv"
    save_fabric_file(FABRIC, fabric)
    save_flows(FABRIC, FLOWS, flows)
    told = ["--fabric", fabric, "--flows", flows, "--out", tmp_path / "out", "--workers", "2"]
    command = [sys.executable, "-c", "from heddle_emulator.cli import main; main()", "campaign"]
    with subprocess.Popen(
        [*command, *map(str, told)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    ) as campaign:
        wait_until(lambda: _workers_that_heed(campaign.pid) == 2, "two workers that heed signals")
        os.killpg(campaign.pid, signal.SIGINT)
        said, _ = campaign.communicate(timeout=PATIENCE)
    assert "interrupted: 0 trials are kept" in said
    assert (campaign.returncode, "Traceback" in said) == (130, False), said


def _workers_that_heed(parent: int) -> int:
    """Return how many workers catch, block or ignore Ctrl-C: it would not just end them."""
    count = 0
    for child in psutil.Process(parent).children():
        with suppress(psutil.NoSuchProcess, OSError):  # it has ended meanwhile
            if "spawn_main" in str(child.cmdline()):
                told = Path(f"/proc/{child.pid}/status").read_text(encoding="ascii")
                masks = re.findall(r"^Sig(?:Blk|Ign|Cgt):\s*([0-9a-f]+)$", told, re.MULTILINE)
                count += any(int(mask, 16) >> (signal.SIGINT - 1) & 1 for mask in masks)
    return count


def test_a_worker_that_cannot_begin_ends_the_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no controller comes up, the campaign ends with one error, not with one per trial."""
    monkeypatch.setenv("HEDDLE_DEBOUNCE_SECONDS", "nonsense")
    with Journal(tmp_path, small(), resume=False) as journal:
        with pytest.raises(ExecutorError, match="no fabric could be brought up"):
            run_campaign(small(), ProcessExecutor(1), journal, lambda *_: None)
        assert not journal.results


async def test_room_that_a_repair_takes_is_no_fault() -> None:
    """A mended fabric whose links all have line rate or less is as good as before.

    At first the plan leaves a third of each link free for local repair. Plans that repair do not.
    """
    fabric = clos(leaves=4, spines=3, nics_per_leaf=2)
    flows = flows_between(fabric, "shift", qps=3)
    async with WarmFabric(Campaign("room", fabric, flows)) as warm:
        for number in range(2):
            events = (FaultEvent(FaultKind.LINK, fabric.find_links("l0", "s0")[0]),)
            result = await warm.run(Trial(number, events))
            assert not result.bad, result


@pytest.mark.parametrize("datagrams", [False, True])
async def test_switches_flaps_and_several_links(datagrams: bool) -> None:  # noqa: FBT001 - told
    """Whatever breaks, no flow is stranded, neither before the controller acts nor later.

    Once everything is mended, the fabric is as before.
    """
    campaign = replace(small(), datagrams=datagrams)
    index = FABRIC.structure.index
    links = [FABRIC.find_links("l0", f"s{spine}")[0] for spine in range(3)]
    breaks = {
        "spine": (FaultEvent(FaultKind.SWITCH, index["s2"]),),
        "flap": (FaultEvent(FaultKind.FLAP, links[0]),),
        "two": (FaultEvent(FaultKind.LINK, links[0]), FaultEvent(FaultKind.LINK, links[1])),
        "both": (FaultEvent(FaultKind.LINK, links[1]), FaultEvent(FaultKind.SWITCH, index["s1"])),
    }
    async with WarmFabric(campaign) as fabric:
        found = {
            name: await fabric.run(Trial(number, events))
            for number, (name, events) in enumerate(breaks.items())
        }
    for name, result in found.items():
        assert not result.bad, f"{name}: {result}"
        assert result.cut_off == 0
    assert found["spine"].worst == pytest.approx(1.5)
    assert found["flap"].regained
    assert found["two"].worst == pytest.approx(2.0)


def test_the_command_on_the_page_plays_the_campaign_again(tmp_path: Path) -> None:
    """It works while the folder of the first run is there, also after a run that was resumed."""
    fabric, flows, out = tmp_path / "fabric.json", tmp_path / "flows.csv", tmp_path / "out"
    save_fabric_file(FABRIC, fabric)
    save_flows(FABRIC, FLOWS, flows)
    first = ["--fabric", fabric, "--flows", flows, "--out", out, "--failures", "1", "--resume"]
    assert run_command_line(["campaign", *map(str, first), "--workers", "1"]) == 0
    page = (out / "index.html").read_text(encoding="utf-8")
    (told,) = re.findall(r'<code id="command">(.*?)</code>', page)
    program, *words = shlex.split(html.unescape(told))
    assert program == "heddle-emulator"
    assert run_command_line(words) == 0
    old, new = (
        json.loads((tmp_path / one / "summary.json").read_text()) for one in ("out", "out-again")
    )
    assert (new["name"], new["played"], new["seed"]) == (old["name"], 1, old["seed"])
