"""Jobs as a table."""

from __future__ import annotations

from heddle.v1 import placement_pb2 as pb
from heddle_controller.cli.client import Terms
from heddle_controller.cli.options import last_part
from heddle_controller.cli.output import echo_json, echo_table
from heddle_controller.serve.codec import common

COLUMNS = ["job", "state", "hosts", "flows", "unrouted", "plan", "since", "reason"]


def echo_jobs(client: Terms, jobs: list[pb.Job]) -> None:
    """How jobs stand, a line each."""
    if client.json:
        echo_json(jobs)
    else:
        echo_table(COLUMNS, [_row(one) for one in jobs])


def _row(one: pb.Job) -> tuple[object, ...]:
    return (
        last_part(one.name),
        state_of(one),
        len(one.spec.hosts),
        one.flow_count,
        one.unrouted_count,
        one.generation or "",
        common.time_text(one.state_time),
        one.reason,
    )


def state_of(one: pb.Job) -> str:
    """The word for its state: PROGRAMMED, DEGRADED and so on."""
    return pb.JobState.Name(one.state).removeprefix("JOB_STATE_")
