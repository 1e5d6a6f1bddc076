"""``heddle demand``: flows that are given directly, for traffic that no job describes."""

from __future__ import annotations

import click

from heddle.names import value_name
from heddle.v1 import demand_pb2 as pb
from heddle.v1.placement_pb2 import JobState
from heddle_controller.cli.client import Terms
from heddle_controller.cli.completing import DEMAND_SETS
from heddle_controller.cli.failure import LazyGroup
from heddle_controller.cli.options import (
    last_part,
    wait_until_gone,
    waiting_options,
    with_client,
)
from heddle_controller.cli.output import echo, echo_json, echo_table
from heddle_controller.cli.watching import of_plans, watchable
from heddle_controller.serve.codec import times


@click.group(cls=LazyGroup, package="heddle_controller.cli", modules={"put": "demand_put"})
def demand() -> None:
    """Set flows directly, and see measured rates."""


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
