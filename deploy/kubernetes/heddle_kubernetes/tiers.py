"""The fabric in a cluster: tiers of nodes, a Topology for Kueue, HyperNodes for Volcano.

``shown`` is a pure function of the fabric and the nodes. ``Tiers`` changes the cluster accordingly.
It leaves everything alone that is not marked as its own: labels that others set, and objects
without its labels.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from heddle.client import AsyncClient, CredentialsError, HeddleError
from heddle.text import clean
from heddle.units import host_units
from heddle.v1 import fabric_pb2
from heddle_kubernetes.cluster import CONFLICT, MISSING, OVERLOADED, Cluster, ClusterError, Mirror
from heddle_kubernetes.objects import (
    FABRIC,
    HOSTNAME,
    HYPER_NODE,
    LABELLED,
    MANAGED_BY,
    NODE,
    OURS,
    TIER,
    TOPOLOGY,
    Object,
    key_of,
    part,
    text,
)

EVERY = 5.0
"""Seconds between two reads of the fabric's state."""
PACE = 0.5
"""Least seconds between two rounds, each of which looks at all nodes. Nodes may change one after
the other, all the time."""
LONGEST_LABEL, LONGEST_NAME = 63, 200
_ODD_IN_LABEL, _ODD_IN_NAME = re.compile(r"[^A-Za-z0-9_.-]"), re.compile(r"[^a-z0-9.-]")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a cluster should show about a fabric."""

    labels: Mapping[str, Mapping[str, str]]
    """Labels by node, for each node that is a host of the fabric."""
    topologies: Mapping[str, Object]
    """Topology objects by name."""
    hyper_nodes: Mapping[str, Object]
    """HyperNode objects by name."""


@dataclass(frozen=True, slots=True)
class FabricTiers:
    """What is needed of a fabric."""

    name: str
    """Its name, without its collection."""
    etag: str
    of_host: Mapping[str, tuple[str, ...]]
    """What each host with a link is below: leaf, zone if there are any, fabric."""


def tiers_of(fabric: fabric_pb2.Fabric) -> FabricTiers:
    """Return the tiers of a fabric, which must contain its nodes and links."""
    name = fabric.name.rpartition("/")[2]
    units = [unit for unit in host_units(fabric) if unit.switches]
    zoned = any(unit.zone for unit in units)
    found = {}
    for unit in units:
        first, *more = unit.switches
        leaf = f"{first}-{_digest(*unit.switches)}" if more else first
        zone = (unit.zone or f"{name}-no-zone",) if zoned else ()
        tiers = tuple(_label(one) for one in (leaf, *zone, name))
        found.update(dict.fromkeys(unit.hosts, tiers))
    return FabricTiers(name, fabric.etag, found)


def shown(fabric: FabricTiers, nodes: Iterable[Object], topology: str) -> Shown:
    """Return what a cluster should show about a fabric.

    Args:
        fabric: The tiers of the fabric.
        nodes: The nodes of the cluster.
        topology: Name of the Topology object for Kueue.
    """
    name, tiers = fabric.name, fabric.of_host
    labels = {}
    below: dict[tuple[int, str], set[str]] = {}
    for node in nodes:
        host = text(node, "metadata", "labels", HOSTNAME) or key_of(node)
        if (found := tiers.get(host)) is None:
            continue
        labels[key_of(node)] = {f"{TIER}{n}": value for n, value in enumerate(found)}
        for n, value in enumerate(found):
            below.setdefault((n, value), set()).add(
                _hyper_name(name, n - 1, found[n - 1]) if n else ""
            )
    depth = max(map(len, tiers.values()), default=0)
    levels = [*(f"{TIER}{n}" for n in reversed(range(depth))), HOSTNAME]
    objects = [
        _hyper_node(name, n, value, sorted(members)) for (n, value), members in below.items()
    ]
    kueue = _object(
        "kueue.x-k8s.io/v1beta2",
        "Topology",
        topology,
        name,
        {"levels": [{"nodeLabel": label} for label in levels]},
    )
    return Shown(labels, {topology: kueue} if depth else {}, {key_of(one): one for one in objects})


def _hyper_node(fabric: str, tier: int, value: str, members: list[str]) -> Object:
    """Return a HyperNode: in the lowest tier of nodes, selected by label, else of HyperNodes."""
    key = f"{TIER}{tier}"
    if tier == 0:
        chosen: list[Object] = [
            {"type": "Node", "selector": {"labelMatch": {"matchLabels": {key: value}}}}
        ]
    else:
        chosen = [
            {"type": "HyperNode", "selector": {"exactMatch": {"name": one}}} for one in members
        ]
    spec = {"tier": tier + 1, "tierName": key, "members": chosen}
    name = _hyper_name(fabric, tier, value)
    return _object("topology.volcano.sh/v1alpha1", "HyperNode", name, fabric, spec)


def _object(version: str, kind: str, name: str, fabric: str, spec: Object) -> Object:
    labels = {MANAGED_BY: OURS, FABRIC: _label(fabric)}
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _hyper_name(fabric: str, tier: int, value: str) -> str:
    wanted = f"heddle-{fabric}-tier-{tier}-{value}"
    plain = _ODD_IN_NAME.sub("-", wanted)
    good = plain == wanted and len(plain) <= LONGEST_NAME and _parts_end_well(plain)
    plain = re.sub(r"[.-]*\.[.-]*", "-", plain)[:LONGEST_NAME].strip("-.")
    return wanted if good else f"{plain}-{_digest(wanted)}"


def _parts_end_well(name: str) -> bool:
    return all(one[:1].isalnum() and one[-1:].isalnum() for one in name.split("."))


def _label(value: str) -> str:
    """Return a name as a label value: unchanged if that is valid, else with a digest at its end."""
    plain = _ODD_IN_LABEL.sub("-", value)
    if (
        plain == value
        and len(value) <= LONGEST_LABEL
        and value[0].isalnum()
        and value[-1].isalnum()
    ):
        return value
    readable = plain[: LONGEST_LABEL - 9].strip("-_.")
    return f"{readable}-{_digest(value)}" if readable else _digest(value)


def _digest(*values: str) -> str:
    return hashlib.sha256("\0".join(values).encode()).hexdigest()[:8]


class Tiers:
    """Keeps a cluster's labels and objects in line with the fabric."""

    def __init__(self, cluster: Cluster, heddle: AsyncClient | None, topology: str) -> None:
        """Create it; ``run`` does the work.

        Args:
            cluster: The cluster to change.
            heddle: The controller with the fabric; None if this is only used to ``clear``.
            topology: Name of the Topology object for Kueue.
        """
        self.nodes = Mirror(cluster, NODE, self._node_changed, _kept)
        self._kinds = {
            "topologies": Mirror(cluster, TOPOLOGY, self._woken),
            "hyper_nodes": Mirror(cluster, HYPER_NODE, self._woken),
        }
        self._cluster, self._heddle, self._topology = cluster, heddle, topology
        self._wake = asyncio.Event()
        self._fabric: FabricTiers | None = None
        self._shown: Shown | None = None  # of this fabric and these nodes; None if it is outdated
        self._known: set[str] = set()  # warnings of the last round; _told has those of this round
        self._told: set[str] = set()

    @property
    def mirrors(self) -> tuple[Mirror, ...]:
        """The mirrors of everything that is read in the cluster."""
        return (self.nodes, *self._kinds.values())

    async def run(self) -> None:
        """Keep the cluster up to date until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for mirror in self.mirrors:
                tasks.create_task(mirror.run())
                tasks.create_task(self._wake_once_read(mirror))
            while True:
                await self._woken_within(EVERY)
                self._wake.clear()
                self._known, self._told = self._told, set()
                await self._look()
                if self._fabric is not None and self.nodes.served:
                    await self._apply(self._fabric)
                await asyncio.sleep(PACE)

    async def clear(self) -> None:
        """Remove all labels and objects that this program made."""
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(mirror.run()) for mirror in self.mirrors]
            for mirror in self.mirrors:
                await mirror.synced.wait()
            while not (self.nodes.served and await self._show(Shown({}, {}, {}), None)):
                await self._woken_within(1)
                self._wake.clear()
            for task in running:
                task.cancel()

    async def _woken_within(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _wake_once_read(self, mirror: Mirror) -> None:
        await mirror.synced.wait()
        self._wake.set()

    def _woken(self, _: str, __: Object | None) -> None:
        self._wake.set()

    def _node_changed(self, _: str, __: Object | None) -> None:
        self._shown = None
        self._wake.set()

    async def _look(self) -> None:
        """Read the fabric if it has changed. While nobody answers, everything stays unchanged."""
        if self._heddle is None:
            return
        try:
            name = await self._heddle.fabric()
            etags = {one.name: one.etag for one in await self._heddle.list_fabrics()}
            if self._fabric is not None and etags.get(name) == self._fabric.etag:
                return
            request = fabric_pb2.GetFabricRequest(name=name)
            self._fabric = tiers_of(await self._heddle.fabrics.GetFabric(request))
            self._shown = None
        except (HeddleError, CredentialsError) as error:
            self._tell(f"the fabric is not read, labels and topologies stay: {error}")

    async def _apply(self, fabric: FabricTiers) -> None:
        if self._shown is None:
            nodes = self.nodes.objects.values()
            self._shown = shown(fabric, nodes, self._topology)
        await self._show(self._shown, _label(fabric.name))

    async def _show(self, wanted: Shown, fabric: str | None) -> bool:
        """Change the cluster to show this; return whether nothing failed.

        Args:
            wanted: What the cluster should show.
            fabric: Label of the fabric whose unwanted objects are removed; None: of all fabrics.
        """
        steps: list[Callable[[], Awaitable[object]]] = [
            partial(self._labelled, key, wanted.labels.get(key, {}))
            for key, node in sorted(self.nodes.objects.items())
            if not _shows(node, wanted.labels.get(key, {}))
        ]
        for field, mirror in self._kinds.items():
            if mirror.served:
                steps += self._changes(mirror, getattr(wanted, field), fabric)
        done = True
        for step in steps:
            try:
                await step()
            except ClusterError as error:
                if error.code not in {CONFLICT, MISSING}:
                    self._tell(str(error))
                done = False
                if error.code in OVERLOADED:  # the next round tries the rest
                    break
        return done

    def _changes(
        self, mirror: Mirror, wanted: Mapping[str, Object], fabric: str | None
    ) -> Iterator[Callable[[], Awaitable[object]]]:
        """Yield calls that create, change and delete objects of a kind."""
        for name, one in sorted(wanted.items()):
            found = mirror.objects.get(name)
            if found is None:
                yield partial(self._cluster.create, mirror.kind, one)
            elif not _is_ours(found, None):
                self._tell(f"{mirror.kind.__name__} {name} is somebody else's, and is left alone")
            elif found.get("spec") != one["spec"] or not _is_ours(found, fabric):
                change = {"metadata": {"labels": one["metadata"]["labels"]}, "spec": one["spec"]}
                yield partial(self._cluster.patch, mirror.kind, found, change)
        for name, found in sorted(mirror.objects.items()):
            if name not in wanted and _is_ours(found, fabric):
                yield partial(self._cluster.delete, mirror.kind, name)

    async def _labelled(self, key: str, wanted: Mapping[str, str]) -> None:
        """Set the labels of a node, and remove those that this program set before.

        A round may take minutes, so the node is taken as it is known now: it may be gone, and its
        kubelet or another replica may have written it.
        """
        if (node := self.nodes.objects.get(key)) is None:
            return
        known, ours = part(node, "metadata", "labels") or {}, _recorded(node)
        change: dict[str, str | None] = {}
        keep: dict[str, str] = {}
        for label in sorted({*wanted, *ours}):
            value, present = wanted.get(label), known.get(label)
            mine = present is None or (label in ours and present == ours[label])
            if not mine:
                if value is not None and present != value:
                    self._tell(
                        f"node {key}: label {label}={present} is somebody else's, and is "
                        f"left alone; it would be {value}"
                    )
                continue
            if value is not None:
                keep[label] = value
            if present != value:
                change[label] = value
        record = _record(keep)
        if change or record != part(node, "metadata", "annotations", LABELLED):
            annotations = {LABELLED: record}
            await self._cluster.patch(
                NODE, node, {"metadata": {"labels": change, "annotations": annotations}}
            )

    def _tell(self, what: str) -> None:
        """Log a warning, unless the last round logged it too."""
        if what not in self._known | self._told:
            _log.warning("%s", clean(what))
        self._told.add(what)


def _kept(node: Object) -> Object:
    """Return what is needed of a node, which is small; kubelets rewrite the rest all the time."""
    metadata = part(node, "metadata") or {}
    kept = {
        name: metadata[name] for name in ("name", "resourceVersion", "labels") if name in metadata
    }
    record = part(metadata, "annotations", LABELLED)
    return {"metadata": {**kept, "annotations": {} if record is None else {LABELLED: record}}}


def _is_ours(found: Object, fabric: str | None) -> bool:
    labels = part(found, "metadata", "labels")
    mine = text(labels, MANAGED_BY) == OURS and bool(text(labels, FABRIC))
    return mine and (fabric is None or text(labels, FABRIC) == fabric)


def _shows(node: Object, wanted: Mapping[str, str]) -> bool:
    """Return whether a node has these labels, all of them set by this program, and no others."""
    labels = part(node, "metadata", "labels") or {}
    return wanted.items() <= labels.items() and (
        part(node, "metadata", "annotations", LABELLED) == _record(wanted)
    )


def _record(labels: Mapping[str, str]) -> str | None:
    """Return the annotation that records the labels that this program set; None if it set none."""
    return json.dumps(labels, sort_keys=True) if labels else None


def _recorded(node: Object) -> dict[str, str]:
    """Return the labels that this program set on a node, as recorded in its annotation.

    Everything else that the annotation may contain is ignored.
    """
    try:
        found = json.loads(text(node, "metadata", "annotations", LABELLED))
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        label: value
        for label, value in found.items()
        if label.startswith(TIER) and isinstance(value, str)
    }
