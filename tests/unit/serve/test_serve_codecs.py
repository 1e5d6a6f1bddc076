from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from google.protobuf import text_format

from heddle.v1 import common_pb2, demand_pb2, fabric_pb2, placement_pb2
from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric, LinkKey, State
from heddle_controller.model.flows import TrafficClass
from heddle_controller.model.job import Algorithm, Collective, Group, Job, Operation, Parallelism
from heddle_controller.model.plan import Paths
from heddle_controller.serve.codec import common, names, times
from heddle_controller.serve.codec import demand as demand_codec
from heddle_controller.serve.codec import fabric as fabric_codec
from heddle_controller.serve.codec import job as job_codec
from heddle_controller.serve.codec.plan import Routes
from heddle_emulator.topology import clos, hashing, random_regular, three_tier
from tests.support.store_samples import clos as small_clos
from tests.support.store_samples import demands, plain, plan_of


def addressed(fabric: Fabric) -> Fabric:
    """Return the same fabric with an address for each end of each link."""
    links = fabric.structure.links
    ends = tuple((f"192.0.2.{row}", f"198.51.100.{row}") for row in range(fabric.link_count))
    structure = replace(fabric.structure, links=replace(links, address=ends))
    return replace(fabric, structure=structure)


@pytest.mark.parametrize(
    "fabric",
    [
        clos(leaves=2, spines=2, nics_per_leaf=4, nics_per_host=2, parallel=2, table_size=128),
        three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=2, cores=2, nics_per_host=1),
        random_regular(switches=6, degree=3, nics_per_switch=2, seed=1),
        hashing(three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=2, cores=2), ["z1"]),
        addressed(clos(leaves=2, spines=2, nics_per_leaf=1)),
    ],
    ids=["clos", "three-tier", "random-regular", "a zone that hashes", "addresses of links"],
)
def test_a_fabric_survives_the_wire(fabric: Fabric) -> None:
    """Nodes, links, names and states come back as they were sent."""
    fabric = fabric.with_links({0: State.DRAINED, 1: State.DOWN})
    back = fabric_codec.fabric_from_pb(fabric_codec.fabric_to_pb("f1", fabric))
    assert plain(back) == plain(fabric)


def test_every_faulty_record_of_a_fabric_is_named() -> None:
    """An unknown kind is reported by itself. Faults of several links are reported together."""
    good = fabric_codec.fabric_to_pb("f1", clos(leaves=1, spines=1, nics_per_leaf=2))
    good.nodes[0].kind = fabric_pb2.NODE_KIND_UNSPECIFIED
    with pytest.raises(InputError, match="kind"):
        fabric_codec.fabric_from_pb(good)
    good.nodes[0].kind = fabric_pb2.NODE_KIND_LEAF
    good.links[0].gbps = -1
    good.links[1].source = "nobody"
    good.links[2].target = ""
    with pytest.raises(InputError) as caught:
        fabric_codec.fabric_from_pb(good)
    text = "\n".join(str(problem) for problem in caught.value.problems)
    assert "gbps is -1.0" in text
    assert "'nobody'" in text
    assert "has no target" in text


@pytest.mark.parametrize(
    ("key", "model"), [("0", 0), ("17", 17), ("017", "017"), ("a", "a"), ("9" * 5000, "9" * 5000)]
)
def test_a_link_key_is_a_number_where_it_reads_as_one(key: str, model: LinkKey) -> None:
    """Fabric files number parallel links. Other keys stay text, whatever their length."""
    assert common.key_from_pb(key) == model


COLLECTIVE = "hosts: 'h' gpus_per_host: 1 collectives"

JOB = Job(
    name="j1",
    hosts=("h0", "h1"),
    gpus_per_host=8,
    parallelism=Parallelism(tp=2, pp=4, dp=2, ep=2),
    collectives=tuple(
        Collective(operation, group, 4096, algorithm, overlap=group is Group.DP)
        for operation, group, algorithm in zip(
            Operation, Group, [*Algorithm, Algorithm.AUTO, Algorithm.RING], strict=True
        )
    ),
    priority=2.5,
    traffic_class=TrafficClass.LATENCY,
    qps=4,
)


def test_a_job_survives_the_wire() -> None:
    """Every operation, group and algorithm comes back unchanged."""
    assert job_codec.job_from_pb("j1", job_codec.job_to_pb(JOB)) == JOB


@pytest.mark.parametrize("enum", ["CollectiveOperation", "GroupKind", "CollectiveAlgorithm"])
def test_wire_names_of_enums_are_those_of_the_model(enum: str) -> None:
    """A new name on either side cannot shift the others unnoticed."""
    model = {
        "CollectiveOperation": ("COLLECTIVE_OPERATION_", Operation),
        "GroupKind": ("GROUP_KIND_", Group),
        "CollectiveAlgorithm": ("COLLECTIVE_ALGORITHM_", Algorithm),
    }
    prefix, members = model[enum]
    wire = [
        name.removeprefix(prefix).lower()
        for name in getattr(placement_pb2, enum).DESCRIPTOR.values_by_name
    ]
    assert wire[1:] == [member for member in members if member != "auto"]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ("gpus_per_host: 1", "spec.hosts"),
        ("hosts: 'h'", "spec.gpus_per_host"),
        ("hosts: 'h' gpus_per_host: 1 priority: nan", "spec.priority"),
        ("hosts: 'h' gpus_per_host: 1 priority: -1", "spec.priority"),
        ("hosts: 'h' gpus_per_host: 1 traffic_class: 77", "spec.traffic_class"),
        (f"{COLLECTIVE} {{ group: 1 bytes: 1 }}", "spec.collectives[0].operation"),
        (f"{COLLECTIVE} {{ operation: 1 bytes: 1 }}", "spec.collectives[0].group"),
        (f"{COLLECTIVE} {{ operation: 1 group: 9 bytes: 1 }}", "spec.collectives[0].group"),
        (f"{COLLECTIVE} {{ operation: 1 group: 1 }}", "spec.collectives[0].bytes"),
    ],
)
def test_a_faulty_field_of_a_job_is_named(spec: str, field: str) -> None:
    """The problem's record is the path of the field in the message."""
    with pytest.raises(InputError) as caught:
        job_codec.job_from_pb("j1", text_format.Parse(spec, placement_pb2.JobSpec()))
    assert caught.value.problems[0].record == field


def test_unset_numbers_of_a_job_have_their_defaults() -> None:
    """QPs of 0 count as 1, priority is left to the traffic, and the class is bandwidth."""
    job = job_codec.job_from_pb("j", placement_pb2.JobSpec(hosts=["h"], gpus_per_host=1))
    assert (job.priority, job.qps, job.traffic_class) == (0.0, 1, TrafficClass.BANDWIDTH)


def test_demands_survive_the_wire() -> None:
    """Columns come back as they were."""
    told = demands(("a", "b"), ("b", "c"), ("c", "a"))
    back = demand_codec.demands_from_pb([demand_codec.demand_to_pb(told, row) for row in range(3)])
    assert plain(back) == plain(told)


def test_a_demand_without_id_or_with_an_unknown_class_is_named() -> None:
    """The path of the field includes the row."""
    good = demand_pb2.FlowDemand(flow="f", source="a", destination="b", gbps=1)
    with pytest.raises(InputError, match=r"demands\[1\]\.flow"):
        demand_codec.demands_from_pb([good, demand_pb2.FlowDemand(source="a")])
    bad = demand_pb2.FlowDemand(flow="g", traffic_class=9)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"demands\[1\]\.traffic_class"):
        demand_codec.demands_from_pb([good, bad])


def test_demands_told_in_parts() -> None:
    """Parts give the same demands as one piece, and errors have the row among all demands."""
    told = [
        demand_pb2.FlowDemand(flow=f"f{row}", source="a", destination="b", gbps=row, qps=row)
        for row in range(7)
    ]
    whole = demand_codec.demands_from_pb(told)
    for cuts in ((0, 7), (0, 3, 7), (0, 1, 1, 5, 7)):
        parts = [demand_codec.demands_from_pb(told[a:b], a) for a, b in pairwise(cuts)]
        assert plain(demand_codec.joined_demands(parts)) == plain(whole)
    assert len(demand_codec.joined_demands([])) == 0
    with pytest.raises(InputError, match=r"demands\[5\]\.flow"):
        demand_codec.demands_from_pb([demand_pb2.FlowDemand(source="a")], 5)
    bad = demand_pb2.FlowDemand(flow="f", traffic_class=99)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"demands\[6\]\.traffic_class"):
        demand_codec.demands_from_pb([told[0], bad], 5)


@pytest.mark.parametrize("state", list(State))
def test_states_survive_the_wire(state: State) -> None:
    """UP, DOWN and DRAINED have the same name on both sides."""
    assert common.state_from_pb(common.state_to_pb(state), "state") is state
    assert common_pb2.State.Name(common.state_to_pb(state)) == f"STATE_{state.name}"


@pytest.mark.parametrize("value", [0, 4, -1])
def test_a_state_has_to_be_said(value: int) -> None:
    """Unspecified and unknown states are refused with the name of the field."""
    with pytest.raises(InputError, match="admin_state"):
        common.state_from_pb(value, "admin_state")


@pytest.mark.parametrize("seconds", [0.5, 1_795_179_632.25])
def test_times_survive_the_wire(seconds: float) -> None:
    """Times are kept as precisely as a float holds them."""
    assert times.time_from_pb(times.time_to_pb(seconds)) == seconds


@pytest.mark.parametrize(
    "name", ["", "f1", "fabrics/", "fabrics/f 1", "fabric/f1", "fabrics/f1/", "fabrics/" + "x" * 64]
)
def test_a_malformed_name_is_refused_with_its_form(name: str) -> None:
    """The error names the field and the form."""
    with pytest.raises(InputError, match=r"parent: .*fabrics/\{fabric\}"):
        names.fabric_name.fabric(name, "parent")


def test_names_are_taken_apart_as_they_were_put_together() -> None:
    """Each builder has its parser."""
    assert names.fabric_name.fabric(names.fabric_name("f1"), "x") == "f1"
    assert names.job_name.parse(names.job_name("f1", "j.1_-"), "x") == ["f1", "j.1_-"]
    assert names.demands_name.parse(names.demands_name("f1", "d"), "x") == ["f1", "d"]
    assert names.plan_name.fabric(names.plan_name("f1"), "x") == "f1"


def test_a_route_takes_no_memory_of_other_flows() -> None:
    """The work for one route depends on its paths, not on how many paths the plan has."""
    plan, many = plan_of(small_clos()), 100_000
    rows, none = np.arange(many), np.zeros(many, dtype=np.int64)
    first = np.arange(many + 1) * len(plan.paths.arcs)
    paths, backups = (
        Paths(rows, none, none, first, np.tile(one.arcs, many))
        for one in (plan.paths, plan.backups)
    )
    whole = replace(plan, flows=plan.flows.take(none), paths=paths, backups=backups, unrouted={})
    routes = Routes(whole, none)
    tracemalloc.start()
    try:
        route = routes.route(many // 2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [path.share for path in route.paths] == [1.0]
    assert peak < many
