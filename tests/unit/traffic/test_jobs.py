"""The flows of jobs: their pairs, rates and phases, and jobs that are refused."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.errors import InputError
from heddle_controller.model.files.fabric_file import parse_fabric
from heddle_controller.model.flows import Flows, TrafficClass
from heddle_controller.model.job import (
    Algorithm,
    Collective,
    Group,
    Job,
    Operation,
    Parallelism,
)
from heddle_controller.traffic.jobs import flows_of_job, flows_of_jobs
from tests.support.depth import examples
from tests.support.small_fabrics import clos, star

ALL_TO_ALL = Collective(Operation.ALL_TO_ALL, Group.WORLD, 1 << 20)


def _job(hosts: int, gpus: int, *collectives: Collective, **degrees: int) -> Job:
    names = tuple(f"h{i}" for i in range(hosts))
    return Job("j", names, gpus, Parallelism(**degrees), collectives)


def _phase_of(flows: Flows, name: str) -> list[str]:
    wanted = flows.phase == flows.phase_names.index(name)
    return [flows.ids[row] for row in np.flatnonzero(wanted)]


def test_implied_traffic_of_a_plain_job() -> None:
    """TP inside hosts makes no flow; DP 2 is a ring of two hosts on every NIC, at line rate."""
    flows = flows_of_job(_job(2, 4, tp=2, pp=1), clos(2, 4))
    assert flows.phase_names == ("dp",)
    assert sorted(flows.ids) == sorted(
        [f"j/dp/h0-{n}->h1-{n}" for n in range(4)] + [f"j/dp/h1-{n}->h0-{n}" for n in range(4)]
    )
    assert flows.gbps.tolist() == [400.0] * 8


def test_implied_traffic_of_every_degree() -> None:
    """Each kind of group with several members is a phase, in the order tp, pp, dp, cp, ep."""
    flows = flows_of_job(_job(16, 1, tp=2, cp=2, dp=2, pp=2, ep=2), clos(16, 1))
    assert flows.phase_names == ("tp", "pp", "dp", "cp", "ep")
    assert _phase_of(flows, "tp")[:2] == ["j/tp/h0-0->h1-0", "j/tp/h1-0->h0-0"]


def test_one_rank_has_no_traffic() -> None:
    """A job of one GPU is valid and has no flows."""
    assert len(flows_of_job(_job(1, 1), clos(2, 1))) == 0


def test_pipeline_directions_share_one_phase() -> None:
    """A middle stage sends two ways, so every flow of the pipeline gets 200 of 400 Gbit/s."""
    flows = flows_of_job(_job(4, 1, pp=4), clos(4, 1))
    assert flows.phase_names == ("pp",)
    assert len(flows) == 6
    assert set(flows.gbps.tolist()) == {200.0}


def test_rate_is_the_lesser_share_of_both_ends() -> None:
    """A 100 Gbit/s NIC in a ring of 400s holds its flows in both directions to 100."""
    fabric = star({"h0": [400.0], "h1": [100.0], "h2": [400.0]})
    flows = flows_of_job(_job(3, 1), fabric)
    assert dict(zip(flows.ids, flows.gbps.tolist(), strict=True)) == {
        "j/dp/h0-0->h1-0": 100.0,
        "j/dp/h1-0->h2-0": 100.0,
        "j/dp/h2-0->h0-0": 400.0,
    }


def test_gpus_share_the_nics_there_are() -> None:
    """Four GPUs on two NICs: GPUs 0 and 2 share NIC 0, and their equal flows are merged."""
    flows = flows_of_job(_job(2, 4), clos(2, 2))
    assert sorted(flows.ids) == [
        "j/dp/h0-0->h1-0",
        "j/dp/h0-1->h1-1",
        "j/dp/h1-0->h0-0",
        "j/dp/h1-1->h0-1",
    ]
    assert flows.gbps.tolist() == [400.0] * 4


def test_nic_of_two_ports_gives_one_port_to_one_qp() -> None:
    """A flow of one QP gets one port's 400 Gbit/s; with two QPs it gets both ports' 800."""
    nodes = [{"id": f"h{h}-0", "kind": "nic", "host": f"h{h}"} for h in range(2)]
    nodes += [{"id": f"leaf{s}", "kind": "leaf"} for s in range(2)]
    edges = [
        {"source": f"h{h}-0", "target": f"leaf{s}", "gbps": 400} for h in range(2) for s in range(2)
    ]
    fabric = parse_fabric({"nodes": nodes, "edges": edges}, "a test")
    assert flows_of_job(_job(2, 1), fabric).gbps.tolist() == [400.0, 400.0]
    assert flows_of_job(replace(_job(2, 1), qps=2), fabric).gbps.tolist() == [800.0, 800.0]


def test_job_columns_reach_the_flows() -> None:
    """Priority is the weight; class and QPs are the job's."""
    wanted = replace(_job(2, 1), priority=2.5, qps=4, traffic_class=TrafficClass.LATENCY)
    flows = flows_of_job(wanted, clos(2, 1))
    assert set(flows.weight.tolist()) == {2.5}
    assert set(flows.qps.tolist()) == {4}
    assert set(flows.traffic_class.tolist()) == {int(TrafficClass.LATENCY)}
    assert flows.job_names == ("j",)


def test_all_to_all_goes_by_pxn_where_there_are_rails() -> None:
    """With PXN on rails every flow stays on its rail; without PXN or rails it need not."""
    rails, plain = clos(2, 4, rails=True), clos(2, 4)
    wanted = _job(2, 4, ALL_TO_ALL)
    assert len(flows_of_job(wanted, rails)) == 8
    assert len(flows_of_job(wanted, rails, pxn=False)) == 32
    assert len(flows_of_job(wanted, plain)) == 32
    flows = flows_of_job(wanted, rails)
    rail = rails.structure.nodes.rail
    assert (rail[flows.source] == rail[flows.destination]).all()


def test_same_input_gives_the_same_ids() -> None:
    """Ids and their order do not change from run to run or with the order of collectives."""
    ring = Collective(Operation.ALL_GATHER, Group.DP, 1 << 20)
    one = flows_of_job(_job(4, 2, ring, ALL_TO_ALL), clos(4, 2))
    two = flows_of_job(_job(4, 2, ALL_TO_ALL, ring), clos(4, 2))
    assert one.ids == two.ids


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (
            replace(_job(2, 1), hosts=("h0", "h11")),
            "job 'j': host 'h11': is not in the fabric; did you mean 'h1'",
        ),
        (replace(_job(2, 1), hosts=("h0", "zebra")), "'zebra': is not in the fabric; name one of"),
        (replace(_job(2, 1), hosts=("h0", "h0")), "host 'h0': is named twice; give each host once"),
        (replace(_job(2, 1), priority=float("nan")), "priority: is nan; give a number above 0"),
        (replace(_job(2, 1), qps=0), "qps: is 0; give 1 to"),
        (
            _job(2, 1, Collective(Operation.ALL_TO_ALL, Group.EP, 1)),
            "collectives[0] (all_to_all over ep): ep is 1, so its groups have one member",
        ),
        (_job(2, 1, Collective(Operation.ALL_REDUCE, Group.DP, 0)), "bytes is 0"),
        (
            _job(2, 1, Collective(Operation.ALL_GATHER, Group.DP, 1, Algorithm.TREE)),
            "no tree algorithm; use auto or ring or pairwise",
        ),
        (_job(2, 1, tp=3), "tp 3 does not make up 2 hosts × 1 GPUs = 2 ranks"),
        (_job(4, 1024, ALL_TO_ALL), "makes 16,773,120 flows, at most 4,000,000"),
    ],
)
def test_what_cannot_run_is_refused(wanted: Job, told: str) -> None:
    """A job that cannot run is refused in one line with job, record and cure."""
    with pytest.raises(InputError) as caught:
        flows_of_job(wanted, clos(4, 1))
    assert told in str(caught.value)


def test_host_without_nic_is_told_apart_from_an_unknown_one() -> None:
    """A host that only switches name is known, but refused because it has no NIC."""
    nodes = [
        {"id": "n0", "kind": "nic", "host": "h0"},
        {"id": "n1", "kind": "nic", "host": "h1"},
        {"id": "s", "kind": "leaf", "host": "mgmt"},
    ]
    edges = [{"source": n, "target": "s", "gbps": 100} for n in ("n0", "n1")]
    fabric = parse_fabric({"nodes": nodes, "edges": edges}, "a test")
    with pytest.raises(InputError, match=r"'mgmt': has no NIC in the fabric"):
        flows_of_job(replace(_job(2, 1), hosts=("h0", "mgmt")), fabric)


def test_jobs_side_by_side() -> None:
    """Flows of two jobs on separate hosts come in order, with phases shared by name."""
    one = _job(2, 1)
    two = replace(one, name="k", hosts=("h2", "h3"))
    flows = flows_of_jobs([one, two], clos(4, 1))
    assert flows.job_names == ("j", "k")
    assert flows.phase_names == ("dp",)
    assert flows.job.tolist() == [0, 0, 1, 1]
    assert len(flows_of_jobs([], clos(4, 1))) == 0


def test_two_jobs_on_a_host_and_other_faults_are_told_together() -> None:
    """Every fault of every job is in one error, whose source is the ``origin`` given."""
    one = _job(2, 1)
    jobs = [one, replace(one, name="k", hosts=("h1", "h9")), replace(one, hosts=("h2", "h3"))]
    with pytest.raises(InputError) as caught:
        flows_of_jobs(jobs, clos(4, 1), origin="jobs.yaml")
    told = [str(problem) for problem in caught.value.problems]
    assert caught.value.source == "jobs.yaml"
    assert told[0].startswith("job 'k', host 'h1': is in use by job 'j'; give each job hosts")
    assert told[1].startswith("job 'j': this name is used twice")
    assert told[2].startswith("job 'k', host 'h9': is not in the fabric")


def test_a_job_costs_what_the_job_has() -> None:
    """Making a job's flows takes no more memory on a fabric forty times as large.

    What is derived once from the fabric, for all jobs, is not counted. A byte for each further NIC
    would be found; numbers of nodes above 256 are objects and take some hundred bytes.
    """
    job = replace(_job(2, 4), parallelism=Parallelism(tp=2, pp=2, dp=2))
    most, few, many = {}, 16, 640
    for hosts in (few, many):
        fabric = clos(hosts, 4)
        flows_of_job(job, fabric)
        peaks = []
        for _ in range(3):  # other threads allocate, too, now and then
            tracemalloc.start()
            flows_of_job(job, fabric)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        most[hosts] = min(peaks)
    assert most[many] < most[few] + 4 * (many - few), most


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(20))
@pytest.mark.deep
def test_ranks_follow_the_numbers_of_nics(seed: int) -> None:
    """However NICs are named and listed, rank r of a host uses its NIC number r."""
    random = Random(seed)
    gpus, prefix = random.randint(1, 24), random.choice(["mlx5_", "n", "eth1-", "h9n", ""])
    hosts = [f"h{n}" for n in random.sample(range(200), random.randint(2, 12))]
    nodes: list[dict[str, object]] = [
        {"id": f"{host}/{prefix}{nic}", "kind": "nic", "host": host}
        for host in hosts
        for nic in range(gpus)
    ]
    random.shuffle(nodes)
    edges = [{"source": node["id"], "target": "s", "gbps": 400} for node in nodes]
    fabric = parse_fabric(
        {"nodes": [{"id": "s", "kind": "leaf"}, *nodes], "edges": edges}, "a test"
    )
    flows = flows_of_job(Job("j", tuple(hosts), gpus, Parallelism(dp=len(hosts), tp=gpus)), fabric)
    expected = {
        f"j/dp/{one}/{prefix}{nic}->{other}/{prefix}{nic}"
        for one, other in zip(hosts, [*hosts[1:], hosts[0]], strict=True)
        for nic in range(gpus)
    }
    assert set(flows.ids) == expected, f"seed {seed}"
