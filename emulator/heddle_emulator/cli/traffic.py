"""``heddle-emulator traffic PATTERN``: flow files for a fabric."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
import numpy as np

from heddle_controller.model.errors import CURE, refuse, sensible
from heddle_controller.model.files.fabric_file import load_fabric_file
from heddle_controller.model.files.flows_file import MOST_QPS
from heddle_emulator.cli.output import bytes_of, echo
from heddle_emulator.traffic import PATTERNS, flows_between, save_flows
from heddle_emulator.traffic.matrix import load_matrix
from heddle_emulator.traffic.table import flows_by

_MATRIX = "matrix"


@click.command()
@click.argument("pattern", type=click.Choice(sorted([*PATTERNS, _MATRIX])))
@click.option(
    "--fabric",
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Fabric file with the NICs that send.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the pattern."
)
@click.option(
    "--matrix",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help='Bytes for each sender and receiver: CSV, or JSON {"bytes": [[…], …]}.',
)
@click.option(
    "--nics", type=int, help="Number of NICs that take part, drawn at random. [default: all]"
)
@click.option("--gbps", type=float, help="Rate of each flow. [default: its share of the line rate]")
@click.option(
    "--qps",
    type=click.IntRange(1, MOST_QPS),
    default=1,
    show_default=True,
    help="QPs of each flow.",
)
@click.option(
    "--fan-in",
    type=int,
    metavar="K",
    help="For incast: groups of K senders and one receiver. [default: one group of all NICs]",
)
@click.option("--size", help="Bytes of each flow, such as 64MiB or 64MB. [default: no bytes]")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write; .gz compresses.",
)
def traffic(  # noqa: PLR0917 - click passes options by name
    pattern: str,
    fabric: Path,
    seed: int,
    matrix: Path | None,
    nics: int | None,
    gbps: float | None,
    qps: int,
    fan_in: int | None,
    size: str | None,
    out: Path,
) -> None:
    """Write a file of flows between the NICs of a fabric.

    \b
    permutation  each NIC to one other NIC, at line rate
    shift        each NIC to the NIC half the fabric away
    all-to-all   each NIC to every other NIC
    incast       all NICs to one NIC, or K to one in each group
    uniform      each NIC to a random NIC
    matrix       as --matrix says; rank i is the i-th NIC, host by host
    """  # noqa: D301 - click's mark for lines that stay as they are
    loaded = load_fabric_file(fabric, note=partial(echo, err=True))
    if gbps is not None and not sensible(np.array([gbps])).all():
        raise refuse("traffic", "--gbps", f"is {gbps:g}; {CURE}")
    sent = None if size is None else bytes_of(size, "--size")
    if (pattern == _MATRIX) != (matrix is not None):
        raise refuse("traffic", _MATRIX, "goes with --matrix FILE, and nothing else does")
    if matrix is None:
        flows = flows_between(
            loaded,
            pattern,
            seed=seed,
            nics=nics,
            gbps=gbps,
            qps=qps,
            fan_in=fan_in,
            size=np.inf if sent is None else sent,
        )
    elif any(one is not None for one in (nics, gbps, fan_in, size)):
        reason = "says itself who sends how much; leave --nics, --gbps, --fan-in and --size"
        raise refuse("traffic", _MATRIX, reason)
    else:
        flows = flows_by(loaded, load_matrix(matrix), qps=qps)
    save_flows(loaded, flows, out)
    echo(f"{out}: {len(flows):,} flows, seed {seed}")
