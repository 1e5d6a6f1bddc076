"""``heddle job measure`` corrects a job by what NCCL Inspector measured, through the real API."""

from __future__ import annotations

from pathlib import Path

from heddle.client import AsyncClient
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_controller.model.job import Collective, Group, Operation
from heddle_controller.serve.codec import job as codec
from heddle_controller.traffic.jobs_file import load_jobs
from tests.support.inspecting import run_of, write_run
from tests.support.operating import Operator, operating
from tests.support.reconcile_world import three_tiers

MIB = 1 << 20
JOBS = """
- job: j1
  hosts: [h0.0.0, h0.1.0, h1.0.0, h1.1.0]
  gpus_per_host: 1
  parallelism: {dp: 2, pp: 2}
  collectives:
    - {operation: all_reduce, group: dp, bytes: 1MiB}
    - {operation: send_recv, group: pp, bytes: 4MiB}
- job: bare
  hosts: [h0.0.1, h0.1.1, h1.0.1]
  gpus_per_host: 1
"""


async def sizes(client: AsyncClient, job: str) -> list[int]:
    """Return the bytes of a job's collectives, as the controller has them."""
    return [one.bytes for one in (await client.get_job(job)).spec.collectives]


async def submitted(operator: Operator, folder: Path) -> None:
    """Import the fabric and submit two jobs, of which "bare" lists no collectives."""
    save_fabric_file(three_tiers(), folder / "fabric.json")
    (folder / "jobs.yaml").write_text(JOBS)
    for words in (
        ("fabric", "import", folder / "fabric.json", "--name", "f1"),
        ("job", "submit", folder / "jobs.yaml"),
    ):
        done = await operator.does(*words)
        assert done.code == 0, done.err


async def test_a_job_is_corrected_by_what_was_measured_and_by_nothing_else(tmp_path: Path) -> None:
    """Measured sizes are shown first, and only ``--apply`` changes the job.

    Records that cannot be read or matched to a group change nothing.
    """
    async with operating(tmp_path) as operator:
        await submitted(operator, tmp_path)
        job, bare = load_jobs(tmp_path / "jobs.yaml")
        dp, pp = job.collectives
        named = ("0xdp0=dp", "0xdp1=dp", "0xpp0=pp", "0xpp1=pp")
        kinds = tuple(word for one in named for word in ("--communicator", one))
        moved = (
            Collective(dp.operation, dp.group, 3 * MIB),
            Collective(pp.operation, pp.group, 4 * MIB),
        )
        write_run(tmp_path / "run", run_of(job, moved, iterations=2, buckets=4), "v4.3")
        run: list[str | Path] = ["job", "measure", "j1", tmp_path / "run", "--iterations", "2"]
        run += kinds
        async with AsyncClient(f"127.0.0.1:{operator.s.api.port}") as client:
            shown = await operator.does(*run)
            assert shown.lines[1][:6] == [
                "all_reduce",
                "dp",
                "32",
                str(MIB),
                str(3 * MIB),
                "+200.0%",
            ]
            assert shown.lines[2][3:6] == [str(4 * MIB), str(4 * MIB), "+0.0%"]
            assert "nothing was changed" in shown.err
            assert await sizes(client, "j1") == [MIB, 4 * MIB]

            torn = tmp_path / "run" / "torn.log"
            torn.write_text((tmp_path / "run" / "host-pid0.log").read_text()[:-9])
            refused = await operator.does(*run, "--apply")
            assert (refused.code, "torn.log" in refused.err) == (2, True)
            torn.unlink()
            refused = await operator.does("job", "measure", "bare", tmp_path / "run", "--apply")
            assert (refused.code, "no group of the job has" in refused.err) == (2, True)
            refused = await operator.does(*run, "--communicator", "x=y")
            assert (refused.code, "write NAME=KIND" in refused.err) == (2, True)
            assert await sizes(client, "j1") == [MIB, 4 * MIB]

            before = (await client.get_job("j1")).etag
            applied = await operator.does(*run, "--apply", "--json")
            assert [row["measured_bytes"] for row in applied.json] == [3 * MIB, 4 * MIB]
            assert await sizes(client, "j1") == [3 * MIB, 4 * MIB]
            after = await client.get_job("j1")
            assert after.etag != before
            assert codec.job_from_pb("j1", after.spec).hosts == job.hosts

            ring = (Collective(Operation.ALL_REDUCE, Group.DP, 5 * MIB),)
            write_run(tmp_path / "bare", run_of(bare, ring), "v4.2")
            applied = await operator.does("job", "measure", "bare", tmp_path / "bare", "--apply")
            assert (applied.code, "these are implied" in applied.err) == (0, True)
            assert await sizes(client, "bare") == [5 * MIB]
