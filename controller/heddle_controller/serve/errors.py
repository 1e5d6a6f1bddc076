"""Errors as clients see them: google.rpc.Status with details that a client can act on.

Handlers raise the errors of the model and of the state, or a ``Refusal``. The interceptor
``Errors`` (``interceptors.around``) turns them into a status. Any other error,
except a timeout, is a fault of the controller: the client gets INTERNAL with an incident id and
nothing else, and the traceback goes into the log. A status travels in HTTP/2 headers, of which
clients accept 8 KiB, so details are cut to size here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from heddle_controller.model.errors import InputError, Problem, first_of

DOMAIN = "heddle"
"""``ErrorInfo.domain`` of all errors."""
MAX_DETAILS = 3072
"""Most bytes of violations in a status; base64 and the other headers come on top."""
MAX_MESSAGE = 1024
"""Most characters of one message."""


class Refusal(Exception):  # noqa: N818 - it refuses a call; that is no fault of anybody's
    """A call that cannot be served now, with what would cure it.

    ``reason`` is in UPPER_SNAKE for programs, and ``message`` is one line for people.
    ``retry_seconds`` is given if the same call may succeed later.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: str,
        message: str,
        metadata: Mapping[str, str] | None = None,
        retry_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.metadata = metadata or {}
        self.retry_seconds = retry_seconds


class GrpcStatus(NamedTuple):
    """A status in the form that gRPC expects."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def unauthenticated(reason: str, message: str) -> Refusal:
    """Return a refusal: the caller has not shown who it is, or in a way that does not count."""
    return Refusal(grpc.StatusCode.UNAUTHENTICATED, reason, message)


def denied(reason: str, message: str, **metadata: str) -> Refusal:
    """Return a refusal: the caller may not do this."""
    return Refusal(grpc.StatusCode.PERMISSION_DENIED, reason, message, metadata)


def failed_precondition(reason: str, message: str, **metadata: str) -> Refusal:
    """Return a refusal: the present state does not allow the call."""
    return Refusal(grpc.StatusCode.FAILED_PRECONDITION, reason, message, metadata)


def not_found(reason: str, message: str, **metadata: str) -> Refusal:
    """Return a refusal: something that the call names does not exist."""
    return Refusal(grpc.StatusCode.NOT_FOUND, reason, message, metadata)


def no_fabric_for(switch: str, fabric: str) -> Refusal:
    """Return a refusal: the fabric that an agent's session is for does not exist."""
    message = (
        f"fabrics/{fabric} does not exist; put it first: heddle fabric import FILE --name {fabric}"
    )
    return not_found("UNKNOWN_FABRIC", message, fabric=fabric, switch=switch)


def not_in_fabric(switch: str, fabric: str) -> Refusal:
    """Return a refusal: the fabric that an agent's session is for does not have its switch."""
    cure = "start the agent with the node id of its switch, or put a fabric that has it"
    message = f"switch {switch!r} is not in fabrics/{fabric}; {cure}"
    return not_found("UNKNOWN_SWITCH", message, fabric=fabric, switch=switch)


def aborted(reason: str, message: str, **metadata: str) -> Refusal:
    """Return a refusal: the call lost a race; the client should read again and repeat it."""
    return Refusal(grpc.StatusCode.ABORTED, reason, message, metadata)


def exhausted(reason: str, message: str, **metadata: str) -> Refusal:
    """Return a refusal: the call exceeds a limit."""
    return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, reason, message, metadata)


def unavailable(reason: str, message: str, retry_seconds: float) -> Refusal:
    """Return a refusal: the server cannot answer now, and the same call may succeed later."""
    return Refusal(grpc.StatusCode.UNAVAILABLE, reason, message, retry_seconds=retry_seconds)


def internal(incident: str) -> Refusal:
    """Return a refusal for a fault of the controller, which names only the incident id."""
    message = f"the controller failed; its log has the cause under incident {incident}"
    return Refusal(grpc.StatusCode.INTERNAL, "INTERNAL", message, {"incident": incident})


def invalid_argument(error: InputError) -> status_pb2.Status:
    """Return the status of refused input, with a field violation per problem as far as they fit."""
    bad = error_details_pb2.BadRequest()
    for problem in error.problems:
        violation = bad.field_violations.add()
        violation.CopyFrom(_violation(problem))
        if bad.ByteSize() > MAX_DETAILS:
            del bad.field_violations[-1]
            break
    return _status(grpc.StatusCode.INVALID_ARGUMENT, str(error), bad)


def _violation(problem: Problem) -> error_details_pb2.BadRequest.FieldViolation:
    return error_details_pb2.BadRequest.FieldViolation(
        field=problem.record[:256], description=problem.reason[:MAX_MESSAGE]
    )


def precondition(source: str, problems: Sequence[Problem]) -> status_pb2.Status:
    """Return the status of a failed precondition, with a violation per problem that fits."""
    failure = error_details_pb2.PreconditionFailure()
    for problem in problems:
        failure.violations.add(
            type="STATE",
            subject=problem.record[:256],
            description=problem.reason[:MAX_MESSAGE],
        )
        if failure.ByteSize() > MAX_DETAILS:
            del failure.violations[-1]
            break
    info = error_details_pb2.ErrorInfo(reason="FAILED_PRECONDITION", domain=DOMAIN)
    message = f"{source}: {first_of(problems)}"
    return _status(grpc.StatusCode.FAILED_PRECONDITION, message, info, failure)


def refused(refusal: Refusal) -> status_pb2.Status:
    """Return the status of a refusal: with ErrorInfo, and RetryInfo if a retry may help."""
    info = error_details_pb2.ErrorInfo(reason=refusal.reason, domain=DOMAIN)
    for name, value in refusal.metadata.items():
        info.metadata[name] = value[:256]
    details: list[Message] = [info]
    if refusal.retry_seconds is not None:
        delay = Duration()
        delay.FromMilliseconds(int(refusal.retry_seconds * 1000))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    return _status(refusal.code, refusal.message, *details)


def with_request(
    status: status_pb2.Status, request_id: str, marks: Iterable[tuple[str, str | bytes]] = ()
) -> grpc.Status:
    """Return a status as gRPC expects it, with the request's id, which its log lines have too.

    ``marks`` is further trailing metadata to send.
    """
    status.details.append(_packed(error_details_pb2.RequestInfo(request_id=request_id)))
    told = rpc_status.to_status(status)
    trailing = (*(told.trailing_metadata or ()), *marks)
    return cast("grpc.Status", GrpcStatus(told.code, told.details, trailing))


def _status(code: grpc.StatusCode, message: str, *details: Message) -> status_pb2.Status:
    number: int = code.value[0]
    return status_pb2.Status(
        code=number, message=message[:MAX_MESSAGE], details=[_packed(d) for d in details]
    )


def _packed(message: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
