"""Print how long files and functions are, and name the longest. It never fails.

Length is a symptom to look at, not a rule. A function counts from its `def` line to its last line,
docstring included. Generated code does not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("proto", "controller", "agents", "emulator", "tests", ".ci")
GENERATED = ("_pb2.py", "_pb2_grpc.py")
LONG_FILE = 400
LONG_FUNCTION = 50


class Size(NamedTuple):
    """Lines of one file or function, and where it is."""

    lines: int
    where: str


def sources(part: str) -> Iterator[Path]:
    """Yield the hand-written Python files of a part."""
    for path in sorted((ROOT / part).rglob("*.py")):
        if not path.name.endswith(GENERATED):
            yield path


def functions(path: Path, text: str) -> Iterator[Size]:
    """Yield every function of a file, including nested ones."""
    for node in ast.walk(ast.parse(text, filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield Size(lines, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")


def summary(sizes: list[Size]) -> str:
    """Return count, median, 90th percentile and maximum; files without content are left out."""
    lines = sorted(size.lines for size in sizes if size.lines > 1)
    if not lines:
        return f"{0:6}{'-':>8}{'-':>6}{'-':>6}"
    middle, ninth = lines[len(lines) // 2], lines[len(lines) * 9 // 10]
    return f"{len(lines):6}{middle:8}{ninth:6}{lines[-1]:6}"


def main() -> None:
    """Print the table, then every long file and function."""
    print(f"{'lines':12}{'files':>6}{'median':>8}{'p90':>6}{'max':>6}", end="   ")
    print(f"{'funcs':>6}{'median':>8}{'p90':>6}{'max':>6}")
    long: list[str] = []
    for part in PARTS:
        texts = {path: path.read_text(encoding="utf-8") for path in sources(part)}
        files = [Size(len(t.splitlines()), str(p.relative_to(ROOT))) for p, t in texts.items()]
        inner = [size for path, text in texts.items() for size in functions(path, text)]
        print(f"{part:12}{summary(files)}   {summary(inner)}")
        for sizes, ceiling in ((files, LONG_FILE), (inner, LONG_FUNCTION)):
            long += [f"{s.where}: {s.lines} lines" for s in sizes if s.lines > ceiling]
    print("\n".join(long), end="\n" if long else "")


if __name__ == "__main__":
    main()
