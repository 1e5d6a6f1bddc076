"""State between calls belongs to the value that owns it, never to a module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = [
    path
    for distribution in ("proto/heddle", "controller", "agents", "emulator", "deploy")
    for path in sorted((ROOT / distribution).rglob("*.py"))
    if not path.stem.endswith(("_pb2", "_pb2_grpc"))
]
MEMORIES = {"cache", "lru_cache"}
WORDS = re.compile(rf"\b({'|'.join(MEMORIES)}|global)\b")
CONTAINERS = {
    *("dict", "list", "set", "bytearray", "deque", "OrderedDict", "defaultdict", "Counter"),
    *("WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "local"),
}
FILLERS = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert"),
    *("move_to_end", "pop", "popitem", "popleft", "remove", "setdefault", "update"),
}
LITERALS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)


def caches(source: str) -> set[str]:
    """The names by which a module's functions keep something from one call to the next."""
    tree = ast.parse(source)
    kept = {name for name, value in _assigned(tree) if _is_container(value)}
    if not kept and not WORDS.search(source):
        return set()  # most modules; looking through their functions would take the most time
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if any(map(_is_memory, node.decorator_list)) and _has_arguments(node):
                found.add(node.name)
            if not kept:
                continue
            local = {name for name, _ in _assigned(node)} | {
                a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)
            }
            found |= {name for name in _filled(node) if name in kept - local}
        elif isinstance(node, ast.Global):
            found |= set(node.names)
    return found


def _assigned(scope: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The names that a module or function binds, with what they are bound to."""
    for node in getattr(scope, "body", []):
        for one in [node] if isinstance(scope, ast.Module) else ast.walk(node):
            if isinstance(one, ast.Assign):
                yield from ((t.id, one.value) for t in one.targets if isinstance(t, ast.Name))
            elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.value:
                yield one.target.id, one.value


def _is_container(value: ast.expr) -> bool:
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(value, LITERALS) or (called is not None and _last(called) in CONTAINERS)


def _is_memory(decorator: ast.expr) -> bool:
    return _last(decorator.func if isinstance(decorator, ast.Call) else decorator) in MEMORIES


def _has_arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(node, ast.arg) for node in ast.walk(function.args))


def _filled(function: ast.AST) -> Iterator[str]:
    """The names of containers that a function changes in place."""
    for node in ast.walk(function):
        owner: ast.expr | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            owner = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value if node.func.attr in FILLERS else None
        elif isinstance(node, ast.AugAssign):
            owner = node.target
        if isinstance(owner, ast.Name):
            yield owner.id


def _last(name: ast.expr) -> str:
    if isinstance(name, ast.Subscript):
        return _last(name.value)
    if isinstance(name, ast.Attribute):
        return name.attr
    return name.id if isinstance(name, ast.Name) else ""


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("@cache\ndef f(x): return x", {"f"}),
        ("@functools.lru_cache(maxsize=4)\nasync def f(*, x): return x", {"f"}),
        ("@cache\ndef f(): return 1", set()),
        ("_seen: dict[int, int] = {}\ndef f(x): _seen[x] = x", {"_seen"}),
        ("_seen = WeakKeyDictionary[int, int]()\ndef f(x): _seen.setdefault(x, 1)", {"_seen"}),
        ("_last = deque(maxlen=4)\nclass C:\n    def f(self): _last.append(self)", {"_last"}),
        ("_n = 0\ndef f():\n    global _n\n    _n += 1", {"_n"}),
        ("NAMES = {1: 2}\ndef f(x): return NAMES[x]", set()),
        ("found = [1]\ndef f(found): found.append(2)", set()),
        ("TABLE = {}\nTABLE[1] = 2\ndef f(x): return TABLE[x]", set()),
    ],
)
def test_what_counts_as_a_cache(source: str, names: set[str]) -> None:
    """A cached function with arguments, a container that is filled, and a global are caches."""
    assert caches(source) == names


def test_no_module_keeps_anything_between_calls() -> None:
    """No module keeps anything between calls, so callers never affect each other."""
    found = {
        path.relative_to(ROOT).as_posix(): names
        for path in SOURCES
        if (names := caches(path.read_text(encoding="utf-8")))
    }
    assert found == {}, "make it a field of the value that owns it"
