"""Options that several commands share; each may be given before or after the command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from heddle.client import HeddleError, InvalidRequest, NotFound, TimedOut, Unavailable
from heddle.names import link_name, value_name
from heddle.v1 import common_pb2, fabric_pb2
from heddle_controller.cli.client import Terms
from heddle_controller.cli.completing import FABRICS
from heddle_controller.cli.failure import Failure
from heddle_controller.cli.output import format_options

Command = Callable[..., Any]
Named = str | common_pb2.LinkRef
"""The id of a switch, or a link."""
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


def naming(
    client: Terms,
    texts: Iterable[str],
    call: Callable[[Mapping[str, Named]], _Answer],
) -> _Answer:
    """Return the answer of a call that gets what each of some texts names.

    A text without a comma is the id of a switch, and ``A,B`` or ``A,B,KEY`` is a link. The call is
    made again if ids have commas themselves: all are looked up only if the controller refuses the
    first reading, as that may take a second in a large fabric.

    Raises:
        Failure: A text has another form.
    """
    read = {text: _plainly(text) for text in texts}
    refused: HeddleError | None = None
    plain = {text: named for text, named in read.items() if named is not None}
    if len(plain) == len(read):
        try:
            return call(plain)
        except (InvalidRequest, NotFound) as error:
            refused = error
    looked_up = _looked_up(client, [text for text in read if "," in text])
    for text in read:
        if text not in looked_up and text not in plain:
            cure = "write A,B or A,B,KEY with the ids of its ends"
            raise Failure(f"{text!r} is no link of the fabric: {cure}")
    again = {**plain, **looked_up}
    if refused is not None and again == plain:
        raise refused
    return call(again)


def naming_link(client: Terms, text: str, call: Callable[[common_pb2.LinkRef], _Answer]) -> _Answer:
    """Return the answer of a call that gets the link which a text names; see ``naming``.

    Raises:
        Failure: The text names a switch, or has another form.
    """

    def with_link(named: Mapping[str, Named]) -> _Answer:
        link = named[text]
        if isinstance(link, str):
            raise Failure(f"{text!r} is not a link: write A,B or A,B,KEY with the ids of its ends")
        return call(link)

    return naming(client, [text], with_link)


def _plainly(text: str) -> Named | None:
    """Return what a text names if no id in it has a comma; None if it has another form."""
    parts = text.split(",")
    if len(parts) == 1:
        return text
    if len(parts) > 3 or not all(parts):  # noqa: PLR2004 - both ends and a key
        return None
    return common_pb2.LinkRef(source=parts[0], target=parts[1], key=parts[2] if parts[2:] else "")


def _looked_up(client: Terms, texts: Sequence[str]) -> dict[str, Named]:
    """Return what texts name in the stored fabric; those that name nothing there are left out."""
    if not texts:
        return {}
    from heddle_controller.serve.codec import common  # noqa: PLC0415 - slow to import
    from heddle_controller.serve.codec import fabric as codec  # noqa: PLC0415 - slow to import

    request = fabric_pb2.GetFabricRequest(name=client.fabric)
    fabric = codec.fabric_from_pb(client.api.fabrics.GetFabric(request))
    found: dict[str, Named] = {text: text for text in texts if text in fabric.structure.index}
    for text in texts:
        if text not in found and (link := common.link_named(fabric, text)) is not None:
            found[text] = link
    return found


def ref_text(link: common_pb2.LinkRef) -> str:
    """Return a link as ``A,B,KEY``, as ``naming`` takes it."""
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
