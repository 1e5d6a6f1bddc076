"""One name, one meaning: two modules of a distribution never define the same public name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DISTRIBUTIONS = (
    "proto/heddle",
    "controller/heddle_controller",
    "agents/heddle_agent",
    "emulator/heddle_emulator",
    "deploy/kubernetes/heddle_kubernetes",
)
CONVENTIONS = {"main", "log"}
"""Names that mean the same everywhere: the start of a program, and the logger of a module."""


def definitions(folder: Path) -> dict[str, list[str]]:
    """The files that define each public top-level name of a folder, without generated code."""
    found = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        if "_pb2" not in path.name:
            names = {name for node in ast.parse(path.read_text()).body for name in defined(node)}
            for name in names:
                if not name.startswith("_") and name not in CONVENTIONS:
                    found[name].append(str(path.relative_to(ROOT)))
    return found


def defined(node: ast.stmt) -> Iterator[str]:
    """The names that a statement defines, except commands, whose names are what users type."""
    if isinstance(node, ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        calls = [d.func for d in node.decorator_list if isinstance(d, ast.Call)]
        if not any(isinstance(c, ast.Attribute) and c.attr in {"command", "group"} for c in calls):
            yield node.name
    elif isinstance(node, ast.Assign):
        lists = [
            target.elts if isinstance(target, ast.Tuple) else [target] for target in node.targets
        ]
        yield from (one.id for each in lists for one in each if isinstance(one, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_each_public_name_is_defined_once(distribution: str) -> None:
    """Each public name of a distribution is defined once, so that a search finds it."""
    found = definitions(ROOT / distribution)
    assert found
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
