"""Properties of the groups, rings and flows of random jobs."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.model.errors import InputError
from heddle_controller.model.job import (
    Algorithm,
    Collective,
    Group,
    Job,
    Operation,
    Parallelism,
)
from heddle_controller.traffic.groups import (
    implied_collectives,
    rank_count,
    rank_groups,
    resolve_parallelism,
)
from heddle_controller.traffic.jobs import flows_of_job, flows_of_jobs, host_of_ranks
from heddle_controller.traffic.patterns import Layout, channels, patterns_of, rank_pairs, ring
from heddle_controller.traffic.traces import BULK_BYTES, summarise
from tests.support.small_fabrics import clos, star

degrees = st.sampled_from([1, 2, 3, 4])
parallelisms = st.builds(Parallelism, tp=degrees, cp=degrees, dp=degrees, pp=degrees).flatmap(
    lambda p: st.sampled_from([n for n in range(1, p.dp * p.cp + 1) if p.dp * p.cp % n == 0]).map(
        lambda ep: Parallelism(tp=p.tp, cp=p.cp, dp=p.dp, pp=p.pp, ep=ep)
    )
)
collectives = st.sampled_from(
    [
        Collective(operation, group, BULK_BYTES, algorithm)
        for operation in Operation
        for group in Group
        for algorithm in Algorithm
        if algorithm in patterns_of(operation, group)
    ]
)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Draw a job whose hosts hold exactly the ranks of its parallelism."""
    parallelism = draw(parallelisms)
    ranks = rank_count(parallelism)
    gpus = draw(st.sampled_from([n for n in _divisors(ranks) if n <= 8]))
    wanted = draw(st.lists(collectives, max_size=3))
    sizes = {group: rank_groups(parallelism, group).shape[1] for group in Group}
    used = tuple(c for c in wanted if sizes[c.group] > 1)
    parts = draw(st.sampled_from([(), *([_parts(draw, ranks)] if ranks > 1 else [])]))
    hosts = tuple(f"h{i}" for i in range(len(parts) or ranks // gpus))
    if parts:
        counts = {len(part) for part in parts}
        gpus = counts.pop() if len(counts) == 1 else 0
    return Job("j", hosts, gpus, parallelism, used, gpus=parts)


def _parts(draw: st.DrawFn, ranks: int) -> tuple[tuple[int, ...], ...]:
    """Draw ``ranks`` GPUs on hosts that give up to eight each, in any order."""
    parts = []
    while ranks:
        part = draw(st.permutations(range(8)))[: draw(st.integers(1, min(8, ranks)))]
        parts.append(tuple(part))
        ranks -= len(part)
    return tuple(parts)


@given(parallelisms, st.sampled_from(list(Group)))
def test_groups_partition_the_ranks(parallelism: Parallelism, group: Group) -> None:
    """Every rank is in exactly one group of each kind."""
    groups = rank_groups(parallelism, group)
    assert sorted(groups.ravel().tolist()) == list(range(rank_count(parallelism)))
    assert (np.diff(groups, axis=1) > 0).all()


@given(parallelisms, st.integers(1, 8))
def test_dp_is_found_from_the_rest(parallelism: Parallelism, gpus: int) -> None:
    """``dp`` is found from the other degrees and the number of GPUs."""
    p = parallelism
    if rank_count(p) % gpus:
        return
    hosts = tuple(f"h{i}" for i in range(rank_count(p) // gpus))
    open_dp = Parallelism(tp=p.tp, cp=p.cp, pp=p.pp, ep=p.ep)
    assert resolve_parallelism(Job("j", hosts, gpus, open_dp)) == p


@given(jobs(), st.sampled_from(list(Group)))
def test_rings_are_cycles_over_all_hosts_of_their_group(job: Job, group: Group) -> None:
    """From any rank of a channel the hops visit every host of the group once and return."""
    groups = rank_groups(job.parallelism, group)
    after = dict(
        zip(*map(np.ndarray.tolist, ring(groups, Layout(host_of_ranks(job)))), strict=True)
    )
    host_of = host_of_ranks(job).tolist()
    row_of = {rank: row for row, members in enumerate(groups.tolist()) for rank in members}
    hosts_of: dict[int, set[int]] = defaultdict(set)
    for rank, row in row_of.items():
        hosts_of[row].add(host_of[rank])
    for start in after:
        visited: list[int] = []
        rank = start
        while not visited or rank != start:
            visited.append(host_of[rank])
            assert row_of[rank] == row_of[start]
            rank = after[rank]
        assert sorted(visited) == sorted(hosts_of[row_of[start]])


@given(jobs(), st.sampled_from(list(Group)))
def test_every_group_over_several_hosts_has_a_channel(job: Job, group: Group) -> None:
    """Every group over several hosts has a channel, and no rank is in two channels."""
    groups = rank_groups(job.parallelism, group)
    host = host_of_ranks(job)
    lines = channels(groups, host)
    used = [rank for line in lines for rank in line.ravel().tolist()]
    assert len(used) == len(set(used))
    spread = host[groups].max(axis=1) > host[groups].min(axis=1)
    assert {rank in used for rank in groups[spread][:, 0].tolist()} <= {True}


@given(parallelism=parallelisms, collective=collectives, gpus=st.integers(1, 8), pxn=st.booleans())
def test_data_reaches_all_that_must_have_it(
    parallelism: Parallelism, collective: Collective, gpus: int, *, pxn: bool
) -> None:
    """Every member's data can reach every host of its group over hops and NVLink.

    Of a broadcast, only the first member's data must.
    """
    ranks = rank_count(parallelism)
    gpus = next(n for n in range(gpus, 0, -1) if ranks % n == 0)
    rail = np.arange(ranks) % gpus if pxn else None
    groups = rank_groups(parallelism, collective.group)
    source, destination = rank_pairs(collective, groups, Layout(np.arange(ranks) // gpus, rail))
    assert (source // gpus != destination // gpus).all()
    edges: dict[int, set[int]] = defaultdict(set)
    for a, b in zip((source // gpus).tolist(), (destination // gpus).tolist(), strict=True):
        edges[a].add(b)
    for members in (groups // gpus).tolist():
        one_way = collective.operation is Operation.BROADCAST
        for start in members[:1] if one_way else members:
            reached, waiting = {start}, [start]
            while waiting:
                new = edges[waiting.pop()] - reached
                reached |= new
                waiting += new
            assert set(members) <= reached


@given(job=jobs(), nics=st.integers(1, 8), rails=st.booleans())
def test_flows_of_a_job(job: Job, nics: int, *, rails: bool) -> None:
    """Ids are unique, no flow stays on its host, and no NIC is asked for more than its line.

    The line holds for sending and for receiving, in each phase by itself.
    """
    fabric = clos(len(job.hosts), nics, rails=rails)
    flows = flows_of_job(job, fabric)
    host = fabric.structure.nodes.host
    assert len(set(flows.ids)) == len(flows)
    assert (host[flows.source] != host[flows.destination]).all()
    assert (flows.gbps > 0).all()
    for phase in range(len(flows.phase_names)):
        rows = flows.phase == phase
        assert rows.any()
        for end in (flows.source, flows.destination):
            asked = np.bincount(end[rows], weights=flows.gbps[rows])
            assert asked.max() <= 400.0 * (1 + 1e-12)


@given(
    speeds=st.lists(st.sampled_from([100.0, 200.0, 400.0]), min_size=2, max_size=6),
    everybody=st.booleans(),
)
def test_some_end_of_every_flow_is_full(speeds: list[float], *, everybody: bool) -> None:
    """The rate of each flow is an even share of the slower of its two ends."""
    fabric = star({f"h{i}": [speed] for i, speed in enumerate(speeds)})
    operation = Operation.ALL_TO_ALL if everybody else Operation.ALL_REDUCE
    hosts = tuple(f"h{i}" for i in range(len(speeds)))
    wanted = (Collective(operation, Group.DP, BULK_BYTES),)
    flows = flows_of_job(Job("j", hosts, 1, collectives=wanted), fabric)
    share = len(speeds) - 1 if everybody else 1
    rate = dict(zip(fabric.structure.nodes.ids, [0.0, *speeds], strict=True))
    ids = fabric.structure.nodes.ids
    for row in range(len(flows)):
        ends = rate[ids[flows.source[row]]], rate[ids[flows.destination[row]]]
        assert flows.gbps[row] == min(ends) / share


@given(jobs())
def test_implied_traffic_uses_every_nic_that_has_partners_elsewhere(job: Job) -> None:
    """With one NIC for each GPU and whole hosts in a dp group, no NIC is idle."""
    plain = Job("j", job.hosts, len(job.hosts))
    fabric = clos(len(job.hosts), plain.gpus_per_host)
    flows = flows_of_job(plain, fabric)
    expected = plain.rank_count if len(job.hosts) > 1 else 0
    assert len(flows) == expected == len(set(flows.source.tolist()))


@given(jobs(), st.integers(2, 3))
def test_jobs_side_by_side_are_the_sum_of_the_jobs(job: Job, copies: int) -> None:
    """The flows of several jobs are those of each job, in order."""
    size = len(job.hosts)
    fabric = clos(size * copies, 2)
    many = [
        Job(
            f"j{n}",
            tuple(f"h{n * size + i}" for i in range(size)),
            job.gpus_per_host,
            job.parallelism,
            job.collectives,
            gpus=job.gpus,
        )
        for n in range(copies)
    ]
    together = flows_of_jobs(many, fabric)
    assert together.ids == tuple(i for one in many for i in flows_of_job(one, fabric).ids)


@given(
    st.lists(
        st.dictionaries(
            st.tuples(st.sampled_from(Operation), st.sampled_from(Group)),
            st.integers(0, 4 * BULK_BYTES),
        ),
        min_size=1,
    )
)
def test_summary_keeps_the_bytes_of_the_busiest_stage(
    stages: list[dict[tuple[Operation, Group], int]],
) -> None:
    """Each sum is the greatest among the stages, or 0 if that is below ``BULK_BYTES``."""
    kept = {(c.operation, c.group): c.bytes for c in summarise(Parallelism(), stages).collectives}
    for key in {key for sums in stages for key in sums}:
        most = max(sums.get(key, 0) for sums in stages)
        assert kept.get(key, 0) == (most if most >= BULK_BYTES else 0)


@given(parallelisms)
def test_implied_collectives_can_all_run(parallelism: Parallelism) -> None:
    """Each kind of group with several members has an implied collective, and no other kind has."""
    groups = {c.group for c in implied_collectives(parallelism)}
    p = parallelism
    sizes = {Group.TP: p.tp, Group.CP: p.cp, Group.DP: p.dp, Group.PP: p.pp, Group.EP: p.ep}
    assert groups == {group for group, size in sizes.items() if size > 1}
    assert prod((p.tp, p.cp, p.dp, p.pp)) == rank_count(p)


@given(job=jobs(), nics=st.integers(1, 8), rails=st.booleans())
def test_named_gpus_use_their_own_nics(job: Job, nics: int, *, rails: bool) -> None:
    """A job's flows use the NICs of the GPUs that it names, and no other NIC.

    If every host gives its first GPUs in order, the flows are those of the job without names.
    """
    fabric = clos(len(job.hosts), nics, rails=rails)
    of_host = fabric.structure.nics_of_host
    own = {
        of_host[host][gpu % nics]
        for host, part in job.held.items()
        for gpu in part or range(job.gpus_per_host)
    }
    flows = flows_of_job(job, fabric)
    assert {*flows.source.tolist(), *flows.destination.tolist()} <= own
    first = tuple(tuple(range(count)) for count in job.counts)
    if job.gpus_per_host:
        plain, named = replace(job, gpus=()), replace(job, gpus=first)
        assert flows_of_job(plain, fabric).ids == flows_of_job(named, fabric).ids


@given(job=jobs(), seed=st.integers(0, 1 << 16))
def test_halves_of_hosts_are_the_same_job_twice(job: Job, seed: int) -> None:
    """Two jobs on different GPUs of the same hosts run; with one in common they are refused.

    Each has the flows that it has alone, and no NIC sends flows of both.
    """
    draw = random.Random(seed)
    gpus = tuple(tuple(range(count)) for count in job.counts)
    more = tuple(tuple(gpu + 16 for gpu in part) for part in gpus)
    fabric = clos(len(job.hosts), 32)
    one = replace(job, name="one", gpus=gpus)
    other = replace(job, name="other", gpus=more)
    both = flows_of_jobs([one, other], fabric)
    assert both.ids == flows_of_job(one, fabric).ids + flows_of_job(other, fabric).ids
    ends = [set(both.source[both.job == row].tolist()) for row in range(len(both.job_names))]
    assert len(ends) < 2 or not ends[0] & ends[1]
    row = draw.randrange(len(more))
    clash = (*more[:row], (draw.choice(gpus[row]), *more[row][1:]), *more[row + 1 :])
    with pytest.raises(InputError) as refused:
        flows_of_jobs([one, replace(other, gpus=clash)], fabric)
    (problem,) = refused.value.problems
    assert problem.record == f"job 'other', host {job.hosts[row]!r}"
    assert f"its GPU {clash[row][0]} is in use by job 'one'" in problem.reason, seed


@given(job=jobs(), nics=st.integers(1, 8), flops=st.floats(1e12, 1e21))
def test_priority_is_gpu_intensity_where_flops_are_told(job: Job, nics: int, flops: float) -> None:
    """A job's weight is its FLOPs over the seconds of its busiest NIC, unless it has a priority.

    A suspended job has no flows.
    """
    fabric = clos(len(job.hosts), nics)
    flows = flows_of_job(job, fabric)
    seconds = [0.0]
    for column in (flows.source, flows.destination):
        for nic in set(column.tolist()):
            gbit = sum(flows.bytes[column == nic].tolist()) * 8e-9
            seconds.append(gbit / float(fabric.structure.nic_line[nic]))
    told = flows_of_job(replace(job, flops_per_iteration=flops), fabric)
    assert told.ids == flows.ids
    if len(flows):
        expected = flows.weight * flops / max(seconds) / 1e15
        assert told.weight == pytest.approx(expected)
    both = replace(job, flops_per_iteration=flops, priority=2.5)
    assert flows_of_job(both, fabric).weight == pytest.approx(2.5 * flows.weight)
    assert len(flows_of_job(replace(job, suspended=True), fabric)) == 0
