"""``heddle-emulator iterate``: jobs that run together, and what the network costs each of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from click.core import ParameterSource
from rich.table import Table

from heddle.client import HeddleError
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.plan import Turn
from heddle_controller.traffic.jobs_file import load_jobs
from heddle_controller.traffic.turns import turns_of
from heddle_emulator.cli.fabric import down, named_fabric, setting, settings_of, without
from heddle_emulator.cli.output import NEVER_ENDS, CleanConsole, echo, finite
from heddle_emulator.fleet import ControllerError
from heddle_emulator.fluid.simulation import Timeline
from heddle_emulator.play.iteration import (
    NO_TURNS,
    Iteration,
    Placed,
    cycles_of,
    iteration_script,
    slower,
)
from heddle_emulator.play.iteration import iterate as iterated
from heddle_emulator.play.play import OverTime, Setting, drawn, over_time
from heddle_emulator.strategy.carried import Carried
from heddle_emulator.strategy.choose import DEFAULT, choose, names_of, require_all
from heddle_emulator.strategy.save import SaveFolder
from heddle_emulator.traffic import save_flows
from heddle_emulator.traffic.matrix import load_matrix
from heddle_emulator.traffic.workload import WORKLOADS, Workload, by_matrix, workload, workload_of

_FAILED = 1
MOST_STEPS = 10_000
_MATRIX = "matrix"
_HEAD = ("job", "strategy", "iteration s", "computing s", "network")
_KNOWN = "\b\n" + "\n".join(
    [
        *(f"{name:<15} {one.what}" for name, one in WORKLOADS.items()),
        f"{_MATRIX:<15} an all-to-all as --matrix says",
    ]
)


@click.command(name="iterate", epilog=_KNOWN)
@click.option(
    "--job",
    "jobs",
    multiple=True,
    metavar="WORKLOAD[:HOSTS]",
    help="Workload and number of hosts; may be repeated; see below. [default: llama3-8k:16]",
)
@click.option(
    "--matrix",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help='Bytes of --job matrix: CSV, or JSON {"bytes": [[…], …]}.',
)
@click.option(
    "--jobs",
    "file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="jobs.yaml instead of --job; each job runs its collectives once in an iteration.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    default=0.0,
    help="Computing time of an iteration, in seconds, for --job matrix and for jobs "
    "without compute_seconds.",
)
@click.option(
    "--overlap",
    is_flag=True,
    help="All collectives of a job run at once, while GPUs compute: what each quarter of the "
    "computing has to send goes on during the next quarter.",
)
@click.option(
    "--fabric",
    help="Fabric file, or the name of a published cluster. [default: 16 racks of 2 "
    "hosts, 16 spines]",
)
@click.option(
    "--gpus", type=click.IntRange(1, 1024), default=8, show_default=True, help="GPUs of a host."
)
@click.option("--qps", type=click.IntRange(1, 1024), default=8, show_default=True)
@click.option("--iterations", type=click.IntRange(1, 100), default=1, show_default=True)
@click.option("--pxn/--no-pxn", default=None, help="[default: where NICs carry rails]")
@click.option("--packed", is_flag=True, help="Use hosts in order instead of drawing them.")
@click.option("--strategies", default=",".join(DEFAULT), show_default=True)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of hashes, and of hosts that are drawn.",
)
@click.option(
    "--step",
    type=click.FloatRange(0, min_open=True),
    help="Also print the load of links over time, in steps of this many seconds.",
)
@click.option(
    "--turns",
    is_flag=True,
    help="Also play the jobs with turns in time, if turns are expected to save time.",
)
@click.option(
    "--drift",
    type=click.FloatRange(0, 1),
    default=0.0,
    help="Part by which the last job computes longer than the turns assume: 0.02 is 2 %.",
)
@down
@setting
@click.option(
    "--save",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write flows.csv and, for each strategy, one line for each job and its paths as "
    "a plan.json. With --turns, its jobs in turns have a file of their own.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def iterate(
    *,
    jobs: tuple[str, ...],
    matrix: Path | None,
    file: Path | None,
    seconds: float,
    overlap: bool,
    fabric: str | None,
    gpus: int,
    qps: int,
    iterations: int,
    pxn: bool | None,
    packed: bool,
    strategies: str,
    seed: int,
    step: float | None,
    turns: bool,
    drift: float,
    down: tuple[str, ...],
    save: Path | None,
    as_json: bool,
    **words: Any,  # noqa: ANN401 - click hands over what the options say
) -> int:
    """Time iterations of jobs that run side by side, for each strategy.

    The network's share is the part of an iteration in which GPUs wait for the network. Pipeline
    bubbles and GPUs of different speed are left out. With turns, a job begins an iteration no
    earlier than its shift plus a whole number of paces; a job that gains nothing has no turns.
    """
    names, settings = names_of(strategies), settings_of(words)
    _check_words(jobs, matrix, file)
    loaded = without(named_fabric(fabric), down)
    if file is not None:
        placed = _read(file, seconds, pxn, overlap=overlap)
    else:
        own = by_matrix(load_matrix(matrix), seconds, overlap=overlap) if matrix else None
        placed = _placed(loaded, jobs, gpus, None if packed else seed, own)
        placed = [replace(one, qps=qps, pxn=pxn) for one in placed]
    script = iteration_script(loaded, placed, iterations)
    real = [*placed[:-1], *(slower(one, drift) for one in placed[-1:])]
    _check_step(step, placed, iterations)
    folder = SaveFolder(save) if save else None
    found: dict[str, _Found] = {}
    try:
        with CleanConsole(stderr=True).status("loading") as status:
            for name in names:
                status.update(name)
                carried = choose(name, loaded, script.flows, seed).carried
                require_all(name, carried)
                play = partial(_played, loaded, real, carried, settings, iterations, step=step)
                found[name] = play()
                if folder:
                    folder.paths(name, loaded, carried)
                    _save(folder, name, found[name])
                if turns:
                    taken = turns_of(cycles_of(loaded, placed, carried, settings))
                    found[in_turns := f"{name}, turns"] = play(turns=taken)
                    if folder:
                        _save(folder, in_turns, found[in_turns])
    except (HeddleError, ControllerError, TimeoutError) as error:
        echo(f"error: {str(error) or 'a switch did not come to hold its plan'}", err=True)
        return _FAILED
    if folder:
        save_flows(loaded, script.flows, folder.path / "flows.csv")
    if as_json:
        echo(json.dumps(_record(found, seed)))
    else:
        _show(placed, found)
        told = "hashes" if packed or file is not None else "hosts and hashes"
        echo(f"{told} drawn from seed {seed}")
    return 0


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """The results of one strategy."""

    jobs: list[Iteration]
    over: OverTime | None
    turns: Mapping[str, Turn]


_SAVED = ("job", "seconds", "compute_seconds", "network_share")
_SAVED_TURN = ("shift_seconds", "pace_seconds", "saved")


def _save(folder: SaveFolder, name: str, told: _Found) -> None:
    """Save a row for each job; if jobs have turns, with its turn."""
    more = _SAVED_TURN if told.turns else ()
    rows = [
        [
            *(one.name, one.seconds, one.compute_seconds, one.network_share),
            *(getattr(told.turns.get(one.name), column, "") for column in more),
        ]
        for one in told.jobs
    ]
    folder.rows(name, (*_SAVED, *more), rows)


def _played(
    fabric: Fabric,
    placed: Sequence[Placed],
    carried: Carried,
    settings: Setting,
    iterations: int,
    *,
    step: float | None,
    turns: Mapping[str, Turn] = NO_TURNS,
) -> _Found:
    timeline = Timeline(step) if step else None
    script = iteration_script(fabric, placed, iterations, turns)
    told = iterated(fabric, placed, carried, script, settings, timeline=timeline, turns=turns)
    return _Found(told, over_time(fabric, timeline) if timeline else None, turns)


def _check_words(jobs: Sequence[str], matrix: Path | None, file: Path | None) -> None:
    """Refuse options of which one would be ignored."""
    if file is not None:
        own = {"jobs": "job", "matrix": "matrix", "gpus": "gpus", "qps": "qps", "packed": "packed"}
        context = click.get_current_context()
        for name, option in own.items():
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                reason = "is for --job; leave it out, as the file of --jobs says all of the jobs"
                raise refuse("iterate", option, reason)
    asked = any(text.partition(":")[0] == _MATRIX for text in jobs)
    if asked and matrix is None:
        raise refuse("job", _MATRIX, "needs the bytes: give --matrix FILE")
    if matrix is not None and jobs and not asked:
        raise refuse("iterate", "matrix", "is for --job matrix; name that job, or leave it out")


def _check_step(step: float | None, placed: Sequence[Placed], iterations: int) -> None:
    seconds = iterations * max((one.workload.seconds for one in placed), default=0.0)
    if step and seconds / step > MOST_STEPS:
        reason = f"is {step:g}; {seconds:g} s of computing alone make more than {MOST_STEPS:,}"
        raise refuse("iterate", "step", reason)


def _placed(
    fabric: Fabric, jobs: Sequence[str], gpus: int, seed: int | None, own: Workload | None
) -> list[Placed]:
    """Place each job on hosts of its own, in the given order."""
    free = [*fabric.structure.nics_of_host]
    if seed is not None:
        free = [free[place] for place in np.random.default_rng(seed).permutation(len(free))]
    placed = []
    for number, text in enumerate(jobs or (_MATRIX if own else "llama3-8k:16",)):
        name, _, told = text.partition(":")
        if name not in {*WORKLOADS, _MATRIX}:
            known = ", ".join([*WORKLOADS, _MATRIX])
            raise refuse("job", text, f"{name!r} is no workload; give one of {known}")
        found = own if own and name == _MATRIX else workload(name)
        least = _least(found, gpus)
        if told and not (told.isascii() and told.isdecimal()):
            raise refuse("job", text, "write WORKLOAD or WORKLOAD:HOSTS")
        count = int(told) if told else least
        if count < 1 or count % least:
            raise refuse("job", text, f"{name} runs on a multiple of {least} hosts")
        if count > len(free):
            raise refuse("job", text, f"{len(free)} hosts are left; give fewer, or a larger fabric")
        hosts, free = tuple(free[:count]), free[count:]
        placed.append(Placed(f"{number}-{name}", found, hosts, gpus))
    return placed


def _least(found: Workload, gpus: int) -> int:
    """Return the number of hosts of a workload; a matrix requires exactly that many."""
    matrix = found.exchanges[0].matrix
    return found.hosts(gpus) if matrix is None else max(len(matrix) // gpus, 1)


def _read(path: Path, seconds: float, pxn: bool | None, *, overlap: bool) -> list[Placed]:  # noqa: FBT001 - click
    """Return the jobs of a file on the hosts that it names."""
    placed = []
    for job in load_jobs(path):
        told = workload_of(job, job.compute_seconds or seconds, overlap=overlap)
        placed.append(Placed(job.name, told, job.hosts, job.gpus_per_host, job.qps, pxn, job.gpus))
    return placed


def _record(found: dict[str, _Found], seed: int) -> dict[str, object]:
    return {
        "seed": seed,
        "strategies": {
            name: [finite(asdict(one) | {"network_share": one.network_share}) for one in told.jobs]
            for name, told in found.items()
        },
        "turns": {
            name: {job: asdict(turn) for job, turn in told.turns.items()}
            for name, told in found.items()
            if told.turns
        },
        "over_time": {
            name: {
                "begins": told.over.begins.tolist(),
                "mean": {tier: row.tolist() for tier, row in told.over.mean.items()},
                "most": {tier: row.tolist() for tier, row in told.over.most.items()},
            }
            for name, told in found.items()
            if told.over is not None
        },
    }


def _show(placed: Sequence[Placed], found: dict[str, _Found]) -> None:
    table = Table(box=None, pad_edge=False)
    for column, name in enumerate(_HEAD):
        table.add_column(name, justify="right" if column > 1 else "left", no_wrap=True)
    for row, one in enumerate(placed):
        for name, told in found.items():
            job = told.jobs[row]
            table.add_row(
                f"{one.name}, {len(one.hosts)} hosts",
                name,
                f"{job.seconds:.4f}" if np.isfinite(job.seconds) else "never",
                f"{job.compute_seconds:.4f}",
                f"{job.network_share:.1%}",
            )
    console = CleanConsole(highlight=False)
    console.print_table(table)
    if any(np.isinf(job.seconds) for told in found.values() for job in told.jobs):
        console.print(NEVER_ENDS)
    for name, told in found.items():
        for own, turn in told.turns.items():
            shift, pace = f"{turn.shift_seconds:.4f}", f"{turn.pace_seconds:.4f}"
            begins = f"{own} begins at {shift} s and every {pace} s from then on"
            echo(f"{name}: {begins}; expected to save {turn.saved:.1%}")
    for name, told in found.items():
        for tier, values in told.over.most.items() if told.over else ():
            echo(f"{name:<10} {tier:<11} |{drawn(values)}| fullest link over time")
