"""Jobs as a table: how far each has come, its slowest flow and its worst link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from google.protobuf.json_format import MessageToDict

from heddle.v1 import placement_pb2 as pb
from heddle.v1.plan_pb2 import JobFare
from heddle_controller.cli.client import Terms
from heddle_controller.cli.options import last_part, ref_text
from heddle_controller.cli.output import echo_json, echo_table
from heddle_controller.serve.codec import common

_COLUMNS = ["job", "state", "hosts", "flows", "unrouted", "slowest", "worst link", "plan", "since"]
_Json = dict[str, object]


def echo_jobs(client: Terms, jobs: Sequence[pb.Job]) -> None:
    """How jobs stand, a line each."""
    planned = [last_part(one.name) for one in jobs if one.state != pb.JOB_STATE_ACCEPTED]
    told = client.api.list_job_fares(planned[0] if len(planned) == 1 else "") if planned else {}
    fares = {name: told[name] for name in planned if name in told}
    if client.json:
        echo_json([job_view(one, fares) for one in jobs])
    else:
        echo_table(
            [*_COLUMNS, "reason"], [_row(one, fares.get(last_part(one.name))) for one in jobs]
        )


def job_view(one: pb.Job, fares: Mapping[str, JobFare]) -> _Json:
    """A job, and how it fares in the newest plan."""
    told: _Json = MessageToDict(one, preserving_proto_field_name=True)
    fare = fares.get(last_part(one.name))
    if fare is not None:
        told["fare"] = MessageToDict(fare, preserving_proto_field_name=True)
    return told


def _row(one: pb.Job, fare: JobFare | None) -> tuple[object, ...]:
    return (
        last_part(one.name),
        job_state_word(one),
        len(one.spec.hosts),
        one.flow_count,
        one.unrouted_count,
        f"{fare.slowest.share:.3f}" if fare else "",
        worst_link(fare) if fare else "",
        one.generation or "",
        common.time_text(one.state_time),
        one.reason,
    )


def worst_link(fare: JobFare) -> str:
    """The fullest link that its flows use, and how full that is."""
    if not fare.HasField("worst_link"):
        return ""
    return f"{ref_text(fare.worst_link)} {fare.worst_utilization:.3f}"


def job_state_word(one: pb.Job) -> str:
    """The word for its state: PROGRAMMED, DEGRADED and so on."""
    return pb.JobState.Name(one.state).removeprefix("JOB_STATE_")
