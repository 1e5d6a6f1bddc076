"""``heddle-emulator drill``: play scenarios and check whether what was expected held."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

from heddle_emulator.cli.output import CleanConsole
from heddle_emulator.drill.fluid.world import FluidWorld
from heddle_emulator.drill.lab.world import LabWorld
from heddle_emulator.drill.load import WORLDS, load_scenario
from heddle_emulator.drill.report import COLUMNS, drill_evidence, measure_table
from heddle_emulator.drill.runner import DrillRunner
from heddle_emulator.drill.scenario import Scenario
from heddle_emulator.drill.verdict import Verdict
from heddle_emulator.drill.worlds import FLUID, NETNS, fit
from heddle_emulator.netns import tools
from heddle_emulator.report.folder import write

_FAILED = 1
FILE_COLUMNS = 160
_SHOWN = frozenset({"", "all"})
"""Probes whose measures the fluid world's table on a screen shows; reports have all."""
_HEAD = ("measure", "probe", "variant", "runs", *(column.value for column in COLUMNS))


@click.command()
@click.argument(
    "scenarios",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
)
@click.option("--world", type=click.Choice(WORLDS), help="[default: each file's own first]")
@click.option(
    "--runs",
    type=click.IntRange(1),
    help="Number of runs of each drill. [default: as the file says]",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the pages and JSON files.",
)
def drill(
    *, scenarios: tuple[Path, ...], world: str | None, runs: int | None, report: Path | None
) -> int:
    """Play drills one after the other; exit 0 only if every expectation held.

    World fluid: virtual time. World netns: a lab of real kernels; needs root. All files are checked
    before anything runs. Ctrl-C ends the current drill, removes what it built, and writes the
    report of the drills so far.
    """
    loaded = [(one, world or one.world) for one in map(load_scenario, scenarios)]
    for scenario, where in loaded:
        fit(scenario, where)
    if any(where == NETNS for _, where in loaded):
        tools.check_needs()
    if report is not None:
        write(report, [])  # refuse now rather than when the drills have run
    screen, runner = _screen(), DrillRunner({FLUID: FluidWorld(), NETNS: LabWorld()})
    try:
        with runner:
            for scenario, where in loaded:
                _show(screen, _played(runner, scenario, where, runs or scenario.runs))
    finally:
        if report is not None:
            write(report, [drill_evidence(verdict) for verdict in runner.verdicts])
    verdicts = runner.verdicts
    held = sum(verdict.held for verdict in verdicts)
    screen.print(f"{held} of {len(verdicts)} drills held", style="bold")
    return 0 if held == len(verdicts) else _FAILED


def _screen() -> CleanConsole:
    """Return a console as wide as the terminal; wide enough for all columns in files."""
    screen = CleanConsole()
    return screen if screen.is_terminal else CleanConsole(width=FILE_COLUMNS)


def _played(runner: DrillRunner, scenario: Scenario, where: str, runs: int) -> Verdict:
    """Play a drill and show its progress on the screen."""
    with CleanConsole(stderr=True).status("") as shown:
        say = lambda step: shown.update(f"{scenario.name}: {step}")  # noqa: E731
        return runner.play(scenario, where, runs, say)


def _show(screen: CleanConsole, verdict: Verdict) -> None:
    word = "[bold green]held[/]" if verdict.held else "[bold red]failed[/]"
    about = verdict.scenario
    screen.print(f"{word} {about.name} in {verdict.world}, {verdict.seconds:.1f} s: {about.proves}")
    if verdict.fault:
        screen.print(f"  could not be run to its end: {verdict.fault}", style="red")
    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, column in enumerate(_HEAD):
        rows.add_column(column, justify="left" if place < _HEAD.index("runs") else "right")
    for row in measure_table(verdict):
        if verdict.world == NETNS or (row[1] in _SHOWN and " " not in row[0]):
            rows.add_row(*row)
    screen.print_table(rows)
    for finding in verdict.findings:
        style = "green" if finding.held else "bold red"
        screen.print(f"  {'held' if finding.held else 'FAILED'}  {finding}", style=style)
