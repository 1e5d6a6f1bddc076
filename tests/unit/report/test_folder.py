from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from heddle_controller.model.errors import InputError
from heddle_emulator.cli import run_command_line
from heddle_emulator.report.folder import file_names, junit, read_evidence, render, write
from tests.support.report_evidences import Reader, held, lost, unplayed


def test_a_folder_has_a_page_and_its_data_for_each_drill(tmp_path: Path) -> None:
    """And an index that links each page, those that failed first, and says how many did."""
    write(tmp_path, [held(), lost(), unplayed()])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "index.html", "junit.xml", "lost.html", "lost.json", "remote-link.html",
        "remote-link.json", "unplayed.html", "unplayed.json",
    ]  # fmt: skip
    assert read_evidence(tmp_path / "remote-link.json").stories == held().stories
    reader = Reader((tmp_path / "index.html").read_text())
    links = [attrs["href"] for tag, attrs in reader.tags if tag == "a"]
    assert links == ["junit.xml", "lost.html", "unplayed.html", "remote-link.html"]
    assert "2 of 3 drills failed" in reader.text


def test_a_folder_holds_the_newest_of_each_drill(tmp_path: Path) -> None:
    """What another command left there stays in the index and in junit.xml."""
    write(tmp_path, [held(), lost()])
    write(tmp_path, [replace(lost(), held=True, expectations=held().expectations)])
    assert "All 2 drills held" in Reader((tmp_path / "index.html").read_text()).text
    suites = ET.parse(tmp_path / "junit.xml").getroot()
    assert [suite.get("failures") for suite in suites] == ["0", "0"]


def test_pages_are_made_again_from_their_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command, for a folder and for a file: the same as was written."""
    write(tmp_path, [held()])
    page = (tmp_path / "remote-link.html").read_text()
    for name in ("remote-link.html", "index.html"):
        (tmp_path / name).unlink()
    assert run_command_line(["report", str(tmp_path)]) == 0
    assert (tmp_path / "remote-link.html").read_text() == page
    assert (tmp_path / "index.html").exists()
    (tmp_path / "remote-link.html").unlink()
    assert run_command_line(["report", str(tmp_path / "remote-link.json")]) == 0
    assert (tmp_path / "remote-link.html").read_text() == page
    assert str(tmp_path / "index.html") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "json: is a list, not an object"),
        ('{"drill": "x"}', "proves: is missing"),
        ("\x00", "is not JSON"),
    ],
)
def test_what_is_no_report_is_refused(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and one line with the file, the place and the reason."""
    path = tmp_path / "x.json"
    path.write_text(text)
    assert run_command_line(["report", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}: ")
    assert reason in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda d: d["stories"][0]["maps"][0]["moments"][1]["values"].pop(),
         "stories[0].maps[0].moments[1].values: are not 8 rows of 4"),
        (lambda d: d["stories"][0]["maps"][0]["moments"][1]["dead"].append({"row": 9, "column": 0}),
         "stories[0].maps[0].moments[1].dead[1]: is not a cell"),
        (lambda d: d["stories"][0]["charts"][0]["lines"][1]["times"].reverse(),
         "stories[0].charts[0].lines[1].times: are not in order"),
        (lambda d: d["stories"][0]["charts"][0]["lines"][0]["values"].pop(),
         "stories[0].charts[0].lines[0]: has 4 times and 3 values"),
        (lambda d: d["convergence"]["runs"][0]["seconds"].append(1.0),
         "convergence.runs[0]: has 3 stages of 2"),
        (lambda d: d["stories"][0]["events"][0].update(at=None), "stories[0].events[0].at: is no"),
    ],
)  # fmt: skip
def test_a_report_that_does_not_fit_together_is_refused(
    change: Callable[[Any], object], place: str, tmp_path: Path
) -> None:
    """Rather than drawn wrongly, or with a traceback."""
    write(tmp_path, [held()])
    path = tmp_path / "remote-link.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as refused:
        render(path)
    assert place in str(refused.value)


def test_a_file_whose_name_is_a_url_is_linked_as_a_file(tmp_path: Path) -> None:
    """Somebody may have put it there."""
    write(tmp_path, [held()])
    (tmp_path / "remote-link.json").rename(tmp_path / "javascript:alert(1) #x.json")
    render(tmp_path)
    reader = Reader((tmp_path / "index.html").read_text())
    links = [str(attrs["href"]) for tag, attrs in reader.tags if tag == "a"]
    assert links == ["junit.xml", "javascript%3Aalert%281%29%20%23x.html"]


def test_a_folder_with_no_report_is_refused(tmp_path: Path) -> None:
    """Whatever else is in it: other JSON is nobody's report."""
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match="has no report in it"):
        render(tmp_path)


def test_drills_are_files_whatever_they_are_called() -> None:
    """No name leaves the folder, hides, or takes another's place."""
    names = ["../../etc/passwd", "a/b", "a b", "index", ".", "x" * 500, "", "a-b"]
    found = file_names([replace(held(), drill=name) for name in names])
    assert len(set(found)) == len(names)
    for name in found:
        assert "/" not in name
        assert not name.startswith(".")
        assert name != "index"
        assert len(name) < 130


def test_a_page_of_a_name_that_is_no_file_name_is_linked(tmp_path: Path) -> None:
    """The index leads to the file that was written."""
    write(tmp_path, [held(drill="a/b <c>")])
    reader = Reader((tmp_path / "index.html").read_text())
    (link,) = [attrs["href"] for tag, attrs in reader.tags if tag == "a"][1:]
    assert (tmp_path / str(link)).is_file()


def test_junit_has_a_case_for_each_expectation() -> None:
    """Failures and errors with their reason, and nothing that XML cannot hold."""
    suites = ET.fromstring(junit([lost(), unplayed(), replace(held(), drill="a\x00<b>")]))
    first, second, third = suites
    assert (first.get("tests"), first.get("failures"), first.get("errors")) == ("2", "1", "0")
    failures = [case.get("name") for case in first if case.find("failure") is not None]
    assert failures == ["slowest of train: median at least 0.97"]
    assert (second.get("tests"), second.get("errors")) == ("1", "1")
    error = second[0].find("error")
    assert error is not None
    assert "run as root" in str(error.get("message"))
    assert third.get("name") == "a\N{REPLACEMENT CHARACTER}<b>"


def test_the_data_is_plain_json(tmp_path: Path) -> None:
    """No infinity and no NaN, which are no JSON: null."""
    write(tmp_path, [held()])
    text = (tmp_path / "remote-link.json").read_text()

    def refuse(word: str) -> None:
        raise AssertionError(word)

    document = json.loads(text, parse_constant=refuse)
    assert document["measured"][1]["runs"] == [0.2, None]
