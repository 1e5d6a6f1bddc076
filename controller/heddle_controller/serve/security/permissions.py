"""Which role may call which method: one row a method, and no for what has no row.

A new method is therefore refused to everybody until somebody has thought about it; a
test asks that every method of the contract has its row.
"""

from __future__ import annotations

from collections.abc import Mapping

from heddle_controller.serve.security.caller import Role

OPERATORS = frozenset({Role.OPERATOR, Role.LOCAL})
WORK = OPERATORS | {Role.SCHEDULER}
READS = WORK | {Role.READER}
_SESSIONS = frozenset({Role.AGENT, Role.LOCAL})
ALL = frozenset(Role)

PERMISSIONS: Mapping[str, frozenset[Role]] = {
    "heddle.v1.FabricService/PutFabric": OPERATORS,
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
    # Which host may read which ports is asked again by the service.
    "heddle.v1.PlanService/GetJobPorts": READS | {Role.HOST},
    "heddle.v1.PlanService/WatchJobPorts": READS | {Role.HOST},
    "heddle.v1.PlanService/ReportPortPaths": OPERATORS | {Role.HOST},
    "heddle.v1.DoctorService/ExamineJob": READS,
    "heddle.v1.DoctorService/ExamineInstallation": READS,
    "heddle.v1.OverlayService/SetOverlay": OPERATORS,
    "heddle.v1.OverlayService/GetOverlay": READS,
    "heddle.v1.AuditService/ListAuditRecords": OPERATORS,
    "heddle.v1.AgentService/Session": _SESSIONS,
    # Probes of a cluster have no certificate and no token.
    "grpc.health.v1.Health/Check": ALL,
    "grpc.health.v1.Health/List": ALL,
    "grpc.health.v1.Health/Watch": ALL,
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": READS,
}
"""By service and method."""


def may_call(role: Role, service: str, method: str) -> bool:
    """Whether a role may call a method."""
    return role in PERMISSIONS.get(f"{service}/{method}", frozenset())
