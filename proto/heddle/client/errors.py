"""Exceptions that a call may end in. They carry what the controller said."""

# ruff: noqa: N818 - the names say what happened, as the codes of gRPC do
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from heddle.client.credentials import BY_OPTION, Credentials
from heddle.freshness import STALE

DETAILS = "grpc-status-details-bin"
OPENSSL = "OPENSSL_internal:"
"""gRPC's text has this mark before the message of the TLS library."""
_OUT_OF_DATE = "renew the controller's certificate, or correct a clock"
_NOT_TRUSTED = (
    "give the authority of its certificate as {ca}, and an address with a name that it has"
)
_PLAIN = "it speaks no TLS there: leave {ca} and {cert} out, or name another port"
_TLS_CURES = {
    "WRONG_VERSION_NUMBER": _PLAIN,
    "certificate has expired": _OUT_OF_DATE,
    "certificate is not yet valid": _OUT_OF_DATE,
    OPENSSL: _NOT_TRUSTED,
    "Peer name": _NOT_TRUSTED,
    "Hostname": _NOT_TRUSTED,
}
"""What to do, by a mark in gRPC's text; the first one that is there counts. Parts of
``Credentials`` stand in braces."""
_HUNG_UP = "Socket closed", "Connection reset"


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is wrong with a request."""

    field: str
    """The field or the subject that is wrong."""
    description: str


class HeddleError(Exception):
    """A call got no answer, or was refused. ``str()`` of it is one line."""

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        address: str = "",
        reason: str = "",
        violations: Sequence[Violation] = (),
        retry_after: float | None = None,
        request_id: str = "",
        told: bool = False,
        stale: bool = False,
        cure: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.address = address
        """Address of the controller that reported the error or could not be reached."""
        self.reason = reason
        """The controller's name for the reason, such as ``ETAG_MISMATCH``."""
        self.violations = tuple(violations)
        self.retry_after = retry_after
        """Seconds after which the call may be repeated; None if the controller did not say."""
        self.request_id = request_id
        """Identifies the call in the controller's log."""
        self.told = told
        """Whether a controller reported the error, and not gRPC itself."""
        self.stale = stale
        """Whether the controller cannot reach its store, and answered from what it knew before."""
        self.cure = cure
        """What to change in the ``Credentials`` if TLS does not match; empty if it may."""


class Unreachable(HeddleError):
    """No controller answered. The message names the last one that was tried."""

    def __str__(self) -> str:
        return f"{self.message}: {self.cure}" if self.cure else self.message


class TimedOut(HeddleError):
    """The call did not finish in the given time."""


class Closed(HeddleError):
    """The client was closed before or during the call."""


class Unavailable(HeddleError):
    """A controller answered that it cannot do this now, for example because its store is away."""


class NotFound(HeddleError):
    """The named object does not exist."""


class AlreadyExists(HeddleError):
    """An object of that name already exists."""


class Conflict(HeddleError):
    """The object was changed in the meantime: read it again, then decide again."""


class InvalidRequest(HeddleError):
    """Something is wrong with the request: see ``violations``."""


class PreconditionFailed(HeddleError):
    """The request is correct, but the current state does not allow it: see ``violations``."""


class NotAllowed(HeddleError):
    """The caller is not known, or may not do this."""


class Degraded(HeddleError):
    """A job that is waited for makes no progress by itself. The message gives the reason."""


_CODE = grpc.StatusCode
_KINDS: tuple[tuple[grpc.StatusCode, type[HeddleError]], ...] = (
    (_CODE.UNAVAILABLE, Unavailable),
    (_CODE.DEADLINE_EXCEEDED, TimedOut),
    (_CODE.NOT_FOUND, NotFound),
    (_CODE.ALREADY_EXISTS, AlreadyExists),
    (_CODE.ABORTED, Conflict),
    (_CODE.INVALID_ARGUMENT, InvalidRequest),
    (_CODE.FAILED_PRECONDITION, PreconditionFailed),
    (_CODE.UNAUTHENTICATED, NotAllowed),
    (_CODE.PERMISSION_DENIED, NotAllowed),
)


def error_of(
    call: grpc.Call, address: str, credentials: Credentials, *, reached: bool
) -> HeddleError:
    """Return the exception for a call with these credentials that failed at an address.

    ``reached`` says whether any controller has answered with them before.
    """
    code, text = call.code(), call.details() or ""
    status = _status(call)
    if status is None:
        cure = _tls_cure(text) or ("" if reached else _hang_up(text, credentials))
        names = {part: credentials.name_of(part) for part in BY_OPTION}
        return _by_itself(code, text, address, cure.format_map(names))
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    request = error_details_pb2.RequestInfo()
    found = {
        type(kind): any(detail.Is(kind.DESCRIPTOR) and detail.Unpack(kind) for detail in status)
        for kind in (info, retry, request)
    }
    after = retry.retry_delay.ToTimedelta().total_seconds()
    return dict(_KINDS).get(code, HeddleError)(
        text,
        code=code,
        address=address,
        reason=info.reason,
        violations=_violations(status),
        retry_after=after if found[error_details_pb2.RetryInfo] else None,
        request_id=request.request_id,
        told=True,
        stale=dict(call.trailing_metadata() or ()).get(STALE) == "true",
    )


def _by_itself(code: grpc.StatusCode, text: str, address: str, cure: str) -> HeddleError:
    """Return the exception for an error that comes from gRPC and not from a controller."""
    if code in (_CODE.UNAVAILABLE, _CODE.CANCELLED):  # the other end went away
        why = _why(text) if code is _CODE.UNAVAILABLE else "it ended the call"
        message = f"cannot reach the controller at {address} ({why})"
        return Unreachable(message, code=code, address=address, cure=cure)
    if code is _CODE.DEADLINE_EXCEEDED:
        message = f"the controller at {address} did not answer in time"
        return TimedOut(message, code=code, address=address)
    message = f"{code.name}: {_why(text)}"
    return dict(_KINDS).get(code, HeddleError)(message, code=code, address=address)


def _tls_cure(text: str) -> str:
    """Return what to do about a failure of TLS in gRPC's text; empty if it has no mark of one."""
    return next((cure for mark, cure in _TLS_CURES.items() if mark in text), "")


def _hang_up(text: str, credentials: Credentials) -> str:
    """Return what to do if the other end hung up, as gRPC's text says; empty if it did not."""
    if not any(mark in _why(text) for mark in _HUNG_UP):
        return ""
    if not credentials.secure:
        return "if it wants TLS, give {ca}, {cert} and {key}"
    if credentials.cert is None:
        return "it may want a certificate: give {cert} and {key}, or its port for tokens"
    return "it may not take the certificate: is it still valid, and of an authority it knows?"


def _why(text: str) -> str:
    """Return the cause in gRPC's text. Its texts nest, and the cause comes last."""
    first = text.splitlines()[0] if text else "no reason told"
    if OPENSSL in first:
        return first.rpartition(OPENSSL)[2].removesuffix(": OK")[:200]
    return first.rpartition(": ")[2].removesuffix("]")[:200]


def _status(call: grpc.Call) -> Sequence[Any] | None:
    """Return the details of a status that a controller sent; None if none did."""
    packed = dict(call.trailing_metadata() or ()).get(DETAILS)
    if not isinstance(packed, bytes):
        return None
    return status_pb2.Status.FromString(packed).details


def _violations(details: Sequence[Any]) -> list[Violation]:
    bad, failed = error_details_pb2.BadRequest(), error_details_pb2.PreconditionFailure()
    found: list[Violation] = []
    for detail in details:
        if detail.Is(bad.DESCRIPTOR) and detail.Unpack(bad):
            found += [Violation(each.field, each.description) for each in bad.field_violations]
        elif detail.Is(failed.DESCRIPTOR) and detail.Unpack(failed):
            found += [Violation(each.subject, each.description) for each in failed.violations]
    return found
