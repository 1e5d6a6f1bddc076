"""``heddle demand``: flows that are given directly, for traffic that no job describes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from heddle.names import value_name
from heddle.v1 import demand_pb2 as pb
from heddle.v1.placement_pb2 import JobState
from heddle_controller.cli.client import Terms
from heddle_controller.cli.completing import DEMAND_SETS
from heddle_controller.cli.failure import CommandGroup
from heddle_controller.cli.options import (
    INPUT_FILE,
    last_part,
    wait_until_gone,
    waiting_options,
    with_client,
)
from heddle_controller.cli.output import echo, echo_json, echo_pairs, echo_table
from heddle_controller.cli.watching import of_plans, watchable
from heddle_controller.model.demand import Demands
from heddle_controller.model.files.flows_file import load_demands
from heddle_controller.serve.codec import demand as codec
from heddle_controller.serve.codec import times

PER_MESSAGE = 20_000
"""Flows per message, far below the size that a server accepts."""


@click.group(cls=CommandGroup)
def demand() -> None:
    """Set flows directly, and see measured rates."""


@demand.command("put")
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


@demand.command("list")
@with_client
@watchable(of_plans, look=True)
def list_sets(client: Terms) -> None:
    """List demand sets and their states."""
    found = client.api.list_demand_sets()
    if client.json:
        echo_json(found)
        return
    rows = [
        (
            last_part(one.name),
            value_name(JobState.DESCRIPTOR, one.state, "JOB_STATE_"),
            one.flow_count,
            one.unrouted_count,
            times.time_text(one.update_time),
            one.reason,
        )
        for one in found
    ]
    echo_table(["demands", "state", "flows", "unrouted", "put", "reason"], rows)


@demand.command("show")
@click.argument("name", shell_complete=DEMAND_SETS)
@with_client
def show(client: Terms, name: str) -> None:
    """List the flows of a demand set."""
    found = client.api.list_demands(name)
    if client.json:
        echo_json(found)
        return
    rows = [(d.flow, d.source, d.destination, f"{d.gbps:g}", d.job, d.phase, d.qps) for d in found]
    echo_table(["flow", "src", "dst", "gbps", "job", "phase", "qps"], rows)


@demand.command("delete")
@click.argument("name", shell_complete=DEMAND_SETS)
@waiting_options
@with_client
def delete(client: Terms, name: str, seconds: float | None, *, wait: bool) -> None:
    """Delete a demand set."""
    request = pb.DeleteDemandsRequest(name=f"{client.fabric}/demands/{name}")
    version = client.api.demands.DeleteDemands(request).intent_version
    if not client.json:
        echo(f"deleted {name}")
    if wait:
        wait_until_gone(client, version, seconds)
    if client.json:
        echo_json({"deleted": [name], "gone": wait})


@demand.command("rates")
@click.option("--seconds", type=float, help="Stop after this many seconds.")
@with_client
def rates(client: Terms, seconds: float | None) -> None:
    """Print measured rates of flows as they arrive."""
    for batch in client.api.watch_rates(seconds):
        if client.json:
            echo_json(batch)
            continue
        for flow, gbps in zip(batch.flows, batch.rates_gbps, strict=True):
            echo(f"{flow} {gbps:.3f} Gbit/s")
