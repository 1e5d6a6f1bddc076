"""DoctorService: gathers what this controller knows, and has the rules look at it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from grpc import aio
from typing_extensions import override

from heddle.v1 import doctor_pb2 as pb
from heddle.v1 import placement_pb2
from heddle.v1.doctor_pb2_grpc import DoctorServiceServicer
from heddle_controller.reconcile.observations import Observations
from heddle_controller.reconcile.ports import Store
from heddle_controller.serve.agents.gateway import Gateway
from heddle_controller.serve.agents.link_book import Condition, Ends
from heddle_controller.serve.codec import common, names
from heddle_controller.serve.doctor.installation import Installation, examine_installation
from heddle_controller.serve.doctor.job import JobCase, examine
from heddle_controller.serve.flow_index import FlowIndexes
from heddle_controller.serve.rates import RateBook

_Context = aio.ServicerContext[Any, Any]


class DoctorService(DoctorServiceServicer):
    """Reads what other services and agents have told; see doctor.proto."""

    def __init__(
        self,
        store: Store,
        gateway: Gateway,
        indexes: FlowIndexes,
        rates: RateBook,
        observations: Observations,
        *,
        unwell: Callable[[str], Mapping[Ends, Condition]],
    ) -> None:
        """``unwell`` tells which links of a fabric agents find something wrong with."""
        self._store = store
        self._gateway = gateway
        self._indexes = indexes
        self._rates = rates
        self._observations = observations
        self._unwell = unwell

    @override
    async def ExamineInstallation(
        self, request: pb.ExamineInstallationRequest, context: _Context
    ) -> pb.InstallationExamination:
        """As this controller sees it; the rules run in a thread."""
        fabric = names.parse_fabric_name(request.fabric, "fabric")
        record = await self._store.get_fabric(fabric)
        now = Installation(
            record=record,
            jobs=tuple(await self._store.list_jobs(fabric)),
            committed=await self._store.committed(fabric),
            seen=self._observations.of(fabric).seen(record.fabric),
            unwell=dict(self._unwell(fabric)),
            sessions=dict(self._gateway.sessions(fabric)),
            aside=dict(self._gateway.held_aside(fabric)),
            leader=(await self._store.leader()).holder,
            stale_seconds=self._store.stale_for(),
            version=version("heddle-controller"),
        )
        findings = await asyncio.to_thread(examine_installation, now)
        clock = common.time_to_pb(time.time())
        return pb.InstallationExamination(version=now.version, time=clock, findings=findings)

    @override
    async def ExamineJob(
        self, request: pb.ExamineJobRequest, context: _Context
    ) -> pb.JobExamination:
        """Examines a job in the newest plan; the rules run in a thread."""
        fabric, name = names.parse_job_name(request.name, "name")
        job = await self._store.get_job(fabric, name)
        record = await self._store.get_fabric(fabric)
        index = await self._indexes.of(fabric)
        committed = await self._store.committed(fabric)
        if index is None or committed is None:
            state = placement_pb2.JobState.ValueType(job.facts.state)
            return pb.JobExamination(name=request.name, state=state)
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
