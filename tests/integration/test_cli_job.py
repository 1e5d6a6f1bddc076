"""``heddle job`` and ``heddle demand``: submit, list, show, watch and delete."""

from __future__ import annotations

import asyncio
from pathlib import Path

from heddle_controller.state.records import JobFacts, JobState
from tests.support.operating import Operator, operating, printed
from tests.support.waiting import until

JOBS = """\
- job: red
  hosts: [h0.0, h1.0]
  gpus_per_host: 1
  parallelism: {dp: 2}
- job: blue
  hosts: [h0.1, h1.1]
  gpus_per_host: 1
  parallelism: {pp: 2}
"""


def jobs_file(path: Path, text: str = JOBS) -> Path:
    """Write a jobs.yaml; return its path."""
    file = path / "jobs.yaml"
    file.write_text(text)
    return file


async def tell(o: Operator, state: JobState, *names: str) -> None:
    """Record the state of jobs, as the leader does."""
    if not o.s.epoch:
        o.s.epoch = await o.s.store.acquire_leadership("test")
    facts = {
        name: JobFacts((await o.s.store.get_job("f1", name)).etag, state, "", 2, 0, 1, 9.0)
        for name in names
    }
    await o.s.store.record_jobs("f1", epoch=o.s.epoch, facts=facts)


async def test_jobs_are_submitted_listed_shown_and_deleted(tmp_path: Path) -> None:
    """A list has one line for each job; ``show`` prints a whole job."""
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        done = await o.does("job", "submit", jobs_file(tmp_path))
        assert done.code == 0, done.err
        assert [line[:3] for line in done.lines[1:]] == [
            ["red", "ACCEPTED", "2"],
            ["blue", "ACCEPTED", "2"],
        ]
        listed = await o.does("job", "list", "--json")
        assert [job["name"].rpartition("/")[2] for job in listed.json] == ["blue", "red"]
        shown = await o.does("job", "show", "blue")
        assert ["parallelism", "pp", "2"] in shown.lines
        assert ["hosts", "h0.1,", "h1.1"] in shown.lines
        assert (await o.does("job", "delete", "red", "blue")).out == "deleted red, blue\n"
        assert len((await o.does("job", "list")).lines) == 1


async def test_a_second_submit_needs_the_word_replace(tmp_path: Path) -> None:
    """Without ``--replace`` a taken name is refused; the error counts the jobs submitted before."""
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        file = jobs_file(tmp_path)
        assert (await o.does("job", "submit", file, "--only", "blue")).code == 0
        done = await o.does("job", "submit", file)
        assert done.code == 2
        assert done.err.startswith("error: job 'blue': fabrics/f1/jobs/blue exists already; ")
        assert "heddle job submit --replace" in done.err
        assert "(1 submitted before it)" in done.err
        assert (await o.does("job", "submit", file, "--replace")).code == 0
        missing = await o.does("job", "submit", file, "--only", "green")
        assert (missing.code, "'green'" in missing.err) == (2, True)


async def test_commands_for_several_jobs_tell_how_far_they_came(tmp_path: Path) -> None:
    """The error names the job that is refused, and how many before it are done; each is done once.

    Numbers that no job can have are refused before anything is asked.
    """
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        file = jobs_file(tmp_path)
        assert (await o.does("job", "submit", file)).code == 0
        for word, done in (("suspend", "suspended"), ("resume", "resumed"), ("delete", "deleted")):
            told = await o.does("job", word, "red", "nobody", "blue")
            assert told.code == 2
            assert "job 'nobody': " in told.err
            assert f"(1 {done} before it)" in told.err
        assert (await o.does("job", "delete", "blue", "blue")).code == 0
        for option in ("--hosts=-1", "--hosts=99999999999", "--count=-1", "--per-leaf=-1"):
            told = await o.does("job", "place", file, "--only", "red", option)
            assert (told.code, option.partition("=")[0] in told.err) == (2, True)
        told = await o.does("job", "reserve", "r", "h0.0", "--seconds=-5")
        assert (told.code, "--seconds" in told.err) == (2, True)
        told = await o.does("job", "place", file, "--only", "red", "--reserve", "")
        assert (told.code, "give the reservation a name" in told.err) == (2, True)
        unlike = jobs_file(
            tmp_path, "- {job: u, hosts: [{host: h0.0, gpus: [0]}, {host: h1.0, gpus: [0, 1]}]}"
        )
        told = await o.does("job", "place", unlike)
        assert (told.code, "different numbers of GPUs" in told.err) == (2, True), told.err


async def test_every_problem_of_a_refused_job_is_told(tmp_path: Path) -> None:
    """The error has a line that sums up, then one for each problem."""
    text = JOBS.replace("h1.0", "nowhere").replace("h0.0", "nobody")
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        done = await o.does("job", "submit", jobs_file(tmp_path, text))
        assert done.code == 2
        first, *rest = done.err.splitlines()
        assert first.startswith("error: job 'red': hosts[0]: 'nobody' is not in the fabric; ")
        assert "such as 'h0.0', 'h0.1'" in first
        assert len(rest) == 2
        assert all(line.startswith("  hosts[") for line in rest)


async def test_a_watch_waits_until_all_are_programmed(tmp_path: Path) -> None:
    """A watch prints each state, and exits with 0 when all jobs are programmed."""
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        await o.does("job", "submit", jobs_file(tmp_path))
        watching = asyncio.create_task(
            o.does("job", "watch", "--until", "programmed", "--seconds", "240")
        )
        await until(lambda: printed().count("ACCEPTED") == 2, "both")
        await tell(o, JobState.PLANNED, "red", "blue")
        await until(lambda: printed().count("PLANNED") == 2, "both to be planned")
        await tell(o, JobState.PROGRAMMED, "red")
        await until(lambda: "red PROGRAMMED" in printed(), "the one to be programmed")
        assert not watching.done()
        await tell(o, JobState.PROGRAMMED, "blue")
        done = await watching
        assert done.code == 0, done.err
        assert done.out.splitlines()[-1] == "blue PROGRAMMED, 2 flows in plan 1"


async def test_a_watch_of_a_degraded_job_exits_3(tmp_path: Path) -> None:
    """A watch exits with 3 as soon as its job is degraded, and prints no other job."""
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        await o.does("job", "submit", jobs_file(tmp_path))
        await tell(o, JobState.DEGRADED, "red")
        done = await o.does("job", "watch", "red", "--until", "planned", "--seconds", "240")
        assert done.code == 3
        assert "red DEGRADED" in done.out
        assert "blue" not in done.out


async def test_a_watch_that_waits_in_vain_says_so(tmp_path: Path) -> None:
    """A watch fails at once for an unknown job, and for a known one when its time is up."""
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        await o.does("job", "submit", jobs_file(tmp_path))
        unknown = await o.does("job", "watch", "green", "--until", "planned")
        assert (unknown.code, "'green'" in unknown.err) == (2, True)
        late = await o.does("job", "watch", "red", "--until", "planned", "--seconds", "0.3")
        assert (late.code, "not planned after 0.3 s" in late.err) == (2, True)


async def test_demands_are_put_shown_and_deleted(tmp_path: Path) -> None:
    """A flows.csv becomes a demand set that is listed, shown and deleted."""
    flows = tmp_path / "flows.csv"
    flows.write_text("flow,src,dst,gbps,job,phase\na,n0.0,n1.0,100,j,\nb,n0.1,n1.1,50,j,p\n")
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        done = await o.does("demand", "put", "d1", flows)
        assert done.lines == [["demands", "d1"], ["flows", "2"]]
        listed = await o.does("demand", "list")
        assert listed.lines[1][:4] == ["d1", "ACCEPTED", "2", "0"]
        shown = await o.does("demand", "show", "d1")
        assert shown.lines[1:] == [
            ["a", "n0.0", "n1.0", "100", "j", "1"],
            ["b", "n0.1", "n1.1", "50", "j", "p", "1"],
        ]
        assert (await o.does("demand", "rates", "--seconds", "0.2")).code == 0
        assert (await o.does("demand", "delete", "d1")).code == 0
        assert (await o.does("demand", "show", "d1")).code == 2
