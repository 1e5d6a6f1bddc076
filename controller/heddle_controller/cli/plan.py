"""``heddle plan``: plans offline from files, and compares or restores a controller's plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from heddle.ports import PORT_COUNT
from heddle.v1 import common_pb2
from heddle.v1 import plan_pb2 as pb
from heddle_controller.cli.client import Terms
from heddle_controller.cli.failure import EXIT_CODES, CommandGroup, Failure
from heddle_controller.cli.history import causes_text, seconds_of
from heddle_controller.cli.options import with_client
from heddle_controller.cli.output import (
    document_of,
    echo,
    echo_json,
    echo_pairs,
    echo_table,
    format_options,
)
from heddle_controller.cli.routes import path_text
from heddle_controller.serve.codec import times

_FILE = click.Path(path_type=Path)
"""A path that is checked by the code that opens it, which names the cure in one line."""
GENERATIONS = 2**63 - 1


@click.group(cls=CommandGroup, invoke_without_command=True, epilog=EXIT_CODES)
@click.option("--fabric", type=_FILE, help="fabric.json, plain or gzip.")
@click.option("--flows", type=_FILE, help="flows.csv, plain or gzip.")
@click.option("--jobs", type=_FILE, help="jobs.yaml; its flows are added to --flows.")
@click.option("--qps", type=click.IntRange(1, PORT_COUNT), help="QPs of every flow.")
@click.option(
    "--down",
    multiple=True,
    metavar="A,B[,KEY]|SWITCH",
    help="Plan as if this link or switch were down; may be repeated. Without KEY: all "
    "links between A and B.",
)
@click.option("--previous", type=_FILE, help="Repair this plan.json instead of planning anew.")
@click.option(
    "--port-paths",
    type=_FILE,
    help="port-paths.json, for a fabric whose switches hash (forwarding: ecmp): the path "
    "of each UDP source port.",
)
@click.option(
    "--time-limit", type=float, metavar="S", help="Stop improving the plan after this many seconds."
)
@click.option(
    "--objective",
    type=click.Choice(["headroom", "economy"]),
    default="headroom",
    show_default=True,
    help="headroom: where tables have room, spread QPs even if no link is full, so that "
    "local repair finds room. economy: write as few entries as possible.",
)
@click.option(
    "--protect",
    type=click.Choice(["link", "switch", "none"]),
    default="link",
    show_default=True,
    help="Choose backups for the loss of any single link or any single switch, or choose none.",
)
@click.option("--out", type=_FILE, help="Write plan.json here; .gz compresses.")
@click.option(
    "--eos",
    type=_FILE,
    metavar="FOLDER",
    help="For each switch, write a traffic policy for Arista EOS (SWITCH.eos), and its "
    "differences from the file that was there (SWITCH.eos.diff). Review them before "
    "use.",
)
@format_options
@click.pass_context
def plan(ctx: click.Context, /, *, as_json: bool, **asked: Any) -> None:  # noqa: ANN401 - see PlanRequest
    """Plan flows on a fabric offline, without a controller.

    The commands below work on a controller's plans.
    """
    if ctx.invoked_subcommand is not None:
        return
    if asked["fabric"] is None:
        raise click.UsageError("Missing option '--fabric'.", ctx)
    # Commands on a controller's plans do not wait for what only this one needs.
    from heddle_controller.cli.plan_offline import plan_files  # noqa: PLC0415

    client = ctx.find_object(Terms)
    plan_files(asked, as_json=as_json or (client is not None and client.json))


@plan.command("diff")
@click.argument("before", type=click.IntRange(1, GENERATIONS))
@click.argument("after", type=click.IntRange(0, GENERATIONS), default=0)
@with_client
def diff(client: Terms, *, before: int, after: int) -> None:
    """Show what moved from one plan to another; without AFTER, to the newest plan.

    A plan is given by its generation; 'heddle history' lists generations. The
    newest 16 plans are kept.
    """
    request = pb.ComparePlansRequest(plan=f"{client.fabric}/plan", before=before, after=after)
    answer = client.api.plans.ComparePlans(request)
    if client.json:
        echo_json(answer)
        return
    was, now = answer.before, answer.after
    echo_pairs(
        {
            "plans": f"{was.generation} -> {now.generation}",
            "why": causes_text(answer.causes),
            "worst link": f"{was.certificate.max_utilization:.3f} -> "
            f"{now.certificate.max_utilization:.3f}",
            "without a path": f"{was.unrouted_count} -> {now.unrouted_count}",
            "moved": f"{answer.moved_count} flows",
        }
    )
    if answer.jobs:
        rows = [
            (
                one.job or "-",
                _share(one.before),
                _share(one.after),
                one.after.flow or one.before.flow,
            )
            for one in answer.jobs
        ]
        echo_table(["job", "slowest flow before", "after", "flow"], rows)
    _echo_moved(answer)


def _share(slowest: pb.SlowestFlow) -> str:
    """Return what the slowest flow of a job gets; "-" if the plan has no flow of the job."""
    return f"{slowest.share:.1%}" if slowest.flow else "-"


def _echo_moved(answer: pb.ComparePlansResponse) -> None:
    """Print flows whose paths differ, if there are any: paths that went by -, those that came by +.

    Paths that stay for the same QPs are not told.
    """
    for one in answer.moved:
        echo(f"flow {one.flow}")
        before, after = ([*map(_path, paths)] or ["no path"] for paths in (one.before, one.after))
        for mark, paths, others in (("-", before, after), ("+", after, before)):
            for path in paths:
                if path not in others:
                    echo(f"  {mark} {path}")
    if answer.moved_count > len(answer.moved):
        echo(f"and {answer.moved_count - len(answer.moved)} more", err=True)


@plan.command("rollback")
@click.argument("generation", type=click.IntRange(1, GENERATIONS))
@click.option(
    "--for",
    "time",
    default="1h",
    show_default=True,
    metavar="1h",
    help="How long to keep it, in s, m, h or d.",
)
@with_client
def rollback(client: Terms, *, generation: int, time: str) -> None:
    """Return to an earlier plan, and keep it for a time.

    Flows get the paths that they had in that plan, if the links are there; the command names flows
    that did not get them. Lost links are repaired, but the plan is not improved during this time.
    'heddle plan release' ends it.
    """
    request = pb.RollBackPlanRequest(
        plan=client.plan, generation=generation, seconds=seconds_of(time, "--for")
    )
    wanted = client.api.plans.RollBackPlan(request)
    follows = _plan_for(client, wanted)
    compare = pb.ComparePlansRequest(plan=client.plan, before=generation, after=follows)
    answer = client.api.plans.ComparePlans(compare)
    if client.json:
        told = document_of(wanted)
        told["plan"] = str(follows)  # a string, as all 64-bit numbers of the API are in JSON
        told |= {"not_back": [*answer.moved], "not_back_count": answer.moved_count}
        echo_json(told)
        return
    echo(f"back to plan {generation} until {times.time_text(wanted.end_time)}: plan {follows}")
    if answer.moved_count:
        since = causes_text(answer.causes)
        why = f"; since then: {since}" if since else ""
        echo(f"flows that did not get their paths back: {answer.moved_count}{why}")
        _echo_moved(answer)


def _plan_for(client: Terms, wanted: pb.Rollback) -> int:
    """Wait for the first plan that follows a rollback, and return its generation."""
    for plan in client.api.watch_plans(client.timeout):
        if plan.answered_version >= wanted.intent_version:
            return plan.generation
    raise Failure(
        f"the rollback is stored, but no plan followed it in {client.timeout:g} s: "
        "see heddle show plan, and the controller's log"
    )


@plan.command("release")
@with_client
def release(client: Terms) -> None:
    """End a rollback early: new plans are made again."""
    client.api.plans.EndRollback(pb.EndRollbackRequest(plan=f"{client.fabric}/plan"))
    if client.json:
        echo_json({"released": True})
    else:
        echo("plans are made freely again")


def _path(path: common_pb2.Path) -> str:
    """Return the nodes of a path, with its QPs if the flow has others elsewhere."""
    some = f" (QPs {path.first_qp}-{path.last_qp})" if path.share < 1 else ""
    return path_text(path) + some
