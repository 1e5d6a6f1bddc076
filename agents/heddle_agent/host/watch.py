"""Watches the ports of a host at any controller that answers, and keeps the files up to date.

Losing all controllers is no emergency: files stay as they are. A stream begins with all ports, so
it corrects whatever changed meanwhile. Only after that are files of other jobs removed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import structlog

from heddle.ports import ports_document
from heddle.v1 import plan_pb2 as pb
from heddle.v1.plan_pb2_grpc import PlanServiceStub
from heddle_agent.host.figures import HostFigures
from heddle_agent.host.files import PortsFolder
from heddle_agent.host.report import PathReporter, Probing
from heddle_agent.host.steer import PathSteering, Routes
from heddle_agent.session import Address, Backoff, Channels, Endpoint, Resolver
from heddle_agent.stopping import asked_to_end

_log = structlog.get_logger()

Given = TypeVar("Given")
Changed = TypeVar("Changed")

_CURES = {
    grpc.StatusCode.UNAVAILABLE: "is a controller running there, and can this host reach it? "
    "If it uses TLS, give --tls-ca, --tls-cert and --tls-key",
    grpc.StatusCode.UNIMPLEMENTED: "what listens there is not a Heddle controller, or too old",
    grpc.StatusCode.UNAUTHENTICATED: "give a certificate: --tls-ca, --tls-cert, --tls-key",
    grpc.StatusCode.PERMISSION_DENIED: "check --fabric and --host against the certificate, which"
    " names both; --nic needs the certificate of a reader",
    grpc.StatusCode.NOT_FOUND: "check --fabric, and import the fabric",
    grpc.StatusCode.INVALID_ARGUMENT: "check --host or --nic against the fabric file",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The host or NICs whose ports are wanted."""

    fabric: str
    """Resource name of the fabric, such as ``fabrics/f1``."""
    host: str
    nics: Sequence[str] = ()
    """Ids of the NICs, if the fabric does not say which host they belong to."""

    def request(self) -> pb.WatchJobPortsRequest:
        """Return the request for these ports."""
        hosts = [] if self.nics else [self.host]
        return pb.WatchJobPortsRequest(plan=f"{self.fabric}/plan", hosts=hosts, nics=self.nics)


class HostAgent:
    """The agent of one host. Call ``run`` in a task, and cancel it to end it."""

    def __init__(
        self,
        wanted: Wanted,
        folder: PortsFolder,
        *,
        controllers: Sequence[str],
        channels: Channels,
        backoff: Backoff,
        probing: Probing,
    ) -> None:
        """Raise ValueError for unusable addresses, or if plain text would leave this machine."""
        addresses = [Address.parse(text) for text in controllers]
        for address in addresses:
            channels.check(address)
        self._wanted = wanted
        self._folder = folder
        self._resolver = Resolver(addresses)
        self._channels = channels
        self._backoff = backoff
        self.figures = HostFigures()
        self._ports_of: dict[str, int] = {}
        """Number of ports by job."""
        self._reporter = PathReporter(
            wanted.fabric,
            wanted.host,
            resolver=self._resolver,
            channels=channels,
            probing=probing,
            figures=self.figures,
            found=self._steer,
        )
        self._steering: PathSteering | None = None
        if probing.each_seconds:
            self._steering = PathSteering(
                self._moved, interval=probing.each_seconds, hold=probing.hold_seconds
            )
        self._documents: dict[str, Mapping[str, Any]] = {}
        """Ports of jobs as the controller sent them."""
        self._writing = asyncio.Lock()
        self._to_write = asyncio.Event()
        self._random = random.SystemRandom()
        self._parts: list[pb.JobPorts] = []
        """Parts received so far of the job that is being sent."""
        self._log = _log.bind(host=wanted.host)
        self._failed: dict[str, str] = {}
        """The last failure of each controller since ports were last known."""

    async def run(self) -> None:
        """Follow one controller after the other, and probe what they want, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reporter.run())
            if self._steering is not None:
                tasks.create_task(self._steering.run())
                tasks.create_task(self._write_moved())
            await self._watch()

    def _steer(self) -> None:
        """Probe those paths that QPs use, or may move to."""
        if self._steering is None:
            return
        routes, paths = Routes(), self._reporter.paths
        for document in self._documents.values():
            for flow in document["flows"]:
                ends = flow["source_address"], flow["destination_address"]
                ports = {*flow["ports"], *flow["backup_ports"]} if "backup_ports" in flow else ()
                for key in ((*ends, port) for port in ports):
                    if key in paths:
                        routes.add(key, paths[key])
        try:
            self._steering.take(routes)
        except ValueError as error:
            self._log.warning("lost paths are left to controllers", why=str(error))
            self._steering = None

    def _moved(self) -> None:
        self._to_write.set()

    async def _write_moved(self) -> None:
        """Write the files of jobs whose QPs have to use other ports."""
        while True:
            await self._to_write.wait()
            self._to_write.clear()
            for job in [*self._documents]:
                try:
                    await self._write(job)
                except OSError as error:
                    self._log.error("ports not written", job=job, why=str(error))

    async def _write(self, job: str) -> None:
        """Write the files of a job, with the ports of working paths."""
        async with self._writing:
            if (document := self._documents.get(job)) is None:
                return
            if self._steering is not None and any("backup_ports" in f for f in document["flows"]):
                document = self._steering.steered(document)
            if await self._changed(self._folder.write, document):
                self._log.info("ports written", job=job, flows=len(document["flows"]))

    async def _watch(self) -> None:
        failures = 0
        while True:
            for endpoint in await self._resolver.endpoints():
                if await self._follow(endpoint):
                    failures = 0
                if asked_to_end():
                    raise asyncio.CancelledError
            failures += 1
            await asyncio.sleep(self._backoff.delay(failures, self._random.random()))

    async def _follow(self, endpoint: Endpoint) -> bool:
        """Follow one stream to its end; return whether it sent all ports."""
        self._parts, synced, told = [], False, set[str]()
        try:
            stub = PlanServiceStub(self._channels.get(endpoint))
            events: AsyncIterable[pb.JobPortsEvent] = stub.WatchJobPorts(self._wanted.request())
            async for event in events:
                await self._take(event, told)
                if event.synced:
                    synced = self.figures.connected = True
                    self._failed.clear()
                    self._log.info("ports known", controller=str(endpoint), jobs=len(told))
            why, cure = "the controller ended the stream", ""
        except grpc.aio.AioRpcError as error:
            why, cure = error.details() or error.code().name, _CURES.get(error.code(), "")
        except (OSError, ValueError) as error:  # the disk, or a name with an address elsewhere
            why, cure = str(error), ""
        finally:
            self.figures.connected = False
        self._tell(endpoint, why, cure)
        return synced

    async def _take(self, event: pb.JobPortsEvent, told: set[str]) -> None:
        """Update the files by an event; OSError if the disk refuses."""
        if event.HasField("ports"):
            self._parts.append(event.ports)
            if not event.more:
                job, parts, self._parts = event.ports.job, self._parts, []
                document = ports_document(self._wanted.fabric, job, parts)
                told.add(job)
                self._reporter.want(job, parts)
                self._count(job, sum(len(flow["ports"]) for flow in document["flows"]))
                self._documents[job] = document
                self._steer()
                await self._write(job)
        elif event.HasField("deleted"):
            self._reporter.forget(event.deleted)
            self._count(event.deleted, None)
            await self._removed({event.deleted})
            await self._changed(self._folder.remove, event.deleted)
            self._log.info("ports removed", job=event.deleted)
        elif event.synced:
            self._reporter.keep(told)
            await self._removed(self._documents.keys() - told)
            for job in self._ports_of.keys() - told:
                self._count(job, None)
            for job in await self._changed(self._folder.keep, told):
                self._log.info("ports removed", job=job)

    async def _removed(self, jobs: Iterable[str]) -> None:
        """Forget jobs, so that their files are not written again."""
        async with self._writing:
            for job in jobs:
                self._documents.pop(job, None)
        self._steer()

    async def _changed(self, change: Callable[[Given], Changed], given: Given) -> Changed:
        """Change the folder in a thread and return the result; OSError if the disk refuses."""
        try:
            changed = await asyncio.to_thread(change, given)
        except OSError:
            self.figures.write_failures += 1
            raise
        if changed:
            self.figures.writes += 1
            self.figures.last_write = time.time()
        return changed

    def _count(self, job: str, ports: int | None) -> None:
        """Set the number of ports of a job; None if the job is gone."""
        if ports is None:
            self._ports_of.pop(job, None)
        else:
            self._ports_of[job] = ports
        self.figures.jobs = len(self._ports_of)
        self.figures.ports = sum(self._ports_of.values())

    def _tell(self, endpoint: Endpoint, why: str, cure: str) -> None:
        """Log a failure; if it repeats, only at debug level."""
        controller = str(endpoint)
        known, self._failed[controller] = self._failed.get(controller), why
        log = self._log.debug if known == why else self._log.warning
        log("ports not watched; files stay", controller=controller, why=why, cure=cure)
