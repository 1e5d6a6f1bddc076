"""RecommendPlacement and reservations through a real server, and their commands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from heddle.client import AsyncClient, InvalidRequest, NotFound, PreconditionFailed
from heddle.v1.placement_pb2 import JobScore, JobSpec, Parallelism
from heddle_emulator.topology import rail_optimised, three_tier
from tests.support.operating import operating
from tests.support.small_fabrics import without_zones
from tests.support.waiting import PATIENCE

FABRIC = three_tier(
    zones=2, leaves=2, spines=2, nics_per_leaf=16, nics_per_host=4, cores=2, taper=4.0
)
"""Zones z0 and z1 with leaves l0 and l1 each, and 4 hosts below each leaf."""
JOB = """\
- job: new
  hosts: [a, b, c, d]
  gpus_per_host: 4
  parallelism: {tp: 4}
"""


def spec(*hosts: str) -> JobSpec:
    """Return a data-parallel job over the given hosts, or over any hosts if none are given."""
    return JobSpec(hosts=hosts, gpus_per_host=4, parallelism=Parallelism(tp=4))


def zones(hosts: Iterable[str]) -> set[str]:
    """Return the zones of hosts."""
    return {host.partition("-")[0] for host in hosts}


def leaves(hosts: Iterable[str]) -> list[str]:
    """Return the leaf of each host."""
    return [host.rpartition("-")[0] for host in hosts]


def expected(score: JobScore) -> float:
    """Return the seconds by which choices are ranked."""
    return score.least_network_seconds


async def all_over(client: AsyncClient) -> None:
    """Wait until no reservation is left."""
    while await client.list_reservations():
        pass


RAILS = rail_optimised(units=2, servers=4, rails=4, spines=2)
"""Hosts of a unit have a NIC at each of its four leaves."""
RUNNING = [f"z0-l{leaf}-h{host}" for leaf in (0, 1) for host in (0, 2)]


@pytest.mark.parametrize("stated", [True, False])
async def test_a_placement_is_recommended(tmp_path: Path, *, stated: bool) -> None:
    """Recommended hosts are free, together in the zone with room, and no worse than first fit.

    So they are if the fabric does not state its zones.
    """
    async with operating(tmp_path) as operator:
        await operator.s.put_fabric(FABRIC if stated else without_zones(FABRIC))
        async with AsyncClient(f"127.0.0.1:{operator.s.api.port}") as client:
            await client.submit_job("run", spec(*RUNNING))
            found = await client.recommend_placement(spec(), 8)
            assert found.placements
            best = found.placements[0]
            assert len(set(best.hosts)) == 8
            assert zones(best.hosts) == {"z1"}
            assert best.cross_zone_gbps == 0
            of_zone = "zone z1 8" if stated else "1 zone"
            assert f"8 hosts below 2 leaves of {of_zone}; nothing between zones" in best.reason
            for one in found.placements:
                assert not set(one.hosts) & set(RUNNING)
                assert 0 < one.score.least_network_seconds <= one.score.network_seconds
                assert expected(one.score) <= expected(found.first_fit) * (1 + 1e-9)
            assert await client.list_reservations() == []
            assert [job.name for job in await client.list_jobs()] == ["fabrics/f1/jobs/run"]


async def test_a_job_below_several_leaves_is_isolated(tmp_path: Path) -> None:
    """Hosts of one unit suit an isolated job, although the unit's leaves carry another job's.

    A job that does not fit below a unit's leaves is refused.
    """
    async with operating(tmp_path) as operator:
        await operator.s.put_fabric(RAILS)
        async with AsyncClient(f"127.0.0.1:{operator.s.api.port}") as client:
            await client.submit_job("run", spec("u0-h0", "u1-h0"))
            found = await client.recommend_placement(spec(), 3, isolated=True)
            assert found.placements
            for one in found.placements:
                assert not one.shares_links
                assert len(zones(one.hosts)) == 1
            with pytest.raises(PreconditionFailed, match="no other job uses there are 3"):
                await client.recommend_placement(spec(), 4, isolated=True)


async def test_constraints_hold(tmp_path: Path) -> None:
    """Recommendations keep to each constraint; constraints that cannot be met are refused."""
    async with operating(tmp_path) as operator:
        await operator.s.put_fabric(FABRIC)
        async with AsyncClient(f"127.0.0.1:{operator.s.api.port}") as client:
            await client.submit_job("run", spec(*RUNNING))
            found = await client.recommend_placement(spec(), 4, max_hosts_per_leaf=1)
            for one in found.placements:
                assert len(set(leaves(one.hosts))) == 4
            found = await client.recommend_placement(spec(), 3, same_zone=True)
            assert all(len(zones(one.hosts)) == 1 for one in found.placements)
            found = await client.recommend_placement(spec(), 6, isolated=True)
            for one in found.placements:
                assert not one.shares_links
                assert zones(one.hosts) == {"z1"}
            among = ["z0-l0-h1", "z0-l0-h3", "z1-l0-h0", "z0-l0-h0"]
            found = await client.recommend_placement(spec(*among), 2, exclude=["z1-l0-h0"])
            assert {*found.placements[0].hosts} == {"z0-l0-h1", "z0-l0-h3"}
            again = await client.recommend_placement(spec(*RUNNING), 4, replaces="run")
            assert {*again.placements[0].hosts} == {*RUNNING}
            refused: dict[str, dict[str, Any]] = {
                "of 16 candidates 4 are used by other jobs": {"host_count": 13},
                "the fabric has 16 hosts": {"host_count": 17},
                "in one zone there are 8": {"host_count": 9, "same_zone": True},
                "4 can be had with at most 1 below a leaf": {
                    "host_count": 5,
                    "max_hosts_per_leaf": 1,
                },
                "on links that no other job uses there are 8": {
                    "host_count": 9,
                    "isolated": True,
                },
                "is over, or never was": {"host_count": 1, "reservation": "r1"},
            }
            for why, asked in refused.items():
                with pytest.raises(PreconditionFailed, match=why):
                    await client.recommend_placement(spec(), **asked)
            with pytest.raises(InvalidRequest, match="'nowhere' is not in the fabric; "):
                await client.recommend_placement(spec("nowhere"), 1)
            with pytest.raises(InvalidRequest, match="'nowhere' is not in the fabric; "):
                await client.recommend_placement(spec(), 1, exclude=["nowhere"])
            with pytest.raises(InvalidRequest, match="host_count"):
                await client.recommend_placement(spec(), 0)
            odd = JobSpec(gpus_per_host=4, parallelism=Parallelism(tp=3))
            with pytest.raises(InvalidRequest, match="the job that is asked about: parallelism"):
                await client.recommend_placement(odd, 2)


async def test_two_schedulers_do_not_take_the_same_hosts(tmp_path: Path) -> None:
    """Reserved hosts are neither recommended nor given to others; submitting redeems them."""
    async with operating(tmp_path) as operator:
        await operator.s.put_fabric(FABRIC)
        async with AsyncClient(f"127.0.0.1:{operator.s.api.port}") as client:
            first = (await client.recommend_placement(spec(), 8)).placements[0].hosts
            kept = await client.reserve_placement("one", list(first), 600)
            assert kept.end_time.seconds - kept.create_time.seconds == 600
            second = (await client.recommend_placement(spec(), 8)).placements[0].hosts
            assert not set(first) & set(second)
            with pytest.raises(PreconditionFailed, match="reserved by 'one'"):
                await client.reserve_placement("two", list(first[:1]), 600)
            with pytest.raises(PreconditionFailed, match="reserved by 'one'"):
                await client.submit_job("new", spec(*first))
            own = await client.recommend_placement(spec(*first), 8, reservation="one")
            assert {*own.placements[0].hosts} == {*first}
            await client.submit_job("new", spec(*own.placements[0].hosts), reservation="one")
            assert await client.list_reservations() == []
            with pytest.raises(PreconditionFailed, match="reservation 'one': is over or redeemed"):
                await client.submit_job("other", spec(*second), reservation="one")
            with pytest.raises(NotFound):
                await client.release_placement("one")
            with pytest.raises(InvalidRequest, match="seconds"):
                await client.reserve_placement("two", list(second), 100_000)
            with pytest.raises(InvalidRequest, match="'nowhere'"):
                await client.reserve_placement("two", ["nowhere"], 60)


async def test_bad_input_is_refused_by_name_and_changes_nothing(tmp_path: Path) -> None:
    """Bad input is refused by name, and changes no job, reservation or recommendation.

    Hosts may be unknown, a job larger than the fabric, constraints at odds, or a reservation over.
    """
    async with operating(tmp_path) as operator:
        await operator.s.put_fabric(FABRIC)
        async with AsyncClient(f"127.0.0.1:{operator.s.api.port}") as client:
            await client.submit_job("run", spec(*RUNNING))
            await client.reserve_placement("brief", ["z1-l0-h0", "z1-l0-h1"], 1)
            await asyncio.wait_for(all_over(client), PATIENCE)
            jobs = await client.list_jobs()
            before = (await client.recommend_placement(spec(), 8)).placements
            everything = list(FABRIC.structure.host_names)
            ghosts = spec("z1-l0-h0", "ghost")
            for unknown in (
                client.recommend_placement(ghosts, 1),
                client.recommend_placement(spec(), 1, exclude=["ghost"]),
                client.order_ranks(ghosts),
                client.reserve_placement("new", ["z1-l0-h0", "ghost"], 60),
                client.submit_job("new", ghosts),
            ):
                with pytest.raises(InvalidRequest, match="'ghost'"):
                    await unknown
            with pytest.raises(PreconditionFailed, match="the fabric has 16 hosts"):
                await client.recommend_placement(spec(), 17)
            at_odds: dict[str, dict[str, Any]] = {
                "in one zone and with at most 1 below a leaf there are 2": {
                    "host_count": 3,
                    "same_zone": True,
                    "max_hosts_per_leaf": 1,
                },
                "in one zone and on links that no other job uses there are 8": {
                    "host_count": 9,
                    "same_zone": True,
                    "isolated": True,
                },
                "16 candidates 16 are excluded": {"host_count": 1, "exclude": everything},
            }
            for why, asked in at_odds.items():
                with pytest.raises(PreconditionFailed, match=why):
                    await client.recommend_placement(spec(), **asked)
            with pytest.raises(PreconditionFailed, match="reservation 'brief': is over"):
                await client.recommend_placement(spec(), 2, reservation="brief")
            with pytest.raises(PreconditionFailed, match="reservation 'brief': is over"):
                await client.submit_job("new", spec("z1-l0-h0"), reservation="brief")
            with pytest.raises(NotFound):
                await client.release_placement("brief")
            assert await client.list_jobs() == jobs
            assert await client.list_reservations() == []
            assert (await client.recommend_placement(spec(), 8)).placements == before


async def test_commands(tmp_path: Path) -> None:
    """The commands for placements and reservations print their results and exit as they should."""
    file = tmp_path / "job.yaml"
    await asyncio.to_thread(file.write_text, JOB)
    async with operating(tmp_path) as operator:
        await operator.s.put_fabric(FABRIC)
        done = await operator.does("job", "place", file, "--same-zone", "--reserve", "mine")
        hosts = done.out.split()
        assert (done.code, len(hosts), len(zones(hosts))) == (0, 4, 1)
        assert "4 hosts below 1 leaf" in done.err
        assert "first fit: network" in done.err
        done = await operator.does("job", "place", file, "--among", "z0-l[0-1]-h[0-3]")
        assert (done.code, zones(done.out.split())) == (0, {"z0"})
        assert not set(hosts) & set(done.out.split())
        done = await operator.does("job", "place", file, "--hosts", "13")
        assert (done.code, "4 are reserved" in done.err) == (2, True)
        done = await operator.does("job", "reserve", "also", "z1-l[0-1]-h0", "--seconds", "60")
        assert done.code == 0
        done = await operator.does("job", "reservations")
        assert [line.split()[:2] for line in done.out.splitlines()[1:]] == [
            ["also", "2"],
            ["mine", "4"],
        ]
        text = JOB.replace("[a, b, c, d]", f"[{', '.join(hosts)}]")
        await asyncio.to_thread(file.write_text, text)
        assert (await operator.does("job", "submit", file)).code == 2
        assert (await operator.does("job", "submit", file, "--reservation", "mine")).code == 0
        assert (await operator.does("job", "release", "also")).code == 0
        assert (await operator.does("job", "release", "also")).code == 2
        done = await operator.does("job", "reservations")
        assert len(done.out.splitlines()) == 1
