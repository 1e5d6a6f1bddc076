"""``heddle-emulator compare``: compare strategies on files of a fabric and its flows."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
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
    help="Strategies to compare; see above.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the hashes."
)
@click.option(
    "--size",
    help="Bytes of flows that have none in the file, such as 64MiB or 64MB. [default: "
    "what its gbps sends in a second]",
)
@click.option("--paced", is_flag=True, help="Limit flows with bytes to their gbps.")
@click.option(
    "--queues",
    type=click.Choice(CONTROLS),
    help="Model queues: with PFC alone, or also with a window (DCTCP) or a rate (DCQCN) "
    "for each QP. Needs bytes. spray and ideal keep fair rates. [default: fair "
    "rates, no queues]",
)
@wire
@click.option(
    "--save",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="For each strategy, write rates and ends of flows, and the paths as a plan.json.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
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
    """Compare routing strategies on the same flows and fabric.

    Worst link: 1 is full. Slowest flow: the smallest share of its demand that a flow gets when all
    send. Makespan: the time until all flows are done, phase after phase, if each sends what its
    gbps sends in a second. With bytes, from the file or --size, headers and latency count too, and
    only NICs and links limit a flow, unless --paced limits it to its gbps.

    \b
    ecmp         the underlay hashes each flow      static    a fixed uplink for each NIC
    e-ecmp:Q     the same, with Q QPs for a flow    dmodk     static routes of fat trees
    greedy       flow after flow, least loaded      te        Heddle: controller and agents
    plan:FILE    the paths of any plan.json         spray     each packet takes any path
    ideal        one crossbar: only NICs limit
    """  # noqa: D301 - click's mark for lines that stay as they are
    names, cost = names_of(strategies), wire_of(words)
    loaded = load_fabric_file(fabric, note=partial(echo, err=True))
    demands, transfers = load_transfers(flows, note=partial(echo, err=True))
    wanted = resolve(demands, loaded, origin=str(flows))
    sending = _sending(
        transfers, bytes_of(size, "--size") if size is not None else None, cost, paced=paced
    )
    sending = _played(sending, queues)
    try:
        with CleanConsole(stderr=True).status("loading") as status:
            found = compared(loaded, wanted, names, seed, status.update, sending=sending)
            record = found.record()  # computes the outcomes, while their progress is shown
    except (HeddleError, ControllerError, TimeoutError) as error:
        told = str(error) or "a switch did not come to hold its plan in time"
        echo(f"error: {told}", err=True)
        return _FAILED
    if save:
        folder = SaveFolder(save)
        for name, outcome in found.outcomes.items():
            folder.outcome(name, outcome)
    if as_json:
        echo(json.dumps(record))
    else:
        _show(found)
    return 0


def _sending(transfers: Transfers, size: int | None, cost: Wire, *, paced: bool) -> Sending:
    """Return what the file and the options say.

    If no flow has bytes, all send a second's worth of their demand, and packets have no extra cost.
    """
    told = transfers.bytes
    if size is not None:
        told = np.where(np.isfinite(told), told, float(size))
    start = transfers.start if transfers.start.any() else None
    if not np.isfinite(told).any():
        return Sending(start=start)
    return Sending(told, cost, start, paced)


def _played(sending: Sending, queues: ControlName | None) -> Sending:
    """Add queues if asked for; they need bytes, as a second's worth would run for hours."""
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
    console.print_table(table)
    console.print(
        f"no plan with these whole QPs has a worst link below {found.lower_bound:.3f};"
        f" seed {found.seed}"
    )
