"""Why a session could not begin, or ended, and what a person can do about it."""

from __future__ import annotations

from typing import NamedTuple

import grpc

_CURES = {
    grpc.StatusCode.UNAVAILABLE: "is a controller running there, and can this switch reach it?",
    grpc.StatusCode.DEADLINE_EXCEEDED: "something else than a controller may listen there",
    grpc.StatusCode.UNIMPLEMENTED: "what listens there is not a Heddle controller, or too old",
    grpc.StatusCode.UNAUTHENTICATED: (
        "give this agent its certificate by --tls-cert and --tls-key, and by --controller the port"
        " that asks for one"
    ),
    grpc.StatusCode.PERMISSION_DENIED: (
        "check --fabric and --switch against the certificate, which names both"
    ),
    grpc.StatusCode.NOT_FOUND: "check --fabric and --switch, and import the fabric",
    grpc.StatusCode.INVALID_ARGUMENT: "check --fabric, --switch and that releases match",
    grpc.StatusCode.FAILED_PRECONDITION: "put the controller right; the agent will come again",
    grpc.StatusCode.ABORTED: "another agent speaks for this switch: stop one of the two",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "the controller is full; the agent will come again",
}
_HUNG_UP = "Socket closed", "Connection reset"
_HUNG_UP_CURE = (
    "it hung up: if it wants TLS, give --tls-ca, --tls-cert and --tls-key; if they are given, is"
    " the certificate still valid, and of an authority it knows?"
)
_NO_TLS_CURE = "it speaks no TLS there: leave --tls-ca and --tls-cert out, or name another port"
_OUT_OF_DATE = "certificate has expired", "certificate is not yet valid"
_OUT_OF_DATE_CURE = "renew the controller's certificate, or correct a clock"
_UNTRUSTED_CURE = (
    "give the authority of its certificate by --tls-ca, and by --controller a name that it has"
)


class SessionEnd(NamedTuple):
    """How a session, or an attempt at one, ended."""

    code: grpc.StatusCode
    details: str

    def differs(self, other: SessionEnd) -> bool:
        """Whether it is worth logging after ``other``.

        UNAVAILABLE ends for which the cure is the same count as the same: gRPC words each anew.
        """
        if self.code == other.code == grpc.StatusCode.UNAVAILABLE:
            return self.cure != other.cure
        return self != other

    @property
    def cure(self) -> str:
        """What a person can do; empty if nothing but waiting helps."""
        if self.code is grpc.StatusCode.UNAVAILABLE:
            if "WRONG_VERSION_NUMBER" in self.details:
                return _NO_TLS_CURE
            if any(word in self.details for word in _OUT_OF_DATE):
                return _OUT_OF_DATE_CURE
            if any(word in self.details for word in ("OPENSSL_internal:", "Peer name", "Hostname")):
                return _UNTRUSTED_CURE
            cause = (self.details.splitlines() or [""])[0].rpartition(": ")[2]
            if any(mark in cause for mark in _HUNG_UP):
                return _HUNG_UP_CURE
        return _CURES.get(self.code, "")
