"""The caller of the call under way: an identity, how it was shown, and a role.

Set by the auth interceptor, read by whoever writes (for the audit trail) and by the
service that agents dial (an agent speaks for its own switch alone).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What somebody is to this controller."""

    OPERATOR = "operator"
    """Fabrics, states, the overlay, the audit trail, and all that others may."""
    SCHEDULER = "scheduler"
    """Jobs, demands and measured rates; reads all but the audit trail."""
    READER = "reader"
    """Reads all but the audit trail."""
    AGENT = "agent"
    """One session, as its own switch; reads nothing."""
    HOST = "host"
    """Reads the ports of the QPs that leave its own NICs, tells which paths these take, no more."""
    LOCAL = "local"
    """Plain text from this host, or from anywhere with --insecure: may do everything."""
    NOBODY = "nobody"
    """Showed nothing, or nothing that has a role."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The one who calls."""

    role: Role = Role.NOBODY
    identity: str = ""
    """The name shown: a SAN or CN of the certificate, "token NAME", or the peer's host."""
    fabric: str = ""
    """Last part of the fabric's name; agents and hosts only."""
    speaks_for: str = ""
    """Node id of an agent's switch, or the host; agents and hosts only."""

    def __str__(self) -> str:
        return f"{self.role} {self.identity}".strip()

    def may_speak_for(self, fabric: str, switch: str) -> bool:
        """Whether a session as this switch may be had."""
        if self.role is Role.AGENT:
            return (self.fabric, self.speaks_for) == (fabric, switch)
        return self.role is Role.LOCAL

    def may_read_ports(self, fabric: str, hosts: Sequence[str], nics: Sequence[str]) -> bool:
        """Whether the ports of these hosts' and these NICs' QPs may be told."""
        if self.role is Role.HOST:
            return self.fabric == fabric and set(hosts) == {self.speaks_for} and not nics
        return True

    def may_report_ports(self, fabric: str, host: str) -> bool:
        """Whether the paths of the ports of this host's NICs may be told."""
        if self.role is Role.HOST:
            return (self.fabric, self.speaks_for) == (fabric, host)
        return True


_caller: ContextVar[Caller] = ContextVar("heddle_caller")
INSIDE = Caller(Role.LOCAL, "this process")
"""Whoever calls a service without the wire: tests."""


def current_caller() -> Caller:
    """The caller of the call under way."""
    return _caller.get(INSIDE)


def set_caller(caller: Caller) -> None:
    """For the rest of this call, which has a task and so a context of its own."""
    _caller.set(caller)
