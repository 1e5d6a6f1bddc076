"""One name, one meaning: no two classes of a distribution have the same name."""

from __future__ import annotations

import ast
from collections import defaultdict
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


def classes(folder: Path) -> dict[str, list[str]]:
    """Where each top-level class of a folder stands, by name; generated code does not count."""
    found = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        if "_pb2" not in path.name:
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(str(path.relative_to(ROOT)))
    return found


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_each_class_has_a_name_of_its_own(distribution: str) -> None:
    """A reader who searches for a class finds it, and no other."""
    found = classes(ROOT / distribution)
    assert found
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
