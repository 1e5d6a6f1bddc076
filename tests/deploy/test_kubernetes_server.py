"""Our program with the API server of Kubernetes itself, and with the rules of the manifest.

The tests of the small simulated server run here again, as far as they need only what a cluster has.
Our program has a token of its service account, and only the rights in the manifest.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import cast

import pytest
from lightkube.config.kubeconfig import KubeConfig

from heddle_kubernetes.app import clear
from tests.integration.test_kubernetes_admission import (  # noqa: F401 - pytest runs them here too
    test_a_controller_that_is_killed_meanwhile_costs_nothing,
    test_a_job_that_somebody_deleted_comes_back,
    test_a_shape_may_stand_at_the_job,
    test_a_workload_is_ready_once_its_routes_are_programmed,
    test_a_workload_starts_at_its_limit_where_no_controller_answers,
    test_a_workload_that_is_admitted_anew_is_planned_anew,
    test_hosts_that_are_in_use_are_named,
    test_our_program_may_be_killed_at_any_moment,
    test_pod_sets_are_one_job,
    test_the_job_ends_with_its_workload,
    test_two_replicas_do_what_one_does,
    test_watches_that_break_lose_nothing,
    test_what_cannot_be_planned_starts_all_the_same,
)
from tests.integration.test_kubernetes_tiers import (  # noqa: F401 - as above
    join,
    labels,
    test_a_cluster_shows_the_fabric,
    test_labels_follow_the_fabric,
)
from tests.support.kube_api import KubeApi
from tests.support.kube_schemas import EVERYTHING
from tests.support.kube_server import KubeServer, programs
from tests.support.kube_world import CHECK, MANIFEST, SPACE, World, condition, kube_world, workload
from tests.support.kubectl import kubectl
from tests.support.slurm_world import even_and_odd
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(5400)  # the API server is built before the first test

PAGE = 500
"""Objects in one page of a list."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One cluster for all tests of this file, to which the manifest is applied as the page says."""
    folder = tmp_path_factory.mktemp("server")
    server = KubeServer(programs(tmp_path_factory.mktemp("build")), folder, EVERYTHING)
    try:
        server.start()
        server.install()
        server.put("namespaces", {"metadata": {"name": SPACE}})
        access = f"--kubeconfig={server.administrator()}"
        subprocess.run([kubectl(folder), "apply", "-f", MANIFEST, access], check=True)
        server.lend("heddle-kubernetes", "heddle-kubernetes")
        with kube_world(folder, cast("KubeApi", server)) as world:
            yield world
    finally:
        server.close()


@pytest.fixture(autouse=True)
def quiet(world: World, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that a test asked nothing that its role forbids, and clear away what it left."""
    yield
    assert "forbidden" not in caplog.text
    world.tidy()
    world.put_fabric(even_and_odd())


def test_lists_have_pages(world: World) -> None:
    """A node behind the first page gets its labels, and so does one that joins later."""
    join(world, *(f"a-stranger-{row}" for row in range(PAGE + 50)), "n0")
    world.start()
    wait_until(lambda: labels(world)["n0"] == ("l0", "f1"), "the last node to be labelled")
    join(world, "n1")
    wait_until(lambda: labels(world)["n1"] == ("l1", "f1"), "the new node to be labelled")


def test_others_write_the_same_workload(world: World) -> None:
    """Conditions keep changing while we answer, and neither writer undoes the other."""
    world.start(tiers=False)
    key = world.submit(workload("busy", ["n0", "n2"]))
    before = world.of("workloads")[key]["status"]["conditions"]
    turn = 0

    def answered() -> bool:
        nonlocal turn
        turn += 1
        more = condition(f"Turn{turn % 7}", "True")
        world.change(key, {"status": {"conditions": [*before, more]}})
        return world.fit() and world.check(key)["state"] == "Ready"

    wait_until(answered, "the check to be Ready")
    assert world.check(key, "other")["state"] == "Pending"
    found = world.of("workloads")[key]["status"]["conditions"]
    assert found[-1]["type"] == f"Turn{turn % 7}"


def test_a_check_is_active_for_kueue(world: World) -> None:
    """The manifest's object gets its condition, and the check of another program gets none."""
    other = {"metadata": {"name": "theirs"}, "spec": {"controllerName": "example.net/check"}}
    world.put("admissionchecks", other)
    world.start(tiers=False)
    wait_until(lambda: "status" in world.of("admissionchecks")[CHECK], "our check to be active")
    assert "status" not in world.of("admissionchecks")["theirs"]


def test_clear_leaves_nothing(world: World) -> None:
    """Labels, HyperNodes and the Topology are removed."""
    join(world, "n0", "n1")
    world.start()
    wait_until(lambda: labels(world) == {"n0": ("l0", "f1"), "n1": ("l1", "f1")}, "labels")
    wait_until(lambda: world.of("topologies"), "the topology")
    world.stop()
    world.background.run(clear(KubeConfig.from_file(world.kubeconfig)))
    assert labels(world) == {"n0": (), "n1": ()}
    assert not world.of("hypernodes")
    assert not world.of("topologies")
