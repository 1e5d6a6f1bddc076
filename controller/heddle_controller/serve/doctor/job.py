"""Why a job is slow: rules over what one controller knows. All functions are pure.

Each rule yields findings with what to do about them. The slowest flow is the one that gets the
smallest share of its demand. Among equals it is the one that loses the most packets, then the one
with the fullest link.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from heddle.names import link_name
from heddle.text import counted, some_of
from heddle.v1 import common_pb2, placement_pb2
from heddle.v1 import doctor_pb2 as pb
from heddle_controller.model.arrays import NONE, Floats, Ints, distinct
from heddle_controller.model.fabric import State
from heddle_controller.model.plan import Plan
from heddle_controller.plan.limits import (
    Fares,
    fares_of,
    rails_of,
    sharers_of,
    shortest_links,
    switches_of,
    whole_flows,
)
from heddle_controller.reconcile.observations import LinkEnds, SeenLinks
from heddle_controller.serve.agents.link_book import Condition
from heddle_controller.serve.codec import names, times
from heddle_controller.serve.codec import plan as plan_codec
from heddle_controller.serve.doctor import TOLD, found, since
from heddle_controller.serve.flow_index import FlowIndex
from heddle_controller.serve.rates import MeasuredRate
from heddle_controller.state.records import Committed, FabricRecord, JobRecord, JobState

SHORT = 0.8
"""A measured rate below this share of the expected rate is a warning."""
_CLOSE = 1.01
"""A link whose load is at most this multiple of its tier's lower bound counts as optimal."""
_IDLE = 1e-3
"""Share of its demand below which a flow counts as silent; also the least share that a link
offers."""


@dataclass(frozen=True, slots=True, eq=False)
class JobCase:
    """All that this controller knows about a job."""

    record: FabricRecord
    job: JobRecord
    committed: Committed
    index: FlowIndex
    seen: SeenLinks
    unwell: Mapping[LinkEnds, Condition]
    agents: frozenset[str]
    """Switches whose agent has a session with this controller."""
    aside: Mapping[str, str]
    """Switches that are set aside, each with the reason."""
    measured: Mapping[str, MeasuredRate]
    """The newest measured rate, by flow id."""


def examine(case: JobCase) -> pb.JobExamination:
    """Return how fast a job is, and findings that say why, the most severe first."""
    plan, job = case.committed.plan, case.job
    told = pb.JobExamination(
        name=names.job_name(case.record.name, job.job.name),
        state=placement_pb2.JobState.ValueType(job.facts.state),
        generation=case.committed.generation,
    )
    rows = _rows(plan, job.job.name)
    if job.job.suspended:
        cure = f"Run: heddle job resume {job.job.name}"
        why = "It is suspended: none of its flows is planned."
        told.findings.append(found(pb.SEVERITY_WARNING, "job", why, cure))
        return told
    if job.facts.state == JobState.ACCEPTED and job.job.name not in plan.flows.job_names:
        told.findings.append(no_plan_yet())
        return told
    if not len(rows):
        told.findings.append(found(pb.SEVERITY_INFO, "job", "It has no flow in the network.", ""))
        return told
    at = _At.of(case, rows)
    _describe(told, case, at)
    findings = [
        *_overlay(case),
        *_degraded(case),
        *_unrouted(case, rows),
        *_limit(case, at),
        *_conditions(case, rows),
        *_held(case, at),
        *_rates(case, at, rows),
        *_rails(at),
        *_events(case, at),
    ]
    told.findings.extend(sorted(findings, key=lambda one: -one.severity))
    return told


def no_plan_yet() -> pb.Finding:
    """Return the finding about a job that no plan holds yet."""
    cure = "Wait a moment; if it stays so, see the log of the controller that leads"
    text = "It waits for the first plan that holds it: routing hashes its flows until then."
    return found(pb.SEVERITY_WARNING, "job", text, cure)


@dataclass(frozen=True, slots=True, eq=False)
class _At:
    """The slowest flow of the job, and what limits it."""

    plan: Plan
    fares: Fares
    flow: int
    arc: int
    """The arc that limits it; ``NONE`` if it has no path."""
    switches: tuple[str, ...]
    """The switches on its paths that Heddle programs."""

    @classmethod
    def of(cls, case: JobCase, rows: Ints) -> _At:
        plan = case.committed.plan
        offered, lost = _offered(case)
        fares = fares_of(plan, offered)
        loses = np.zeros(len(plan.flows))
        np.maximum.at(loses, plan.paths.flow[plan.paths.owner()], lost[plan.paths.arcs])
        fullness = np.where(fares.fullest == NONE, np.inf, fares.utilization[fares.fullest])
        flow = int(rows[np.lexsort((-fullness[rows], -loses[rows], fares.share[rows]))[0]])
        arc = fares.limit_of(flow)
        structure = plan.fabric.structure
        programmed = {structure.nodes.ids[row] for row in structure.programmed.tolist()}
        way = switches_of(plan, flow) if arc != NONE else []
        return cls(plan, fares, flow, arc, tuple(one for one in way if one in programmed))

    @property
    def id(self) -> str:
        return self.plan.flows.ids[self.flow]

    @property
    def gbps(self) -> float:
        return float(self.plan.flows.gbps[self.flow])

    @property
    def share(self) -> float:
        return float(self.fares.share[self.flow])


def _rows(plan: Plan, job: str) -> Ints:
    """Return the rows of a job's flows, ascending."""
    if job not in plan.flows.job_names:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(plan.flows.job == plan.flows.job_names.index(job))


def _offered(case: JobCase) -> tuple[Floats, Floats]:
    """Return for each arc the share of its speed that it offers, and the share of lost packets."""
    fabric = case.committed.plan.fabric
    offered, lost = np.ones(2 * fabric.link_count), np.zeros(2 * fabric.link_count)
    for ends, condition in case.unwell.items():
        for link in fabric.find_links(*ends):
            both = slice(2 * link, 2 * link + 2)
            lost[both] = condition.loss_ratio
            through = (condition.rate_ratio or 1.0) * (1 - condition.loss_ratio)
            offered[both] = max(through, _IDLE)
    return offered, lost


def _describe(told: pb.JobExamination, case: JobCase, at: _At) -> None:
    """Fill in the figures of the slowest flow."""
    plan, flows = at.plan, at.plan.flows
    unrouted = at.fares.unrouted_of_jobs()[case.job.job.name]
    told.slowest.CopyFrom(plan_codec.slowest_to_pb(at.fares, at.flow, unrouted))
    told.route.CopyFrom(plan_codec.Routes(plan, case.index.ports).route(at.flow))
    told.expected_gbps = at.gbps * at.share
    if (measured := case.measured.get(at.id)) is not None:
        told.measured_gbps = measured.gbps
        told.measured_time.CopyFrom(times.time_to_pb(measured.time))
    rails = rails_of(plan.fabric.structure, int(flows.source[at.flow]), _destination(at))
    if rails is not None:
        told.source_rail, told.destination_rail = rails
    lacking = set(case.committed.lacking())
    told.pinned = (
        at.arc != NONE and not case.record.overlay.withdrawn and lacking.isdisjoint(at.switches)
    )
    if at.arc != NONE:
        for share in sharers_of(plan, at.arc, int(flows.job[at.flow])):
            told.sharers.add(
                job=flows.job_names[share.job], flow_count=share.flow_count, gbps=share.gbps
            )


def _destination(at: _At) -> int:
    return int(at.plan.flows.destination[at.flow])


def _overlay(case: JobCase) -> Iterator[pb.Finding]:
    overlay = case.record.overlay
    if overlay.withdrawn:
        text = (
            f"The whole fabric is on the underlay{since(overlay.time)}: routing hashes all flows."
        )
        yield found(pb.SEVERITY_ERROR, "programmed", text, "Run: heddle overlay restore")


def _degraded(case: JobCase) -> Iterator[pb.Finding]:
    facts = case.job.facts
    if facts.state == JobState.DEGRADED:
        cure = f"Run: heddle job show {case.job.job.name}"
        yield found(pb.SEVERITY_ERROR, "job", f"It is degraded: {facts.reason}.", cure)


def _unrouted(case: JobCase, rows: Ints) -> Iterator[pb.Finding]:
    plan = case.committed.plan
    lost = [row for row in rows.tolist() if row in plan.unrouted]
    if lost:
        flow = plan.flows.ids[lost[0]]
        text = f"{counted(len(lost), 'flow has', 'flows have')} no path and are left to routing: "
        cure = f"Bring back what is down or drained: heddle fabric show; heddle show explain {flow}"
        if plan.fabric.structure.hashes.any():
            cure = f"Run heddle-agent host on its hosts, which finds ports. {cure}"
        told = f"{text}{flow}: {plan.unrouted[lost[0]]}."
        yield found(pb.SEVERITY_ERROR, "path", told, cure)


def _limit(case: JobCase, at: _At) -> Iterator[pb.Finding]:
    """Find the link that limits the slowest flow, and say whether another plan could help."""
    if at.arc == NONE:
        return
    used, link = float(at.fares.utilization[at.arc]), _arc(at.plan, at.arc)
    own = case.job.job.name
    shares = sharers_of(at.plan, at.arc, int(at.plan.flows.job[at.flow]))
    of_jobs = [at.plan.flows.job_names[share.job] for share in shares]
    with_whom = some_of(
        [
            f"{'itself' if name == own else _job(name)} {share.gbps:g} Gbit/s in "
            f"{counted(share.flow_count, 'flow')}"
            for name, share in zip(of_jobs, shares, strict=True)
        ]
    )
    if at.share >= 1.0:
        text = (
            f"No link limits it: the fullest on the way of its slowest flow, {at.id}, is {link}, "
            f"{used:.1%} full ({with_whom})."
        )
        yield found(pb.SEVERITY_INFO, "link", text, "")
        return
    text = (
        f"Flow {at.id} gets {at.share:.1%} of {at.gbps:g} Gbit/s: {link} is {used:.1%} full "
        f"({with_whom})."
    )
    yield found(pb.SEVERITY_ERROR, "link", text, _relief(case, at, alone=len(shares) == 1))


def _relief(case: JobCase, at: _At, *, alone: bool) -> str:
    """Return what to do about a link that is too full."""
    structure = at.plan.fabric.structure
    tier = structure.tiers[int(structure.tier_of_arc[at.arc])]
    speed = float(structure.capacity[at.arc])
    load = float(at.plan.loads[at.arc]) / speed
    bound = max(
        (one.lower_bound for one in at.plan.certificate.tiers if one.tier == tier), default=0.0
    )
    if load <= 1.0:
        return "The link has less to offer than its speed: see what agents say of it below"
    qp = at.gbps / int(at.plan.flows.qps[at.flow])
    if qp > speed * _CLOSE:
        needed = math.ceil(at.gbps / speed / _CLOSE)
        return (
            f"One QP of the flow asks for {qp:g} Gbit/s, more than the link carries: state "
            f"'qps: {needed}' for {_job(case.job.job.name)}, and have NCCL make {needed} QPs "
            "(NCCL_IB_QPS_PER_CONNECTION)"
        )
    if load > bound * _CLOSE:
        cure = (
            f"A better plan may exist ({tier} need not be above {bound:.1%}); the controller looks "
            "for one after some quiet: heddle show plan"
        )
        whole = _with_whole_flows(at)
        if whole:
            cure += (
                f". If the link stays as full, state 'qps: 2' for {some_of(whole)}, and have NCCL "
                "make 2 QPs (NCCL_IB_QPS_PER_CONNECTION): flows with one QP cannot be split"
            )
        return cure
    known = f"No plan does better ({tier} cannot be below {bound:.1%})"
    if load * _CLOSE < bound:
        known = (
            f"Whether a plan does better is not known: {tier} cannot be below {bound:.1%}, but "
            "that is elsewhere"
        )
    name = case.job.job.name
    cure = (
        f"try another rank order, heddle job order FILE --only {name}"
        if alone
        else "move one of these jobs to other hosts"
    )
    return f"{known}: {cure}, or bring back links: heddle fabric show"


def _with_whole_flows(at: _At) -> list[str]:
    """Return the jobs that have flows with a single QP over the limiting arc, by name."""
    plan = at.plan
    marked = np.zeros(2 * plan.fabric.link_count, dtype=np.bool_)
    marked[at.arc] = True
    jobs = distinct(plan.flows.job[whole_flows(plan, marked)])
    return [_job(plan.flows.job_names[job]) for job in jobs.tolist()]


def _conditions(case: JobCase, rows: Ints) -> Iterator[pb.Finding]:
    """Find unwell links on the paths of any flow of the job."""
    plan, fabric = case.committed.plan, case.committed.plan.fabric
    mine = np.isin(plan.paths.flow, rows)
    for ends, condition in list(case.unwell.items())[:TOLD]:
        for link in fabric.find_links(*ends):
            arcs = np.zeros(2 * fabric.link_count, dtype=np.bool_)
            arcs[2 * link : 2 * link + 2] = True
            over = distinct(plan.paths.flow[plan.paths.crosses(arcs) & mine])
            if len(over):
                named = fabric.link_name(link)
                what = [condition.reason]
                what += [f"loses {condition.loss_ratio:.2%} of packets"] * bool(
                    condition.loss_ratio
                )
                what += [f"offers {condition.rate_ratio:.0%} of its speed"] * bool(
                    condition.rate_ratio
                )
                text = f"Link {named} is not well ({', '.join(what)}): "
                text += f"{counted(len(over), 'flow')} of this job pass it."
                cure = f"Run: heddle drain {named}; then see to its cable and optics"
                yield found(pb.SEVERITY_ERROR, "link", text, cure)


def _held(case: JobCase, at: _At) -> Iterator[pb.Finding]:
    """Check that the switches on the slowest flow's paths hold the plan."""
    if at.arc == NONE:
        return
    ports = f"Compare the ports of its QPs: heddle job ports {case.job.job.name}"
    if not at.switches:
        text = (
            "Its packets are pinned by their source ports, as the switches on its way only hash. "
            "A QP with another source port takes another way."
        )
        yield found(pb.SEVERITY_INFO, "programmed", text, ports)
        return
    lacking = [switch for switch in case.committed.lacking() if switch in at.switches]
    generation = case.committed.generation
    for switch in lacking[:TOLD]:
        text = f"Switch {switch} does not hold plan {generation} yet: "
        if switch in case.aside:
            why, cure = f"it is {case.aside[switch]}", "See the log of its agent"
        elif switch not in case.agents:
            why = "its agent has no session here"
            cure = f"Start heddle-agent on {switch}, or see why it cannot reach the controller"
        else:
            why, cure = "its agent has not acknowledged it", "Wait; else see the log of its agent"
        tail = "; its packets there follow older entries, or the hash of routing"
        yield found(pb.SEVERITY_WARNING, "programmed", f"{text}{why}{tail}.", cure)
    away = [one for one in at.switches if one not in case.agents and one not in lacking]
    if away:
        text = f"No session here has the agent of {some_of(away)}: it holds plan {generation}, and "
        cure = "Start these agents, or see why they cannot reach the controller"
        yield found(pb.SEVERITY_WARNING, "programmed", f"{text}nothing new reaches it.", cure)
    if not lacking and not case.record.overlay.withdrawn:
        text = (
            f"Its packets are pinned: every switch on its way that is programmed holds plan "
            f"{generation}. A QP with another source port is hashed by routing all the same."
        )
        yield found(pb.SEVERITY_INFO, "programmed", text, ports)


def _rates(case: JobCase, at: _At, rows: Ints) -> Iterator[pb.Finding]:
    """Compare measured rates with expected rates."""
    flows, share = at.plan.flows, at.fares.share
    known = [row for row in rows.tolist() if flows.ids[row] in case.measured]
    if not known and at.arc == NONE:
        return  # no rate is expected of a flow without a path
    if not known:
        text = f"No rate was measured: {at.id} is expected to get {at.gbps * at.share:.4g} Gbit/s."
        cure = (
            "Wait until agents have counted once more; they never do if the controller runs with "
            "--counter-interval-seconds 0"
        )
        if not len(at.plan.fabric.structure.programmed):
            cure = "Read the counters of the NICs: no agent counts, as all switches only hash"
        yield found(pb.SEVERITY_INFO, "rate", text, cure)
        return
    rates = {row: case.measured[flows.ids[row]].gbps for row in known}
    expected = {row: float(flows.gbps[row] * share[row]) for row in known}
    worst = min(known, key=lambda row: rates[row] / max(expected[row], _IDLE))
    text = (
        f"Flow {flows.ids[worst]} was measured at {rates[worst]:.4g} of "
        f"{expected[worst]:.4g} Gbit/s that are expected while it sends."
    )
    if rates[worst] <= _IDLE * flows.gbps[worst]:
        cure = (
            "It does not send, or by other ports than it was told: "
            f"heddle job ports {case.job.job.name}"
        )
        yield found(pb.SEVERITY_WARNING, "rate", text, cure)
    elif rates[worst] < SHORT * expected[worst]:
        ids = at.plan.fabric.structure.nodes.ids
        source, target = ids[int(flows.source[worst])], ids[int(flows.destination[worst])]
        cure = f"If nothing else is found, look at the hosts of {source} and {target}"
        yield found(pb.SEVERITY_WARNING, "rate", text, cure)
    else:
        yield found(pb.SEVERITY_INFO, "rate", text, "")


def _rails(at: _At) -> Iterator[pb.Finding]:
    structure, source = at.plan.fabric.structure, int(at.plan.flows.source[at.flow])
    rails = rails_of(structure, source, _destination(at))
    if rails is not None and rails[0] != rails[1]:
        text = f"Flow {at.id} crosses from rail {rails[0]} to rail {rails[1]}."
        cure = "Keep it on one rail by the order of ranks: heddle job order FILE"
        yield found(pb.SEVERITY_WARNING, "rail", text, cure)


def _events(case: JobCase, at: _At) -> Iterator[pb.Finding]:
    """Name links that the slowest flow cannot use, and the plan that last moved flows."""
    plan, fabric, record = at.plan, at.plan.fabric, case.record
    structure = fabric.structure
    if structure is record.fabric.structure:
        ways = shortest_links(structure, int(plan.flows.source[at.flow]), _destination(at))
        states = record.fabric.effective[ways]
        out: dict[object, tuple[int, State]] = {}  # by switch, if an operator took that out
        for link, state in zip(ways.tolist(), map(State, states.tolist()), strict=True):
            if state != State.UP or link in case.seen.down:
                switch = _switch_out(case, link, state)
                out.setdefault(link if switch is None else ("switch", switch), (link, state))
        for link, state in islice(out.values(), TOLD):
            yield _out_of_service(case, link, state)
    facts = case.committed.facts
    when = times.time_text(times.time_to_pb(facts.commit_time))
    text = f"Plan {case.committed.generation} was committed at {when}; it moved "
    moved = counted(facts.changed_count, "flow")
    yield found(pb.SEVERITY_INFO, "event", f"{text}{moved}.", "")


def _switch_out(case: JobCase, link: int, state: State) -> int | None:
    """Return the row of the switch that an operator took out of service, and the link with it."""
    fabric = case.record.fabric
    links = fabric.structure.links
    if link in case.seen.down or fabric.link_state[link] == state:
        return None
    ends = (int(links.a[link]), int(links.b[link]))
    return next((one for one in ends if fabric.node_state[one] == state), None)


def _out_of_service(case: JobCase, link: int, state: State) -> pb.Finding:
    """Return a finding about a link on a shortest path of the slowest flow that is not up."""
    fabric = case.record.fabric
    named = fabric.link_name(link)
    if link in case.seen.down:
        seen = case.seen.since.get(link, 0.0)
        text, cure = f"agents say that it is down{since(seen)}", "See to its cable and optics"
    else:
        node = _switch_out(case, link, state)
        of = named if node is None else fabric.structure.nodes.ids[node]
        word = state.name.lower()
        changed = float(case.record.state_time[link]) if of == named else 0.0
        text = f"an operator has {of} {word}{since(changed)}"
        if state == State.DRAINED:
            cure = f"Run, when the work is done: heddle undrain {of}"
        else:
            what = "link" if of == named else "switch"
            cure = f"Run, when the work is done: heddle fabric {what} {of} up"
    return found(
        pb.SEVERITY_WARNING, "event", f"Link {named} is on a shortest way of it: {text}.", cure
    )


def _arc(plan: Plan, arc: int) -> str:
    """Return an arc as text, in the direction of travel, such as ``l0,s0,0``."""
    link: common_pb2.LinkRef = plan_codec.directed(plan, arc)
    return link_name(link.source, link.target, link.key)


def _job(name: str) -> str:
    return f"job {name}" if name else "flows of no job"
