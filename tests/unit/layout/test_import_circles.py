"""No modules import each other in a circle, so each can be read and tested after its imports."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = (
    "proto/heddle",
    "controller/heddle_controller",
    "agents/heddle_agent",
    "emulator/heddle_emulator",
    "deploy/kubernetes/heddle_kubernetes",
)


def circles(sources: Mapping[str, str]) -> list[set[str]]:
    """Groups of modules that import each other in a circle, also inside functions or for types."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for name, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                below = [f"{node.module}.{alias.name}" for alias in node.names]
                wanted = [one if one in sources else node.module for one in below]
            else:
                continue
            graph.add_edges_from((name, one) for one in wanted if one in sources)
    loops = [{name} for name in nx.nodes_with_selfloops(graph)]
    return loops + [found for found in nx.strongly_connected_components(graph) if len(found) > 1]


def sources(package: Path) -> dict[str, str]:
    """The source of each module by dotted name, without generated code."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if "_pb2" not in name:
            found[name] = path.read_text(encoding="utf-8")
    return found


def test_a_circle_is_found() -> None:
    """A circle is found through a package, inside a function, and for types only."""
    modules = {
        "p": "from p.a import f",
        "p.a": "from p import b",
        "p.b": "def f():\n    import p.c",
        "p.c": "if TYPE_CHECKING:\n    from p.a import f",
        "p.d": "import p.a, q",
    }
    assert circles(modules) == [{"p.a", "p.b", "p.c"}]
    assert circles({"p": "from p.a import f", "p.a": "from p import f"}) == [{"p", "p.a"}]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_imports_go_in_a_circle(package: str) -> None:
    """No distribution has a circle of imports."""
    found = sources(ROOT / package)
    assert len(found) > 1
    assert circles(found) == []
