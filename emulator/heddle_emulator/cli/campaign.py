"""``heddle-emulator campaign``: many failures on warm fabrics, and their results."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from heddle_controller.model.demand import resolve
from heddle_controller.model.errors import refuse
from heddle_controller.model.files.content import write_content
from heddle_controller.model.files.fabric_file import load_fabric_file
from heddle_controller.model.files.flows_file import load_demands
from heddle_emulator.campaign.campaign import DRAWS, Campaign, changed, load_campaign
from heddle_emulator.campaign.replay import write_replays
from heddle_emulator.campaign.results import (
    TRIAL_MEASURES,
    Summary,
    campaign_evidence,
    outcome,
    summed_up,
)
from heddle_emulator.campaign.run import CampaignProgress, Journal, run_campaign
from heddle_emulator.campaign.trials import Draw
from heddle_emulator.cli.output import CleanConsole, echo
from heddle_emulator.executor import Executor, ExecutorError, ProcessExecutor
from heddle_emulator.executor.ray_cluster import RayExecutor
from heddle_emulator.report.campaign import campaign_page

_FAILED = 1
_INTERRUPTED = 130
SUMMARY, _PAGE = "summary.json", "index.html"
_HEAD = ("measure", "least", "median", "90 %", "99 %", "most")

_existing = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command()
@click.argument("file", required=False, type=_existing)
@click.option("--fabric", type=_existing, help="Fabric file, if there is no campaign file.")
@click.option("--flows", type=_existing, help="Flow file, if there is no campaign file.")
@click.option(
    "--failures",
    type=click.IntRange(1),
    help="Number of trials.  [default: 1000; for each: one for each link]",
)
@click.option(
    "--draw",
    type=click.Choice(list(DRAWS)),
    help="How failures are drawn; see above.  [default: random]",
)
@click.option(
    "--at-once", type=click.IntRange(1), help="For random: links that fail at the same time."
)
@click.option("--seed", type=click.IntRange(0), help="Seed of all drawings.")
@click.option(
    "--datagrams",
    is_flag=True,
    default=None,
    help="Send peer notices as datagrams, as switches do. Slower.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Number of processes. [default: one for each processor]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("campaign"),
    show_default=True,
    help="Folder for results, the summary and the replays.",
)
@click.option("--resume", is_flag=True, help="Play only trials that have no result in the folder.")
@click.option(
    "--ray", metavar="ADDRESS", help="Play on this Ray cluster; 'local' starts one on this machine."
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def campaign(
    *,
    file: Path | None,
    fabric: Path | None,
    flows: Path | None,
    workers: int | None,
    out: Path,
    resume: bool,
    ray: str | None,
    as_json: bool,
    draw: str | None,
    **given: object,
) -> int:
    """Play many failures on a fabric with a controller and all its agents.

    \b
    each       each link between switches, one after another
    random     links drawn at random, --at-once of them together
    published  links, flaps and switches, at published rates

    Each result is one line of a file in the folder. --resume continues an interrupted campaign. The
    worst trials are written to the folder as drills. Exit 0 only if no trial was bad.
    """  # noqa: D301 - click's mark for lines that stay as they are
    told = changed(_asked(file, fabric, flows), draw=Draw(draw) if draw else None, **given)
    if given["at_once"] is not None and told.drawing.draw is not Draw.RANDOM:
        raise refuse("campaign", "--at-once", "is for --draw random; leave it out")
    told.trials()  # refuse now rather than when everything is running
    with Journal(out, told, resume=resume) as journal:
        code = _played(told, _executor(ray, workers), journal)
        summary = summed_up([*journal.results.values()], told.trial_count)
    replays = write_replays(out, told, summary)
    record = summary.record() | {"name": told.name, "seed": told.drawing.seed}
    write_content(out / SUMMARY, f"{json.dumps(record, indent=1)}\n".encode())
    links = [replay.relative_to(out).as_posix() for replay in replays]
    known = campaign_evidence(told, summary, [*journal.results.values()], links, _again(out))
    write_content(out / _PAGE, campaign_page(known).encode())
    if as_json:
        echo(json.dumps(record))
    else:
        _show(told, summary, out, replays)
    return code or (0 if summary.held else _FAILED)


def _again(out: Path) -> str:
    """Return the current command line with all options that were given, for another folder.

    The folder ``out`` has results now, which a new campaign does not overwrite.
    """
    context, words = click.get_current_context(), ["heddle-emulator", "campaign"]
    told = context.params | {"out": out.with_name(f"{out.name}-again"), "resume": False}
    for known in context.command.params:
        value = told[known.name or ""]
        if value is None or value is False or value == known.default:
            continue
        option = [known.opts[0]] if isinstance(known, click.Option) else []
        words += option if value is True else [*option, str(value)]
    return shlex.join(words)


def _asked(file: Path | None, fabric: Path | None, flows: Path | None) -> Campaign:
    if file is not None:
        if fabric or flows:
            raise refuse(str(file), "", "has a fabric and demands; leave --fabric and --flows out")
        return load_campaign(file)
    if fabric is None or flows is None:
        raise refuse("campaign", "", "needs a campaign file, or both --fabric and --flows")
    loaded = load_fabric_file(fabric, note=partial(echo, err=True))
    wanted = resolve(load_demands(flows, note=partial(echo, err=True)), loaded, origin=str(flows))
    name = Path(fabric.name.removesuffix(".gz")).stem
    return Campaign(name, loaded, wanted, told={"fabric": str(fabric.resolve())})


def _executor(ray: str | None, workers: int | None) -> Executor:
    return (
        RayExecutor(ray, workers or 0) if ray else ProcessExecutor(workers or os.cpu_count() or 1)
    )


def _played(told: Campaign, executor: Executor, journal: Journal) -> int:
    """Play the remaining trials; return 0, or the exit code that says why some are missing."""
    try:
        with _progress(told) as report:
            run_campaign(told, executor, journal, report)
    except KeyboardInterrupt:
        echo(f"interrupted: {len(journal.results)} trials are kept, go on with --resume")
        return _INTERRUPTED
    except ExecutorError as error:
        echo(f"error: {error}", err=True)
        return _FAILED
    return 0


@contextmanager
def _progress(told: Campaign) -> Iterator[CampaignProgress]:
    """Show a bar with the remaining time; without a terminal, print a line at each tenth."""
    console = CleanConsole(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        with Progress(*columns, *times, console=console) as bar:
            task = bar.add_task(told.name, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    before = -1

    def line(done: int, total: int) -> None:
        nonlocal before
        if 10 * done // total != before:
            before = 10 * done // total
            echo(f"{told.name}: {done} of {total} trials", err=True)

    yield line


def _show(told: Campaign, summary: Summary, out: Path, replays: list[Path]) -> None:
    console = CleanConsole(highlight=False)
    rows = Table(box=None, pad_edge=False)
    for place, column in enumerate(_HEAD):
        rows.add_column(column, justify="right" if place else "left", no_wrap=True)
    for name, spread in summary.spreads.items():
        measure = TRIAL_MEASURES[name]
        parts = (spread.least, spread.median, spread.p90, spread.p99, spread.most)
        rows.add_row(measure.title, *(measure.show(value) for value in parts))
    console.print_table(rows)
    console.print("\nworst trials")
    for result in summary.worst:
        console.print(f"  {result.number:>5}  {result.words}: {outcome(result)}", soft_wrap=True)
    style = "bold green" if summary.held else "bold red"
    console.print(
        f"\n{summary.played} of {summary.asked} trials played, {summary.bad} bad;"
        f" seed {told.drawing.seed}; results and {len(replays)} replays are in {out}",
        style=style,
        soft_wrap=True,
    )
