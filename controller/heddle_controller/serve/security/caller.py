"""The caller of the current call: identity and role, and what each role may call.

The auth interceptor sets the caller. Writes read it for the audit trail, and the service for agents
reads it because an agent may act for its own switch only.

Each method has a row in the table of permissions. A method without a row is refused to everybody,
so the decision cannot be forgotten. A test checks that every method of the contract has a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """What a caller may do."""

    OPERATOR = "operator"
    """Changes fabrics, states, the overlay and rollbacks, reads the audit trail, and may do all
    that schedulers and hosts may."""
    SCHEDULER = "scheduler"
    """Changes jobs, reservations and demands, reports rates, and reads all but the audit trail."""
    READER = "reader"
    """Reads all but the audit trail."""
    AGENT = "agent"
    """Has a session for its own switch; reads nothing."""
    HOST = "host"
    """Reads the ports of QPs that leave its own NICs, and reports which paths ports take."""
    LOCAL = "local"
    """Uses plain text from this host, or from anywhere with --insecure; may do everything."""
    NOBODY = "nobody"
    """Showed nothing, or nothing that has a role; may only ask for health."""


ROLES = {
    role.value: role for role in (Role.OPERATOR, Role.SCHEDULER, Role.READER, Role.AGENT, Role.HOST)
}
"""Roles that a certificate or a token may give, by name."""
ONE_NODE = frozenset({Role.AGENT, Role.HOST})
"""Roles that act for one node: the fabric and the node are named after the role."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The client that makes a call."""

    role: Role = Role.NOBODY
    identity: str = ""
    """The name that it showed: from its certificate, "token NAME", or else the peer's host."""
    fabric: str = ""
    """Last part of the fabric's name; empty unless it is an agent or a host."""
    speaks_for: str = ""
    """Node id of an agent's switch, or name of a host; empty for other roles."""
    certificate: bytes = field(default=b"", compare=False, repr=False, kw_only=True)
    """The certificate that it showed, as PEM; empty if it showed none."""

    def __str__(self) -> str:
        return f"{self.role} {self.identity}".strip()

    def may_speak_for(self, fabric: str, switch: str) -> bool:
        """Return whether it may have a session for this switch."""
        if self.role is Role.AGENT:
            return (self.fabric, self.speaks_for) == (fabric, switch)
        return self.role is Role.LOCAL

    def may_read_ports(self, fabric: str, hosts: Sequence[str], nics: Sequence[str]) -> bool:
        """Return whether it may read the ports of QPs of these hosts and NICs."""
        if self.role is Role.HOST:
            return self.fabric == fabric and set(hosts) == {self.speaks_for} and not nics
        return True

    def may_report_ports(self, fabric: str, host: str) -> bool:
        """Return whether it may report the paths of ports of this host's NICs."""
        if self.role is Role.HOST:
            return (self.fabric, self.speaks_for) == (fabric, host)
        return True


_caller: ContextVar[Caller] = ContextVar("heddle_caller")
INSIDE = Caller(Role.LOCAL, "this process")
"""The caller of a service that is called without gRPC: by tests and by the web page."""


def current_caller() -> Caller:
    """Return the caller of the current call."""
    return _caller.get(INSIDE)


def set_caller(caller: Caller) -> None:
    """Set the caller for the rest of this call, whose task has a context of its own."""
    _caller.set(caller)


OPERATORS = frozenset({Role.OPERATOR, Role.LOCAL})
WORK = OPERATORS | {Role.SCHEDULER}
READS = WORK | {Role.READER}
_SESSIONS = frozenset({Role.AGENT, Role.LOCAL})
ALL = frozenset(Role)

PERMISSIONS: Mapping[str, frozenset[Role]] = {
    "heddle.v1.FabricService/PutFabric": OPERATORS,
    "heddle.v1.FabricService/DeleteFabric": OPERATORS,
    "heddle.v1.FabricService/GetFabric": READS,
    "heddle.v1.FabricService/ListFabrics": READS,
    "heddle.v1.FabricService/ListLinks": READS,
    "heddle.v1.FabricService/SetLinkState": OPERATORS,
    "heddle.v1.FabricService/SetSwitchState": OPERATORS,
    "heddle.v1.FabricService/WatchFabric": READS,
    "heddle.v1.PlacementService/SubmitJob": WORK,
    "heddle.v1.PlacementService/GetJob": READS,
    "heddle.v1.PlacementService/ListJobs": READS,
    "heddle.v1.PlacementService/UpdateJob": WORK,
    "heddle.v1.PlacementService/DeleteJob": WORK,
    "heddle.v1.PlacementService/WatchJobs": READS,
    "heddle.v1.PlacementService/OrderRanks": READS,
    "heddle.v1.PlacementService/RecommendPlacement": READS,
    "heddle.v1.PlacementService/ReservePlacement": WORK,
    "heddle.v1.PlacementService/ListReservations": READS,
    "heddle.v1.PlacementService/ReleasePlacement": WORK,
    "heddle.v1.DemandService/PutDemands": WORK,
    "heddle.v1.DemandService/ListDemandSets": READS,
    "heddle.v1.DemandService/ListDemands": READS,
    "heddle.v1.DemandService/DeleteDemands": WORK,
    "heddle.v1.DemandService/ReportRates": WORK,
    "heddle.v1.DemandService/WatchRates": READS,
    "heddle.v1.PlanService/GetPlan": READS,
    "heddle.v1.PlanService/ListPlans": READS,
    "heddle.v1.PlanService/ComparePlans": READS,
    "heddle.v1.PlanService/RollBackPlan": OPERATORS,
    "heddle.v1.PlanService/EndRollback": OPERATORS,
    "heddle.v1.PlanService/ListRoutes": READS,
    "heddle.v1.PlanService/ListJobFares": READS,
    "heddle.v1.PlanService/ListLinkLoads": READS,
    "heddle.v1.PlanService/WatchPlan": READS,
    "heddle.v1.PlanService/ExplainFlow": READS,
    "heddle.v1.PlanService/WhatIf": READS,
    "heddle.v1.PlanService/WatchDrain": READS,
    # The service also checks which host may read which ports.
    "heddle.v1.PlanService/GetJobPorts": READS | {Role.HOST},
    "heddle.v1.PlanService/WatchJobPorts": READS | {Role.HOST},
    "heddle.v1.PlanService/ReportPortPaths": OPERATORS | {Role.HOST},
    "heddle.v1.DoctorService/ExamineJob": READS,
    "heddle.v1.DoctorService/ExamineInstallation": READS,
    "heddle.v1.OverlayService/SetOverlay": OPERATORS,
    "heddle.v1.OverlayService/GetOverlay": READS,
    "heddle.v1.AuditService/ListAuditRecords": OPERATORS,
    "heddle.v1.AgentService/Session": _SESSIONS,
    # Health probes of a cluster have no certificate and no token.
    "grpc.health.v1.Health/Check": ALL,
    "grpc.health.v1.Health/List": ALL,
    "grpc.health.v1.Health/Watch": ALL,
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": READS,
}
"""The roles that may call a method, by ``service/method``."""


def may_call(role: Role, service: str, method: str) -> bool:
    """Return whether a role may call a method."""
    return role in PERMISSIONS.get(f"{service}/{method}", frozenset())
