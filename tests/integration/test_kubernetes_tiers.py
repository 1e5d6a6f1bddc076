"""The fabric shown in a cluster: node labels, Kueue's Topology and Volcano's HyperNodes."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx2
import pytest
from lightkube.config.kubeconfig import KubeConfig

from heddle_kubernetes.app import clear
from tests.support.kube_api import Json, KubeApi, Refused
from tests.support.kube_world import World, kube_world
from tests.support.ports import free_port
from tests.support.slurm_world import NODES, even_and_odd
from tests.support.waiting import wait_until

TIER = "fabric.topograph.run/tier-"
HOST = "kubernetes.io/hostname"
OURS = {"app.kubernetes.io/managed-by": "heddle-kubernetes", "heddle.run/fabric": "f1"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A cluster shared by all tests of this file."""
    with kube_world(tmp_path_factory.mktemp("tiers")) as world:
        yield world


@pytest.fixture(autouse=True)
def quiet(world: World) -> Iterator[None]:
    """Remove what each test leaves, and put the first fabric again."""
    yield
    world.tidy()
    world.put_fabric(even_and_odd())


def node(name: str, **labels: str) -> Json:
    """Return a node as a kubelet registers it, with a label and an annotation of somebody else."""
    mine = {HOST: name, "node-group": "gpus", **labels}
    return {"metadata": {"name": name, "labels": mine, "annotations": {"theirs": "stays"}}}


def join(world: World, *names: str) -> None:
    """Add nodes to the cluster."""
    for name in names:
        world.put("nodes", node(name))


def labels(world: World) -> dict[str, tuple[str, ...]]:
    """Return the tier labels of each node, lowest tier first."""
    return {
        name: tuple(
            value for key, value in sorted(one["metadata"]["labels"].items()) if TIER in key
        )
        for name, one in world.of("nodes").items()
    }


def members(world: World) -> dict[str, Any]:
    """Return each HyperNode's tier and what its members select."""
    found = {}
    for name, one in world.of("hypernodes").items():
        chosen = [next(iter(each["selector"].values())) for each in one["spec"].get("members", [])]
        found[name] = (one["spec"]["tier"], [next(iter(each.values())) for each in chosen])
    return found


LEAVES = {f"heddle-f1-tier-0-l{n}": (1, [{f"{TIER}0": f"l{n}"}]) for n in (0, 1)}
ALL = LEAVES | {"heddle-f1-tier-1-f1": (2, sorted(LEAVES))}


def test_a_cluster_shows_the_fabric(world: World) -> None:
    """Each node is labelled with its tiers; foreign labels stay, and unknown nodes get none."""
    join(world, "n0", "n1", "n2", "stranger")
    world.start()
    tiers = {"n0": ("l0", "f1"), "n1": ("l1", "f1"), "n2": ("l0", "f1"), "stranger": ()}
    wait_until(lambda: labels(world) == tiers and members(world) == ALL, "the fabric to be shown")
    (topology,) = world.of("topologies").values()
    assert topology["metadata"]["name"] == "heddle"
    assert topology["metadata"]["labels"] == OURS
    levels = [one["nodeLabel"] for one in topology["spec"]["levels"]]
    assert levels == [f"{TIER}1", f"{TIER}0", HOST]
    for one in world.of("nodes").values():
        assert one["metadata"]["labels"]["node-group"] == "gpus"
        assert one["metadata"]["annotations"]["theirs"] == "stays"


def test_nothing_is_written_where_all_is_right(world: World) -> None:
    """A restarted instance and a second replica write only what a new node needs."""
    join(world, "n0", "n1")
    first = world.start()
    wait_until(lambda: members(world) == ALL, "the fabric to be shown")
    wait_until(lambda: world.of("topologies"), "the topology")
    world.stop(first)
    world.running.clear()
    world.on_api(lambda api: api.writes.clear())
    world.start()
    world.start()
    join(world, "n2")
    wait_until(lambda: labels(world)["n2"] == ("l0", "f1"), "the new node to be labelled")
    written = {(verb, path) for verb, path, _ in world.api.writes}
    assert written == {("patch", "/api/v1/nodes/n2")}


def test_labels_follow_the_fabric(world: World) -> None:
    """Labels change when a host moves to another leaf, and go when it leaves the fabric.

    The HyperNode of a leaf without nodes goes, too.
    """
    join(world, "n0", "n1")
    world.start()
    wait_until(lambda: labels(world) == {"n0": ("l0", "f1"), "n1": ("l1", "f1")}, "labels")
    world.put_fabric(even_and_odd(lambda _: 0))
    wait_until(lambda: labels(world)["n1"] == ("l0", "f1"), "n1 to be below the other leaf")
    rest = {name: one for name, one in ALL.items() if not name.endswith("l1")}
    rest["heddle-f1-tier-1-f1"] = (2, ["heddle-f1-tier-0-l0"])
    wait_until(lambda: members(world) == rest, "the leaf without nodes to go")
    world.put_fabric(even_and_odd(lambda _: 0, NODES[:1] + NODES[2:]))
    wait_until(lambda: labels(world)["n1"] == (), "n1 to have no tiers")
    found = world.of("nodes")["n1"]["metadata"]
    assert found["labels"] == {HOST: "n1", "node-group": "gpus"}
    assert found["annotations"] == {"theirs": "stays"}


def test_what_is_somebody_elses_is_left_alone(world: World) -> None:
    """Labels and objects that others set or changed stay, even when ours are cleared."""
    world.put("nodes", node("n0", **{f"{TIER}0": "theirs"}))
    world.put("nodes", node("n1"))
    for plural, name in (("hypernodes", "heddle-f1-tier-0-l0"), ("topologies", "heddle")):
        world.put(plural, {"metadata": {"name": name}, "spec": {"tier": 9, "members": [{}]}})
    theirs = {"metadata": {"name": "rack", "labels": {"app.kubernetes.io/managed-by": "them"}}}
    world.put("hypernodes", theirs)
    world.start()
    wait_until(lambda: labels(world) == {"n0": ("theirs", "f1"), "n1": ("l1", "f1")}, "labels")
    change = {"metadata": {"labels": {f"{TIER}0": "by-hand"}}}
    world.on_api(lambda api: api.change("nodes", "", "n1", change))
    join(world, "n2")
    wait_until(lambda: labels(world)["n2"] == ("l0", "f1"), "a later node to be labelled")
    assert labels(world)["n1"] == ("by-hand", "f1")
    world.stop()
    world.background.run(clear(KubeConfig.from_file(world.kubeconfig)))
    assert labels(world) == {"n0": ("theirs",), "n1": ("by-hand",), "n2": ()}
    assert set(world.of("hypernodes")) == {"heddle-f1-tier-0-l0", "rack"}
    assert world.of("topologies")["heddle"]["spec"] == {"tier": 9, "members": [{}]}


def test_what_is_stale_goes_and_what_was_spoilt_is_mended(world: World) -> None:
    """Our objects that the fabric no longer has go; edited and deleted ones are restored."""
    join(world, "n0", "n1")
    old = {"metadata": {"name": "heddle-f1-tier-0-gone", "labels": OURS}, "spec": {"tier": 1}}
    world.put("hypernodes", old)
    other = {**OURS, "heddle.run/fabric": "f2"}
    world.put("hypernodes", {"metadata": {"name": "of-f2", "labels": other}, "spec": {"tier": 1}})
    world.put("topologies", {"metadata": {"name": "renamed", "labels": OURS}, "spec": {}})
    world.start()
    wait_until(lambda: "heddle-f1-tier-0-gone" not in world.of("hypernodes"), "the old one to go")
    wait_until(lambda: set(world.of("topologies")) == {"heddle"}, "the other topology to go")
    assert "of-f2" in world.of("hypernodes")

    def spoil(api: KubeApi) -> None:
        api.change("hypernodes", "", "heddle-f1-tier-0-l0", {"spec": {"tier": 7}})
        api.remove("hypernodes", "", "heddle-f1-tier-0-l1")

    world.on_api(spoil)
    wait_until(lambda: {**members(world), **ALL} == members(world), "both to be as they were")


def test_labels_stay_while_no_controller_answers(world: World) -> None:
    """An instance without a controller changes no label, and goes on once one answers."""
    record = json.dumps({f"{TIER}0": "elsewhere"})
    one = node("n0", **{f"{TIER}0": "elsewhere"})
    one["metadata"]["annotations"]["heddle.run/tiers"] = record
    world.put("nodes", one)
    world.start(servers="127.0.0.1:1")
    join(world, "n1")
    wait_until(lambda: world.api.watching >= 5, "all kinds to be watched")
    assert labels(world) == {"n0": ("elsewhere",), "n1": ()}
    assert not [path for _, path, _ in world.api.writes if "nodes" in path]
    world.start()
    wait_until(lambda: labels(world) == {"n0": ("l0", "f1"), "n1": ("l1", "f1")}, "labels")


@pytest.mark.parametrize("code", [403, 500])
def test_a_kind_that_cannot_be_read_holds_up_no_other(world: World, code: int) -> None:
    """Labels and a Topology appear while HyperNodes are refused, and HyperNodes afterwards.

    The role may lack a kind that is not installed; that is no reason not to be ready.
    """
    allowed = world.api.allowed

    def without(verb: str, group: str, resource: str, name: str) -> bool:
        if resource == "hypernodes":
            raise Refused(code, "no HyperNodes for anybody")
        return allowed(verb, group, resource, name)

    world.on_api(lambda api: setattr(api, "allowed", without))
    port = free_port()
    try:
        join(world, "n0")
        world.start(health=("127.0.0.1", port))
        wait_until(lambda: labels(world) == {"n0": ("l0", "f1")}, "the labels")
        wait_until(lambda: world.of("topologies"), "the Topology")
        if code == 403:
            wait_until(lambda: httpx2.get(f"http://127.0.0.1:{port}/ready").is_success, "ready")
    finally:
        world.on_api(lambda api: setattr(api, "allowed", allowed))
    wait_until(lambda: world.of("hypernodes"), "what may be read later to be written")


def test_a_cluster_without_kueue_and_volcano_has_labels(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Kinds that the API server does not know are left out until they are installed.

    The log names each kind with its version. A conflict at a node is tried again.
    """

    def lacking(api: KubeApi) -> dict[tuple[str, str], Any]:
        kinds = dict(api.kinds)
        for key in [key for key in kinds if key[0]]:
            del api.kinds[key]
        return kinds

    def told(text: str) -> bool:
        return text in caplog.text

    kinds = world.on_api(lacking)
    try:
        world.on_api(lambda api: api.failing.append(("patch", "nodes", 409)))
        join(world, "n0")
        world.start()
        wait_until(lambda: labels(world) == {"n0": ("l0", "f1")}, "the label")
        for kind in (
            "Workload of kueue.x-k8s.io/v1beta2",
            "HyperNode of topology.volcano.sh/v1alpha1",
        ):
            text = f"list {kind}: the server could not find"
            wait_until(partial(told, text), text)
    finally:
        world.on_api(lambda api: api.kinds.update(kinds))
    wait_until(lambda: world.of("topologies"), "what is installed later to be written")


def test_a_server_that_has_too_much_to_do_is_left_alone(world: World) -> None:
    """After 429 no call follows before the time that the server names, and no node is tried next.

    Once it takes calls again, all nodes get their labels.
    """
    allowed, refused = world.api.allowed, list[float]()

    def busy(verb: str, group: str, resource: str, name: str) -> bool:
        if verb == "patch":
            refused.append(time.monotonic())
            raise Refused(429, "too many requests")
        return allowed(verb, group, resource, name)

    world.on_api(lambda api: setattr(api, "allowed", busy))
    world.on_api(lambda api: setattr(api, "retry_after", "2"))
    try:
        join(world, *NODES)
        world.start(admission=False)
        wait_until(lambda: len(refused) > 1, "a second attempt")
        assert refused[1] - refused[0] >= 2
    finally:
        world.on_api(lambda api: setattr(api, "allowed", allowed))
    wait_until(lambda: all(labels(world).values()), "the labels of all nodes")


def test_watches_that_end_at_once_are_begun_once_a_second(world: World) -> None:
    """A server that ends each watch at once is not asked as often as it answers."""
    world.on_api(lambda api: setattr(api, "hasty", True))
    begun = time.monotonic()
    before = Counter(world.api.used)
    world.start(admission=False)
    wait_until(lambda: (world.api.used - before)["watch", "", "nodes"] > 2, "some watches")
    assert (world.api.used - before)["watch", "", "nodes"] <= time.monotonic() - begun + 1
    world.on_api(lambda api: setattr(api, "hasty", False))
    join(world, "n0")
    wait_until(lambda: labels(world) == {"n0": ("l0", "f1")}, "the labels")
