from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.walking import PAGE, Walks, files_of, traced_environment, walk


def _listed(title: str) -> set[str]:
    """Return the files that the page lists under a mark, relative to the controller's package."""
    found = re.search(rf"<!-- {title} -->\n(.*?)<!-- end -->", PAGE.read_text(), re.DOTALL)
    assert found, f"{PAGE.name} has no list {title!r}"
    rooms = re.findall(r"^- `([^`]+)/`: (.*(?:\n  .*)*)", found[1], re.MULTILINE)
    assert rooms
    return {
        f"{room}/{name}.py".removeprefix("./")
        for room, names in rooms
        for name in re.split(r",\s+", names)
    }


ROUNDS = 3


async def test_the_page_lists_the_files_that_a_job_and_a_lost_link_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ARCHITECTURE.md names all files of both walks, and no others.

    The calls of a real leader and its planning process are traced. A task may run a moment earlier
    or later and be missed by one round. So a listed file is wrong if no round passed it, and an
    unlisted one if every round did.

    If this fails, take the lists that `python -m tests.support.walking` prints.
    """
    rounds: list[Walks] = []
    wrong: list[str] = []
    for number in range(ROUNDS):
        trace = tmp_path / str(number) / "trace"
        trace.mkdir(parents=True)
        for name, value in traced_environment(trace).items():
            monkeypatch.setenv(name, value)
        rounds.append(await walk(trace.parent))
        wrong = _differences(rounds)
        if not wrong:
            return
    raise AssertionError("\n".join(wrong))


def _differences(rounds: list[Walks]) -> list[str]:
    """Return listed files that no round passed, and unlisted ones that every round passed."""
    sometimes = _listed("now and then")
    wrong: list[str] = []
    for title, kind in (("walk of a job", "job"), ("walk of a lost link", "link")):
        listed = _listed(title)
        passed = [files_of(getattr(walks, kind)) for walks in rounds]
        own = [files_of(getattr(walks, kind) - walks.idle) for walks in rounds]
        gone = listed.difference(*passed)
        new = frozenset.intersection(*own) - listed - sometimes
        wrong += [f"{title}: {file} is listed, and not passed" for file in sorted(gone)]
        wrong += [f"{title}: {file} is passed, and not listed" for file in sorted(new)]
    return wrong
