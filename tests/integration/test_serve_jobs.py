from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from google.rpc import error_details_pb2

from heddle.v1 import placement_pb2 as pb
from heddle_controller.model.flows import TrafficClass
from heddle_controller.model.job import Algorithm, Collective, Group, Job, Operation
from heddle_controller.serve.codec import job as codec
from heddle_controller.state.records import JobFacts, JobRecord, JobState
from heddle_emulator.client import Client
from tests.support.serving import Serving, detail, reason, refusal, serving, violations
from tests.support.store_samples import job
from tests.support.waiting import PATIENCE


def submit(one: Job, request_id: str = "", fabric: str = "f1") -> pb.SubmitJobRequest:
    """Return a request to submit a job."""
    return pb.SubmitJobRequest(
        parent=f"fabrics/{fabric}",
        job_id=one.name,
        spec=codec.job_to_pb(one),
        request_id=request_id,
    )


async def test_a_submitted_job_is_accepted_and_kept(tmp_path: Path) -> None:
    """A submitted job is answered once it is in the store, as ACCEPTED and with an etag."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        answer = await s.jobs.SubmitJob(submit(job()))
        assert answer.name == "fabrics/f1/jobs/j1"
        assert answer.state == pb.JOB_STATE_ACCEPTED
        assert answer.etag
        assert (await s.store.get_job("f1", "j1")).job == job()
        assert await s.jobs.GetJob(pb.GetJobRequest(name=answer.name)) == answer


async def test_the_emulator_submits_a_job_as_it_is(tmp_path: Path) -> None:
    """A job that the emulator's client sends is stored and read back with all of its fields."""
    sent = job(
        collectives=(
            Collective(Operation.ALL_TO_ALL, Group.WORLD, 1_000, Algorithm.PAIRWISE, overlap=True),
        ),
        priority=2.5,
        traffic_class=TrafficClass.LATENCY,
        qps=3,
        gpus=((1,), (0,)),
        suspended=True,
        flops_per_iteration=1e15,
        compute_seconds=0.5,
        network_seconds=0.25,
    )
    async with serving(tmp_path) as s:
        await s.put_fabric()
        async with Client(f"127.0.0.1:{s.api.port}", "fabrics/f1") as client:
            await client.submit(sent)
            assert (await client.get_job("j1")).spec == codec.job_to_pb(sent)
        assert (await s.store.get_job("f1", "j1")).job == sent


async def test_a_repeated_submit_answers_as_the_first_did(tmp_path: Path) -> None:
    """The same request id gets the first answer; with another id the name is taken."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        first = await s.jobs.SubmitJob(submit(job(), "r1"))
        assert await s.jobs.SubmitJob(submit(job(), "r1")) == first
        error = await refusal(s.jobs.SubmitJob(submit(job(), "r2")))
        assert error.code().name == "ALREADY_EXISTS"
        assert len(await s.store.list_jobs("f1")) == 1


async def test_hosts_in_use_are_named(tmp_path: Path) -> None:
    """A host in use gives FAILED_PRECONDITION with the host and its job; nothing is stored."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.jobs.SubmitJob(submit(job("j1", ("h0.0", "h1.0"))))
        error = await refusal(s.jobs.SubmitJob(submit(job("j2", ("h0.1", "h1.0")))))
        assert error.code().name == "FAILED_PRECONDITION"
        failed = detail(error, error_details_pb2.PreconditionFailure)
        assert [v.subject for v in failed.violations] == ["host 'h1.0'"]
        assert "'j1'" in failed.violations[0].description
        assert [r.job.name for r in await s.store.list_jobs("f1")] == ["j1"]


async def test_every_fault_of_a_job_is_a_field_violation(tmp_path: Path) -> None:
    """Each unknown host of a job is a field violation of its own."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        error = await refusal(s.jobs.SubmitJob(submit(job("j1", ("nix", "h0.0", "nada")))))
        assert error.code().name == "INVALID_ARGUMENT"
        assert {"'nix'" in text or "'nada'" in text for text in violations(error).values()} == {
            True
        }
        assert len(violations(error)) == 2


async def test_an_update_needs_the_newest_etag(tmp_path: Path) -> None:
    """An update with an older etag is ABORTED; the newest changes the job and the etag."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        first = await s.jobs.SubmitJob(submit(job()))
        spec = codec.job_to_pb(job(hosts=("h0.1", "h1.1")))
        update = pb.UpdateJobRequest(name=first.name, spec=spec, etag=first.etag)
        second = await s.jobs.UpdateJob(update)
        assert list(second.spec.hosts) == ["h0.1", "h1.1"]
        assert second.etag != first.etag
        error = await refusal(s.jobs.UpdateJob(update))
        assert (error.code().name, reason(error)) == ("ABORTED", "ETAG_MISMATCH")


async def test_a_deleted_job_frees_its_hosts(tmp_path: Path) -> None:
    """A deleted job's hosts are free; deleting it again is NOT_FOUND, unless it is a repetition."""
    delete = pb.DeleteJobRequest(name="fabrics/f1/jobs/j1", request_id="d1")
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.jobs.SubmitJob(submit(job("j1")))
        await s.jobs.DeleteJob(delete)
        await s.jobs.DeleteJob(delete)
        await s.jobs.SubmitJob(submit(job("j2")))
        delete.request_id = ""
        assert (await refusal(s.jobs.DeleteJob(delete))).code().name == "NOT_FOUND"


async def test_jobs_are_listed_in_pages(tmp_path: Path) -> None:
    """Jobs are listed in pages by name; one deleted between two pages hides no other."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        for name, host in (("a", "h0.0"), ("b", "h0.1"), ("c", "h1.0"), ("d", "h1.1")):
            await s.jobs.SubmitJob(submit(job(name, (host,), collectives=())))
        request = pb.ListJobsRequest(parent="fabrics/f1", page_size=2)
        first = await s.jobs.ListJobs(request)
        await s.store.delete_job("f1", "b")
        request.page_token = first.next_page_token
        second = await s.jobs.ListJobs(request)
        names = [x.name.rpartition("/")[2] for x in (*first.jobs, *second.jobs)]
        assert names == ["a", "b", "c", "d"]
        assert not second.next_page_token


async def test_a_watcher_sees_jobs_come_change_and_go(tmp_path: Path) -> None:
    """A watcher gets the present jobs, ``synced``, states as they are recorded, and deletions."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.jobs.SubmitJob(submit(job("j1")))
        watch = s.jobs.WatchJobs(pb.WatchJobsRequest(parent="fabrics/f1"))
        events = aiter(watch)
        assert (await anext(events)).job.name == "fabrics/f1/jobs/j1"
        assert (await anext(events)).synced
        await _degrade(s)
        degraded = (await anext(events)).job
        assert (degraded.state, degraded.reason) == (pb.JOB_STATE_DEGRADED, "no path")
        assert (degraded.flow_count, degraded.unrouted_count) == (4, 1)
        await s.store.delete_job("f1", "j1")
        assert (await anext(events)).deleted == "fabrics/f1/jobs/j1"
        watch.cancel()


async def _degrade(s: Serving) -> None:
    epoch = await s.store.acquire_leadership("test")
    etag = (await s.store.get_job("f1", "j1")).etag
    facts = JobFacts(etag, JobState.DEGRADED, "no path", 4, 1, 3, 99.0)
    await s.store.record_jobs("f1", epoch=epoch, facts={"j1": facts})


async def test_a_slow_watcher_sees_the_last_state_not_every_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes that come faster than a stream reads are merged, so the newest state comes soon."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        watch = s.jobs.WatchJobs(pb.WatchJobsRequest(parent="fabrics/f1"))
        events = aiter(watch)
        assert (await anext(events)).synced
        read, may_read = s.store.list_jobs, asyncio.Event()

        async def slowly(fabric: str) -> Sequence[JobRecord]:
            await may_read.wait()
            return await read(fabric)

        monkeypatch.setattr(s.store, "list_jobs", slowly)
        await s.store.submit_job("f1", job("j1"))
        for _ in range(50):
            await s.store.update_job("f1", job("j1"))
        newest = (await s.store.get_job("f1", "j1")).etag
        may_read.set()
        async with asyncio.timeout(PATIENCE):
            assert (await anext(events)).job.etag == newest
        watch.cancel()
