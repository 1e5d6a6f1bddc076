"""``heddle slurm``: tells Slurm about a fabric, and Heddle about Slurm's jobs."""

from __future__ import annotations

import click

from heddle_controller.cli.failure import LazyGroup


@click.group(
    cls=LazyGroup,
    package="heddle_controller.cli.slurm",
    modules={
        "epilog": "hooks",
        "hostfile": "hostfile",
        "prolog": "hooks",
        "sbatch": "sbatch",
        "topology": "topology",
    },
)
def slurm() -> None:
    """For Slurm: rank orders, its topology file, and jobs planned before they start."""
