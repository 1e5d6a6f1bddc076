"""`heddle-emulator compare`: strategies side by side on files of a fabric and its flows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from heddle.client import HeddleError
from heddle_controller.model.demand import Transfers, resolve
from heddle_controller.model.errors import refuse
from heddle_controller.model.files.fabric_file import load_fabric_file
from heddle_controller.model.files.flows_file import load_transfers
from heddle_emulator.cli.fabric import wire, wire_of
from heddle_emulator.cli.output import CleanConsole, bytes_of, echo
from heddle_emulator.fleet import ControllerError
from heddle_emulator.fluid.queues import CONTROLS, ControlName
from heddle_emulator.fluid.wire import Wire
from heddle_emulator.strategy.choose import DEFAULT, names_of
from heddle_emulator.strategy.compare import Comparison
from heddle_emulator.strategy.compare import compare as compared
from heddle_emulator.strategy.makespan import Sending
from heddle_emulator.strategy.save import SaveFolder

_FAILED = 1
_HEAD = ("strategy", "worst link", "slowest flow", "makespan s", "lost flows")

_existing = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command()
@click.option("--fabric", required=True, type=_existing, help="Fabric file.")
@click.option("--flows", required=True, type=_existing, help="Flow file.")
@click.option(
    "--strategies",
    default=",".join(DEFAULT),
    show_default=True,
    help="Some of them, by name; see above.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Draws the hashes."
)
@click.option(
    "--size",
    help="That each flow sends whose bytes the file does not tell, such as 64MiB or 64MB. "
    "[default: a second's worth of its demand]",
)
@click.option(
    "--paced", is_flag=True, help="Flows of so many bytes send no faster than their gbps."
)
@click.option(
    "--queues",
    type=click.Choice(CONTROLS),
    help="Play queues that fill, with PFC and nothing else, or also with a window (DCTCP) or a rate"
    " (DCQCN) of each QP; takes bytes. spray and ideal keep fair rates.  [default: fair rates]",
)
@wire
@click.option(
    "--save",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Also each flow's rate and end, and its paths as a plan.json, by strategy.",
)
@click.option("--json", "as_json", is_flag=True, help="One line of JSON on standard output.")
def compare(
    *,
    fabric: Path,
    flows: Path,
    strategies: str,
    seed: int,
    size: str | None,
    paced: bool,
    queues: ControlName | None,
    save: Path | None,
    as_json: bool,
    **words: Any,  # noqa: ANN401 - click hands over what the options say
) -> int:
    """Carry the same flows over the same fabric by several strategies.

    A worst link of 1 is full. The slowest flow is the least part of its demand that
    a flow gets when all send; the makespan the time until all are done, phase after phase,
    when each has a second's worth of its demand to send. With bytes, from the file or --size,
    headers and latency count, and a flow is as fast as its NICs and links let it be, whatever
    its gbps, unless it is --paced.

    \b
    ecmp         packets hashed by the underlay     static    a NIC, an uplink
    e-ecmp:Q     so, in Q QPs a flow                dmodk     routing of fat trees
    greedy       the least loaded path, in turns    te        Heddle: a controller, agents
    plan:FILE    paths of a plan.json, anybody's    spray     every packet its own way
    ideal        a crossbar: NICs alone can be slow
    """  # noqa: D301 - click's mark for lines that stay as they are
    names, cost = names_of(strategies), wire_of(words)
    loaded = load_fabric_file(fabric)
    demands, transfers = load_transfers(flows)
    wanted = resolve(demands, loaded, origin=str(flows))
    sending = _sending(transfers, bytes_of(size) if size else None, cost, paced=paced)
    sending = _played(sending, queues)
    try:
        with CleanConsole(stderr=True).status("loading") as status:
            found = compared(loaded, wanted, names, seed, status.update, sending=sending)
    except (HeddleError, ControllerError, TimeoutError) as error:
        told = str(error) or "a switch did not come to hold its plan in time"
        echo(f"error: {told}", err=True)
        return _FAILED
    if save:
        folder = SaveFolder(save)
        for name, outcome in found.outcomes.items():
            folder.outcome(name, outcome)
    if as_json:
        echo(json.dumps(found.record()))
    else:
        _show(found)
    return 0


def _sending(transfers: Transfers, size: int | None, cost: Wire, *, paced: bool) -> Sending:
    """What the file and the options say; seconds' worths of demands are free of headers."""
    told = transfers.bytes
    if size is not None:
        told = np.where(np.isfinite(told), told, float(size))
    start = transfers.start if transfers.start.any() else None
    if not np.isfinite(told).any():
        return Sending(start=start)
    return Sending(told, cost, start, paced)


def _played(sending: Sending, queues: ControlName | None) -> Sending:
    """With queues where they are asked for; a second's worth would be played for hours."""
    if queues is None:
        return sending
    if sending.bytes is None or not np.isfinite(sending.bytes).all():
        raise refuse("queues", queues, "needs the bytes of each flow: give --size, such as 8MB")
    return replace(sending, queues=queues)


def _show(found: Comparison) -> None:
    table = Table(box=None, pad_edge=False)
    for column, name in enumerate(_HEAD):
        table.add_column(name, justify="right" if column else "left", no_wrap=True)
    for name, outcome in found.outcomes.items():
        seconds = outcome.makespan_seconds
        table.add_row(
            name,
            f"{outcome.max_utilization:.3f}",
            f"{outcome.slowest_flow:.3f}",
            "never" if seconds is None else f"{seconds:.3f}" if seconds >= 1 else f"{seconds:.3g}",
            str(outcome.lost_flows),
        )
    console = CleanConsole(highlight=False)
    console.print(table)
    console.print(f"no worst link can be below {found.lower_bound:.3f}; seed {found.seed}")
