"""Conversion of flow demands and demand sets to the model and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from heddle.text import counted
from heddle.v1 import demand_pb2 as pb
from heddle.v1 import placement_pb2
from heddle_controller.model.demand import Demands
from heddle_controller.model.errors import refuse
from heddle_controller.model.flows import SOURCE_PORT_COUNT
from heddle_controller.model.plan import Plan
from heddle_controller.planner.planning import left_out
from heddle_controller.serve.codec import common, names, times
from heddle_controller.state.records import DemandRecord, Intent, JobState


@dataclass(frozen=True, slots=True)
class DemandFacts:
    """The state of a demand set, as far as it follows from the newest plan."""

    state: JobState = JobState.ACCEPTED
    """At most PLANNED and never PROGRAMMED, because switches are tracked by job, not by set."""
    reason: str = ""
    """Why it is DEGRADED; empty in other states."""
    unrouted_count: int = 0
    """Its flows without a path."""


ACCEPTED = DemandFacts()


def demands_from_pb(
    demands: Sequence[pb.FlowDemand], before: int = 0, field: str = "demands"
) -> Demands:
    """Return demands as columns; ``model.demand.resolve`` checks what they mean in a fabric.

    Args:
        demands: Some of a list of demands.
        before: How many of the same list came before these.
        field: Name of the list, for errors.

    Raises:
        InputError: a traffic class is unknown, a flow has no id, or a flow has more QPs than a
            pair of NICs has source ports.
    """
    classes = [d.traffic_class for d in demands]
    for row, demand in enumerate(demands):
        if not demand.flow:
            raise refuse(
                "request", f"{field}[{before + row}].flow", "it is empty: give each flow an id"
            )
        if demand.qps > SOURCE_PORT_COUNT:
            reason = f"qps is {demand.qps}; give 1 to {SOURCE_PORT_COUNT}"
            raise refuse("request", f"flow {demand.flow!r}", reason)
    known = {
        value: int(common.class_from_pb(value, f"{field}[{before + row}].traffic_class"))
        for value, row in {value: classes.index(value) for value in set(classes)}.items()
    }
    return Demands(
        ids=tuple(d.flow for d in demands),
        source=tuple(d.source for d in demands),
        destination=tuple(d.destination for d in demands),
        gbps=np.array([d.gbps for d in demands], dtype=np.float64),
        job=tuple(d.job for d in demands),
        phase=tuple(d.phase for d in demands),
        qps=np.array([d.qps or 1 for d in demands], dtype=np.int64),
        traffic_class=np.array([known[value] for value in classes], dtype=np.int64),
    )


def joined_demands(parts: Sequence[Demands]) -> Demands:
    """Return all demands of a set that arrived in parts, in their order."""
    whole = [*parts, demands_from_pb(())]

    def words(column: str) -> tuple[str, ...]:
        return tuple(chain.from_iterable(getattr(part, column) for part in whole))

    return Demands(
        ids=words("ids"),
        source=words("source"),
        destination=words("destination"),
        gbps=np.concatenate([part.gbps for part in whole]),
        job=words("job"),
        phase=words("phase"),
        qps=np.concatenate([part.qps for part in whole]),
        traffic_class=np.concatenate([part.traffic_class for part in whole]),
    )


def demand_to_pb(demands: Demands, row: int) -> pb.FlowDemand:
    """Return one demand as a message."""
    return pb.FlowDemand(
        flow=demands.ids[row],
        source=demands.source[row],
        destination=demands.destination[row],
        gbps=float(demands.gbps[row]),
        job=demands.job[row],
        phase=demands.phase[row],
        qps=int(demands.qps[row]),
        traffic_class=common.class_to_pb(int(demands.traffic_class[row])),
    )


def demand_record_to_pb(
    fabric: str, record: DemandRecord, facts: DemandFacts = ACCEPTED
) -> pb.DemandSet:
    """Return a stored demand set as a message, without its demands."""
    return pb.DemandSet(
        name=names.demands_name(fabric, record.name),
        flow_count=len(record.demands),
        etag=record.etag,
        update_time=times.time_to_pb(record.update_time),
        state=placement_pb2.JobState.ValueType(facts.state),
        reason=facts.reason,
        unrouted_count=facts.unrouted_count,
    )


def demand_facts(
    intent: Intent, plan: Plan | None, rows: Mapping[str, int]
) -> dict[str, DemandFacts]:
    """Return the facts of all demand sets of a fabric, by name.

    Args:
        intent: The intent, which has the sets.
        plan: The newest plan; None if there is none.
        rows: Rows of the plan's flows, by flow id.
    """
    unplanned = left_out(intent)
    facts = {}
    for record in intent.demands:
        if reason := unplanned.get(record.name):
            facts[record.name] = DemandFacts(JobState.DEGRADED, f"not planned: {reason}")
        else:
            facts[record.name] = _planned(record.demands, plan, rows)
    return facts


def _planned(demands: Demands, plan: Plan | None, rows: Mapping[str, int]) -> DemandFacts:
    if plan is None or not all(flow in rows for flow in demands.ids):
        return DemandFacts()
    at = np.array([rows[flow] for flow in demands.ids], dtype=np.int64)
    if not _holds(plan, at, demands):
        return DemandFacts()
    lost = [row for row in at.tolist() if row in plan.unrouted]
    if lost:
        first = f"{plan.flows.ids[lost[0]]}: {plan.unrouted[lost[0]]}"
        text = f"{counted(len(lost), 'flow')} without a path: {first}"
        return DemandFacts(JobState.DEGRADED, text, len(lost))
    return DemandFacts(JobState.PLANNED)


def _holds(plan: Plan, at: np.ndarray, demands: Demands) -> bool:
    """Return whether the plan's flows at these rows equal what the demands ask for now.

    They may still be those of an older version of the set.
    """
    flows, ids = plan.flows, plan.fabric.structure.nodes.ids
    ends = ((flows.source, demands.source), (flows.destination, demands.destination))
    columns = (
        (flows.gbps, demands.gbps),
        (flows.qps, demands.qps),
        (flows.traffic_class, demands.traffic_class),
    )
    return all(np.array_equal(have[at], want) for have, want in columns) and all(
        tuple(ids[row] for row in have[at].tolist()) == want for have, want in ends
    )
