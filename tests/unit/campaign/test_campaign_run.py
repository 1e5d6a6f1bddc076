from __future__ import annotations

import json
import re
import resource
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from heddle_controller.model.errors import InputError
from heddle_emulator.campaign.replay import write_replays
from heddle_emulator.campaign.results import campaign_evidence, summed_up
from heddle_emulator.campaign.run import NAME, CampaignWorker, Journal, run_campaign
from heddle_emulator.campaign.trials import Drawing
from heddle_emulator.drill.load import load_scenario
from heddle_emulator.executor import ExecutorError
from heddle_emulator.executor.ray_cluster import RayExecutor
from heddle_emulator.report.campaign import campaign_page
from tests.support.campaigns import FLOWS, Player, small
from tests.support.ports import free_port


def nobody(done: int, total: int) -> None:
    """Ignore the progress."""


def test_a_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    """A resumed campaign plays exactly the trials that were not played before the interruption."""
    first, second = Player(ends_after=5), Player()
    with Journal(tmp_path, small(), resume=False) as journal, pytest.raises(KeyboardInterrupt):
        run_campaign(small(), first, journal, nobody)
    told: list[tuple[int, int]] = []
    with Journal(tmp_path, small(), resume=True) as journal:
        results = run_campaign(small(), second, journal, lambda *counts: told.append(counts))
    assert sorted(first.given + second.given) == list(range(12))
    assert sorted(result.number for result in results) == list(range(12))
    assert told == [(done, 12) for done in range(5, 13)]


def test_a_folder_that_no_journal_can_be_in_is_refused(tmp_path: Path) -> None:
    """One line names the file and says what is wrong, be it a file or another campaign's folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=f"file/{NAME}: cannot be written: File exists$"):
        Journal(tmp_path / "file", small(), resume=False)
    with Journal(tmp_path, small(), resume=False):
        pass
    other = small(drawing=Drawing(seed=1))
    told = f"{NAME}: line 1: is of another fabric, other flows or another drawing; give another"
    with pytest.raises(InputError, match=told) as refused:
        Journal(tmp_path, other, resume=True)
    assert str(refused.value).count("give another") == 1


def test_a_disk_that_fills_up_is_told_with_the_file(tmp_path: Path) -> None:
    """A result that cannot be written ends the campaign, which names the file and the reason."""
    with Journal(tmp_path, small(), resume=False) as journal:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (journal.path.stat().st_size + 1, before[1]))
        try:
            with pytest.raises(InputError, match=f"{NAME}: cannot be written: File too large$"):
                run_campaign(small(), Player(), journal, nobody)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_torn_last_line_is_played_again(tmp_path: Path) -> None:
    """A crash in the middle of a line costs that trial and no other."""
    with Journal(tmp_path, small(), resume=False) as journal:
        run_campaign(small(), Player(ends_after=100), journal, nobody)
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes()[:-20])
    player = Player()
    with Journal(tmp_path, small(), resume=True) as journal:
        results = run_campaign(small(), player, journal, nobody)
    assert len(player.given) == 1
    assert len(results) == 12
    with Journal(tmp_path, small(), resume=True) as journal:
        assert len(journal.results) == 12


def test_a_trial_that_failed_is_tried_again(tmp_path: Path) -> None:
    """A trial that could not be played is played again on resuming, and the new result counts."""
    with Journal(tmp_path, small(), resume=False) as journal:
        run_campaign(small(), Player(faults=frozenset({3})), journal, nobody)
        assert summed_up([*journal.results.values()], 12).bad == 1
    player = Player()
    with Journal(tmp_path, small(), resume=True) as journal:
        results = run_campaign(small(), player, journal, nobody)
    assert player.given == [3]
    assert summed_up(results, 12).bad == 0


def test_a_longer_campaign_plays_only_what_is_more(tmp_path: Path) -> None:
    """A campaign with more trials plays only the added ones, because the others are the same."""
    with Journal(tmp_path, small(4), resume=False) as journal:
        run_campaign(small(4), Player(), journal, nobody)
    player = Player()
    with Journal(tmp_path, small(6), resume=True) as journal:
        run_campaign(small(6), player, journal, nobody)
    assert sorted(player.given) == [4, 5]


def test_a_shorter_campaign_tells_of_its_own_trials(tmp_path: Path) -> None:
    """A campaign with fewer trials has the results of these alone; the file keeps the others."""
    with Journal(tmp_path, small(6), resume=False) as journal:
        run_campaign(small(6), Player(), journal, nobody)
    player = Player()
    with Journal(tmp_path, small(4), resume=True) as journal:
        results = run_campaign(small(4), player, journal, nobody)
    assert not player.given
    assert {result.number for result in results} == {0, 1, 2, 3}
    with Journal(tmp_path, small(6), resume=True) as journal:
        assert len(journal.results) == 6


def test_results_of_another_campaign_are_not_mixed_in(tmp_path: Path) -> None:
    """Another seed or other phases of flows are refused, with advice to give another --out."""
    with Journal(tmp_path, small(), resume=False):
        pass
    phases = replace(FLOWS, phase=np.arange(len(FLOWS)) % 2, phase_names=("a", "b"))
    for other in (small(drawing=Drawing(seed=9)), replace(small(), flows=phases)):
        with pytest.raises(InputError, match="another drawing; give another --out"):
            Journal(tmp_path, other, resume=True)
    with pytest.raises(InputError, match="is there already"):
        Journal(tmp_path, small(), resume=False)


@pytest.mark.parametrize("line", ["nonsense", "{}", '{"number": 1}', "[]"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, line: str) -> None:
    """The error names the line."""
    with Journal(tmp_path, small(), resume=False):
        pass
    path = tmp_path / NAME
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(InputError, match="line 2"):
        Journal(tmp_path, small(), resume=True)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ({"number": "x"}, "number is 'x'"),
        ({"slowest": "x"}, "slowest is 'x'"),
        ({"words": None}, "words is None"),
        ({"events": [["link", 10**9]]}, "events are not those of trial 11"),
        ({"events": [["nonsense", 0]]}, "nonsense"),
    ],
)
def test_a_damaged_result_is_refused(
    tmp_path: Path, damage: dict[str, object], reason: str
) -> None:
    """The error names the line and the value, before any trial is played."""
    with Journal(tmp_path, small(), resume=False) as journal:
        run_campaign(small(), Player(), journal, nobody)
    path = tmp_path / NAME
    head, first, *others = path.read_text().splitlines()
    path.write_text("\n".join([head, json.dumps(json.loads(first) | damage), *others, ""]))
    with pytest.raises(InputError, match=f"line 2: .*{reason}"):
        Journal(tmp_path, small(), resume=True)


def test_the_worst_trials_become_drills(tmp_path: Path) -> None:
    """The drills come worst first, and each has just the events of its trial."""
    with Journal(tmp_path, small(), resume=False) as journal:
        results = run_campaign(small(), Player(faults=frozenset({2})), journal, nobody)
    summary = summed_up(results, 12)
    paths = write_replays(tmp_path, small(), summary)
    assert [result.number for result in summary.worst[:2]] == [2, 11]
    assert [path.stem for path in paths[:2]] == ["trial-2", "trial-11"]
    for path, result in zip(paths, summary.worst, strict=True):
        scenario = load_scenario(path)
        (step,) = scenario.timeline
        assert str(step.targets[0]).replace(" to ", ",").replace(" key ", ",") in result.words


def test_spreads_are_of_what_was_played(tmp_path: Path) -> None:
    """Trials that could not be played count as bad and not in spreads.

    A campaign without all of its trials does not hold.
    """
    with Journal(tmp_path, small(), resume=False) as journal:
        results = run_campaign(small(), Player(faults=frozenset({11})), journal, nobody)
    summary = summed_up(results, 12)
    assert summary.spreads["slowest"].least == pytest.approx(1 / 11)
    assert summary.spreads["slowest"].most == 1.0
    assert not summary.held
    assert not summed_up(results[:0], 12).held


def test_the_page_names_the_worst_trials(tmp_path: Path) -> None:
    """The page says how many trials are bad, and names each of the worst with its replay."""
    with Journal(tmp_path, small(), resume=False) as journal:
        results = run_campaign(small(), Player(faults=frozenset({2})), journal, nobody)
    summary = summed_up(results, 12)
    replays = [path.name for path in write_replays(tmp_path, small(), summary)]
    text = campaign_page(
        campaign_evidence(small(), summary, results, replays, "heddle-emulator campaign")
    )
    assert "1 of 12 trials bad" in text
    for result, replay in zip(summary.worst, replays, strict=True):
        assert result.words in text
        assert replay in text


def test_a_cluster_needs_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Ray, the error says what to install."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"heddle-emulator\[ray\]"):
        list(RayExecutor("auto").map(partial(CampaignWorker, small()), small().trials()))


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_a_cluster_that_does_not_listen_is_an_error_at_once(form: str) -> None:
    """Ray, which would try again and again, is not asked to connect."""
    address = form.format(free_port())
    told = f"no Ray cluster is reached at {address}: Connection refused"
    with pytest.raises(ExecutorError, match=re.escape(told)):
        list(RayExecutor(address).map(partial(CampaignWorker, small()), small().trials()))
