"""Waiting until no switch holds an entry of what was deleted."""

from __future__ import annotations

import click

from heddle.client import TimedOut
from heddle_controller.cli.client import Terms
from heddle_controller.cli.failure import Failure
from heddle_controller.cli.options import Command


def waiting_options(command: Command) -> Command:
    """Gives a command that deletes the options ``wait`` and ``seconds``."""
    wait = click.option(
        "--wait", is_flag=True, help="Exit only when no switch holds an entry of it."
    )
    seconds = click.option(
        "--seconds",
        type=float,
        help="With --wait: exit 2 after so long, and name the switches still waited for.",
    )
    return wait(seconds(command))


def wait_until_gone(client: Terms, version: int, seconds: float | None) -> None:
    """Return when no switch holds an entry of what was deleted; a controller may restart meanwhile.

    Args:
        client: Whom to ask.
        version: Of an intent without it, as the controller told; 0: it could not tell.
        seconds: The longest to wait; None: as long as it takes.

    Raises:
        Failure: that took too long, or the controller does not tell.
    """
    if not version:
        raise Failure("deleted, but the controller could not tell when its entries are gone")
    try:
        client.api.wait_until_gone(version, seconds)
    except TimedOut as error:
        raise Failure(f"deleted, but {error.message}") from error
