"""The ports of the controller: what reconcile and serve ask of the world.

Every port is implemented elsewhere (store, serve, telemetry, app) and handed in
by app.py; tests hand in small real implementations. The store has an embedded
and a Redis form behind the one port, so nothing here assumes one process:

- *Leadership* covers the whole store. It is waited for, has an epoch that only
  grows, and may be lost; every write of the leader carries the epoch and is
  refused with ``StaleEpoch`` once it is not the newest.
- *Changes* are names of fabrics, coalesced, possibly repeated, never the event:
  who hears one reads what is there now.
- *Writes of intent* take a ``Request``. Where its id has been seen for the same
  request, the first answer comes back and nothing is written; the memory of ids
  is written in the transaction of the write itself. The same id with a different
  request raises ``RequestReused``. So is the record of who changed what.
- Checks that need more than the store can do by itself (does a job fit a fabric)
  are made by ``reconcile.intake`` against a revision or version that the write
  then names; a write whose ground has moved raises ``StaleIntent``.
- Every method raises ``Unavailable`` when the store cannot be reached or written.

``AgentGateway`` speaks of this controller's sessions alone. Agents have one with every
controller, and obey the one that leads: an agent that only others reach is missing here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Protocol

from heddle_controller.model.demand import Demands
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.job import Gpus, Job
from heddle_controller.model.plan import Certificate, Plan
from heddle_controller.model.program import Program
from heddle_controller.reconcile.metrics import Metric
from heddle_controller.reconcile.replicas import Following, Freshness, Succession
from heddle_controller.reconcile.southbound import AgentSession, Push, PushReport, SessionEvent
from heddle_controller.state.audit import AuditPage
from heddle_controller.state.records import (
    Committed,
    DemandRecord,
    FabricRecord,
    FabricSummary,
    Intent,
    JobFacts,
    JobRecord,
    LinkName,
    LinkRecord,
    PlanFacts,
    PlanSummary,
    Programmed,
    Request,
    Reservation,
    Rollback,
    SwitchRecord,
    Versions,
)


class FabricStore(Protocol):
    """Fabrics and the states of what is in them."""

    async def put_fabric(
        self,
        name: str,
        fabric: Fabric,
        *,
        title: str = "",
        etag: str = "",
        checked_version: int | None = None,
        request: Request = ...,
    ) -> FabricRecord:
        """Create a fabric, or replace it whole; its states become the administrative ones.

        Args:
            name: Last part of "fabrics/f1".
            fabric: With its administrative states.
            title: Free text for people.
            etag: If not empty, must be that of the stored fabric.
            checked_version: Version of the intent that the fabric was checked
                against; 0 for "there was none". None: not checked.
            request: Who asks.

        Raises:
            Conflict: the etag is another, or there is no fabric to have it.
            StaleIntent: the version has moved since.
        """
        ...

    async def get_fabric(self, name: str) -> FabricRecord:
        """Raises ``NotFound``. Cheap: structures are kept in memory."""
        ...

    async def list_fabrics(self, *, after: str = "", limit: int = 0) -> Sequence[FabricSummary]:
        """Fabrics by name, those greater than ``after``, at most ``limit`` (0: all)."""
        ...

    async def set_link_state(
        self, fabric: str, link: LinkName, state: State, *, request: Request = ...
    ) -> LinkRecord:
        """Set the administrative state. Raises ``NotFound`` for fabric or link."""
        ...

    async def set_switch_state(
        self, fabric: str, node: str, state: State, *, request: Request = ...
    ) -> SwitchRecord:
        """Set the administrative state. Raises ``NotFound`` for a fabric, an id, or a NIC's id."""
        ...

    async def set_overlay(
        self, fabric: str, *, withdrawn: bool, request: Request = ...
    ) -> FabricSummary:
        """Put the whole fabric on the underlay, or back on its entries.

        Kept when the fabric is put again. Asking for what is there already writes
        nothing. Raises ``NotFound``.
        """
        ...

    async def roll_back(
        self, fabric: str, generation: int, seconds: float, *, request: Request = ...
    ) -> Rollback:
        """Keep to an earlier plan for so long.

        Raises:
            NotFound: there is no such fabric, or no such plan (any more).
            FailedPrecondition: the plan was made for other nodes or links.
        """
        ...

    async def end_rollback(self, fabric: str, *, request: Request = ...) -> None:
        """Plan freely again. Raises ``NotFound``, also where there is no rollback (any more)."""
        ...

    async def rollback(self, fabric: str) -> Rollback | None:
        """The one that is not over."""
        ...


class WorkStore(Protocol):
    """Jobs and demand sets: the traffic that is wanted."""

    async def submit_job(
        self,
        fabric: str,
        job: Job,
        *,
        checked_revision: int,
        reservation: str = "",
        request: Request = ...,
    ) -> JobRecord:
        """Add a job, ACCEPTED and durable on return.

        Args:
            fabric: Which fabric.
            job: Checked against the fabric of ``checked_revision``.
            checked_revision: ``FabricRecord.revision``.
            reservation: Name of one that the job redeems, and that ends with this; empty: none.
            request: Who asks.

        Raises:
            NotFound: there is no such fabric.
            AlreadyExists: a job has the name.
            FailedPrecondition: hosts are in use or reserved; names each, and by whom. Or the
                reservation is over, or a demand set has ids of its flows.
            StaleIntent: the fabric was put again since.
        """
        ...

    async def get_job(self, fabric: str, job: str) -> JobRecord:
        """Raises ``NotFound``."""
        ...

    async def list_jobs(
        self, fabric: str, *, after: str = "", limit: int = 0
    ) -> Sequence[JobRecord]:
        """Jobs by name, those greater than ``after``, at most ``limit`` (0: all).

        Raises:
            NotFound: there is no such fabric.
        """
        ...

    async def update_job(
        self,
        fabric: str,
        job: Job,
        *,
        checked_revision: int,
        etag: str = "",
        reservation: str = "",
        request: Request = ...,
    ) -> JobRecord:
        """Replace a job's specification; it is ACCEPTED again, under a new etag.

        With the specification that it has, and no reservation to redeem, the job is answered as it
        stands, and nothing is written.

        Raises:
            NotFound: there is no such fabric or job.
            Conflict: the etag is another.
            FailedPrecondition: hosts are in use by other jobs or reserved, or the reservation is
                over.
            StaleIntent: the fabric was put again since.
        """
        ...

    async def delete_job(
        self, fabric: str, job: str, *, etag: str = "", request: Request = ...
    ) -> None:
        """Take a job away, and free its hosts. Raises ``NotFound``, ``Conflict``."""
        ...

    async def reserve(
        self,
        fabric: str,
        name: str,
        hosts: Sequence[str],
        seconds: float,
        *,
        gpus: Sequence[Gpus] = ...,
        checked_revision: int,
        request: Request = ...,
    ) -> Reservation:
        """Keep free hosts, or GPUs of them, for a job to come, for so long by this store's clock.

        Raises:
            NotFound: there is no such fabric.
            AlreadyExists: a reservation that is not over has the name.
            FailedPrecondition: hosts are in use or reserved; names each, and by whom.
            StaleIntent: the fabric was put again since.
        """
        ...

    async def list_reservations(self, fabric: str) -> Sequence[Reservation]:
        """Those that are not over, by name. Raises ``NotFound``."""
        ...

    async def release(self, fabric: str, name: str, *, request: Request = ...) -> None:
        """End a reservation. Raises ``NotFound``, also for one that is over."""
        ...

    async def put_demands(
        self,
        fabric: str,
        name: str,
        demands: Demands,
        *,
        checked_revision: int,
        request: Request = ...,
    ) -> DemandRecord:
        """Set a demand set whole; what it is already is answered as it stands.

        Raises:
            NotFound: there is no such fabric.
            FailedPrecondition: flows of another set have its ids, or a job's may; see
                ``ids.id_problems``.
            StaleIntent: the fabric was put again since.
        """
        ...

    async def get_demands(self, fabric: str, name: str) -> DemandRecord:
        """Raises ``NotFound``."""
        ...

    async def delete_demands(self, fabric: str, name: str, *, request: Request = ...) -> None:
        """Take a set away. Raises ``NotFound``."""
        ...


class PlanStore(Protocol):
    """What the leader writes: plans, programs and facts, all fenced by its epoch."""

    async def intent(self, fabric: str) -> Intent:
        """One consistent snapshot. Raises ``NotFound``."""
        ...

    async def commit(
        self,
        fabric: str,
        *,
        epoch: int,
        expected_generation: int,
        plan: Plan,
        program: Program,
        facts: PlanFacts,
    ) -> Committed:
        """Make a plan the newest, in one step.

        ``program.generation`` is ``expected_generation + 1`` and ``program.epoch``
        is ``epoch``. A few older plans are kept, the rest is trimmed.

        Raises:
            NotFound: there is no such fabric.
            StaleEpoch: the epoch is not the newest.
            StaleGeneration: the newest plan is not ``expected_generation`` (0: none).
        """
        ...

    async def certify(
        self, fabric: str, *, epoch: int, generation: int, certificate: Certificate
    ) -> bool:
        """Give the newest plan a better certificate; nothing else of it changes.

        Whether that was done: not if a plan of another generation is the newest.

        Raises:
            NotFound: there is no such fabric.
            StaleEpoch: the epoch is not the newest.
        """
        ...

    async def committed(self, fabric: str, generation: int = 0) -> Committed | None:
        """The newest plan, or that of a generation; None where there is none (any more)."""
        ...

    async def plan_summaries(
        self, fabric: str, *, below: int = 0, limit: int = 0
    ) -> Sequence[PlanSummary]:
        """Plans below a generation (0: all), newest first, as far as they are remembered."""
        ...

    async def record_programmed(self, fabric: str, *, epoch: int, programmed: Programmed) -> None:
        """Note which generation switches hold whole, by their FIB acks.

        Of a switch for which a newer one is noted that stays.

        Raises:
            StaleEpoch: the epoch is not the newest.
        """
        ...

    async def record_kept(self, fabric: str, *, epoch: int, version: int) -> None:
        """Note that the newest plan answers to this version of the intent as it stands.

        An older version than the one noted changes nothing.

        Raises:
            StaleEpoch: the epoch is not the newest.
        """
        ...

    async def record_jobs(self, fabric: str, *, epoch: int, facts: Mapping[str, JobFacts]) -> None:
        """Note how far jobs have come, by job name.

        Facts whose etag is not that of the stored specification, and facts of jobs
        that are gone, are dropped.

        Raises:
            StaleEpoch: the epoch is not the newest.
        """
        ...


class AuditStore(Protocol):
    """Keeps who changed what.

    Every method that takes a ``Request`` and changes something adds one record, in the
    transaction of the change; a replay, a refusal and a request for what is there
    already add none. One chain for the whole store.
    """

    async def audit(self, *, after: int = 0, limit: int = 0) -> AuditPage:
        """Records numbered above ``after`` that are still kept, at most ``limit`` (0: all)."""
        ...


class Leadership(Protocol):
    """Decides which controller may plan and program."""

    async def acquire_leadership(
        self, holder: str, *, above: int = 0, following: Following = ...
    ) -> int:
        """Wait until no other leads, then lead: the epoch, greater than any before.

        Args:
            holder: This replica's name, for people.
            above: The epoch must also be greater than this: an agent's memory of
                epochs outlives a store that came back older.
            following: Told who leads meanwhile, now and then.
        """
        ...

    async def leadership_lost(self, epoch: int) -> None:
        """Return when the epoch is known to be over; wait for as long as it is not."""
        ...

    async def release_leadership(self, epoch: int) -> None:
        """Hand over at once; nothing if the epoch is over already."""
        ...


class Store(
    FabricStore, WorkStore, PlanStore, AuditStore, Leadership, Succession, Freshness, Protocol
):
    """All that must survive the controller."""

    async def versions(self, fabric: str) -> Versions:
        """Cheap. Raises ``NotFound``."""
        ...

    def changes(self, *, facts: bool = False) -> AsyncIterator[str]:
        """Names of fabrics whose intent (or also facts) may have changed.

        Yields every fabric once at the start, then a name after each write; names
        not yet taken are coalesced. Ends when the store is closed.
        """
        ...

    async def close(self) -> None:
        """Finish writes under way, wake every waiter, let go of the file or server."""
        ...


class AgentGateway(Protocol):
    """The agents that are connected, and a way to push to each."""

    def sessions(self, fabric: str) -> Mapping[str, AgentSession]:
        """The present session of each connected switch, by switch id."""
        ...

    def push(self, session: AgentSession, push: Push) -> Awaitable[PushReport]:
        """Send a batch; done when it is in the FIB, or refused.

        Pushes of one session are sent in the order of the calls. Cancelling stops
        the waiting, not the push.

        Raises:
            SessionLost: the session ended first; what was applied is unknown.
        """
        ...

    def set_aside(self, fabric: str, switch: str, why: str) -> object:
        """Have no more of a switch for a while: its agent ``why``, and that holds up others."""
        ...

    def held_aside(self, fabric: str) -> Mapping[str, str]:
        """The switches that are set aside now, each with why and until when, in words."""
        ...

    def lead(self, epoch: int) -> None:
        """We lead: let nothing older through."""
        ...

    def follow(self, epoch: int) -> None:
        """Another leads: let nothing older through."""
        ...

    def events(self) -> AsyncIterator[SessionEvent]:
        """Sessions that begin and end from now on, for all fabrics, bounded and coalesced.

        What agents say of links does not come this way: see ``Observations``.
        """
        ...


class Clock(Protocol):
    """Time as an argument, so that tests can run in their own."""

    def now(self) -> float:
        """Unix seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean anything."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class Metrics(Protocol):
    """Takes measurements."""

    def count(self, metric: Metric, fabric: str, amount: float = 1.0) -> None:
        """Add to a counter."""
        ...

    def observe(self, metric: Metric, fabric: str, value: float) -> None:
        """Add a value to a histogram."""
        ...

    def set(self, metric: Metric, fabric: str, value: float) -> None:
        """Set a gauge."""
        ...
