"""Why a session could not begin, or ended, and what a person can do about it."""

from __future__ import annotations

from typing import NamedTuple

import grpc

_CURES = {
    grpc.StatusCode.UNAVAILABLE: "is a controller running there, and can this switch reach it?",
    grpc.StatusCode.DEADLINE_EXCEEDED: "something else than a controller may listen there",
    grpc.StatusCode.UNIMPLEMENTED: "what listens there is not a Heddle controller, or too old",
    grpc.StatusCode.UNAUTHENTICATED: "give this agent a client certificate: --tls-cert, --tls-key",
    grpc.StatusCode.PERMISSION_DENIED: "the certificate is not this switch's: renew it",
    grpc.StatusCode.NOT_FOUND: "check --fabric and --switch, and import the fabric",
    grpc.StatusCode.INVALID_ARGUMENT: "check --fabric, --switch and that releases match",
    grpc.StatusCode.FAILED_PRECONDITION: "put the controller right; the agent will come again",
    grpc.StatusCode.ABORTED: "another agent speaks for this switch: stop one of the two",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "the controller is full; the agent will come again",
}


class SessionEnd(NamedTuple):
    """How a session, or an attempt at one, ended."""

    code: grpc.StatusCode
    details: str

    def differs(self, other: SessionEnd) -> bool:
        """Whether it is worth logging after ``other``; all UNAVAILABLE ends count as the same."""
        return self != other and not self.code == other.code == grpc.StatusCode.UNAVAILABLE

    @property
    def cure(self) -> str:
        """What a person can do; empty if nothing but waiting helps."""
        return _CURES.get(self.code, "")
