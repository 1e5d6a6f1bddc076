from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from heddle_controller.model.errors import InputError, Problem
from heddle_controller.serve import errors
from heddle_controller.serve.interceptors.around import status_of
from heddle_controller.state import errors as ports

M = TypeVar("M", bound=Message)


def details(status: status_pb2.Status | None, kind: type[M]) -> list[M]:
    """Return the details of one kind in a status."""
    assert status is not None
    found = []
    for packed in status.details:
        detail = kind()
        if packed.Unpack(detail):
            found.append(detail)
    return found


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("f", Problem("r", "why")), "INVALID_ARGUMENT"),
        (ports.NotFound("fabrics/f1", "put it"), "NOT_FOUND"),
        (ports.AlreadyExists("fabrics/f1/jobs/j", "update it"), "ALREADY_EXISTS"),
        (ports.Conflict("fabrics/f1"), "ABORTED"),
        (ports.StaleEpoch(1, 2), "ABORTED"),
        (ports.StaleGeneration(1, 2), "ABORTED"),
        (ports.RequestReused("r1"), "INVALID_ARGUMENT"),
        (ports.FailedPrecondition("job j", Problem("host h", "in use")), "FAILED_PRECONDITION"),
        (ports.Unavailable("disk full"), "UNAVAILABLE"),
        (ports.Unusable("damaged"), "UNAVAILABLE"),
        (errors.exhausted("X", "too many"), "RESOURCE_EXHAUSTED"),
    ],
)
def test_every_port_error_has_its_status(error: Exception, code: str) -> None:
    """The code is that of the table, and the message has the error's text."""
    status = status_of(error)
    assert status is not None
    assert status.code == grpc.StatusCode[code].value[0]
    assert str(error) in status.message
    assert status.details


def test_every_port_error_that_reaches_a_client_is_in_the_table() -> None:
    """A new error cannot become INTERNAL unnoticed. SessionLost never reaches a client."""
    known = {
        error
        for error in vars(ports).values()
        if isinstance(error, type) and issubclass(error, ports.PortError)
    }
    inside = {ports.PortError, ports.SessionLost}
    example = ports.FailedPrecondition("x", Problem("r", "w"))
    for kind in known - inside:
        error = kind.__new__(kind)
        error.__dict__.update(example.__dict__, request_id="r", retry_after=1.0, name="n")
        assert status_of(error) is not None, kind


def test_a_fault_of_ours_has_no_status() -> None:
    """An error of the controller's own has no status. The interceptor makes it INTERNAL."""
    assert status_of(KeyError("x")) is None
    assert status_of(ports.SessionLost("l0")) is None


def test_every_problem_is_a_field_violation() -> None:
    """Record and reason arrive as separate fields."""
    status = status_of(InputError("f", Problem("node 'a'", "twice"), Problem("node 'b'", "none")))
    (bad,) = details(status, error_details_pb2.BadRequest)
    assert [(v.field, v.description) for v in bad.field_violations] == [
        ("node 'a'", "twice"),
        ("node 'b'", "none"),
    ]


def test_hosts_in_use_are_precondition_violations() -> None:
    """Each host is a subject of its own."""
    problems = [Problem("host 'a'", "used by j1"), Problem("host 'b'", "used by j2")]
    status = status_of(ports.FailedPrecondition("job 'j3'", *problems))
    (failed,) = details(status, error_details_pb2.PreconditionFailure)
    assert [v.subject for v in failed.violations] == ["host 'a'", "host 'b'"]


@pytest.mark.parametrize("kind", [InputError, ports.FailedPrecondition])
def test_a_status_fits_in_headers(kind: Callable[..., Exception]) -> None:
    """However many and long the problems are, trailers stay below the 8 KiB that clients accept."""
    problems = [Problem(f"flow '{i:05}'" + "x" * 300, "y" * 3000) for i in range(500)]
    told = status_of(kind("s" * 5000, *problems))
    assert told is not None
    status = errors.with_request(told, "r" * 64)
    size = sum(len(key) + len(value) * 4 // 3 + 32 for key, value in status.trailing_metadata)
    assert size + len(status.details) < 8192


def test_unavailable_says_when_to_retry() -> None:
    """RetryInfo has the store's hint."""
    status = status_of(ports.Unavailable("busy", retry_after=2.5))
    (retry,) = details(status, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToMilliseconds() == 2500


def test_the_request_is_named_in_the_status() -> None:
    """The request id in the status leads a client to the log lines of its call."""
    status = errors.with_request(errors.refused(errors.internal("abc")), "req-1")
    assert status.code is grpc.StatusCode.INTERNAL
    assert "abc" in status.details
    packed = dict(status.trailing_metadata)["grpc-status-details-bin"]
    assert b"req-1" in packed
