"""``heddle show what-if``: what a change would do."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click

from heddle.v1 import placement_pb2
from heddle.v1 import plan_pb2 as pb
from heddle_controller.cli import routes
from heddle_controller.cli.client import Terms
from heddle_controller.cli.completing import JOBS, SWITCHES_AND_LINKS
from heddle_controller.cli.failure import UNROUTED, Failure
from heddle_controller.cli.options import INPUT_FILE, STATES, WHAT, Named, naming, with_client
from heddle_controller.cli.output import echo, echo_json, progress
from heddle_controller.model.files.flows_file import load_demands
from heddle_controller.serve.codec import demand as demand_codec
from heddle_controller.serve.codec import job as job_codec
from heddle_controller.traffic.jobs_file import load_jobs


@click.command("what-if")
@click.option(
    "--down",
    multiple=True,
    metavar=WHAT,
    shell_complete=SWITCHES_AND_LINKS,
    help="Assume that this link or switch is down; may be repeated.",
)
@click.option(
    "--drain",
    multiple=True,
    metavar=WHAT,
    shell_complete=SWITCHES_AND_LINKS,
    help="Assume that it is drained; may be repeated.",
)
@click.option(
    "--up",
    multiple=True,
    metavar=WHAT,
    shell_complete=SWITCHES_AND_LINKS,
    help="Assume that it is up; may be repeated.",
)
@click.option(
    "--jobs", type=INPUT_FILE, help="Assume that the jobs of this jobs.yaml are submitted."
)
@click.option(
    "--without-job",
    multiple=True,
    metavar="JOB",
    shell_complete=JOBS,
    help="Assume that this job is deleted; may be repeated.",
)
@click.option(
    "--flows", type=INPUT_FILE, help="Assume a demand set with the flows of this flows.csv."
)
@with_client
def show_what_if(
    client: Terms,
    jobs: Path | None,
    without_job: tuple[str, ...],
    flows: Path | None,
    **states: tuple[str, ...],
) -> None:
    """Plan a change without making it; exit 3 if flows would have no path."""
    request = pb.WhatIfRequest(fabric=client.fabric, deleted_jobs=without_job)
    words = _words(states)
    if jobs:
        request.jobs.extend(
            placement_pb2.Job(
                name=f"{client.fabric}/jobs/{job.name}", spec=job_codec.job_to_pb(job)
            )
            for job in load_jobs(jobs)
        )
    if flows:
        demands = load_demands(flows, note=partial(echo, err=True))
        request.demands.extend(
            demand_codec.demand_to_pb(demands, row) for row in range(len(demands))
        )

    def ask(named: Mapping[str, Named]) -> pb.WhatIfResponse:
        request.ClearField("links")
        request.ClearField("switches")
        for text, one in named.items():
            if isinstance(one, str):
                request.switches.add(node=one, admin_state=STATES[words[text]])
            else:
                request.links.add(link=one, admin_state=STATES[words[text]])
        return client.api.plans.WhatIf(request)

    with progress("planning the change"):
        answer = naming(client, words, ask)
    if client.json:
        echo_json(answer)
    else:
        _echo_outcome(answer)
    sys.exit(UNROUTED if answer.unrouted else 0)


def _words(states: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return the word for the wanted state of each switch or link that options name."""
    words = {"down": "down", "drain": "drained", "up": "up"}
    named = [(what, word) for option, word in words.items() for what in states.get(option, ())]
    every = [what for what, _ in named]
    if twice := [what for what in every if every.count(what) > 1]:
        raise Failure(f"{twice[0]} is named twice: give it one of --down, --drain and --up")
    return dict(named)


def _echo_outcome(answer: pb.WhatIfResponse) -> None:
    for title, plan in (("now", answer.before), ("then", answer.after)):
        text = routes.certificate_text(plan.certificate)
        echo(f"{title:4}  worst link {text}; {plan.unrouted_count} flows without a path")
    routes.echo_tiers(answer.after.certificate)
    echo(f"{answer.after.changed_count} flows would move")
    for flow in answer.moved_flows[:20]:
        echo(f"  {flow}")
    if len(answer.moved_flows) > 20:  # noqa: PLR2004 - a screenful
        echo("  ... (--json lists up to 1000)")
    if answer.unrouted:
        routes.echo_routes(answer.unrouted)
