"""What an older ``heddle`` prints of values that only a newer controller has."""

from __future__ import annotations

from typing import cast

from heddle.v1 import plan_pb2
from heddle.v1.common_pb2 import State
from heddle.v1.placement_pb2 import Job, JobState
from heddle_controller.cli.history import causes_text
from heddle_controller.cli.life import job_state_word
from heddle_controller.cli.options import state_word

NEW = 4242
"""A number that no enum of this release has."""


def test_an_unknown_cause_is_told_as_such() -> None:
    """The cause keeps its names, and causes beside it are told as usual."""
    new = plan_pb2.PlanCause(kind=cast("plan_pb2.PlanCause.Kind.ValueType", NEW), names=["x"])
    old = plan_pb2.PlanCause(kind=plan_pb2.PlanCause.JOB_CAME, names=["blue"])
    assert causes_text([new, old]) == "unknown 4242: x; job came: blue"


def test_an_unknown_state_is_told_as_such() -> None:
    """Jobs, links and switches in states that are not known here are listed all the same."""
    assert job_state_word(Job(state=cast("JobState.ValueType", NEW))) == "UNKNOWN_4242"
    assert state_word(cast("State.ValueType", NEW)) == "unknown_4242"
    assert job_state_word(Job(state=JobState.JOB_STATE_PLANNED)) == "PLANNED"
