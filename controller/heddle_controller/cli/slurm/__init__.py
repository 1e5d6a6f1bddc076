"""``heddle slurm``: what Slurm is told of a fabric, and what Heddle is told of Slurm's jobs."""

from __future__ import annotations

import click

from heddle_controller.cli.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    package="heddle_controller.cli.slurm",
    names=("epilog", "hostfile", "prolog", "sbatch", "topology"),
)
def slurm() -> None:
    """For Slurm: rank orders, its topology file, and jobs planned before they start."""
