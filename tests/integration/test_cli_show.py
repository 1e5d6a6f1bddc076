"""``heddle show``: plan, routes, links, what-if, and what a job gets."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

from heddle_controller.model.fabric import State
from heddle_controller.state.records import JobState, LinkName
from tests.integration.test_cli_job import jobs_file, tell
from tests.support.operating import Operator, operating
from tests.support.store_samples import job

HEDDLE = Path(sys.executable).parent / "heddle"


async def planned(o: Operator) -> None:
    """Put a fabric and commit the sample plan."""
    await o.s.put_fabric()
    await o.s.commit_plan()


async def test_the_plan_is_shown_with_its_certificate(tmp_path: Path) -> None:
    """The plan is shown with its counts, the proof, a line for each tier, and its notes."""
    async with operating(tmp_path) as o:
        await planned(o)
        done = await o.does("show", "plan")
        assert done.code == 0, done.err
        assert ["flows", "1", "routed,", "1", "not"] in done.lines
        assert "no plan below 1.000 (cut), gap 0.0%" in done.out
        assert ["leaf-spine", "1.000", "0.500"] in done.lines
        assert done.out.splitlines()[-1] == "note: backup shares a link"
        assert (await o.does("show", "plan", "--json")).json["generation"] == "1"


async def test_routes_are_listed_and_filtered(tmp_path: Path) -> None:
    """Each path has a line, a flow without a path says why, and JSON has a route on each line."""
    async with operating(tmp_path) as o:
        await planned(o)
        done = await o.does("show", "routes")
        assert "n0.0 l0 s0 l1 n1.0" in done.out
        assert "no path: every path is down" in done.out
        only = await o.does("show", "routes", "--link", "l0,s0", "--json")
        assert [json.loads(line)["flow"] for line in only.out.splitlines()] == ["j1/f0"]
        missing = await o.does("show", "routes", "--job", "nobody")
        assert (missing.code, "jobs/nobody does not exist" in missing.err) == (2, True)


async def test_a_flow_is_explained(tmp_path: Path) -> None:
    """A flow is shown with its path, its backup, and each link with its load."""
    async with operating(tmp_path) as o:
        await planned(o)
        done = await o.does("show", "explain", "j1/f0")
        assert done.code == 0, done.err
        assert ["backup", "n0.0", "l0", "s1", "l1", "n1.0"] in done.lines
        assert ["0", "l0,s0,0", "400/400", "1.000", "0"] in done.lines
        unknown = await o.does("show", "explain", "nobody")
        assert (unknown.code, "heddle show routes" in unknown.err) == (2, True)


async def test_what_if_exits_3_when_flows_would_be_lost(tmp_path: Path) -> None:
    """``what-if`` exits with 0 if no flow would be lost, else with 3; the store is unchanged."""
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        await o.s.store.submit_job("f1", job())
        before = await o.s.store.versions("f1")
        safe = await o.does("show", "what-if", "--drain", "l0,s0")
        assert safe.code == 0, safe.err
        assert safe.out.startswith("now   worst link")
        lost = await o.does("show", "what-if", "--down", "l0,s0", "--down", "s1")
        assert lost.code == 3
        assert lost.out.count("no path:") == 2
        assert await o.s.store.versions("f1") == before


async def test_what_if_takes_jobs_and_flows_from_files(tmp_path: Path) -> None:
    """``what-if`` can assume that jobs are submitted or deleted, and that flows are demanded."""
    flows = tmp_path / "flows.csv"
    flows.write_text("flow,src,dst,gbps,job,phase\na,n0.1,n1.1,100,j,\n")
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        await o.s.store.submit_job("f1", job("old", ("h0.0", "h1.1")))
        words = ("show", "what-if", "--jobs", jobs_file(tmp_path), "--json")
        taken = await o.does(*words)
        assert (taken.code, "is in use by job 'old'" in taken.err) == (2, True)
        answer = await o.does(*words, "--without-job", "old", "--flows", flows)
        assert answer.code == 0, answer.err
        assert answer.json["after"]["routed_count"] == 5


async def test_a_watch_shows_the_plan_again_when_it_changes(tmp_path: Path) -> None:
    """A watch ends only when interrupted; while the controller is away it says so and retries."""
    async with operating(tmp_path) as o:
        await planned(o)
        words = ("--server", f"127.0.0.1:{o.s.api.port}", "show", "plan", "--watch", "--json")
        process = await asyncio.create_subprocess_exec(
            HEDDLE, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(await process.stdout.readline())["generation"] == "1"
        await o.s.store.set_link_state("f1", LinkName("l0", "s0"), State.UP)
        await o.s.commit_plan()
        assert json.loads(await process.stdout.readline())["generation"] == "2"
        await o.s.api.stop(1.0)
        assert b"it is asked again" in await process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, stderr = await process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in stderr.decode()


async def test_a_watch_waits_for_the_first_plan(tmp_path: Path) -> None:
    """A watch says that there is no plan yet, and shows the first one when it comes."""
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        words = ("--server", f"127.0.0.1:{o.s.api.port}", "show", "plan", "--watch", "--json")
        process = await asyncio.create_subprocess_exec(
            HEDDLE, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert b"has no plan yet" in await process.stderr.readline()
            await o.s.commit_plan()
            assert json.loads(await process.stdout.readline())["generation"] == "1"
        finally:
            process.kill()
            await process.wait()


async def test_the_hottest_links_are_listed(tmp_path: Path) -> None:
    """The fullest links come first, with names that commands accept and the jobs on them."""
    async with operating(tmp_path) as o:
        assert (await o.does("show", "links", "--fabric", "f1")).code == 2
        await o.s.put_fabric()
        assert (await o.does("show", "links", "--json")).json == []
        await o.s.commit_plan()
        done = await o.does("show", "links")
        assert done.code == 0, done.err
        assert done.lines[0] == ["LINK", "GBPS", "UTILIZATION", "FLOWS", "JOBS"]
        assert ["l0,s0,0", "400/400", "1.000", "1", "j1", "400"] in done.lines
        (one,) = (await o.does("show", "links", "--top", "1", "--json")).json
        assert one["utilization"] == 1.0
        link = one["link"]
        spelled = f"{link['source']},{link['target']},{link['key']}"
        routes = await o.does("show", "routes", "--link", spelled)
        assert "j1/f0" in routes.out
        every = (await o.does("show", "links", "--top", "0", "--json")).json
        assert len(every) == 4
        odd = await o.does("show", "links", "--top", "-1")
        assert (odd.code, "give a number from 0 up" in odd.err) == (2, True)


async def test_a_job_is_shown_with_its_worst_link_and_slowest_flow(tmp_path: Path) -> None:
    """Once a job is planned, its worst link and slowest flow are listed and shown."""
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        await o.s.store.submit_job("f1", job())
        waiting = (await o.does("job", "list", "--json")).json
        assert "fare" not in waiting[0]
        await o.s.commit_plan()
        await tell(o, JobState.DEGRADED, "j1")
        (one,) = (await o.does("job", "list", "--json")).json
        assert one["fare"]["worst_utilization"] == 1.0
        assert one["fare"]["slowest"]["unrouted_count"] == 1
        listed = await o.does("job", "list")
        row = listed.lines[1]
        assert row[:3] == ["j1", "DEGRADED", "2"]
        assert {"0.000", "n0.0,l0,0", "1.000"} <= set(row)
        shown = await o.does("job", "show", "j1")
        assert [
            "slowest",
            "flow",
            "j1/f1,",
            "0.0%",
            "of",
            "what",
            "it",
            "asks",
            "for",
        ] in shown.lines
        assert ["worst", "link", "n0.0,l0,0", "1.000"] in shown.lines
        assert any(line[:1] == ["priority"] for line in shown.lines)
