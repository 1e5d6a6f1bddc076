"""A campaign on a Ray cluster of this machine gives the results of local processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import yaml

from heddle_emulator.campaign.campaign import load_campaign
from heddle_emulator.campaign.results import Result
from heddle_emulator.campaign.run import NAME, CampaignWorker
from heddle_emulator.executor import ProcessExecutor
from heddle_emulator.executor.ray_cluster import CPUS
from tests.support.campaigns import TOLD
from tests.support.waiting import PATIENCE, wait_until

PROGRAM = Path(sys.executable).with_name("heddle-emulator")
MARK = "HEDDLE_TEST_RAY"
LOOSE = frozenset({"acked_seconds", "mended_seconds", "seconds", "moved"})
"""Fields of a result that depend on the machine or on the trial before."""


def _marked(folder: Path) -> list[str]:
    """Return command lines of processes whose environment has this test's mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(folder) and process.status() != "zombie":
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def _records(folder: Path) -> dict[int, dict[str, object]]:
    """Return the results in the journal so far, by number, without the fields in ``LOOSE``."""
    path = folder / "out" / NAME
    lines = path.read_text().splitlines()[1:] if path.exists() else []
    return {told["number"]: _plain(told) for told in map(json.loads, lines)}


def _plain(told: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in told.items() if name not in LOOSE}


def test_ray_plays_the_same_trials_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """A campaign that is ended has the results that local processes give, and leaves no process.

    It asks for a worker more than the cluster has room for; no trial waits for that one.
    """
    file = tmp_path / "campaign.yaml"
    file.write_text(yaml.safe_dump({"campaign": "ray", "failures": 1000, **TOLD}))
    workers = max(1, (os.cpu_count() or 1) // CPUS) + 1
    options = ["--ray", "local", "--workers", str(workers), "--out", str(tmp_path / "out")]
    command = [str(PROGRAM), "campaign", str(file), *options]
    output = tmp_path / "output"
    with output.open("w") as log:

        def launched(*more: str) -> subprocess.Popen[bytes]:
            marked = os.environ | {MARK: str(tmp_path)}
            return subprocess.Popen([*command, *more], env=marked, stdout=log, stderr=log)

        process = launched()
        try:

            def come() -> bool:
                nonlocal process
                if process.poll() is not None:  # Ray waits 30 s for its own node
                    said = output.read_text()
                    assert "error: no Ray cluster starts on this machine: " in said, said
                    process = launched("--resume")
                return _records(tmp_path).keys() >= {*range(max(3, workers))}

            wait_until(come, "the first results from the cluster")
            assert any("raylet" in command for command in _marked(tmp_path))
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 130, output.read_text()
        finally:
            process.kill()
            process.wait()
    wait_until(lambda: not _marked(tmp_path), "every process of the cluster to end")
    found = _records(tmp_path)
    campaign = load_campaign(file)
    trials = [trial for trial in campaign.trials() if trial.number in found]
    results = ProcessExecutor(1).map(partial(CampaignWorker, campaign), trials)
    expected: dict[int, Result] = {result.number: result for result in results}
    assert found.keys() == expected.keys()
    for number, result in expected.items():
        record = json.loads(json.dumps(_plain(result.record())))
        assert not result.bad
        assert found[number] == record
