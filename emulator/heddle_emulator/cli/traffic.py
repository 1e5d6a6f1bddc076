"""`heddle-emulator traffic PATTERN`: flow files for a fabric."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from heddle_controller.model.errors import refuse
from heddle_controller.model.files.fabric_file import load_fabric_file
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
    help="Fabric file whose NICs send.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Draws the pattern."
)
@click.option(
    "--matrix",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help='Bytes by sender and receiver: CSV, or JSON {"bytes": [[…], …]}.',
)
@click.option("--nics", type=int, help="NICs that take part, drawn from the seed. [default: all]")
@click.option("--gbps", type=float, help="Rate of each flow. [default: its part of the line rate]")
@click.option("--qps", type=int, default=1, show_default=True, help="QPs of each flow.")
@click.option(
    "--fan-in",
    type=int,
    metavar="K",
    help="Groups of an incast, K senders each. [default: one of all]",
)
@click.option("--size", help="Bytes of each flow, such as 64MiB or 64MB. [default: not told]")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write; packed where the name ends in .gz.",
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
    permutation  everyone to one other, at line rate
    shift        everyone to the one half the fabric further
    all-to-all   everyone to everyone else
    incast       everyone to the same one, or K to one in each group
    uniform      everyone to any other
    matrix       as --matrix says, NICs being its ranks, host by host
    """  # noqa: D301 - click's mark for lines that stay as they are
    loaded = load_fabric_file(fabric)
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
            size=bytes_of(size) if size else np.inf,
        )
    elif any(one is not None for one in (nics, gbps, fan_in, size)):
        reason = "says itself who sends how much; leave --nics, --gbps, --fan-in and --size"
        raise refuse("traffic", _MATRIX, reason)
    else:
        flows = flows_by(loaded, load_matrix(matrix), qps=qps)
    save_flows(loaded, flows, out)
    echo(f"{out}: {len(flows):,} flows, seed {seed}")
