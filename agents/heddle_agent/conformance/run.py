"""Runs the cases on a backend, each on its own bench."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from heddle_agent.conformance.bench import OpenBench
from heddle_agent.conformance.cases import CASES, Case
from heddle_agent.conformance.checks import BrokenPromiseError


class Verdict(StrEnum):
    """How a case ended."""

    HELD = "held"
    BROKEN = "broken"
    NOT_ASKED = "not asked"
    """The case needs a capability that the backend does not claim."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one case."""

    case: str
    verdict: Verdict
    why: str = ""


def find_opener(name: str) -> OpenBench:
    """Return the opener called ``MODULE:NAME``; modules of the working folder are found too.

    Raises ValueError that says what does not exist.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ValueError(f"{name!r} is not MODULE:NAME, for example my_switch.bench:Bench")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module_name), attribute, None)
    except ImportError as error:
        raise ValueError(f"module {module_name} cannot be imported: {error}") from error
    if not callable(found):
        raise ValueError(f"module {module_name} has no class or function {attribute}")  # noqa: TRY004
    opener: OpenBench = found
    return opener


def run_case(opener: OpenBench, case: Case) -> Result:
    """Run one case. Any exception that a backend raises counts as a broken promise."""
    try:
        with opener(case.table_size) as bench:
            lacking = case.needs - bench.fib.capabilities
            if lacking:
                names = ", ".join(sorted(one.name for one in lacking))
                return Result(case.name, Verdict.NOT_ASKED, f"the backend lacks {names}")
            case.run(bench)
    except BrokenPromiseError as broken:
        return Result(case.name, Verdict.BROKEN, str(broken))
    except Exception as error:  # noqa: BLE001 - a stranger's code: whatever it raises is told
        return Result(case.name, Verdict.BROKEN, f"{type(error).__name__}: {error}")
    return Result(case.name, Verdict.HELD)


def run_cases(opener: OpenBench, cases: Iterable[Case] = CASES) -> Iterator[Result]:
    """Run the cases, and yield each result as soon as it is there."""
    for case in cases:
        yield run_case(opener, case)
