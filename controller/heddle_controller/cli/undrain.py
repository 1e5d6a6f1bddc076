"""``heddle undrain``: put a link or a switch back into service."""

from __future__ import annotations

import click

from heddle.v1.common_pb2 import STATE_UP
from heddle_controller.cli.client import Terms
from heddle_controller.cli.drain import DrainTarget
from heddle_controller.cli.options import WHAT, with_client
from heddle_controller.cli.output import echo, echo_json


@click.command("undrain")
@click.argument("what", metavar=WHAT)
@with_client
def undrain(client: Terms, what: str) -> None:
    """Bring back a link or a switch that was drained: new plans may use it.

    Flows return where that makes the plan better by enough, after some quiet.
    """
    DrainTarget(what).set(client, STATE_UP)
    if client.json:
        echo_json({"undrained": what})
    else:
        echo(f"{what} takes new paths")
