"""CONTRIBUTING.md names only files, names in files, make targets and commands that exist."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PROSE = re.sub(r"^```.*?^```$", "", PAGE, flags=re.DOTALL | re.MULTILINE)
QUOTED = re.findall(r"`([^`\n]+)`", PROSE)
PATHS = sorted({word for word in QUOTED if "/" in word and " " not in word and "::" not in word})
NAMES = sorted({word for word in QUOTED if word.count("::") == 1 and "/" in word})
BLOCKS = re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = sorted({
    *(line for block in BLOCKS for line in block.splitlines()),
    *(word for word in QUOTED if word.startswith("make ")),
})  # fmt: skip
PROGRAMS = ("heddle", "heddle-agent", "heddle-controller", "heddle-emulator", "python")


def named(path: Path) -> Iterator[str]:
    """The classes, functions and constants at the top level of a module."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_the_page_names_much() -> None:
    """The page names enough for the tests below to check something."""
    assert min(len(PATHS), len(NAMES), len(COMMANDS)) > 8


@pytest.mark.parametrize("path", PATHS)
def test_a_named_file_is_there(path: str) -> None:
    """A named path is a file, or a folder if it ends in a slash."""
    found = ROOT / path
    assert found.is_dir() if path.endswith("/") else found.is_file()


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_in_its_file(name: str) -> None:
    """A named class, function or constant is at the top level of its module."""
    path, _, own = name.partition("::")
    assert own in set(named(ROOT / path))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_can_be_given(command: str) -> None:
    """The make target, the program and the test paths of a command exist."""
    first, *rest = shlex.split(command)
    if first == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert rest[0] in targets
        rest = rest[1:]
    else:
        assert first.removeprefix(".venv/bin/") in PROGRAMS
    paths = [word for word in rest if word.startswith("tests/")]
    assert paths or first == "make"
    assert all((ROOT / path).exists() for path in paths)
