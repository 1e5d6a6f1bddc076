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
from heddle_emulator.report.evidence import Measured
from heddle_emulator.report.folder import (
    file_names,
    junit,
    parse_evidence,
    read_evidence,
    render,
    to_json,
    write,
)
from tests.support.report_evidences import Reader, held, lost, unplayed


def test_a_folder_has_a_page_and_its_data_for_each_drill(tmp_path: Path) -> None:
    """An index links each page, those of failed drills first, and says how many failed."""
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
    """Reports that another command left in the folder stay in the index and in junit.xml."""
    write(tmp_path, [held(), lost()])
    write(tmp_path, [replace(lost(), held=True, expectations=held().expectations)])
    assert "All 2 drills held" in Reader((tmp_path / "index.html").read_text()).text
    suites = ET.parse(tmp_path / "junit.xml").getroot()
    assert [suite.get("failures") for suite in suites] == ["0", "0"]


def test_a_folder_that_cannot_be_written_is_told_before_drills_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the folder in one line, and no drill is played."""
    (tmp_path / "taken").write_text("")
    folder = tmp_path / "taken" / "report"
    drill = Path(__file__).parents[2] / "drills" / "fluid" / "lost-8.yaml"
    assert run_command_line(["drill", str(drill), "--report", str(folder)]) == 2
    done = capsys.readouterr()
    assert (done.out, done.err) == ("", f"error: {folder}: cannot be made: Not a directory\n")


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The error is about the file, and names it."""
    (tmp_path / "index.html").mkdir()
    with pytest.raises(InputError, match=r"index\.html: cannot be written"):
        write(tmp_path, [held()])


def test_pages_are_made_again_from_their_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command makes the same pages again, for a folder and for a file."""
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
        ("{", "Invalid JSON"),
        ("[" * 100_000, "Invalid JSON"),
        ("[]", "json: file: Input should be an object"),
        ('{"drill": "x"}', "proves: Field required"),
        ("\x00", "Invalid JSON"),
    ],
)
def test_what_is_no_report_is_refused(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 2, and one line has the file, the place and the reason."""
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
        (lambda d: d["stories"][0]["events"][0].update(at=None),
         "stories[0].events[0].at: Input should be"),
    ],
)  # fmt: skip
def test_a_report_that_does_not_fit_together_is_refused(
    change: Callable[[Any], object], place: str, tmp_path: Path
) -> None:
    """An inconsistent report is refused with the place, not drawn wrongly."""
    write(tmp_path, [held()])
    path = tmp_path / "remote-link.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as refused:
        render(path)
    assert place in str(refused.value)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"drill": 3}, "drill"),
        ({"held": "yes"}, "held"),
        ({"stories": [{}]}, "stories[0].title"),
        ({"stories": [{"title": "t", "events": [{"at": 0, "mark": "x", "text": ""}]}]},
         "stories[0].events[0].mark"),
        ({"measured": {}}, "measured"),
    ],
)  # fmt: skip
def test_a_wrong_form_is_refused_with_its_place(change: dict[str, object], place: str) -> None:
    """The place names the field as a reader of the file would look for it."""
    document = json.loads(to_json(held())) | change
    with pytest.raises(InputError) as refused:
        parse_evidence(json.dumps(document), "x.json")
    assert str(refused.value).startswith(f"x.json: {place}: ")


def test_what_never_came_is_null() -> None:
    """JSON has no infinity, so it is written as null and read as None."""
    measured = Measured("recovered", "", "s", "one", "", (0.5, float("inf")), max=float("inf"))
    text = to_json(replace(held(), measured=(measured,)))
    (written,) = json.loads(text)["measured"]
    assert (written["runs"], written["max"]) == ([0.5, None], None)
    (read,) = parse_evidence(text, "x.json").measured
    assert (read.runs, read.max) == ((0.5, None), None)


def test_keys_of_a_newer_version_are_passed_over() -> None:
    """Files with additional fields can still be read."""
    document = json.loads(to_json(held())) | {"mode": 3}
    assert parse_evidence(json.dumps(document), "x.json") == parse_evidence(to_json(held()), "")


def test_a_file_whose_name_is_a_url_is_linked_as_a_file(tmp_path: Path) -> None:
    """A file whose name looks like a URL is linked as a file, because anybody may put it there."""
    write(tmp_path, [held()])
    (tmp_path / "remote-link.json").rename(tmp_path / "javascript:alert(1) #x.json")
    render(tmp_path)
    reader = Reader((tmp_path / "index.html").read_text())
    links = [str(attrs["href"]) for tag, attrs in reader.tags if tag == "a"]
    assert links == ["junit.xml", "javascript%3Aalert%281%29%20%23x.html"]


def test_a_folder_with_no_report_is_refused(tmp_path: Path) -> None:
    """JSON that is not a report does not count."""
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match="has no report in it"):
        render(tmp_path)


def test_drills_are_files_whatever_they_are_called() -> None:
    """File names stay in the folder, are not hidden, and differ."""
    names = ["../../etc/passwd", "a/b", "a b", "index", ".", "x" * 500, "", "a-b"]
    found = file_names([replace(held(), drill=name) for name in names])
    assert len(set(found)) == len(names)
    for name in found:
        assert "/" not in name
        assert not name.startswith(".")
        assert name != "index"
        assert len(name) < 130


def test_a_page_of_a_name_that_is_no_file_name_is_linked(tmp_path: Path) -> None:
    """The index links the file that was written."""
    write(tmp_path, [held(drill="a/b <c>")])
    reader = Reader((tmp_path / "index.html").read_text())
    (link,) = [attrs["href"] for tag, attrs in reader.tags if tag == "a"][1:]
    assert (tmp_path / str(link)).is_file()


def test_junit_has_a_case_for_each_expectation() -> None:
    """Failures and errors have their reason, and characters that XML cannot hold are replaced."""
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
    """Infinity and NaN are not JSON, so they are written as null."""
    write(tmp_path, [held()])
    text = (tmp_path / "remote-link.json").read_text()

    def refuse(word: str) -> None:
        raise AssertionError(word)

    document = json.loads(text, parse_constant=refuse)
    assert document["measured"][1]["runs"] == [0.2, None]
