"""What a cluster shows of a fabric: a pure function of the fabric and of the nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.v1 import fabric_pb2
from heddle_controller.serve.codec.fabric import fabric_to_pb
from heddle_emulator.topology import clos, three_tier
from heddle_kubernetes.cluster import Cluster
from heddle_kubernetes.objects import HOSTNAME, LABELLED, NODE, TIER, Kind
from heddle_kubernetes.tiers import Shown, Tiers, shown, tiers_of
from tests.support.depth import examples
from tests.support.kube_api import Json
from tests.support.kube_schemas import EVERYTHING
from tests.support.waiting import until

CHECKS = {kind.kind: kind.validate for kind in EVERYTHING}


def nodes(*names: str) -> list[Json]:
    """Return nodes as kubelets register them."""
    return [{"metadata": {"name": name, "labels": {HOSTNAME: name}}} for name in names]


def sound(found: Shown) -> None:
    """Check that the schemas accept what is to be written, and that every name has its object."""
    for one in (*found.topologies.values(), *found.hyper_nodes.values()):
        assert CHECKS[one["kind"]](None, one) == [], one
    for name, labels in found.labels.items():
        one = {"metadata": {"name": name, "labels": dict(labels)}}
        assert CHECKS["Node"](None, one) == [], one
    for one in found.hyper_nodes.values():
        for member in one["spec"]["members"]:
            match = member["selector"]
            if member["type"] == "HyperNode":
                below = found.hyper_nodes[match["exactMatch"]["name"]]
                assert below["spec"]["tier"] == one["spec"]["tier"] - 1
            else:
                ((key, value),) = match["labelMatch"]["matchLabels"].items()
                assert any(labels[key] == value for labels in found.labels.values())


def test_zones_are_a_tier() -> None:
    """Tiers are leaf, zone and fabric. The topology has all of them, the highest first."""
    fabric = three_tier(
        zones=2, leaves=2, spines=2, nics_per_leaf=2, nics_per_host=1, cores=2, taper=1.0
    )
    found = shown(
        tiers_of(fabric_to_pb("f1", fabric)), nodes("z0-l0-h0", "z1-l1-h1", "other"), "heddle"
    )
    assert found.labels == {
        "z0-l0-h0": {f"{TIER}0": "z0-l0", f"{TIER}1": "z0", f"{TIER}2": "f1"},
        "z1-l1-h1": {f"{TIER}0": "z1-l1", f"{TIER}1": "z1", f"{TIER}2": "f1"},
    }
    levels = [one["nodeLabel"] for one in found.topologies["heddle"]["spec"]["levels"]]
    assert levels == [f"{TIER}2", f"{TIER}1", f"{TIER}0", HOSTNAME]
    assert len(found.hyper_nodes) == 5
    sound(found)


def test_hosts_on_the_same_rails_are_below_one_value() -> None:
    """A unit of rails has its own name, which does not depend on other nodes."""
    fabric = fabric_pb2.Fabric(name="fabrics/r")
    for rail in range(4):
        fabric.nodes.add(id=f"rail {rail}", kind=fabric_pb2.NODE_KIND_LEAF)
    for host in range(4):
        for rail in range(2):
            nic = fabric.nodes.add(id=f"{host}/{rail}", kind=fabric_pb2.NODE_KIND_NIC)
            nic.host = f"h{host}"
            fabric.links.add(source=nic.id, target=f"rail {rail + 2 * (host // 2)}")
    found = shown(tiers_of(fabric), nodes("h0", "h1", "h2"), "heddle")
    values = [labels[f"{TIER}0"] for labels in found.labels.values()]
    assert values[0] == values[1] != values[2]
    sound(found)
    assert shown(tiers_of(fabric), nodes("h2"), "heddle").labels["h2"] == found.labels["h2"]


def test_no_node_of_a_fabric_is_no_error() -> None:
    """No node is labelled, and the topology is there for nodes that come later."""
    fabric = fabric_to_pb("f1", clos(leaves=2, spines=2, nics_per_leaf=8))
    found = shown(tiers_of(fabric), nodes("other"), "heddle")
    assert (found.labels, found.hyper_nodes, len(found.topologies)) == ({}, {}, 1)
    empty = tiers_of(fabric_pb2.Fabric(name="fabrics/e"))
    assert shown(empty, nodes("n"), "heddle").topologies == {}


WORDS = st.text(min_size=1, max_size=90)


@given(leaves=st.lists(WORDS, min_size=1, max_size=5, unique=True), zone=WORDS, data=st.data())
@settings(max_examples=examples(60, 2000), deadline=None)
def test_odd_names_are_names_that_the_api_takes(
    leaves: list[str], zone: str, data: st.DataObject
) -> None:
    """Names of any script and length become valid names, and different names stay different."""
    name = data.draw(st.from_regex(r"\A[A-Za-z0-9_.-]{1,63}\Z"))
    fabric = fabric_pb2.Fabric(name=f"fabrics/{name}")
    for place, leaf in enumerate(leaves):
        fabric.nodes.add(id=leaf, kind=fabric_pb2.NODE_KIND_LEAF, zone=zone)
        fabric.nodes.add(id=f"{leaf}/nic", kind=fabric_pb2.NODE_KIND_NIC, host=f"n{place}")
        fabric.links.add(source=f"{leaf}/nic", target=leaf)
    whole: Any = nodes(*(f"n{place}" for place in range(len(leaves))))
    found = shown(tiers_of(fabric), whole, "heddle")
    sound(found)
    assert len({labels[f"{TIER}0"] for labels in found.labels.values()}) == len(leaves)
    assert len(found.hyper_nodes) == len(leaves) + 2


class Changing:
    """A cluster in which nodes change while the first of them is patched."""

    def __init__(self, nodes: Sequence[Json], changed: Sequence[Json]) -> None:
        self.patched: list[str] = []
        self._nodes, self._changed = nodes, changed
        self._patching, self._told = asyncio.Event(), asyncio.Event()

    async def list(self, kind: Kind, *_: object) -> tuple[list[Json], str]:
        """Return the nodes."""
        return ([*self._nodes] if kind is NODE else []), "1"

    async def watch(self, kind: Kind, _: str) -> AsyncIterator[tuple[str, Json]]:
        """Tell of the changes."""
        if kind is NODE:
            await self._patching.wait()
            for one in self._changed:
                yield "MODIFIED", one
            self._told.set()
        await asyncio.Event().wait()

    async def patch(self, _: Kind, found: Json, __: Json) -> None:
        """Note what is patched, and wait until all changes are known."""
        metadata = found["metadata"]
        self.patched.append(f"{metadata['name']} {metadata['resourceVersion']}")
        self._patching.set()
        await self._told.wait()


async def test_nodes_that_change_during_a_round_are_patched_as_they_are_then() -> None:
    """No patch is refused because a kubelet or another replica wrote a node during a long round."""

    def labelled(name: str, version: str, *, still: bool = True) -> Json:
        label, record = {f"{TIER}0": "l0"}, json.dumps({f"{TIER}0": "l0"})
        (one,) = nodes(name)
        one["metadata"]["resourceVersion"] = version
        if still:
            one["metadata"]["labels"] |= label
            one["metadata"]["annotations"] = {LABELLED: record}
        return one

    first = [labelled(name, "1") for name in ("n0", "n1", "n2")]
    api = Changing(first, [labelled("n1", "2"), labelled("n2", "3", still=False)])
    running = asyncio.create_task(Tiers(cast("Cluster", api), None, "").clear())
    await until(lambda: len(api.patched) > 1 or running.done(), "the nodes to be patched")
    running.cancel()
    assert api.patched[:2] == ["n0 1", "n1 2"]
    assert "n2 1" not in api.patched
