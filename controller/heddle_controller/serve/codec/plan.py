"""Conversion of plans and routes to messages.

Routes are made one page at a time, so it is acceptable that each flow is an object here.
"""

from __future__ import annotations

import numpy as np

from heddle.v1 import common_pb2
from heddle.v1 import plan_pb2 as pb
from heddle_controller.model.arrays import NONE, Ints, starts
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.plan.explain import Explanation
from heddle_controller.plan.limits import ArcLoad, Fares
from heddle_controller.serve.codec import common, names, times
from heddle_controller.state.records import Committed

NAMES_PER_ANSWER = 20
"""Most switches of a plan, and most jobs of a link, that an answer names."""


def committed_to_pb(fabric: str, committed: Committed) -> pb.Plan:
    """Return a committed plan as a message, without routes."""
    message = plan_to_pb(fabric, committed.plan)
    program, facts = committed.program, committed.facts
    message.generation = program.generation
    message.epoch = program.epoch
    message.intent_version = program.intent_version
    message.answered_version = committed.answered_version
    message.settled_generation, unsettled = committed.settled()
    message.unsettled_switches.extend(sorted(unsettled)[:NAMES_PER_ANSWER])
    message.changed_count = facts.changed_count
    message.solve_seconds = facts.solve_seconds
    message.commit_time.CopyFrom(times.time_to_pb(facts.commit_time))
    lacking = len(committed.lacking())
    message.switch_count = committed.switch_count
    message.programmed_switch_count = committed.switch_count - lacking
    message.entry_count = len(program.entries)
    if not lacking:
        message.programmed_time.CopyFrom(times.time_to_pb(committed.programmed_time()))
    return message


def plan_to_pb(fabric: str, plan: Plan) -> pb.Plan:
    """Return as a message what is known of a plan without a commit."""
    return pb.Plan(
        name=names.plan_name(fabric),
        certificate=common.certificate_to_pb(plan.certificate),
        routed_count=len(plan.flows) - len(plan.unrouted),
        unrouted_count=len(plan.unrouted),
        notes=plan.notes,
    )


def select(plan: Plan, job: str, link: int | None) -> Ints:
    """Return the rows of a job's flows (empty: of all flows) over a link (None: any), ascending."""
    chosen = np.ones(len(plan.flows), dtype=np.bool_)
    if job:
        names_of = np.array([name == job for name in plan.flows.job_names], dtype=np.bool_)
        chosen = names_of[plan.flows.job] if len(names_of) else ~chosen
    if link is not None:
        arcs = np.zeros(2 * plan.fabric.link_count, dtype=np.bool_)
        arcs[2 * link : 2 * link + 2] = True
        over = np.zeros(len(plan.flows), dtype=np.bool_)
        over[plan.paths.flow[plan.paths.crosses(arcs)]] = True
        chosen &= over
    return np.flatnonzero(chosen)


class Routes:
    """Routes of one plan, by flow row."""

    def __init__(self, plan: Plan, ports: Ints) -> None:
        self._plan = plan
        self._ports = ports
        """Source port of QP 0 of each flow."""
        self._first_qp: Ints | None = None
        """Where the QPs of each path begin in ``NicPorts``; None until it is needed."""

    def route(self, row: int) -> pb.Route:
        """Return the route of a flow."""
        plan, flows = self._plan, self._plan.flows
        ids = plan.fabric.structure.nodes.ids
        first, last = np.searchsorted(plan.paths.flow, [row, row + 1]).tolist()
        phase = int(flows.phase[row])
        return pb.Route(
            flow=flows.ids[row],
            source=ids[int(flows.source[row])],
            destination=ids[int(flows.destination[row])],
            gbps=float(flows.gbps[row]),
            job=flows.job_names[int(flows.job[row])],
            phase="" if phase == ANY_PHASE else flows.phase_names[phase],
            source_port=int(self._ports[row]),
            paths=[self._path(plan.paths, path) for path in range(first, last)],
            backups=[self._path(plan.backups, path) for path in range(first, last)],
            unrouted_reason=plan.unrouted.get(row, ""),
        )

    def _path(self, paths: Paths, path: int) -> common_pb2.Path:
        """Return one path; a missing backup becomes a path without nodes."""
        plan = self._plan
        structure, arcs = plan.fabric.structure, paths.of(path)
        if not len(arcs):
            return common_pb2.Path()
        rows = [int(structure.tail[arcs[0]]), *structure.head[arcs].tolist()]
        qps = int(self._plan.flows.qps[paths.flow[path]])
        first_qp, last_qp = int(paths.first_qp[path]), int(paths.last_qp[path])
        return common_pb2.Path(
            nodes=[structure.nodes.ids[row] for row in rows],
            keys=[str(structure.links.key[link]) for link in (arcs >> 1).tolist()],
            first_qp=first_qp,
            last_qp=last_qp,
            share=(last_qp - first_qp + 1) / qps,
            ports=self._ports_of(paths, path),
        )

    def _ports_of(self, paths: Paths, path: int) -> list[int]:
        """Return the source ports of a path's QPs, if ports steer the flow; otherwise none."""
        plan = self._plan
        if plan.nic_ports is None or not plan.nic_ports.probes[paths.flow[path]]:
            return []
        column = plan.nic_ports.backup if paths is plan.backups else plan.nic_ports.port
        if self._first_qp is None:
            self._first_qp = starts(plan.paths.qp_count)
        begin, end = self._first_qp[path : path + 2].tolist()
        ports: list[int] = column[begin:end].tolist()
        return ports


def explanation_to_pb(plan: Plan, ports: Ints, explanation: Explanation) -> pb.ExplainFlowResponse:
    """Return the explanation of a flow's route as a message."""
    return pb.ExplainFlowResponse(
        route=Routes(plan, ports).route(explanation.flow),
        hops=[
            pb.HopLoad(
                path=hop.path,
                link=directed(plan, hop.arc),
                load_gbps=hop.load_gbps,
                capacity_gbps=hop.capacity_gbps,
                other_flow_count=len(hop.sharers),
            )
            for hop in explanation.hops
        ],
        reasons=explanation.reasons,
        candidate_count=explanation.candidate_count,
    )


def slowest_to_pb(fares: Fares, row: int, unrouted: int) -> pb.SlowestFlow:
    """Return the slowest flow of a job; ``unrouted`` is how many of its flows have no path."""
    arc, flow = fares.limit_of(row), fares.plan.flows.ids[row]
    told = pb.SlowestFlow(flow=flow, share=float(fares.share[row]), unrouted_count=unrouted)
    if arc != NONE:
        told.link.CopyFrom(directed(fares.plan, arc))
        told.utilization = float(fares.utilization[arc])
    return told


def link_load_to_pb(plan: Plan, found: ArcLoad) -> pb.LinkLoad:
    """Return the load that a plan puts on an arc as a message."""
    load, capacity = plan.loads[found.arc], plan.fabric.structure.capacity[found.arc]
    return pb.LinkLoad(
        link=directed(plan, found.arc),
        load_gbps=float(load),
        capacity_gbps=float(capacity),
        utilization=float(load / capacity),
        flow_count=found.flow_count,
        jobs=[
            pb.Sharer(
                job=plan.flows.job_names[share.job], flow_count=share.flow_count, gbps=share.gbps
            )
            for share in found.shares[:NAMES_PER_ANSWER]
        ],
    )


def directed(plan: Plan, arc: int) -> common_pb2.LinkRef:
    """Return the link of an arc, with its ends in the direction of travel."""
    structure = plan.fabric.structure
    ids = structure.nodes.ids
    return common_pb2.LinkRef(
        source=ids[int(structure.tail[arc])],
        target=ids[int(structure.head[arc])],
        key=str(structure.links.key[arc >> 1]),
    )
