"""``heddle show``: the newest plan, its routes, why a flow takes its path, and what-if."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click

from heddle.v1 import placement_pb2
from heddle.v1 import plan_pb2 as pb
from heddle_controller.cli import routes
from heddle_controller.cli.client import Terms
from heddle_controller.cli.completing import JOBS, SWITCHES_AND_LINKS
from heddle_controller.cli.failure import UNROUTED, CommandGroup, Failure
from heddle_controller.cli.options import INPUT_FILE, STATES, WHAT, link_ref, with_client
from heddle_controller.cli.output import echo, echo_json
from heddle_controller.cli.overlay import withdrawal_of
from heddle_controller.cli.watching import of_plans, watchable
from heddle_controller.model.files.flows_file import load_demands
from heddle_controller.serve.codec import demand as demand_codec
from heddle_controller.serve.codec import job as job_codec
from heddle_controller.traffic.jobs_file import load_jobs


@click.group(cls=CommandGroup)
def show() -> None:
    """Show the plan, its routes, and what a change would do."""


@show.command("plan")
@with_client
@watchable(of_plans, look=True)
def show_plan(client: Terms) -> None:
    """Show the newest plan and its certificate."""
    plan = client.api.plans.GetPlan(pb.GetPlanRequest(name=client.plan))
    if client.json:
        echo_json(plan)
        return
    routes.echo_plan(plan)
    if withdrawn := withdrawal_of(client):
        echo(withdrawn)


@show.command("routes")
@click.option("--job", default="", help="Only flows of this job.", shell_complete=JOBS)
@click.option(
    "--link",
    metavar="A,B[,KEY]",
    help="Only flows over this link.",
    shell_complete=SWITCHES_AND_LINKS,
)
@with_client
@watchable(of_plans)
def show_routes(client: Terms, job: str, link: str | None) -> None:
    """List flows and their paths."""
    _, found = client.api.list_routes(job, link_ref(link) if link else None)
    if job and not found:
        client.api.get_job(job)  # says so if there is none
    if client.json:
        for route in found:
            echo_json(route)
    else:
        routes.echo_routes(found)


@show.command("links")
@click.option(
    "--top",
    default=20,
    show_default=True,
    help="How many links to list; 0 lists all that carry traffic.",
)
@with_client
@watchable(of_plans)
def show_links(client: Terms, *, top: int) -> None:
    """List the fullest links of the plan, per direction, and the jobs that use them."""
    if top < 0:
        raise Failure(f"--top {top}: give a number from 0 up")
    found = client.api.list_link_loads(top)
    if client.json:
        echo_json(found)
    else:
        routes.echo_link_loads(found)


@show.command("explain")
@click.argument("flow")
@with_client
@watchable(of_plans)
def show_explanation(client: Terms, flow: str) -> None:
    """Explain why FLOW takes its path, or why it has none."""
    request = pb.ExplainFlowRequest(plan=client.plan, flow=flow)
    answer = client.api.plans.ExplainFlow(request)
    if client.json:
        echo_json(answer)
    else:
        routes.echo_explanation(answer)


@show.command("what-if")
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
    _add_states(request, states)
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
    answer = client.api.plans.WhatIf(request)
    if client.json:
        echo_json(answer)
    else:
        _echo_outcome(answer)
    sys.exit(UNROUTED if answer.unrouted else 0)


def _add_states(request: pb.WhatIfRequest, states: dict[str, tuple[str, ...]]) -> None:
    words = {"down": "down", "drain": "drained", "up": "up"}
    named = [what for option in words for what in states.get(option, ())]
    if twice := [what for what in named if named.count(what) > 1]:
        raise Failure(f"{twice[0]} is named twice: give it one of --down, --drain and --up")
    for option, word in words.items():
        for what in states.get(option, ()):
            if "," in what:
                request.links.add(link=link_ref(what), admin_state=STATES[word])
            else:
                request.switches.add(node=what, admin_state=STATES[word])


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
