"""``heddle token``: makes bearer tokens on the machine that keeps their file, without a server."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from heddle_controller.cli.failure import CommandGroup, Failure
from heddle_controller.cli.options import OUTPUT_FILE
from heddle_controller.cli.output import echo, echo_json, echo_table, format_options
from heddle_controller.serve.codec import times
from heddle_controller.serve.security.caller import ONE_NODE, ROLES, Caller
from heddle_controller.serve.security.files import Grant, new_token, read_grants

DAY = 86_400.0
_FILE = click.option(
    "--file",
    "path",
    type=OUTPUT_FILE,
    required=True,
    help="File that the controller's --tokens option names.",
)


@click.group(cls=CommandGroup)
def token() -> None:
    """Make and list bearer tokens; works on the controller's file."""


@token.command("new")
@click.argument("name")
@_FILE
@click.option(
    "--role", type=click.Choice(list(ROLES)), required=True, help="Role: what the token allows."
)
@click.option("--days", default=90.0, show_default=True, help="Days until the token expires.")
@click.option("--fabric", default="", help="Fabric of an agent or a host.")
@click.option("--switch", default="", help="Switch of an agent.")
@click.option("--host", default="", help="Name of a host in the fabric.")
@format_options
def new(
    name: str,
    path: Path,
    *,
    role: str,
    days: float,
    fabric: str,
    switch: str,
    host: str,
    as_json: bool,
) -> None:
    """Make a token called NAME: print it once, and add its hash to the file."""
    if bool(switch) != (role == "agent") or bool(host) != (role == "host"):
        raise Failure("an agent's token needs --switch, a host's --host, no other has them")
    if bool(fabric) != (ROLES[role] in ONE_NODE):
        raise Failure("the token of an agent or a host needs --fabric, no other has it")
    if not 0 < days < 36_500:  # noqa: PLR2004 - a century
        raise Failure(f"--days {days:g}: give a number above 0 and below 36500")
    caller = Caller(ROLES[role], "", fabric, switch or host)
    try:
        made, grant = new_token(caller, name, time.time() + days * DAY)
    except ValueError as error:
        raise Failure(str(error)) from None
    _add(path, grant)
    if as_json:
        echo_json({"name": name, "token": made, "expires": _time(grant)})
    else:
        echo(made)


def _time(grant: Grant) -> str:
    return times.time_text(times.time_to_pb(grant.expires))


def _add(path: Path, grant: Grant) -> None:
    """Append to the file in one write; only its owner may read or write a new file."""
    try:
        if path.exists() and grant.name in read_grants(path):
            raise Failure(f"{path} has a token {grant.name!r}: take its line out first")
        ends = not path.exists() or not path.stat().st_size or path.read_bytes().endswith(b"\n")
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(file, "w") as lines:
            lines.write(f"{'' if ends else chr(10)}{grant.line()}\n")
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None


@token.command("list")
@_FILE
@format_options
def list_tokens(path: Path, *, as_json: bool) -> None:
    """List the tokens of the file, without their secrets."""
    now = time.time()
    rows = [
        {
            "name": grant.name,
            "role": str(grant.caller.role),
            "for": f"{grant.caller.fabric}/{grant.caller.speaks_for}".strip("/"),
            "expires": _time(grant),
            "state": "valid" if now < grant.expires else "expired",
        }
        for grant in read_grants(path).values()
    ]
    if as_json:
        for row in rows:
            echo_json(row)
        return
    columns = ("name", "role", "for", "expires", "state")
    echo_table(columns, [[row[column] for column in columns] for row in rows])
