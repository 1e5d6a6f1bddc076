"""``heddle history``: what changed, who did it, which plan followed, and what moved."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable

import click

from heddle.client import NotAllowed
from heddle.names import value_name
from heddle.v1 import audit_pb2
from heddle.v1 import plan_pb2 as pb
from heddle_controller.cli.client import Terms
from heddle_controller.cli.failure import Failure
from heddle_controller.cli.options import last_part, with_client
from heddle_controller.cli.output import echo, echo_json, echo_table
from heddle_controller.cli.watching import of_plans, watchable
from heddle_controller.serve.codec import times

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_STATES = {"set_link_state", "set_switch_state"}
"""Actions whose new state is told."""
_PAGE = 1000
"""Audit records per answer."""
_COLUMNS = ("time", "who", "plan", "what", "moved", "worst link", "bound", "no path")


@click.command("history")
@click.option(
    "--since", default="1d", show_default=True, metavar="1h", help="How far back, in s, m, h or d."
)
@with_client
@watchable(of_plans, look=True)
def history(client: Terms, *, since: str) -> None:
    """List changes by clients and the plans that followed, oldest first.

    Only operators see who asked for a change. --json prints a list; each element has either a plan
    or a change.
    """
    start = time.time() - seconds_of(since, "--since")
    events: list[pb.PlanSummary | audit_pb2.AuditRecord] = [
        *client.api.list_plans(since=start),
        *_records(client, start),
    ]
    events.sort(key=_time)
    if client.json:
        echo_json(
            [{"plan" if isinstance(one, pb.PlanSummary) else "change": one} for one in events]
        )
        return
    if not events:
        echo(f"nothing changed in the last {since}")
        return
    echo_table(
        _COLUMNS,
        [_plan_row(one) if isinstance(one, pb.PlanSummary) else _record_row(one) for one in events],
    )


def _time(event: pb.PlanSummary | audit_pb2.AuditRecord) -> int:
    when = event.commit_time if isinstance(event, pb.PlanSummary) else event.time
    return when.ToNanoseconds()


def seconds_of(text: str, option: str) -> float:
    """Return the seconds of a time such as 90s, 30m, 1h or 2d.

    Raises:
        Failure: The text has another form.
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd])", text)
    if match is None:
        raise Failure(f"{option} {text}: give a number and s, m, h or d, such as 30m")
    return float(match[1]) * _UNITS[match[2]]


def _records(client: Terms, start: float) -> list[audit_pb2.AuditRecord]:
    try:
        found = _newest_records(client, start)
    except NotAllowed:
        echo("who asked for changes is told to operators alone", err=True)
        return []
    fabric = client.fabric
    return [one for one in found if one.name == fabric or one.name.startswith(f"{fabric}/")]


def _newest_records(client: Terms, since: float) -> list[audit_pb2.AuditRecord]:
    """Return the records written since a time in Unix seconds, oldest first."""
    end, found = _page(client, 0, 1).head.number, list[audit_pb2.AuditRecord]()
    while end > 0:
        above = max(end - _PAGE, 0)
        page = [one for one in _page(client, above, _PAGE).records if one.number <= end]
        new = [one for one in page if one.time.ToNanoseconds() * 1e-9 >= since]
        found = new + found
        if not new or len(new) < len(page):
            break
        end = above
    return found


def _page(client: Terms, after: int, size: int) -> audit_pb2.ListAuditRecordsResponse:
    request = audit_pb2.ListAuditRecordsRequest(after=after, page_size=size)
    return client.api.audit.ListAuditRecords(request)


def _record_row(record: audit_pb2.AuditRecord) -> tuple[object, ...]:
    when, what = times.time_text(record.time), f"{record.action} {last_part(record.name)}"
    if record.action in _STATES and record.after:
        state = json.loads(record.after).get("admin_state", "")
        what = f"{what}: {str(state).lower()}"
    return (when, record.actor or "-", "", what, "", "", "", "")


def _plan_row(plan: pb.PlanSummary) -> tuple[object, ...]:
    return (
        times.time_text(plan.commit_time),
        "",
        plan.generation,
        causes_text(plan.causes),
        plan.changed_count,
        f"{plan.max_utilization:.3f}",
        f"{plan.lower_bound:.3f}",
        plan.unrouted_count or "",
    )


def causes_text(causes: Iterable[pb.PlanCause]) -> str:
    """Return in words why a plan followed the one before."""
    told = []
    for cause in causes:
        kind = value_name(pb.PlanCause.Kind.DESCRIPTOR, cause.kind).lower().replace("_", " ")
        more = cause.count - len(cause.names)
        names = ", ".join(cause.names) + (f" and {more} more" if more > 0 else "")
        told.append(f"{kind}: {names}" if names else kind)
    return "; ".join(told)
