"""What reconcile measures: the names, so that telemetry can register each once."""

from __future__ import annotations

from enum import StrEnum


class Metric(StrEnum):
    """What reconcile measures; each carries the label ``fabric`` and no other."""

    RECONCILE_RUNS = "heddle_reconcile_runs_total"
    """Counter: times the loop looked at a fabric."""
    RECONCILE_FAILURES = "heddle_reconcile_failures_total"
    """Counter: times it could not bring a new plan about."""
    SOLVE_SECONDS = "heddle_solve_seconds"
    """Histogram: from intent read to verified plan."""
    MAX_UTILIZATION = "heddle_plan_max_utilization_ratio"
    """Gauge: worst link of the newest plan."""
    LOWER_BOUND = "heddle_plan_lower_bound_ratio"
    """Gauge: what no plan can beat."""
    UNROUTED_FLOWS = "heddle_plan_unrouted_flows"
    """Gauge."""
    GENERATION = "heddle_plan_generation"
    """Gauge."""
    ENTRIES = "heddle_plan_entries"
    """Gauge: exact-match entries over all switches."""
    CHANGED_FLOWS = "heddle_plan_changed_flows_total"
    """Counter: flows whose path moved."""
    PUSHES = "heddle_rollout_pushes_total"
    """Counter: batches sent to agents."""
    OPERATIONS = "heddle_rollout_operations_total"
    """Counter: entries set or deleted."""
    OPERATION_FAILURES = "heddle_rollout_operation_failures_total"
    """Counter: operations that an agent could not do."""
    PUSH_SECONDS = "heddle_rollout_push_seconds"
    """Histogram: from a batch sent to its FIB ack."""
    PROGRAM_SECONDS = "heddle_intent_to_programmed_seconds"
    """Histogram: from a change of intent to the last FIB ack it needed."""
    PENDING_SWITCHES = "heddle_rollout_pending_switches"
    """Gauge: switches that do not hold the newest plan yet."""
