"""OrderRanks through a real server, and ``heddle job order``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from heddle.client import AsyncClient, InvalidRequest, PreconditionFailed
from heddle.v1.placement_pb2 import JobSpec, Parallelism
from heddle_emulator.topology import three_tier
from tests.support.operating import operating

FABRIC = three_tier(
    zones=2, leaves=2, spines=2, nics_per_leaf=8, nics_per_host=4, cores=2, taper=4.0
)
HOSTS = ["z0-l0-h0", "z1-l0-h0", "z0-l0-h1", "z1-l0-h1"]
JOB = """\
- job: j
  hosts: [{hosts}]
  gpus_per_host: 4
  parallelism: {{tp: 4, dp: 4}}
"""


def spec(*hosts: str) -> JobSpec:
    """Return a job over some hosts: tensor parallel within each, data parallel across them."""
    return JobSpec(hosts=hosts, gpus_per_host=4, parallelism=Parallelism(tp=4))


async def test_an_order_is_told_with_what_it_is_worth(tmp_path: Path) -> None:
    """The order has the hosts of the request, zone by zone, and is no worse than alphabetical.

    Nothing is stored. Unknown hosts are refused, and hosts in use unless their job is replaced.
    """
    async with operating(tmp_path) as operator:
        await operator.s.put_fabric(FABRIC)
        async with AsyncClient(f"127.0.0.1:{operator.s.api.port}") as client:
            found = await client.order_ranks(spec(*HOSTS))
            assert sorted(found.hosts) == sorted(HOSTS)
            assert [host[:2] for host in found.hosts] in (
                ["z0"] * 2 + ["z1"] * 2,
                ["z1"] * 2 + ["z0"] * 2,
            )
            assert found.score.max_utilization <= found.alphabetical.max_utilization
            assert 0 < found.score.network_seconds <= found.alphabetical.network_seconds
            assert await client.list_jobs() == []
            with pytest.raises(InvalidRequest, match="nowhere"):
                await client.order_ranks(spec("nowhere"))
            await client.submit_job("j", spec(*HOSTS))
            with pytest.raises(PreconditionFailed, match="in use by job 'j'"):
                await client.order_ranks(spec(*HOSTS))
            again = await client.order_ranks(spec(*HOSTS), replaces="j")
            assert again.hosts == found.hosts
        file = tmp_path / "job.yaml"
        await asyncio.to_thread(file.write_text, JOB.format(hosts=", ".join(HOSTS)))
        done = await operator.does("job", "order", file)
        assert (done.code, done.out.split()) == (0, list(found.hosts))
        assert "against alphabetical order" in done.err
        assert (await operator.does("job", "order", file, "--only", "k")).code == 2
