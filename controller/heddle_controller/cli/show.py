"""``heddle show``: the newest plan, its routes, and why a flow takes its path."""

from __future__ import annotations

import click

from heddle.v1 import plan_pb2 as pb
from heddle_controller.cli import routes
from heddle_controller.cli.client import Terms
from heddle_controller.cli.completing import JOBS, SWITCHES_AND_LINKS
from heddle_controller.cli.failure import Failure, LazyGroup
from heddle_controller.cli.options import naming_link, with_client
from heddle_controller.cli.output import echo, echo_json
from heddle_controller.cli.overlay import withdrawal_of
from heddle_controller.cli.watching import of_plans, watchable


@click.group(cls=LazyGroup, package="heddle_controller.cli", modules={"what-if": "what_if"})
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
    if link:
        _, found = naming_link(client, link, lambda one: client.api.list_routes(job, one))
    else:
        _, found = client.api.list_routes(job)
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
