"""What prolog and epilog share: limits of time, a controller that answers, and no failure."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

import click

from heddle.client import HeddleError, NotFound
from heddle_controller.cli.client import Terms
from heddle_controller.cli.failure import Failure
from heddle_controller.cli.options import last_part
from heddle_controller.cli.output import echo
from heddle_controller.cli.slurm.folder import JobsFolder
from heddle_controller.model.errors import InputError

_Command = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a job may be kept waiting."""

    wait: float
    """Seconds in all."""
    answer: float
    """Of these, until some controller has answered."""
    begun: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds that are left, at least a little: what is asked then fails in good order."""
        return max(0.05, self.begun + self.wait - time.monotonic())


def handover_options(command: _Command) -> _Command:
    """Options of both."""

    @click.option(
        "--directory",
        envvar="HEDDLE_SLURM_DIRECTORY",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("/var/spool/heddle-slurm"),
        show_default=True,
        help="Folder of the jobs. Where nodes share it, jobs find their ports there.",
    )
    @click.option(
        "--wait",
        envvar="HEDDLE_SLURM_WAIT",
        type=click.FloatRange(min=0.1, max=25),
        default=5.0,
        show_default=True,
        help="Seconds that a job may be kept waiting in all.",
    )
    @click.option(
        "--answer",
        envvar="HEDDLE_SLURM_ANSWER",
        type=click.FloatRange(min=0.05, max=25),
        default=0.5,
        show_default=True,
        help="Of these, seconds until a controller has to have answered.",
    )
    @wraps(command)
    def run(*args: Any, wait: float, answer: float, **options: Any) -> None:  # noqa: ANN401 - click's
        command(*args, patience=Patience(wait, answer), **options)

    return run


def never_failing(command: _Command) -> _Command:
    """A command that tells what it fails of, and succeeds."""

    @wraps(command)
    def run(client: Terms, **options: Any) -> None:  # noqa: ANN401 - whatever the command takes
        try:
            command(client, **options)
        except Exception as error:  # noqa: BLE001 - Slurm would take the job for a failed one
            note(f"job {os.environ.get('SLURM_JOB_ID')}: {said(client, error)}")

    return run


def note(text: str) -> None:
    """A line of the log."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    echo(f"{now} {text}", err=True)


def said(client: Terms, error: Exception) -> str:
    """An error in one line."""
    try:
        with client.failing():
            raise error  # noqa: TRY301 - for what the context makes of it
    except Failure as failure:
        return "; ".join([failure.message, *failure.details])
    except InputError as refused:
        return str(refused)
    except OSError as failed:
        return f"{failed.filename or 'the disk'}: {failed.strerror}"
    except Exception as failed:  # noqa: BLE001 - as above
        return f"{type(failed).__name__}: {failed}"


def answering(client: Terms, patience: Patience) -> Terms:
    """A client of the first controller that answers at all, within what is left.

    Raises:
        HeddleError: none does. Failure: it has no such fabric, or several and none was named.
    """
    addresses = client.server.split(",")
    for number, address in enumerate(addresses, 1):
        found = replace(client, server=address, timeout=patience.answer / len(addresses))
        try:
            known = {last_part(fabric.name) for fabric in found.api.list_fabrics()}
        except HeddleError:
            if number == len(addresses):
                raise
            continue
        named = last_part(found.named_fabric or found.fabric)
        if named not in known:
            raise Failure(f"the controller at {address} has no fabric {named!r}")
        return replace(found, timeout=patience.left, named_fabric=named)
    raise AssertionError("an empty text has one part")


def pay(client: Terms, jobs: JobsFolder, patience: Patience) -> None:
    """Tell the controller of jobs that ended while none answered; half the time is for that."""
    for job in jobs.debts():
        if patience.left < patience.wait / 2:
            return
        with jobs.held(job, wait=False) as owed:
            if owed:
                with suppress(NotFound):
                    client.api.delete_job(job)
