"""Options that several commands share; each may be given before or after the command."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from heddle.client import TimedOut, Unavailable
from heddle.names import link_name, value_name
from heddle.v1 import common_pb2
from heddle_controller.cli.client import Terms
from heddle_controller.cli.completing import FABRICS
from heddle_controller.cli.failure import Failure
from heddle_controller.cli.output import format_options

Command = Callable[..., Any]
_Answer = TypeVar("_Answer")

INPUT_FILE = click.Path(path_type=Path, dir_okay=False)
"""A file to read. Its reader checks that it exists, and names the cure if not."""
OUTPUT_FILE = click.Path(path_type=Path, dir_okay=False, allow_dash=True)
_MOST = (1 << 31) - 1
POSITIVE = click.IntRange(1, _MOST)
NOT_NEGATIVE = click.IntRange(0, _MOST)
"""Numbers that a message can carry. The controller knows their real limits."""


def with_server(command: Command) -> Command:
    """Pass ``Terms`` to the command first, changed by the options after the command."""

    @click.option("--server", metavar="HOST:PORT[,...]", help="Addresses of the controller.")
    @click.option("--fabric", help="Name of the fabric.", shell_complete=FABRICS)
    @click.pass_obj
    @wraps(command)
    def run(
        client: Terms,
        /,
        *args: Any,  # noqa: ANN401 - whatever the command takes
        server: str | None,
        fabric: str | None,
        **options: Any,  # noqa: ANN401 - whatever the command takes
    ) -> Any:  # noqa: ANN401 - click decides what it means
        changed = replace(
            client,
            server=server or client.server,
            named_fabric=fabric or client.named_fabric,
        )
        with changed.failing():
            return command(changed, *args, **options)

    return run


def with_client(command: Command) -> Command:
    """Do what ``with_server`` does, for a command that prints: add --json and --yaml."""

    @format_options
    @wraps(command)
    def run(
        client: Terms,
        /,
        *args: Any,  # noqa: ANN401 - whatever the command takes
        as_json: bool,
        **options: Any,  # noqa: ANN401 - whatever the command takes
    ) -> Any:  # noqa: ANN401 - click decides what it means
        return command(replace(client, json=as_json or client.json), *args, **options)

    return with_server(run)


STATES = {
    "up": common_pb2.STATE_UP,
    "down": common_pb2.STATE_DOWN,
    "drained": common_pb2.STATE_DRAINED,
}
STATE = click.Choice(list(STATES))
WHAT = "SWITCH|A,B[,KEY]"
"""How commands describe an argument that is a switch or a link."""


def state_word(state: int) -> str:
    """Return the word for a state: up, down or drained."""
    return value_name(common_pb2.State.DESCRIPTOR, state, "STATE_").lower()


def link_ref(text: str) -> common_pb2.LinkRef:
    """Return the link that ``A,B`` or ``A,B,KEY`` names.

    Raises:
        Failure: The text has another form.
    """
    parts = text.split(",")
    if len(parts) not in (2, 3) or not all(parts):
        raise Failure(f"{text!r} is not a link: write A,B or A,B,KEY with the ids of its ends")
    return common_pb2.LinkRef(source=parts[0], target=parts[1], key=parts[2] if parts[2:] else "")


def ref_text(link: common_pb2.LinkRef) -> str:
    """Return a link as ``A,B,KEY``, which ``link_ref`` accepts."""
    return link_name(link.source, link.target, link.key)


def last_part(name: str) -> str:
    """Return the last part of a resource name: ``j1`` for ``fabrics/f1/jobs/j1``."""
    return name.rpartition("/")[2]


def in_turn(
    client: Terms, jobs: Iterable[str], call: Callable[[str], _Answer], done: str
) -> list[_Answer]:
    """Make a call for each job, once, and return the answers.

    Raises:
        Failure: A call was refused. It names the job, and says how many before it are ``done``,
            such as "deleted".
    """
    answers: list[_Answer] = []
    for job in dict.fromkeys(jobs):
        try:
            with client.failing():
                answers.append(call(job))
        except Failure as failure:
            before = f" ({len(answers)} {done} before it)" if answers else ""
            text = f"job {job!r}: {failure.message.removeprefix(f'job {job!r}: ')}{before}"
            raise Failure(text, failure.exit_code, failure.details) from failure
    return answers


def waiting_options(command: Command) -> Command:
    """Add the options ``wait`` and ``seconds`` to a command."""
    wait = click.option(
        "--wait", is_flag=True, help="Exit only when no switch holds an entry of the job."
    )
    seconds = click.option(
        "--seconds",
        type=float,
        help="With --wait: exit 2 after this many seconds, and name the switches that have "
        "not answered.",
    )
    return wait(seconds(command))


def wait_until_gone(client: Terms, version: int, seconds: float | None) -> None:
    """Return when no switch holds an entry of what was deleted, even if a controller restarts.

    Args:
        client: The client to use.
        version: Version of an intent without it, from the controller; 0 if it could not tell.
        seconds: The longest time to wait; None waits as long as it takes.

    Raises:
        Failure: It took too long, or ``version`` is 0.
    """
    try:
        client.api.wait_until_gone(version, seconds)
    except (TimedOut, Unavailable) as error:
        raise Failure(f"deleted, but {error.message}") from error
