"""Kueue's admission check: a workload starts once its routes are programmed or its time is up.

Nothing here ever fails a workload: its check becomes Ready, with a message about the outcome. Two
replicas may do the same work twice without harm. A job that exists with the same specification is
left unchanged, and an answered check stays answered. A job is deleted only if it is still the one
that was seen before the API server said that no workload needs it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from heddle.client import (
    AlreadyExists,
    AsyncClient,
    Conflict,
    CredentialsError,
    HeddleError,
    InvalidRequest,
    NotAllowed,
    NotFound,
    PreconditionFailed,
)
from heddle.text import clean
from heddle.v1 import placement_pb2 as pb
from heddle_kubernetes.cluster import (
    CONFLICT,
    FORBIDDEN,
    MISSING,
    PAUSE,
    Attempts,
    Cluster,
    ClusterError,
    Mirror,
)
from heddle_kubernetes.decision import (
    PENDING,
    READY,
    Decision,
    Names,
    decide,
    is_running,
    needs_owner,
    without_containers,
)
from heddle_kubernetes.objects import (
    ADMISSION_CHECK,
    CONTROLLER,
    JOB,
    JOB_SET,
    SHAPE,
    WORKLOAD,
    Object,
    condition,
    each,
    key_of,
    part,
    text,
    written,
)
from heddle_kubernetes.progress import Progress

LONGEST_MESSAGE = 1024
"""Most characters of a check's message; the schema allows more, but people do not read it."""
MOST_CALLERS = 64
"""Workloads for which controllers are called at the same time. Hundreds may be reserved at once,
and a controller that hears of all at once answers most of them too late."""
OWNERS = {("batch/v1", "Job"): JOB, ("jobset.x-k8s.io/v1alpha2", "JobSet"): JOB_SET}
REFUSALS = (InvalidRequest, PreconditionFailed, NotAllowed, CredentialsError)
FAULTS = (HeddleError, CredentialsError)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits in seconds."""

    wait: float = 10.0
    """Most time from the reservation of a workload's quota until its check is Ready."""
    sweep: float = 30.0
    """Interval at which jobs are compared with workloads."""


class Admission:
    """Answers the admission checks of a cluster."""

    def __init__(self, cluster: Cluster, heddle: AsyncClient, names: Names, limits: Limits) -> None:
        self.workloads = Mirror(cluster, WORKLOAD, self._changed, without_containers)
        self.checks = Mirror(cluster, ADMISSION_CHECK, self._check_changed)
        self._cluster, self._heddle, self._names = cluster, heddle, names
        self._limits, self._progress = limits, Progress(heddle)
        self._decisions: dict[str, Decision] = {}
        self._work: dict[str, asyncio.Task[None]] = {}
        # Jobs that Heddle may have, with what was submitted from here; empty until it is answered.
        self._stored: dict[str, bytes] = {}
        self._shapes: dict[str, str | None] = {}  # by key, what its owner's annotation says
        self._unplanned: dict[str, str] = {}  # by key, the reason that was last logged
        self._turns = asyncio.Semaphore(MOST_CALLERS)
        self._ending = asyncio.Lock()
        self._endings = 0  # how often jobs that are over were looked for

    async def run(self) -> None:
        """Run until cancelled; work that is under way is then cancelled too."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.checks.run())
                await self.checks.synced.wait()
                tasks.create_task(self.workloads.run())
                await self.workloads.synced.wait()
                while True:
                    await self._sweep()
                    await asyncio.sleep(self._limits.sweep)
        finally:
            under_way = list(self._work.values())
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    @property
    def _ours(self) -> set[str]:
        """Names of the AdmissionChecks that this program answers."""
        return {
            key
            for key, check in self.checks.objects.items()
            if text(check, "spec", "controllerName") == CONTROLLER
        }

    def _check_changed(self, key: str, found: Object | None) -> None:
        if found is not None and text(found, "spec", "controllerName") == CONTROLLER:
            self._start(f"check {key}", self._activate(key))
            for workload in list(self.workloads.objects.values()):
                self._changed(key_of(workload), workload)

    def _changed(self, key: str, found: Object | None) -> None:
        """Handle a changed or deleted workload: start what has to be done for it."""
        if found is None:
            known = self._decisions.pop(key, None)
            self._shapes.pop(key, None)
            self._unplanned.pop(key, None)
            if known is not None:
                self._start(key, self._end(key, known.job))
            return
        wanted = decide(found, self._names, self._ours, self._shapes.get(key))
        if self._decisions.get(key) != wanted:
            self._decisions[key] = wanted
            self._start(key, self._act(wanted, found))

    def _start(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        """Start some work, and cancel other work on the same object."""
        if before := self._work.pop(key, None):
            before.cancel()
        task = asyncio.create_task(work)
        self._work[key] = task
        task.add_done_callback(lambda done: self._done(key, done))

    def _done(self, key: str, task: asyncio.Task[None]) -> None:
        if self._work.get(key) is task:
            del self._work[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s: a fault of this program, tried again soon", key, exc_info=error)
            self._decisions.pop(key, None)

    async def _act(self, wanted: Decision, found: Object) -> None:
        """Do what was decided; a bug in this program does not hold up a workload either."""
        try:
            if (wanted.spec or wanted.reason) and needs_owner(found):
                wanted, found = await self._with_owner(wanted, found)
            await self._done_as(wanted, found)
        except ClusterError as error:
            self._tell_unplanned(wanted.key, str(error))
            if wanted.checks:
                await self._answer(wanted, found, f"not planned, on the underlay: {error}")
            self._decisions.pop(wanted.key, None)  # the next sweep tries it again
        except Exception as error:
            if wanted.checks:
                _log.exception("%s: a fault of this program", wanted.key)
                message = f"not planned, on the underlay: a fault of this program ({error!r})"
                await self._answer(wanted, found, message)
                return
            raise

    async def _done_as(self, wanted: Decision, found: Object) -> None:
        if not wanted.spec:
            if wanted.over or wanted.reason:
                await self._end(wanted.key, wanted.job, over=wanted.over)
            if wanted.checks:
                await self._answer(wanted, found, f"not planned, on the underlay: {wanted.reason}")
        elif wanted.checks:
            message = await self._plan(wanted)
            _log.info("%s: %s", wanted.key, message)
            await self._answer(wanted, found, message)
        elif not self._is_done(wanted):
            try:
                async with self._turns:
                    if wanted.job in self._stored or not await self._is_there(wanted):
                        await self._submit(wanted)
            except FAULTS as error:
                self._tell_unplanned(wanted.key, str(error))
            else:
                self._unplanned.pop(wanted.key, None)

    def _tell_unplanned(self, key: str, reason: str) -> None:
        """Log why a workload that runs is still not planned, unless that was logged last."""
        if self._unplanned.get(key) != reason:
            _log.info("%s: still not planned: %s", key, reason)
        self._unplanned[key] = reason

    async def _with_owner(self, wanted: Decision, found: Object) -> tuple[Decision, Object]:
        """Return the decision that the shape of a workload's owner leads to, and its workload.

        Owners are read once for each reservation. Raises ``ClusterError`` if one is not readable.
        """
        key = wanted.key
        if wanted.checks or key not in self._shapes:
            self._shapes[key] = await self._owner_shape(wanted, found)
            found = self.workloads.objects[key]  # it may have changed meanwhile
        wanted = decide(found, self._names, self._ours, self._shapes[key])
        self._decisions[key] = wanted
        return wanted, found

    async def _plan(self, wanted: Decision) -> str:
        """Submit a job and wait for its routes; return the outcome in words."""
        clock = asyncio.get_running_loop().time
        left = self._left(wanted)
        end = clock() + left
        said = "" if left else "its time was up before it was seen"
        while (left := end - clock()) > 0:
            why = "no controller had answered yet for the workloads before it"
            try:
                async with asyncio.timeout(left), self._turns:
                    why = "no controller answered in time"
                    job = await self._submit_first(wanted)
                said = await self._progress.programmed(job, end - clock())
            except TimeoutError:
                said = said or why
                break
            except REFUSALS as error:
                return f"not planned, on the underlay: {error}"
            except HeddleError as error:
                said = str(error)
            else:
                if not said:
                    return f"planned: the routes of job {wanted.job} are programmed"
            await asyncio.sleep(min(PAUSE, max(end - clock(), 0)))
        return f"not planned within {self._limits.wait:g} s, on the underlay until it is: {said}"

    def _left(self, wanted: Decision) -> float:
        """Return the seconds left until a check must be Ready; never more than the limit."""
        limit = self._limits.wait
        if wanted.since is None:
            return limit
        return min(max(wanted.since + limit - time.time(), 0.0), limit)

    async def _submit(self, wanted: Decision) -> pb.Job:
        """Submit the job of a workload; return it when it is stored durably.

        If it exists, it gets the specification of the workload, but stays suspended if it is.
        """
        spec = pb.JobSpec.FromString(wanted.spec)
        self._stored[wanted.job] = b""
        try:
            job = await self._heddle.submit_job(wanted.job, spec)
        except AlreadyExists:
            job = await self._update(await self._heddle.get_job(wanted.job), spec)
        self._stored[wanted.job] = wanted.spec
        return job

    async def _update(self, known: pb.Job, spec: pb.JobSpec) -> pb.Job:
        """Give a job that exists the specification of its workload.

        If that is refused and the workload has other hosts now, the job ends: it would keep its old
        hosts from the workloads that have them now, and these may keep the new ones from it.
        """
        spec.suspended = known.spec.suspended
        if known.spec == spec:  # another replica was first
            return known
        try:
            return await self._heddle.jobs.UpdateJob(
                pb.UpdateJobRequest(name=known.name, spec=spec, etag=known.etag)
            )
        except (InvalidRequest, PreconditionFailed):
            if known.spec.hosts != spec.hosts and not known.spec.suspended:
                with suppress(NotFound, Conflict):
                    await self._delete(known)
            raise

    async def _is_there(self, wanted: Decision) -> bool:
        """Return whether an earlier instance, or another, submitted the job with the same hosts.

        What others changed in it since, such as collectives that they measured, stays.
        """
        try:
            job = await self._heddle.get_job(wanted.job)
        except NotFound:
            return False
        if job.spec.hosts != pb.JobSpec.FromString(wanted.spec).hosts:
            return False
        self._stored[wanted.job] = wanted.spec
        return True

    async def _submit_first(self, wanted: Decision) -> pb.Job:
        """Submit the job of a workload whose hosts may still be held by a job that is over."""
        try:
            return await self._submit(wanted)
        except PreconditionFailed:
            await self._end_unneeded()
            return await self._submit(wanted)

    async def _answer(self, wanted: Decision, found: Object, message: str) -> None:
        """Make the pending checks of a workload Ready."""
        attempts = Attempts()
        while True:
            checks = [
                {
                    **one,
                    "state": READY,
                    "message": clean(message)[:LONGEST_MESSAGE],
                    "lastTransitionTime": written(time.time()),
                }
                if text(one, "name") in wanted.checks and text(one, "state") == PENDING
                else one
                for one in each(found, "status", "admissionChecks")
            ]
            try:
                await self._cluster.patch(
                    WORKLOAD.Status, found, {"status": {"admissionChecks": checks}}
                )
            except ClusterError as error:
                if error.code == MISSING:
                    return
                if error.code != CONFLICT:
                    await attempts.failed(error, f"{wanted.key}: ")
            else:
                return
            fresh = await self._fresh(wanted.key)
            if fresh is None or decide(fresh, self._names, self._ours).checks != wanted.checks:
                return
            found = fresh

    async def _fresh(self, key: str) -> Object | None:
        """Return the current state of a workload at the API server; None if it does not exist."""
        namespace, _, name = key.partition("/")
        attempts = Attempts()
        while True:
            try:
                return await self._cluster.get(WORKLOAD, name, namespace)
            except ClusterError as error:
                if error.code == MISSING:
                    return None
                await attempts.failed(error)

    async def _owner_shape(self, wanted: Decision, found: Object) -> str | None:
        """Return the shape in the annotation of a workload's owner; None if there is none.

        Raises ``ClusterError`` if an owner is not readable in time.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + self._left(wanted)
        for owner in each(found, "metadata", "ownerReferences"):
            kind = OWNERS.get((text(owner, "apiVersion"), text(owner, "kind")))
            while kind is not None:
                try:
                    namespace = text(found, "metadata", "namespace")
                    job = await self._cluster.get(kind, text(owner, "name"), namespace)
                except ClusterError as error:
                    if error.code == MISSING:
                        break
                    if error.code == FORBIDDEN or clock() >= end:
                        raise
                    await asyncio.sleep(PAUSE)
                else:
                    shape = part(job, "metadata", "annotations", SHAPE)
                    if shape is not None:
                        return str(shape)
                    break
        return None

    async def _end(self, key: str, job: str, *, over: bool = True) -> None:
        """Delete a job that no workload needs, if it exists; the next sweep repeats what fails."""
        if over and job not in self._stored:
            return
        self._stored.setdefault(job, b"")
        try:
            async with self._turns:
                stored = await self._heddle.get_job(job)
                if over:
                    fresh = await self._fresh(key)
                    if fresh is not None and self._names.of(fresh) == job and is_running(fresh):
                        return
                await self._delete(stored)
        except NotFound:
            self._stored.pop(job, None)
        except FAULTS as error:
            _log.warning("%s: job %s is not ended yet: %s", key, job, error)

    async def _delete(self, job: pb.Job) -> None:
        """Delete a job, if it is still the one that was seen."""
        name = job.name.rpartition("/")[2]
        await self._heddle.jobs.DeleteJob(pb.DeleteJobRequest(name=job.name, etag=job.etag))
        self._stored.pop(name, None)
        _log.info("job %s is ended", name)

    async def _sweep(self) -> None:
        """Delete jobs that no workload needs, and repeat what failed before.

        That is: submit missing jobs, and those whose last submission failed.
        """
        if not self.workloads.served:
            return
        if not await self._end_unneeded():
            return
        for key, found in list(self.workloads.objects.items()):
            if key in self._work:
                continue
            wanted = self._decisions.get(key)
            if wanted is not None and not self._is_done(wanted):
                del self._decisions[key]
            self._changed(key, found)

    def _is_done(self, wanted: Decision) -> bool:
        """Return whether the job of a workload was submitted as decided, or ended if so decided."""
        if wanted.spec:
            return self._stored.get(wanted.job) == wanted.spec
        return not wanted.reason or wanted.job not in self._stored

    async def _end_unneeded(self) -> bool:
        """Delete jobs that no workload needs, and note missing ones; return whether that worked.

        Jobs are read before workloads. A job that exists belongs to a workload that held its quota
        before, so the job is over if that workload then holds no quota. The mirror may be behind,
        so workloads are listed if it has none for a job. Callers that wait for their turn share the
        outcome for the first of them.
        """
        before = self._endings
        async with self._ending:
            if self._endings > before:
                return True
            self._endings += 1
            try:
                jobs = {job.name.rpartition("/")[2]: job for job in await self._heddle.list_jobs()}
                ours = {name: job for name, job in jobs.items() if self._names.is_ours(name)}
                unneeded = ours.keys() - self._running(self.workloads.objects.values())
                if unneeded:
                    workloads, _ = await self._cluster.list(WORKLOAD, without_containers)
                    unneeded -= self._running(workloads)
                for name in sorted(unneeded):
                    with suppress(NotFound, Conflict):
                        await self._delete(ours[name])
            except (ClusterError, *FAULTS) as error:
                _log.warning("looking for jobs that are over: %s", error)
                return False
            for name in self._stored.keys() - ours.keys():
                if self._stored[name]:  # else it may be submitted at this moment
                    del self._stored[name]
            return True

    def _running(self, workloads: Iterable[Object]) -> set[str]:
        """Return the job names of those workloads that should have one."""
        return {self._names.of(found) for found in workloads if is_running(found)}

    async def _activate(self, key: str) -> None:
        """Mark a check as active, because Kueue stops the queues of a check that is not."""
        attempts = Attempts()
        while (found := self.checks.objects.get(key)) is not None:
            known = condition(found, "Active")
            generation = part(found, "metadata", "generation") or 0
            if known.get("status") == "True" and known.get("observedGeneration") == generation:
                return
            active = {
                "type": "Active",
                "status": "True",
                "reason": "Answered",
                "message": "heddle-kubernetes answers this check",
                "observedGeneration": generation,
                "lastTransitionTime": written(time.time()),
            }
            others = [
                one for one in each(found, "status", "conditions") if text(one, "type") != "Active"
            ]
            try:
                change = {"status": {"conditions": [*others, active]}}
                await self._cluster.patch(ADMISSION_CHECK.Status, found, change)
            except ClusterError as error:
                if error.code != CONFLICT:
                    await attempts.failed(error)
                else:
                    await asyncio.sleep(PAUSE)  # the watch brings the current object
            else:
                return
