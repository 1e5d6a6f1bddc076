"""Kueue's workloads and their admission check, with a real controller and a fabric's agents."""

from __future__ import annotations

import logging
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from heddle.client import Client
from heddle.v1.placement_pb2 import JobSpec
from heddle_emulator.fleet.controller import Controller
from heddle_kubernetes.admission import MOST_CALLERS
from heddle_kubernetes.cluster import MOST_CALLS
from heddle_kubernetes.decision import Names
from tests.integration.certifying import Authority
from tests.support.kube_api import Json, KubeApi, merge
from tests.support.kube_schemas import HOSTNAME
from tests.support.kube_world import (
    CHECK,
    MANIFEST,
    PODS,
    SHAPE,
    SPACE,
    World,
    assignment,
    kube_world,
    workload,
)
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A cluster shared by all tests of this file."""
    with kube_world(tmp_path_factory.mktemp("kube")) as world:
        yield world


@pytest.fixture(autouse=True)
def quiet(world: World) -> Iterator[None]:
    """Remove what each test leaves."""
    yield
    world.tidy()


OURS = {"app.kubernetes.io/managed-by": "heddle-kubernetes", "heddle.run/fabric": "f1"}


def pair(number: int) -> list[str]:
    """Return two hosts, different ones for each number from 0 to 3."""
    return [f"n{number}", f"n{number + 4}"]


def hosts(world: World, key: str) -> list[str]:
    """Return the hosts of a workload's job; none if it has no job."""
    job = world.job(key)
    return list(job.spec.hosts) if job else []


def lists(world: World) -> int:
    """Return how often all workloads were listed: before each watch, and if a job seems over."""
    return int(world.on_api(lambda api: api.used["list", "kueue.x-k8s.io", "workloads"]))


def swept(world: World, times: int) -> None:
    """Wait for some sweeps: each ends a job on n7 that no workload needs."""
    names = Names(world.of("namespaces")["kube-system"]["metadata"]["uid"])
    with Client(world.address, fabric="f1") as client:
        for number in range(times):
            over = names.of({"metadata": {"name": "over", "uid": f"{number}"}})
            client.submit_job(over, JobSpec(hosts=["n7"], gpus_per_host=1))
            wait_until(lambda: over not in world.jobs(), "a sweep")  # noqa: B023


def test_a_workload_is_ready_once_its_routes_are_programmed(world: World) -> None:
    """A ready workload's job has its hosts in completion order; foreign checks stay untouched."""
    world.start()
    key = world.submit(workload("first", ["n4", "n0", "n6", "n1"]))
    message = world.ready(key)
    job = world.job(key)
    assert job is not None
    assert message == f"planned: the routes of job {job.name.rpartition('/')[2]} are programmed"
    assert list(job.spec.hosts) == ["n4", "n0", "n6", "n1"]
    assert world.check(key, "other")["state"] == "Pending"
    active = world.of("admissionchecks")[CHECK]["status"]["conditions"]
    assert [(one["type"], one["status"]) for one in active] == [("Active", "True")]


def ends(kind: str) -> Callable[[World, str], None]:
    """Return a function that gives a workload a condition of this kind."""
    return lambda world, key: world.conclude(key, kind)


def unreserved(world: World, key: str) -> None:
    """Take a workload's quota away, as Kueue does after an eviction."""
    status: Json = {"conditions": [], "admission": None}
    world.change(key, {"status": status})


@pytest.mark.parametrize(
    "over",
    [
        ends("Finished"),
        ends("Evicted"),
        unreserved,
        lambda world, key: world.change(key, {"spec": {"active": False}}),
        lambda world, key: world.on_api(
            lambda api: api.begin_to_delete("workloads", *key.split("/"))
        ),
        lambda world, key: world.remove(key),
    ],
    ids=["finished", "evicted", "unreserved", "inactive", "deleting", "deleted"],
)  # fmt: skip
def test_the_job_ends_with_its_workload(world: World, over: Callable[[World, str], None]) -> None:
    """However a workload ends, its job is deleted; the job of a running one stays."""
    world.start(tiers=False)
    key, other = (
        world.submit(workload(name, on)) for name, on in (("a", ["n0", "n2"]), ("b", ["n1", "n3"]))
    )
    world.ready(key), world.ready(other)
    over(world, key)
    wait_until(lambda: world.job(key) is None, "its job to be ended")
    assert hosts(world, other) == ["n1", "n3"]


def test_a_workload_that_is_admitted_anew_is_planned_anew(world: World) -> None:
    """An evicted workload frees its hosts, and is planned again on those that it gets later."""
    world.start(tiers=False)
    key = world.submit(workload("moves", ["n0", "n2"]))
    world.ready(key)
    world.conclude(key, "Evicted")
    unreserved(world, key)
    taker = world.submit(workload("taker", ["n2", "n0"]))
    assert world.ready(taker).startswith("planned: ")
    world.change(key, workload("moves", ["n5", "n7", "n1"]) | {"metadata": {}})
    assert world.ready(key).startswith("planned: ")
    assert (hosts(world, key), hosts(world, taker)) == (["n5", "n7", "n1"], ["n2", "n0"])


def test_workloads_that_exchange_hosts_are_planned_anew(world: World) -> None:
    """If each has hosts that the job of the next one holds, no job keeps hosts from another.

    Kueue may evict workloads and admit them again while no instance runs.
    """
    world.start(tiers=False)
    keys = [world.submit(workload(f"w{n}", pair(n))) for n in range(3)]
    for key in keys:
        assert world.ready(key).startswith("planned: ")
    world.stop()
    for number, key in enumerate(keys):
        world.move(key, pair((number + 1) % 3))
    world.start(tiers=False)
    wait_until(
        lambda: [hosts(world, key) for key in keys] == [pair(1), pair(2), pair(0)],
        "each job to move",
    )


def spoilt(change: Json) -> Json:
    """Return a workload with a change merged into it."""
    found: Json = merge(workload("odd", ["n0", "n2"]), change)
    return found


def assigned(value: object, **more: object) -> Json:
    """Return a workload whose pod set has this value as its topologyAssignment."""
    one = {"name": "main", "count": 2, "topologyAssignment": value, **more}
    return spoilt({"status": {"admission": {"podSetAssignments": [one]}}})


RACK: Json = assignment(["r1", "r2"]) | {"levels": ["example.net/rack"]}
OLD: Json = {"levels": ["kubernetes.io/hostname"], "domains": [{"values": ["n0"], "count": 1}]}
UNEQUAL: Json = assignment(["n0", "n2"])
UNEQUAL["slices"][0]["podCounts"] = {"individual": [1, 2]}
NOTED: Json = {"metadata": {"annotations": {"heddle.run/shape": SHAPE}}}
LATER = {"delayedTopologyRequest": "Pending"}


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (workload("odd", ["n0"], None), "nobody wrote its shape: annotate the job with heddle.run"),
        (workload("odd", ["n0"], "gpus=8 qp=2"), "'qp=2': unknown key; did you mean qps"),
        (workload("odd", ["n0"], ""), "the shape has no gpus"),
        (workload("odd", ["n0"], "gpus=1 order=best"), "'order' is a word for Slurm"),
        (workload("odd", ["n0"], "@/etc/passwd"), "'@/etc/passwd' is no word of a shape"),
        (workload("odd", ["n0", "n99"]), "n99"),
        (workload("odd", ["n0", "n2"], "gpus=1 tp=3"), "3"),
        (assigned(None), "pod set 'main' has no topologyAssignment"),
        (assigned(None, **LATER), "gets its topology after the checks"),
        (assigned(OLD), "has 'domains', as v1beta1 writes it; v1beta2 is read here"),
        (assigned(RACK), "ends at 'example.net/rack', not at kubernetes.io/hostname"),
        (assigned(UNEQUAL), "different numbers of pods: 'n0' has 1, 'n2' has 2"),
        (assigned(assignment(["n0", "n2", "n0"])), "host 'n0' is there twice"),
        (assigned("n0"), "topologyAssignment is 'n0', not an object"),
        (assigned({"levels": ["kubernetes.io/hostname"], "slices": 7}), "slices is 7, not a list"),
        (spoilt({"status": {"admission": None}}), "has no topologyAssignment"),
        (spoilt({"spec": {"podSets": None}} | NOTED), "it has no pod sets"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_starts_all_the_same(world: World, one: Json, reason: str) -> None:
    """A workload that cannot be planned is ready at once, with the exact reason, and has no job."""
    world.start(tiers=False)
    key = world.submit(one)
    message = world.ready(key)
    assert message.startswith("not planned, on the underlay: ")
    assert reason in message
    assert not world.jobs()


def test_hosts_that_are_in_use_are_named(world: World) -> None:
    """A workload on a used host runs on the underlay, and is planned once the host is free."""
    world.start(tiers=False)
    first = world.submit(workload("first", ["n0", "n2"]))
    world.ready(first)
    second = world.submit(workload("second", ["n2", "n4"]))
    message = world.ready(second)
    assert message.startswith("not planned, on the underlay: ")
    assert "n2" in message
    assert hosts(world, first) == ["n0", "n2"]
    world.conclude(first, "Finished")
    wait_until(lambda: hosts(world, second) == ["n2", "n4"], "the second to be planned")


def test_workloads_that_are_refused_wait_for_the_next_sweep(world: World) -> None:
    """However many workloads are refused, nothing is read or tried again between two sweeps."""
    world.start(tiers=False, sweep=3600.0)
    world.ready(world.submit(workload("first", ["n0", "n2"])))
    for number in range(3):
        message = world.ready(world.submit(workload(f"refused-{number}", ["n2", "n4"])))
        assert message.startswith("not planned, on the underlay: ")
    before = lists(world)
    for number in range(3):
        key = world.submit(workload(f"meanwhile-{number}", ["n5", "n7"]))
        assert world.ready(key).startswith("planned: ")
        world.conclude(key, "Finished")
        wait_until(lambda key=key: world.job(key) is None, "its job to be ended")  # type: ignore[misc]
    assert lists(world) <= before + 1


def test_why_a_workload_is_still_not_planned_is_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason is logged once, however many sweeps find the same, and again if it is another.

    On a busy machine a call may take too long, which is another reason, too.
    """
    caplog.set_level(logging.INFO, "heddle_kubernetes.admission")

    def told() -> list[str]:
        texts = [record.getMessage() for record in caplog.records]
        return [text for text in texts if text.startswith(f"{SPACE}/third: still not planned: ")]

    def named(host: str) -> list[int]:
        return [row for row, text in enumerate(told()) if f"'{host}'" in text]

    world.start(tiers=False)
    first, second = (
        world.submit(workload(name, on))
        for name, on in (("first", ["n0", "n2"]), ("second", ["n4", "n6"]))
    )
    world.ready(first), world.ready(second)
    world.ready(world.submit(workload("third", ["n2", "n4"])))
    wait_until(lambda: named("n2"), "the reason to be logged")
    swept(world, 3)
    assert not named("n4")
    world.conclude(first, "Finished")
    wait_until(lambda: named("n4"), "the other reason to be logged")
    assert named("n2")[-1] < named("n4")[0]
    assert all(reason != next_one for reason, next_one in pairwise(told())), told()


def test_a_shape_may_stand_at_the_job(world: World) -> None:
    """A shape may be in the job's annotations; one at the workload itself takes precedence."""
    world.start(tiers=False)
    for name in ("one", "two"):
        shape = {"heddle.run/shape": "heddle: gpus=1 tp=2 qps=4"}
        meta = {"name": name, "namespace": SPACE, "annotations": shape}
        pods = {"spec": {**PODS, "restartPolicy": "Never"}}
        world.put("jobs", {"metadata": meta, "spec": {"template": pods}})
    its = {"apiVersion": "batch/v1", "kind": "Job", "uid": "u", "controller": True}
    one, two = workload("w-one", ["n0", "n2"], None), workload("w-two", ["n1", "n3"], None)
    one["metadata"]["ownerReferences"] = [its | {"name": "one"}]
    two["metadata"]["ownerReferences"] = [its | {"name": "two"}]
    two["metadata"]["annotations"] = {"heddle.run/shape": "gpus=1 qps=2"}
    for key, qps in ((world.submit(one), 4), (world.submit(two), 2)):
        assert world.ready(key).startswith("planned: ")
        job = world.job(key)
        assert job is not None
        assert job.spec.qps == qps


def test_a_workload_whose_shape_stands_at_its_job_may_move(world: World) -> None:
    """Its new hosts are planned, also by an instance that could not read the job at first."""
    first = world.start(tiers=False)
    shape = {"heddle.run/shape": SHAPE}
    meta = {"name": "owner", "namespace": SPACE, "annotations": shape}
    world.put("jobs", {"metadata": meta, "spec": {}})
    its = {"apiVersion": "batch/v1", "kind": "Job", "uid": "u", "name": "owner"}
    one = workload("moves", ["n0", "n2"], None)
    one["metadata"]["ownerReferences"] = [its]
    key = world.submit(one)
    assert world.ready(key).startswith("planned: ")
    world.move(key, ["n0", "n4"])
    wait_until(lambda: hosts(world, key) == ["n0", "n4"], "the first move to be planned")
    world.stop(first)
    world.running.pop(first)
    status = world.of("workloads")[key]["status"]
    long_ago = [
        one | {"lastTransitionTime": "2020-01-01T00:00:00Z"} for one in status["conditions"]
    ]
    world.change(key, {"status": {"conditions": long_ago}})
    world.on_api(lambda api: api.failing.extend([("get", "jobs", 500)] * 2))
    world.start(tiers=False)
    wait_until(lambda: not world.api.failing, "all that was to fail to have failed")
    world.move(key, ["n0", "n6"])
    wait_until(lambda: hosts(world, key) == ["n0", "n6"], "the second move to be planned")


def test_pod_sets_are_one_job(world: World) -> None:
    """Pod sets become one job in their order; those without a topology take no part.

    A launcher, for example, has no topology.
    """
    world.start(tiers=False)
    both = workload("sets", ["n0"], None)
    both["metadata"]["annotations"] = {"heddle.run/shape": SHAPE}
    both["spec"]["podSets"] = [
        {"name": name, "count": 1, "template": {}} for name in ("launcher", "master", "worker")
    ]
    both["status"]["admission"]["podSetAssignments"] = [
        {"name": "worker", "topologyAssignment": assignment(["n2", "n4"])},
        {"name": "launcher"},
        {"name": "master", "topologyAssignment": assignment(["n6"])},
    ]
    key = world.submit(both)
    assert world.ready(key).startswith("planned: ")
    assert hosts(world, key) == ["n6", "n2", "n4"]


def test_a_controller_that_wants_tls(world: World, tmp_path: Path) -> None:
    """The cure that is logged has the names of this program's options."""
    server = Authority(tmp_path).server()
    files = (f"--tls-cert={server.cert}", f"--tls-key={server.key}", f"--tls-client-ca={server.ca}")
    controller, log = Controller(tmp_path, *files), world.folder / "heddle-kubernetes.log"
    world.background.run(controller.__aenter__())
    try:
        world.launch("--no-admission", "--server", controller.api)
        cure = "if it wants TLS, give --tls-ca, --tls-cert and --tls-key"
        wait_until(lambda: cure in log.read_text(), "the cure to be logged")
    finally:
        world.background.run(controller.__aexit__())


def test_a_workload_starts_at_its_limit_where_no_controller_answers(world: World) -> None:
    """Without a controller a workload starts at the time limit, and is planned while it runs."""
    world.kill_controller()
    try:
        world.start(tiers=False, wait=1.0)
        key = world.submit(workload("alone", ["n0", "n2"]))
        message = world.ready(key)
        assert message.startswith("not planned within 1 s, on the underlay until it is: ")
        reasons = "cannot reach the controller", "no controller answered in time", "its time was up"
        assert any(reason in message for reason in reasons)
    finally:
        world.start_controller()
    wait_until(lambda: hosts(world, key) == ["n0", "n2"], "it to be planned")


def test_hundreds_of_workloads_take_turns(world: World) -> None:
    """Few calls are under way at a time, and each check tells whether its workload had its turn.

    The controller accepts connections and says nothing; the API server is slow.
    """
    count = MOST_CALLERS + MOST_CALLS
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        number = world.start(servers=address, tiers=False, wait=3.0)

        def reserved_at_once(api: KubeApi) -> None:
            api.passing.clear()
            for one in [workload(f"w{n}", pair(n % 4)) for n in range(count)]:
                api.put("workloads", one)

        wait_until(lambda: world.api.watching == 2, "the program to watch")
        world.on_api(reserved_at_once)
        wait_until(lambda: world.api.under_way >= MOST_CALLS, "the checks to be answered")
        world.on_api(lambda api: api.passing.set())

        def reasons() -> Counter[str]:
            checks = [one["status"]["admissionChecks"] for one in world.of("workloads").values()]
            return Counter(state[-1]["message"].rpartition(": ")[2] for state in checks)

        wait_until(lambda: world.fit() and "" not in reasons(), "all checks to be Ready")
        had_none = "no controller had answered yet for the workloads before it"
        assert reasons().keys() == {"no controller answered in time", had_none}
        assert reasons()[had_none] <= count - MOST_CALLERS
        assert world.api.most_under_way <= MOST_CALLS
        world.stop(number)
        world.running.clear()


def test_hosts_that_change_while_no_controller_answers(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A workload that moves meanwhile is planned on its new hosts, and its old ones are free."""
    caplog.set_level(logging.INFO, "heddle_kubernetes.admission")
    world.start(tiers=False)
    key = world.submit(workload("moves", ["n0", "n2"]))
    world.ready(key)
    world.kill_controller()
    try:
        world.move(key, ["n0", "n4"])
        wait_until(lambda: "still not planned: " in caplog.text, "it to be tried in vain")
        late = world.submit(workload("late", ["n2", "n6"]))
    finally:
        world.start_controller()
    wait_until(lambda: hosts(world, key) == ["n0", "n4"], "the new hosts to be planned")
    wait_until(lambda: hosts(world, late) == ["n2", "n6"], "its old host to be used")


def test_a_controller_that_is_killed_meanwhile_costs_nothing(world: World) -> None:
    """A controller that comes back within the time limit plans the workload."""
    world.start(tiers=False)
    world.kill_controller()
    try:
        key = world.submit(workload("patient", ["n0", "n2"]))
    finally:
        world.start_controller()
    assert world.ready(key).startswith("planned: ")


def test_our_program_may_be_killed_at_any_moment(world: World) -> None:
    """A new instance goes on from the objects and the controller's jobs alone.

    It also ends the job of a workload that went while no instance ran.
    """
    words = ("--sweep", "0.5", "--no-tiers", "--wait", "600")
    first = world.launch(*words)
    kept, over = (world.submit(workload(name, pair(n))) for n, name in enumerate(("kept", "over")))
    world.ready(kept), world.ready(over)
    world.kill_controller()
    try:
        waiting = world.submit(workload("waiting", pair(2)))
        first.send_signal(signal.SIGKILL)
        first.wait()
        world.remove(over)
        assert world.check(waiting)["state"] == "Pending"
    finally:
        world.start_controller()
    before = world.job(kept)
    world.launch(*words)
    assert world.ready(waiting).startswith("planned: ")
    wait_until(lambda: world.job(over) is None, "the job of what is gone to be ended")
    after = world.job(kept)
    assert before is not None
    assert after is not None
    assert before.etag == after.etag


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_our_program_ends_in_order(world: World, number: signal.Signals) -> None:
    """A signal to end, also that of a terminal that goes, ends the program with status 0."""
    process = world.launch("--no-tiers", "--wait", "600")
    key = world.submit(workload("planned", pair(0)))
    assert world.ready(key).startswith("planned: ")
    process.send_signal(number)
    assert process.wait(PATIENCE) == 0


def test_watches_that_break_lose_nothing(world: World) -> None:
    """A watch that is cut, or too old to go on (410), misses no object that came or went."""
    world.start(tiers=False)
    gone = world.submit(workload("gone", pair(0)))
    world.ready(gone)
    world.on_api(lambda api: api.cut_watches())
    key = world.submit(workload("cut", pair(1)))
    assert world.ready(key).startswith("planned: ")

    def meanwhile(api: KubeApi) -> None:
        api.remove("workloads", SPACE, "gone")
        api.put("workloads", workload("came", pair(2)))
        api.compact()

    world.on_api(meanwhile)
    assert world.ready(f"{SPACE}/came").startswith("planned: ")
    wait_until(lambda: world.job(gone) is None, "the job of what is gone to be ended")


def test_a_conflict_is_read_and_tried_again(world: World) -> None:
    """After conflicts and errors the write is repeated; what other controllers wrote stays."""
    world.start(tiers=False)
    world.on_api(lambda api: api.failing.extend([("patch", "workloads/status", 409)] * 3))
    world.on_api(lambda api: api.failing.append(("patch", "workloads/status", 500)))
    calls = [("list", "workloads"), ("watch", "workloads"), ("patch", "workloads/status")]
    odd = [(*call, code) for code in (0, 502) for call in calls]
    world.on_api(lambda api: api.failing.extend(odd))
    key = world.submit(workload("busy", ["n0", "n2"]))
    assert world.ready(key).startswith("planned: ")
    world.on_api(lambda api: api.cut_watches())
    wait_until(lambda: not world.api.failing, "all that was to fail to have failed")
    assert world.check(key, "other")["state"] == "Pending"


def test_an_api_server_that_is_away_comes_back_to_the_same(world: World) -> None:
    """Jobs stay while the API server is away; afterwards new and removed workloads are handled."""
    world.start(tiers=False)
    kept, gone = (world.submit(workload(f"w{n}", pair(n))) for n in (0, 1))
    world.ready(kept), world.ready(gone)

    def away(api: KubeApi, *, so: bool) -> None:
        api.away = so
        api.cut_watches()

    world.on_api(lambda api: away(api, so=True))
    world.remove(gone)
    key = world.submit(workload("new", pair(2)))
    assert hosts(world, kept) == pair(0)
    world.on_api(lambda api: away(api, so=False))
    assert world.ready(key).startswith("planned: ")
    wait_until(lambda: world.job(gone) is None, "the job of what is gone to be ended")
    assert hosts(world, kept) == pair(0)


def test_two_replicas_do_what_one_does(world: World) -> None:
    """Two replicas make one job for each workload, and either one may stop."""
    first = world.start(tiers=False)
    world.start(tiers=False)
    keys = [world.submit(workload(f"w{n}", pair(n))) for n in range(3)]
    assert all(world.ready(key).startswith("planned: ") for key in keys)
    assert len(world.jobs()) == 3
    states = [
        {one["state"] for one in world.of("workloads")[key]["status"]["admissionChecks"]}
        for key in keys
    ]
    assert states == [{"Pending", "Ready"}] * 3
    etags = {key: world.job(key).etag for key in keys}  # type: ignore[union-attr]
    world.stop(first)
    world.running.pop(first)
    world.conclude(keys[0], "Finished")
    world.change(keys[1], workload("w1", pair(3)) | {"metadata": {}})
    late = world.submit(workload("late", pair(0)))
    assert world.ready(late).startswith("planned: ")
    wait_until(lambda: hosts(world, keys[1]) == pair(3), "the one that moved to be planned anew")
    wait_until(lambda: world.job(keys[0]) is None, "the finished one to be ended")
    for key in keys[2:]:
        assert world.job(key).etag == etags[key]  # type: ignore[union-attr]


def test_a_job_that_somebody_deleted_comes_back(world: World) -> None:
    """A deleted job is submitted again while its workload runs; the sweep reads no workloads."""
    world.start(tiers=False)
    key = world.submit(workload("again", ["n0", "n2"]))
    world.ready(key)
    job = world.job(key)
    assert job is not None
    before = lists(world)
    with Client(world.address, fabric="f1") as client:
        client.delete_job(job.name.rpartition("/")[2])
    wait_until(lambda: hosts(world, key) == ["n0", "n2"], "it to come back")
    assert lists(world) == before


def test_what_others_change_in_a_job_stays(world: World) -> None:
    """A job that somebody suspends stays suspended, also when an instance or its hosts change."""
    first = world.start(tiers=False)
    key = world.submit(workload("rests", ["n0", "n2"]))
    world.ready(key)
    job = world.job(key)
    assert job is not None
    with Client(world.address, fabric="f1") as client:
        client.suspend_job(job.name.rpartition("/")[2])
    for instance in range(2):
        swept(world, 2)
        job = world.job(key)
        assert job is not None
        assert job.spec.suspended, instance
        if instance == 0:
            world.stop(first)
            world.running.pop(first)
            world.start(tiers=False)
    world.change(key, workload("rests", pair(3)) | {"metadata": {}})
    wait_until(lambda: hosts(world, key) == pair(3), "the job to move")
    job = world.job(key)
    assert job is not None
    assert job.spec.suspended


def test_a_workload_that_loses_its_topology_while_no_instance_runs(world: World) -> None:
    """A new instance ends its job, so that its hosts are free."""
    first = world.start(tiers=False)
    key = world.submit(workload("loses", ["n0", "n2"]))
    world.ready(key)
    world.stop(first)
    world.running.pop(first)
    world.change(key, {"status": {"admission": None}})
    world.start(tiers=False)
    wait_until(lambda: world.job(key) is None, "its job to be ended")


def test_what_is_not_ours_is_left_alone(world: World) -> None:
    """Workloads without our check, foreign checks, and jobs not made for this cluster stay."""
    with Client(world.address, fabric="f1") as client:
        client.submit_job("mine", JobSpec(hosts=["n6"], gpus_per_host=1))
        client.submit_job("k8s-00000000-other", JobSpec(hosts=["n7"], gpus_per_host=1))
    foreign = workload("foreign", ["n0"])
    foreign["status"]["admissionChecks"] = foreign["status"]["admissionChecks"][:1]
    foreign_key = world.submit(foreign)
    world.start(tiers=False)
    key = world.submit(workload("ours", ["n2"]))
    world.ready(key)
    world.conclude(key, "Finished")
    wait_until(lambda: world.job(key) is None, "its job to be ended")
    assert set(world.jobs()) == {"mine", "k8s-00000000-other"}
    assert world.check(foreign_key, "other")["state"] == "Pending"
    assert {
        path.rpartition("/workloads/")[2] for _, path, _ in world.api.writes if "workloads" in path
    } == {"ours/status"}


def test_the_role_allows_what_is_done_and_no_more(world: World) -> None:
    """The program uses each right in the manifest's role, and asks for nothing else."""
    world.start()
    job = {"metadata": {"name": "one", "namespace": SPACE}}
    world.put("jobs", job)
    world.put("jobsets", job)
    world.put("hypernodes", {"metadata": {"name": "old", "labels": OURS}, "spec": {"tier": 1}})
    world.put("topologies", {"metadata": {"name": "old", "labels": OURS}, "spec": {}})
    flat = {"levels": [{"nodeLabel": HOSTNAME}]}
    world.put("topologies", {"metadata": {"name": "heddle", "labels": OURS}, "spec": flat})
    world.put("nodes", {"metadata": {"name": "n0", "labels": {}}})
    leaf = "heddle-f1-tier-0-l0"
    wait_until(lambda: leaf in world.of("hypernodes"), "the leaf of the node to be shown")
    world.put("hypernodes", {"metadata": {"name": leaf, "labels": OURS}, "spec": {"tier": 7}})
    one = workload("one", pair(0), None)
    its = {"name": "one", "uid": "u", "controller": True}
    one["metadata"]["ownerReferences"] = [
        its | {"apiVersion": "batch/v1", "kind": "Job"},
        its | {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"},
    ]
    world.ready(world.submit(one))
    world.on_api(lambda api: api.failing.append(("patch", "workloads/status", 409)))  # read again
    planned = world.submit(workload("two", pair(1)))
    world.ready(planned)
    world.conclude(planned, "Finished")
    wait_until(lambda: world.of("topologies")["heddle"]["spec"] != flat, "levels to be mended")
    world.on_api(lambda api: api.remove("topologies", "", "heddle"))
    (role,) = [
        one for one in yaml.safe_load_all(MANIFEST.read_text()) if one["kind"] == "ClusterRole"
    ]
    allowed = {
        (verb, group, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    wait_until(lambda: set(world.api.used) >= allowed, f"each of {sorted(allowed)} to be done")
    assert set(world.api.used) == allowed
