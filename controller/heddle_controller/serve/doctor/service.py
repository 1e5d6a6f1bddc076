"""DoctorService, and the rules that check an installation.

The service gathers what this controller knows. The rules are pure functions over that.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from grpc import aio
from typing_extensions import override

from heddle.text import counted, some_of
from heddle.v1 import doctor_pb2 as pb
from heddle.v1 import placement_pb2
from heddle.v1.doctor_pb2_grpc import DoctorServiceServicer
from heddle_controller.model.arrays import NONE
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import PREFIX, SET, unannounced_rows
from heddle_controller.model.plan import Plan
from heddle_controller.plan.what_if import flows_over
from heddle_controller.reconcile.observations import LinkEnds, Observations, SeenLinks
from heddle_controller.reconcile.ports import AgentSession
from heddle_controller.serve.agents.gateway import Gateway
from heddle_controller.serve.agents.link_book import Condition
from heddle_controller.serve.codec import names, times
from heddle_controller.serve.doctor import TOLD, found, since
from heddle_controller.serve.doctor.job import JobCase, examine, no_plan_yet
from heddle_controller.serve.doctor.validity import of_agents, of_files, of_tokens
from heddle_controller.serve.flow_index import FlowIndexes
from heddle_controller.serve.rates import RateBook
from heddle_controller.serve.security.files import Grant, TokenFile
from heddle_controller.state.errors import Unavailable
from heddle_controller.state.records import Committed, FabricRecord, JobRecord, JobState
from heddle_controller.store.store import Store

NEARLY_FULL = 0.9
"""Used share of its table from which on a switch counts as nearly full."""


@dataclass(frozen=True, slots=True, eq=False)
class Installation:
    """All that this controller knows about a fabric, its agents and its controllers."""

    record: FabricRecord
    jobs: tuple[JobRecord, ...]
    committed: Committed | None
    intent_version: int
    """Version of what was wanted before ``committed`` was read."""
    seen: SeenLinks
    unwell: Mapping[LinkEnds, Condition]
    sessions: Mapping[str, AgentSession]
    """Sessions of agents with this controller, by switch."""
    aside: Mapping[str, str]
    """Switches that are set aside, each with the reason."""
    leader: str | None
    """Name of the controller that leads; empty if none does, None if the store cannot say."""
    stale_seconds: float
    """Seconds for which the store has been out of reach; 0 if it can be reached."""
    write_trouble: str
    """Why a write to the store failed in the last minutes; empty if none did."""
    version: str
    """Version of this controller."""
    files: tuple[Path | None, ...] = ()
    """Files with certificates of this controller and of the authority of its clients."""
    grants: tuple[Grant, ...] = ()
    """Tokens that this controller knows."""
    time: float = 0.0
    """Unix time of the examination."""


def examine_installation(now: Installation) -> list[pb.Finding]:
    """Return what is wrong with an installation, the most severe findings first."""
    findings = [
        *_store(now),
        *_agents(now),
        *_versions(now),
        *of_files("The controller's", now.files, now.time),
        *of_agents([(one, about.certificate) for one, about in now.sessions.items()], now.time),
        *of_tokens(now.grants, now.time),
        *_tables(now),
        *_links(now),
        *_plan(now),
    ]
    return sorted(findings, key=lambda one: -one.severity)


def _store(now: Installation) -> Iterator[pb.Finding]:
    if now.stale_seconds > 0:
        text = f"The store cannot be reached for {now.stale_seconds:.0f} s: no change is taken."
        yield found(pb.SEVERITY_ERROR, "store", text, "See to the store: the controller's log")
    if now.write_trouble:
        text = f"Writes have failed in the last minutes: {now.write_trouble}."
        cure = "See to the store: until it takes writes, nothing new is planned"
        yield found(pb.SEVERITY_ERROR, "store", text, cure)
    if now.leader == "":
        cure = "Start a controller, or see in their logs why none can lead"
        yield found(pb.SEVERITY_ERROR, "controller", "No controller leads.", cure)


def _agents(now: Installation) -> Iterator[pb.Finding]:
    structure = now.record.fabric.structure
    switches = [structure.nodes.ids[row] for row in structure.programmed.tolist()]
    missing = [one for one in switches if one not in now.sessions and one not in now.aside]
    if missing:
        has = counted(len(missing), "agent has", "agents have")
        text = f"{has} no session with this controller: {some_of(missing)}."
        cure = "Start heddle-agent there, or see in its log why it cannot reach the controller"
        yield found(pb.SEVERITY_WARNING, "agents", text, cure)
    left_out = [
        switch
        for switch, about in now.sessions.items()
        if switch not in structure.index and about.table_digest and not about.pushed
    ]
    if left_out:
        hold = counted(len(left_out), "switch", "switches")
        text = f"{hold} with entries that the fabric does not have: {some_of(sorted(left_out))}."
        cure = (
            "Wait until all others hold the newest plan; if agents are missing there, start them,"
            " or put a fabric without their switches"
        )
        yield found(pb.SEVERITY_WARNING, "agents", text, cure)
    for switch, why in list(now.aside.items())[:TOLD]:
        cure = "See the log of its agent"
        yield found(pb.SEVERITY_WARNING, "agents", f"Switch {switch} is {why}.", cure)


def _versions(now: Installation) -> Iterator[pb.Finding]:
    others = defaultdict(list)
    for switch, session in sorted(now.sessions.items()):
        if session.software_version != now.version:
            others[session.software_version].append(switch)
    for release, switches in sorted(others.items()):
        told = release or "no version"
        text = f"Agents with {told}, the controller with {now.version}: {some_of(switches)}."
        cure = f"Install heddle-agent {now.version} there when it suits"
        yield found(pb.SEVERITY_WARNING, "versions", text, cure)


def _tables(now: Installation) -> Iterator[pb.Finding]:
    """Find switches whose entries nearly fill the table size given by the fabric or the agent."""
    if now.committed is None:
        return
    structure = now.committed.plan.fabric.structure
    nodes = structure.nodes
    held = np.bincount(now.committed.program.entries.switch, minlength=len(nodes.ids))
    for row in structure.programmed.tolist():
        session = now.sessions.get(nodes.ids[row])
        told = [int(nodes.table_size[row])] if nodes.table_size[row] != NONE else []
        told += [session.table_size] if session is not None and session.table_size else []
        if told and held[row] >= NEARLY_FULL * min(told):
            text = f"{nodes.ids[row]} holds {held[row]} of {min(told)} entries."
            cure = "Give jobs fewer QPs or flows; flows that find no room are not split or planned"
            yield found(pb.SEVERITY_WARNING, "tables", text, cure)


def _links(now: Installation) -> Iterator[pb.Finding]:
    fabric = now.record.fabric
    for link in sorted(now.seen.down)[:TOLD]:
        text = f"{fabric.link_name(link)} is down{since(now.seen.since.get(link, 0.0))}."
        yield found(pb.SEVERITY_WARNING, "links", text, "See to its cable and optics")
    unwell = [(link, why) for ends, why in now.unwell.items() for link in fabric.find_links(*ends)]
    for link, condition in unwell[:TOLD]:
        named = fabric.link_name(link)
        cure = f"Run: heddle drain {named}; then see to its cable and optics"
        text = f"{named} is {condition.reason}."
        yield found(pb.SEVERITY_WARNING, "links", text, cure)
    out = list(_out_of_service(fabric))
    if out:
        told = some_of([what for what, _ in out], between="; ")
        text = f"Operators have taken out of service: {told}."
        cure = f"Run, when the work is done: {some_of([back for _, back in out], between='; ')}"
        yield found(pb.SEVERITY_INFO, "links", text, cure)


def _out_of_service(fabric: Fabric) -> Iterator[tuple[str, str]]:
    """Yield what operators have done to switches and links, and the command that ends it."""
    switches = np.flatnonzero(fabric.node_state != State.UP).tolist()
    links = np.flatnonzero(fabric.link_state != State.UP).tolist()
    ids = fabric.structure.nodes.ids
    changed = [("switch", ids[row], int(fabric.node_state[row])) for row in switches]
    changed += [("link", fabric.link_name(row), int(fabric.link_state[row])) for row in links]
    for kind, name, state in changed:
        if state == State.DRAINED:
            yield f"{kind} {name} (drained)", f"heddle undrain {name}"
        else:
            yield f"{kind} {name} (down)", f"heddle fabric {kind} {name} up"


def _plan(now: Installation) -> Iterator[pb.Finding]:
    if now.record.overlay.withdrawn:
        text = "The whole fabric is on the underlay: an operator has withdrawn the overlay."
        yield found(pb.SEVERITY_WARNING, "plan", text, "Run: heddle overlay restore")
    degraded = [one.job.name for one in now.jobs if one.facts.state == JobState.DEGRADED]
    if degraded:
        text = f"{counted(len(degraded), 'job is', 'jobs are')} degraded: {some_of(degraded)}."
        yield found(pb.SEVERITY_ERROR, "jobs", text, f"Run: heddle doctor job {degraded[0]}")
    if now.committed is None or now.committed.answered_version < now.intent_version:
        text = "The newest changes, such as jobs and drains, have no plan yet."
        cure = "Wait a moment; if it stays so, see the log of the controller that leads"
        yield found(pb.SEVERITY_WARNING, "plan", text, cure)
    if now.committed is None:
        return
    yield from _unannounced(now.committed.plan)
    yield from _on_drained(now.committed.plan)
    lost, lacking = len(now.committed.plan.unrouted), list(now.committed.lacking())
    if lost:
        text = f"{counted(lost, 'flow has', 'flows have')} no path: routing carries what it can."
        yield found(pb.SEVERITY_ERROR, "plan", text, "Run: heddle show routes")
    if lacking:
        generation = now.committed.generation
        does = counted(len(lacking), "switch does", "switches do")
        text = f"{does} not hold plan {generation} yet: {some_of(lacking)}."
        yield found(
            pb.SEVERITY_WARNING,
            "plan",
            text,
            "Wait; else see 'entries refused' in the leader's log",
        )


def _on_drained(plan: Plan) -> Iterator[pb.Finding]:
    """Report flows that stay on drained links."""
    fabric = plan.fabric
    stay = flows_over(plan, np.flatnonzero(fabric.effective == State.DRAINED), backups=False)
    if len(stay):
        told = some_of([plan.flows.ids[row] for row in stay.tolist()])
        text = (
            f"{counted(len(stay), 'flow has', 'flows have')} no way but over drained links: {told}."
        )
        cure = "Do not unplug these links; bring back others: heddle fabric show"
        yield found(pb.SEVERITY_WARNING, "plan", text, cure)


def _unannounced(plan: Plan) -> Iterator[pb.Finding]:
    """Report unannounced flows that were found by counters, the largest first."""
    rows = unannounced_rows(plan.flows)
    if not len(rows):
        return
    rows = rows[np.argsort(-plan.flows.gbps[rows], kind="stable")]
    pairs = [plan.flows.ids[row].removeprefix(PREFIX) for row in rows.tolist()]
    send = counted(len(pairs), "pair of NICs sends", "pairs of NICs send")
    most = float(plan.flows.gbps[rows[0]])
    text = f"{send} much that nobody announced, up to {most:.3g} Gbit/s: {some_of(pairs)}."
    cure = f"Submit the job that it is of; see: heddle demand show {SET}"
    yield found(pb.SEVERITY_INFO, "traffic", text, cure)


_Context = aio.ServicerContext[Any, Any]


class DoctorService(DoctorServiceServicer):
    """Examines jobs and installations; see doctor.proto."""

    def __init__(
        self,
        store: Store,
        gateway: Gateway,
        indexes: FlowIndexes,
        rates: RateBook,
        observations: Observations,
        *,
        unwell: Callable[[str], Mapping[LinkEnds, Condition]],
        files: tuple[Path | None, ...],
        tokens: TokenFile | None,
    ) -> None:
        """``unwell`` returns the links of a fabric that agents report as unwell.

        ``files`` are the certificates of this controller and of the authority of its clients;
        ``tokens`` has the tokens that it knows.
        """
        self._store = store
        self._gateway = gateway
        self._indexes = indexes
        self._rates = rates
        self._observations = observations
        self._unwell = unwell
        self._files = files
        self._tokens = tokens

    @override
    async def ExamineInstallation(
        self, request: pb.ExamineInstallationRequest, context: _Context
    ) -> pb.InstallationExamination:
        """Examine an installation as this controller sees it; the rules run in a thread."""
        fabric = names.fabric_name.fabric(request.fabric, "fabric")
        record = await self._store.get_fabric(fabric)
        wanted = await self._store.versions(fabric)
        now = Installation(
            record=record,
            jobs=tuple(await self._store.list_jobs(fabric)),
            committed=await self._store.committed(fabric),
            intent_version=wanted.intent,
            seen=self._observations.of(fabric).seen(record.fabric),
            unwell=dict(self._unwell(fabric)),
            sessions=dict(self._gateway.sessions(fabric)),
            aside=dict(self._gateway.held_aside(fabric)),
            leader=await self._leader(),
            stale_seconds=self._store.stale_for(),
            write_trouble=self._store.write_trouble(),
            version=version("heddle-controller"),
            files=self._files,
            grants=tuple(self._tokens.grants()) if self._tokens is not None else (),
            time=time.time(),
        )
        findings = await asyncio.to_thread(examine_installation, now)
        clock = times.time_to_pb(time.time())
        return pb.InstallationExamination(version=now.version, time=clock, findings=findings)

    async def _leader(self) -> str | None:
        try:
            return (await self._store.leader()).holder
        except Unavailable:
            return None

    @override
    async def ExamineJob(
        self, request: pb.ExamineJobRequest, context: _Context
    ) -> pb.JobExamination:
        """Examine a job in the newest plan; the rules run in a thread."""
        fabric, name = names.job_name.parse(request.name, "name")
        job = await self._store.get_job(fabric, name)
        record = await self._store.get_fabric(fabric)
        index = await self._indexes.of(fabric)
        committed = await self._store.committed(fabric)
        if index is None or committed is None:
            state = placement_pb2.JobState.ValueType(job.facts.state)
            findings = [no_plan_yet()]
            return pb.JobExamination(name=request.name, state=state, findings=findings)
        case = JobCase(
            record=record,
            job=job,
            committed=committed,
            index=index,
            seen=self._observations.of(fabric).seen(record.fabric),
            unwell=dict(self._unwell(fabric)),
            agents=frozenset(self._gateway.sessions(fabric)),
            aside=dict(self._gateway.held_aside(fabric)),
            measured=self._rates.measured(fabric),
        )
        return await asyncio.to_thread(examine, case)
