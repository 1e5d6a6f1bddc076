"""``heddle-emulator nccl``: the table of nccl-tests, for every strategy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from heddle.client import HeddleError
from heddle_controller.model.arrays import Floats
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric
from heddle_emulator.cli.fabric import down, named_fabric, setting, settings_of, without
from heddle_emulator.cli.output import NEVER_ENDS, CleanConsole, echo, echo_lines, finite, sizes_of
from heddle_emulator.fleet import ControllerError
from heddle_emulator.play.nccl import NcclRun, SizeResult, nccl_script, size_table
from heddle_emulator.strategy.carried import Carried
from heddle_emulator.strategy.choose import DEFAULT, names_of
from heddle_emulator.strategy.save import SaveFolder
from heddle_emulator.traffic import save_flows
from heddle_emulator.traffic.collective import KINDS
from heddle_emulator.traffic.matrix import load_matrix, most_sent

_FAILED = 1
SAVED = ("size", "seconds", "algbw", "busbw", "busbw_mean")
_MOST_QPS = 1024
USUAL = "1M..8G"
_KNOWN = "\b\n" + "\n".join(
    [
        "Algorithms:",
        *(f"  {name:<15} {', '.join(kind.algorithms)}" for name, kind in KINDS.items()),
        "\n\b\nFor instance:",
        "  heddle-emulator nccl --op all_reduce --sizes 1M..8G --hosts 8 --groups 2",
        "  heddle-emulator nccl --op alltoall --matrix bytes.csv --gpus 8 --strategies ecmp,te",
    ]
)
FLOAT_BYTES = 4
"""Bytes of an element; the default of nccl-tests is float."""


@click.command(epilog=_KNOWN)
@click.option("--op", type=click.Choice([*KINDS]), default="all_reduce", show_default=True)
@click.option(
    "--sizes",
    help="Sizes such as 1M,64MiB; 64MB are 64 million bytes. [default: 1M..8G, or that "
    "of the matrix]",
)
@click.option("--factor", default=8.0, show_default=True, help="Ratio of one size to the next.")
@click.option(
    "--algorithm", default="", help="Algorithm of the operation; see below. [default: the first]"
)
@click.option(
    "--matrix",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help='Bytes of an all-to-all, one row for each sender: CSV, or JSON {"bytes": [[…], …]}.',
)
@click.option(
    "--fabric",
    help="Fabric file, or the name of a published cluster. [default: 16 racks of 2 "
    "hosts, 16 spines]",
)
@click.option("--hosts", type=int, help="Number of hosts that take part. [default: all]")
@click.option(
    "--placement",
    type=click.Choice(["packed", "random"]),
    default="packed",
    show_default=True,
    help="packed: hosts in the order of the fabric. random: hosts drawn at random.",
)
@click.option(
    "--groups", default=1, show_default=True, help="Number of communicators that run side by side."
)
@click.option(
    "--gpus", type=click.IntRange(1, 1024), default=8, show_default=True, help="GPUs of a host."
)
@click.option("--qps", default=8, show_default=True, help="QPs of each flow.")
@click.option("--pxn/--no-pxn", default=None, help="[default: where NICs carry rails]")
@click.option("--strategies", default=",".join(DEFAULT), show_default=True)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of the hashes, and of random hosts.",
)
@down
@setting
@click.option(
    "--save",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write flows.csv and, for each strategy, its table and its paths as a plan.json.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def nccl(
    *,
    op: str,
    sizes: str | None,
    factor: float,
    algorithm: str,
    matrix: Path | None,
    fabric: str | None,
    hosts: int | None,
    placement: str,
    groups: int,
    gpus: int,
    qps: int,
    pxn: bool | None,
    strategies: str,
    seed: int,
    down: tuple[str, ...],
    save: Path | None,
    as_json: bool,
    **words: Any,  # noqa: ANN401 - click hands over what the options say
) -> int:
    """Time a collective for several sizes, as nccl-tests do, for each strategy.

    The columns are those of nccl-tests; elements are floats. The time is that of the slowest
    communicator. algbw is size divided by time, busbw is that times the factor of nccl-tests, both
    in GB/s. No plan with this number of whole QPs beats the bound, which ignores latency. With a
    matrix, the size is that of the rank that sends most, and the number of hosts follows from the
    matrix.
    """
    names, told = names_of(strategies), load_matrix(matrix) if matrix else None
    wanted = _sizes(sizes, factor, told)
    loaded = without(named_fabric(fabric), down)
    hosts = hosts if told is None or hosts else max(len(told) // gpus, 1) * groups
    drawn = _groups(loaded, hosts, groups, seed if placement == "random" else None)
    trial = NcclRun(op, drawn, gpus, algorithm, _checked(qps), pxn, told)
    folder = SaveFolder(save) if save else None
    carried: dict[str, Carried] = {}
    try:
        with CleanConsole(stderr=True).status("loading") as status:
            costs, tell = settings_of(words), status.update
            found = size_table(
                loaded,
                trial,
                wanted,
                names,
                seed=seed,
                setting=costs,
                tell=tell,
                chosen=carried.__setitem__,
            )
    except (HeddleError, ControllerError, TimeoutError) as error:
        echo(f"error: {str(error) or 'a switch did not come to hold its plan'}", err=True)
        return _FAILED
    if folder:
        _save(folder, loaded, trial, found, carried)
    if as_json:
        echo(json.dumps(_record(trial, found, seed)))
    else:
        _show(trial, found, loaded, seed)
    return 0


def _save(
    folder: SaveFolder,
    fabric: Fabric,
    trial: NcclRun,
    found: Mapping[str, Sequence[SizeResult]],
    carried: Mapping[str, Carried],
) -> None:
    """Save the flows that plans are made for, and the results of each strategy."""
    save_flows(fabric, nccl_script(fabric, trial).flows, folder.path / "flows.csv")
    for name, lines in found.items():
        folder.rows(name, SAVED, [[getattr(line, word) for word in SAVED] for line in lines])
    for name, one in carried.items():
        folder.paths(name, fabric, one)


def _sizes(text: str | None, factor: float, matrix: Floats | None) -> list[int]:
    """Return the sizes that were asked for, or the size of the matrix."""
    if text is None and matrix is not None:
        return [round(most_sent(matrix))]
    return sizes_of(text or USUAL, factor)


def _checked(qps: int) -> int:
    if not 1 <= qps <= _MOST_QPS:
        raise refuse("nccl", "qps", f"is {qps}; give 1 to {_MOST_QPS}")
    return qps


def _groups(
    fabric: Fabric, hosts: int | None, groups: int, seed: int | None
) -> tuple[tuple[str, ...], ...]:
    """Return the hosts of each communicator, interleaved so that none has a corner for itself."""
    known = [*fabric.structure.nics_of_host]
    count = len(known) if hosts is None else hosts
    if not 0 < count <= len(known):
        raise refuse("nccl", "hosts", f"is {count}; give 1 to {len(known)}")
    if not 0 < groups <= count or count % groups:
        raise refuse("nccl", "groups", f"is {groups}; give a divisor of the {count} hosts")
    taken = known[:count]
    if seed is not None:
        order = np.random.default_rng(seed).permutation(len(known))[:count]
        taken = [known[place] for place in order.tolist()]
    return tuple(tuple(taken[group::groups]) for group in range(groups))


def _record(
    trial: NcclRun, found: Mapping[str, Sequence[SizeResult]], seed: int
) -> dict[str, object]:
    return {
        "op": trial.op,
        "algorithm": _called(trial),
        "ranks": trial.ranks,
        "groups": len(trial.groups),
        "seed": seed,
        "strategies": {
            name: [finite(asdict(line)) for line in lines] for name, lines in found.items()
        },
    }


def _called(trial: NcclRun) -> str:
    """Return the name of the algorithm."""
    if trial.matrix is not None:
        return "matrix"
    return trial.algorithm or next(iter(KINDS[trial.op].algorithms))


def _show(
    trial: NcclRun, found: Mapping[str, Sequence[SizeResult]], fabric: Fabric, seed: int
) -> None:
    many = f", {len(trial.groups)} communicators" if len(trial.groups) > 1 else ""
    echo(f"# {trial.op} ({_called(trial)}), {trial.ranks} ranks{many}, {fabric.name}, seed {seed}")
    for name, lines in found.items():
        echo_lines(f"#\n# {name}\n#{_HEAD}\n#{_UNITS}")
        for line in lines:
            echo(f" {_told(trial, line)}")
        if any(np.isinf(line.seconds) for line in lines):
            echo(f"# {NEVER_ENDS}")
        mean = sum(line.busbw for line in lines) / len(lines)
        echo(f"# Avg bus bandwidth    : {mean:g}")


_WIDTHS = (12, 14, 8, 8, 6, 12, 9, 9)


def _columns(*words: object) -> str:
    """Return words in their columns, with a blank between them even if one is too long."""
    return "".join(f" {word:>{width - 1}}" for word, width in zip(words, _WIDTHS, strict=True))


_HEAD = _columns("size", "count", "type", "redop", "root", "time", "algbw", "busbw")
_UNITS = _columns("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)")


def _told(trial: NcclRun, line: SizeResult) -> str:
    """Format a line as nccl-tests does."""
    kind = KINDS[trial.op]
    count = line.size // FLOAT_BYTES // (trial.ranks if kind.divided else 1)
    seconds = f"{line.seconds * 1e6:.1f}" if np.isfinite(line.seconds) else "never"
    times = seconds, f"{line.algbw:.2f}", f"{line.busbw:.2f}"
    return _columns(line.size, count, "float", kind.redop, kind.root, *times)
