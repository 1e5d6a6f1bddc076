"""Jobs on parts of hosts, through a real server: which GPUs they get, and where they run best."""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle.client import PROGRAMMED, AsyncClient, InvalidRequest, PreconditionFailed
from heddle.v1 import placement_pb2 as pb
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_emulator.fleet.agents import Fleet
from heddle_emulator.topology import three_tier
from tests.support.operating import controlling, operating
from tests.support.waiting import PATIENCE

FABRIC = three_tier(
    zones=2, leaves=2, spines=2, nics_per_leaf=16, nics_per_host=4, cores=2, taper=4.0
)
"""Zones z0 and z1 with leaves l0 and l1 each, 4 hosts below each leaf, 4 NICs a host."""
A, B = "z0-l0-h0", "z0-l1-h0"
JOBS = f"""\
- job: left
  hosts: [{A}, {B}]
  gpus: [0, 1]
- job: right
  hosts: [{{host: {A}, gpus: [2]}}, {{host: {B}, gpus: [3, 2]}}]
"""


def part(*gpus: int) -> pb.HostGpus:
    """Return GPUs of a host."""
    return pb.HostGpus(gpus=gpus)


def spec(*hosts: str, gpus: tuple[pb.HostGpus, ...] = ()) -> pb.JobSpec:
    """Return a job on the given GPUs of its hosts, or on four GPUs of each host without any."""
    return pb.JobSpec(hosts=hosts, gpus_per_host=0 if gpus else 4, gpus=gpus)


def _client(port: int) -> AsyncClient:
    return AsyncClient(f"127.0.0.1:{port}")


async def test_two_jobs_share_hosts_where_their_gpus_do_not_overlap(tmp_path: Path) -> None:
    """Jobs share hosts if their GPUs do not overlap; else the refusal names GPUs and their job."""
    file = tmp_path / "jobs.yaml"
    file.write_text(JOBS)
    async with operating(tmp_path) as operator:
        await operator.s.put_fabric(FABRIC)
        assert (await operator.does("job", "submit", file)).code == 0
        async with _client(operator.s.api.port) as client:
            left, right = await client.list_jobs()
            assert (left.spec.gpus_per_host, [*left.spec.gpus]) == (2, [part(0, 1)])
            assert (right.spec.gpus_per_host, [*right.spec.gpus]) == (0, [part(2), part(3, 2)])
            shown = await operator.does("job", "show", "right")
            assert f"{A} GPUs 2, {B} GPUs 3,2" in shown.out
            for wanted, why in (
                (spec(A, gpus=(part(1, 2),)), "its GPU 1 is in use by job 'left'"),
                (spec(B, gpus=(part(2),)), "its GPU 2 is in use by job 'right'"),
                (spec(A), "its GPUs 0-1 are in use by job 'left'"),
            ):
                with pytest.raises(PreconditionFailed, match=why):
                    await client.submit_job("third", wanted)
                with pytest.raises(PreconditionFailed, match=why):
                    await client.reserve_placement("r", wanted.hosts, 60, gpus=wanted.gpus)
            await client.submit_job("third", spec(A, gpus=(part(3),)))
            before = await client.get_job("right")
            with pytest.raises(PreconditionFailed, match="its GPU 3 is in use by job 'third'"):
                await client.submit_job("right", spec(A, gpus=(part(2, 3),)), replace=True)
            assert await client.get_job("right") == before
            await client.delete_job("third")
            await client.submit_job("right", spec(A, gpus=(part(2, 3),)), replace=True)
            await client.submit_job("third", spec(B, gpus=(part(2, 3),)))


async def test_parts_are_programmed_on_their_own_nics(tmp_path: Path) -> None:
    """Both jobs become PROGRAMMED, and their flows use only the NICs of their own GPUs."""
    file = tmp_path / "jobs.yaml"
    file.write_text(JOBS)
    save_fabric_file(FABRIC, tmp_path / "fabric.json")
    async with controlling(tmp_path) as controller:
        await controller.does("fabric", "import", tmp_path / "fabric.json", "--fabric", "f1")
        async with Fleet(FABRIC, [controller.address]) as fleet, _client(controller.port) as client:
            await fleet.connected(PATIENCE)
            assert (await controller.does("job", "submit", file)).code == 0
            await client.wait_until(PROGRAMMED, ["left", "right"], PATIENCE)
            own = {
                "left": {f"{host}-n{gpu}" for host in (A, B) for gpu in (0, 1)},
                "right": {f"{A}-n2", f"{B}-n2", f"{B}-n3"},
            }
            for job, nics in own.items():
                _, routes = await client.list_routes(job)
                assert routes
                assert {end for one in routes for end in (one.source, one.destination)} <= nics


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (spec(A, B, gpus=(part(0), part(1), part(2))), "there are 3 for 2 hosts: give one a host"),
        (spec(A, gpus=(part(),)), "has an empty list of GPUs"),
        (spec(A, gpus=(part(1, 1),)), "gives GPU 1 twice"),
        (spec(A, gpus=(part(1024),)), "GPUs are numbered 0 to 1023"),
        (
            pb.JobSpec(hosts=[A], gpus_per_host=3, gpus=[part(0)]),
            "it is 3, and gpus names 1 of a host: leave it out",
        ),
        (
            pb.JobSpec(hosts=[A, B], gpus=[part(0)], parallelism=pb.Parallelism(tp=4)),
            "tp 4 does not make up 2 hosts × 1 GPUs = 2 ranks",
        ),
    ],
)
async def test_odd_parts_are_refused_whole(tmp_path: Path, wanted: pb.JobSpec, why: str) -> None:
    """GPUs that do not fit the job are refused with the reason, and nothing is stored."""
    async with operating(tmp_path) as operator:
        await operator.s.put_fabric(FABRIC)
        async with _client(operator.s.api.port) as client:
            with pytest.raises(InvalidRequest, match=why):
                await client.submit_job("odd", wanted)
            assert await client.list_jobs() == []


async def test_a_placement_knows_which_gpus_are_taken(tmp_path: Path) -> None:
    """A placement gets only GPUs that are free and not reserved; whole hosts must be all free."""
    async with operating(tmp_path) as operator:
        await operator.s.put_fabric(FABRIC)
        async with _client(operator.s.api.port) as client:
            every = [f"z0-l{leaf}-h{host}" for leaf in (0, 1) for host in range(4)]
            await client.submit_job("run", spec(*every, gpus=(part(0),)))
            await client.reserve_placement("kept", every[4:], 600, gpus=[part(3)])
            asked = pb.JobSpec(hosts=every, gpus_per_host=2, gpus=[part(0, 1, 2, 3)])
            found = await client.recommend_placement(asked, 4)
            assert found.placements
            for one in found.placements:
                gpus = list(one.gpus) * (4 if len(one.gpus) == 1 else 1)
                for host, has in zip(one.hosts, gpus, strict=True):
                    assert len(set(has.gpus)) == 2
                    assert not {0, 3 if host in every[4:] else 0} & set(has.gpus)
            best = found.placements[0]
            await client.submit_job("new", pb.JobSpec(hosts=best.hosts, gpus=best.gpus))
            with pytest.raises(PreconditionFailed, match="of 8 candidates 4 are reserved, 4 are"):
                await client.recommend_placement(
                    pb.JobSpec(hosts=every, gpus_per_host=3, gpus=[part(0, 1, 2, 3)]), 1
                )
            whole = await client.recommend_placement(spec(), 8)
            assert all(host.startswith("z1") for host in whole.placements[0].hosts)
            with pytest.raises(PreconditionFailed, match="8 are"):
                await client.recommend_placement(spec(*every), 1)
            with pytest.raises(InvalidRequest, match="say how many GPUs the job takes"):
                await client.recommend_placement(pb.JobSpec(gpus=[part(0)]), 1)


async def test_ranks_are_ordered_with_the_gpus_of_their_hosts(tmp_path: Path) -> None:
    """Each host keeps its GPUs, wherever it is in the order of ranks."""
    hosts = [f"z{zone}-l0-h{host}" for host in range(4) for zone in (0, 1)]
    parts = [part(*range(1 + row % 2, 4)) for row in range(8)]
    async with operating(tmp_path) as operator:
        await operator.s.put_fabric(FABRIC)
        async with _client(operator.s.api.port) as client:
            found = await client.order_ranks(pb.JobSpec(hosts=hosts, gpus=parts))
            assert sorted(found.hosts) == sorted(hosts)
            assert dict(zip(found.hosts, map(str, found.gpus), strict=True)) == dict(
                zip(hosts, map(str, parts), strict=True)
            )
            assert [host.partition("-")[0] for host in found.hosts] in (
                ["z0"] * 4 + ["z1"] * 4,
                ["z1"] * 4 + ["z0"] * 4,
            )
