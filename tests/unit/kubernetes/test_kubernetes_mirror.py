"""Mirrors of what a cluster holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, cast
from weakref import WeakValueDictionary

import pytest
from lightkube.core.async_client import AsyncClient
from lightkube.generic_resource import Generic

from heddle_kubernetes import cluster
from heddle_kubernetes.cluster import Cluster, ClusterError, Mirror
from heddle_kubernetes.objects import NODE, Kind, Object
from heddle_kubernetes.tiers import Tiers

NOBODY = cast("Cluster", None)


def node(version: int, *, name: str = "n0", **more: str) -> Object:
    """Return a node as a kubelet writes it."""
    written = {"manager": "kubelet", "time": f"2020-01-01T00:00:{version:02}Z"}
    labels = {"kubernetes.io/hostname": name, **more}
    return {
        "metadata": {
            "name": name,
            "resourceVersion": f"{version}",
            "labels": labels,
            "managedFields": [written],
        },
        "status": {"conditions": [{"lastHeartbeatTime": f"2020-01-01T00:00:{version:02}Z"}]},
    }


def test_a_new_version_of_the_same_is_no_change() -> None:
    """A later version is known, so that it can be patched, and nobody is told."""
    told: list[str] = []
    mirror = Mirror(NOBODY, NODE, lambda key, _: told.append(key))
    one = node(1) | {"status": {}}
    mirror.replace([one])
    mirror.replace([node(2) | {"status": {}}])
    assert told == ["n0"]
    assert mirror.objects["n0"]["metadata"]["resourceVersion"] == "2"
    mirror.replace([node(3, zone="z") | {"status": {}}])
    assert told == ["n0", "n0"]


class Report(dict[str, Any]):
    """What a kubelet reports."""


class Kubelets:
    """A client of a cluster with many nodes; it knows how many reports are in memory at once."""

    resourceVersion = "7"  # noqa: N815 - as lightkube names it

    def __init__(self, nodes: int) -> None:
        self.most = 0
        self.told = asyncio.Event()
        self._nodes = nodes
        self._alive: WeakValueDictionary[int, Report] = WeakValueDictionary()

    def list(self, *_: object, **__: object) -> Kubelets:
        """Return what iterates over the nodes."""
        return self

    async def __aiter__(self) -> AsyncIterator[Generic]:
        for number in range(self._nodes):
            one = node(1, name=f"n{number}")
            self._alive[number] = one["status"] = Report(one["status"])
            yield NODE.from_dict(one)
            self.most = max(self.most, len(self._alive))

    async def watch(self, *_: object, **__: object) -> AsyncIterator[tuple[str, Generic]]:
        """Tell of a heartbeat."""
        yield "MODIFIED", NODE.from_dict(node(2))
        self.told.set()
        await asyncio.Event().wait()


async def test_of_nodes_only_the_labels_are_kept() -> None:
    """What a kubelet reports takes no memory, not even while nodes are listed, and is no change."""
    client = Kubelets(1000)
    nodes = Tiers(Cluster(cast("AsyncClient", client)), None, "heddle").nodes
    running = asyncio.create_task(nodes.run())
    await client.told.wait()
    running.cancel()
    assert len(nodes.objects) == 1000
    assert client.most < 10
    kept = {"name": "n0", "labels": {"kubernetes.io/hostname": "n0"}, "annotations": {}}
    assert nodes.objects["n0"] == {"metadata": {**kept, "resourceVersion": "2"}}


class Unwatchable:
    """A cluster whose objects may be listed, but not watched."""

    def __init__(self, lists: int) -> None:
        self.listed: list[float] = []
        self.enough = asyncio.Event()
        self._lists = lists

    async def list(self, *_: object) -> tuple[list[Object], str]:
        """Return no objects."""
        self.listed.append(asyncio.get_running_loop().time())
        if len(self.listed) == self._lists:
            self.enough.set()
        return [], "1"

    async def watch(self, _: Kind, __: str) -> AsyncIterator[tuple[str, Object]]:
        """Refuse, after no event."""
        nothing: tuple[tuple[str, Object], ...] = ()
        for event in nothing:
            yield event
        raise ClusterError("not for you", 403)


async def test_what_may_not_be_watched_is_listed_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each pause between two lists is twice as long as the one before."""
    monkeypatch.setattr(cluster, "PAUSE", 0.002)
    api = Unwatchable(8)
    running = asyncio.create_task(Mirror(cast("Cluster", api), NODE, lambda *_: None).run())
    await api.enough.wait()
    running.cancel()
    gaps = [after - before for before, after in pairwise(api.listed)]
    assert [gap >= 0.0019 * 2**n for n, gap in enumerate(gaps)] == [True] * 7, gaps
