"""``heddle demand put``, which reads a flows.csv."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from heddle.v1 import demand_pb2 as pb
from heddle_controller.cli.client import Terms
from heddle_controller.cli.options import INPUT_FILE, last_part, with_client
from heddle_controller.cli.output import echo, echo_json, echo_pairs
from heddle_controller.model.demand import Demands
from heddle_controller.model.files.flows_file import load_demands
from heddle_controller.serve.codec import demand as codec

PER_MESSAGE = 20_000
"""Flows per message, far below the size that a server accepts."""


@click.command("put")
@click.argument("name")
@click.argument("file", type=INPUT_FILE)
@with_client
def put(client: Terms, name: str, file: Path) -> None:
    """Set the flows of the demand set NAME from a flows.csv."""
    demands = load_demands(file, note=partial(echo, err=True))
    messages = _messages(f"{client.fabric}/demands/{name}", demands)
    stored = client.api.demands.PutDemands(messages)
    if client.json:
        echo_json(stored)
    else:
        echo_pairs({"demands": last_part(stored.name), "flows": stored.flow_count})


def _messages(name: str, demands: Demands) -> Iterator[pb.PutDemandsRequest]:
    yield pb.PutDemandsRequest(name=name, flow_count=len(demands))
    for first in range(0, len(demands), PER_MESSAGE):
        rows = range(first, min(first + PER_MESSAGE, len(demands)))
        yield pb.PutDemandsRequest(demands=[codec.demand_to_pb(demands, row) for row in rows])
