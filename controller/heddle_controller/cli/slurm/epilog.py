"""``heddle slurm epilog``: what EpilogSlurmctld runs, once a job is over or is to start anew."""

from __future__ import annotations

import os
from pathlib import Path

import click

from heddle_controller.cli.client import Terms
from heddle_controller.cli.options import with_server
from heddle_controller.cli.slurm.allocation import slurm_job_name
from heddle_controller.cli.slurm.folder import JobsFolder
from heddle_controller.cli.slurm.handover import (
    Patience,
    answering,
    handover_options,
    never_failing,
    note,
    pay,
)


@click.command("epilog")
@handover_options
@with_server
@never_failing
def epilog(client: Terms, directory: Path, patience: Patience) -> None:
    """End the job that Slurm has ended, so that its routes go and its hosts are free.

    For EpilogSlurmctld, see deploy/slurm. Where no controller answers, that is noted, and the next
    prolog or epilog that reaches one ends the job. It never fails.
    """
    jobs = JobsFolder(directory)
    name = slurm_job_name(os.environ, os.environ.get("SLURM_JOB_ID", ""))
    if not jobs.knows(name):
        return
    jobs.owe(name)
    jobs.forget(name)
    pay(answering(client, patience), jobs, patience)
    if name not in jobs.debts():
        note(f"{name} is ended")
