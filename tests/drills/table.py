"""Write the tables of all drills to README.md: `.venv/bin/python tests/drills/table.py`.

A test compares the page with the drill files, so that it lists all of them and is up to date.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from heddle_emulator.drill.load import load_scenario
from heddle_emulator.drill.scenario import Expectation, Scenario, Statistic, Step

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER / "README.md"
HEAD = """\
# Drills

Each file is one drill: it says what breaks, when, and what must hold. Play some drills, or all:

```sh
.venv/bin/heddle-emulator drill tests/drills/fluid/*.yaml --report report
make drills        # both worlds; that of real kernels as root
```

A time limit in the lab is meant for a machine that does nothing else. A busy machine is slower, so
each run measures how much: a program waits `late` for a processor after it was woken, and work
lasts `stretch` times as long. The verdict allows four such waits until a fault is repaired, and
`stretch` times the work. It shows both limits. It adjusts nothing but times.

`tests/drills/table.py` writes the tables, and a test compares them with the files.
"""
WORLDS = {
    "fluid": "In virtual time, with a real controller and real agents: needs nothing",
    "netns": "On real kernels, with FRR and agents that program nftables: needs root",
}
SHOWN = 4
"""Number of steps that are written out."""
OVER_RUNS = frozenset({Statistic.MEDIAN, Statistic.P99})
"""Statistics that single runs may exceed; any other bound is one for each run."""


def paths() -> list[Path]:
    """Return the paths of all drills of the library."""
    return sorted(FOLDER.glob("*/*.yaml"))


def page() -> str:
    """Return README.md as it should be."""
    return "\n".join([HEAD, *(line for world in WORLDS for line in _section(world))])


def _section(world: str) -> Iterator[str]:
    scenarios = [load_scenario(path) for path in paths() if path.parent.name == world]
    yield f"## {world}: {len(scenarios)} drills\n"
    yield f"{WORLDS[world]}.\n"
    yield "| drill | what it proves | how | what must hold |"
    yield "|---|---|---|---|"
    for one in scenarios:
        link = f"[{one.name}]({world}/{one.name}.yaml)"
        yield f"| {link} | {one.proves} | {_how(one)} | {_must_hold(one)} |"
    yield ""


def _how(scenario: Scenario) -> str:
    before = [f"before: {_words(step)}" for step in scenario.setup]
    steps = [f"{step.at * 1e3:g} ms: {_words(step)}" for step in scenario.timeline]
    told = [*before, *steps[:SHOWN]]
    if len(steps) > SHOWN:
        told.append(f"and {len(steps) - SHOWN} more")
    if scenario.race:
        told.append("in any order")
    if scenario.runs > 1:
        told.append(f"{scenario.runs} runs")
    return "; ".join(told) or "nothing breaks"


def _words(step: Step) -> str:
    named = ", ".join(str(target) for target in step.targets)
    point = f" at {step.point.value}" if step.point is not None else ""
    other = f" with {step.other}" if step.other else ""
    return f"{step.kind.value} {named}{point}{other}"


def _must_hold(scenario: Scenario) -> str:
    return "; ".join(dict.fromkeys(_bound(told) for told in scenario.expectations))


def _bound(told: Expectation) -> str:
    over_runs = told.statistic.value if told.statistic in OVER_RUNS else ""
    when, of = told.when.value if told.when else "", f"of {told.of}" if told.of else ""
    parts = [over_runs, told.measure, when, of]
    what = " ".join(part for part in parts if part)
    ratio = f" of {told.over}'s" if told.over else ""
    return f"{what} {told.bound.value} {told.value:g}{ratio}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
