"""Watches that continue after a break without repeating what they already reported.

Every stream of the API begins with the full current state. After a break, that state is compared
with what was reported before. So the listener gets each difference once, including deletions that
happened during the break.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from heddle.v1 import common_pb2, demand_pb2, fabric_pb2, placement_pb2, plan_pb2

_Event = TypeVar("_Event")
LinkName = tuple[str, str, str]


class Merge(Generic[_Event]):
    """Reports every event, for streams whose events each give the full state."""

    def begin(self) -> None:
        """Note that the stream begins, for the first time or again."""

    def take(self, event: _Event) -> Iterator[_Event]:
        """Yield what the listener should get for an event."""
        yield event


class Rates(Merge[demand_pb2.RateBatch]):
    """Measured rates; leaves out a batch that repeats the last one."""

    def __init__(self) -> None:
        self._last = demand_pb2.RateBatch()

    def take(self, event: demand_pb2.RateBatch) -> Iterator[demand_pb2.RateBatch]:
        """Implement ``Merge.take``."""
        if event != self._last:
            self._last = event
            yield event


class Plans(Merge[plan_pb2.Plan]):
    """Plans.

    A stream begins with the current plan, which is left out if it was already reported.
    """

    def __init__(self) -> None:
        self._last = plan_pb2.Plan()

    def take(self, event: plan_pb2.Plan) -> Iterator[plan_pb2.Plan]:
        """Implement ``Merge.take``."""
        if event != self._last:
            self._last = event
            yield event


class Jobs(Merge[placement_pb2.JobEvent]):
    """Jobs. A stream begins with all jobs, then ``synced``; a job missing by then was deleted."""

    def __init__(self) -> None:
        self._known: dict[str, placement_pb2.Job] = {}
        self._unseen: set[str] = set()
        self._synced = False

    def begin(self) -> None:
        """Implement ``Merge.begin``."""
        self._unseen = set(self._known)

    def take(self, event: placement_pb2.JobEvent) -> Iterator[placement_pb2.JobEvent]:
        """Implement ``Merge.take``."""
        if event.HasField("job"):
            name = event.job.name
            self._unseen.discard(name)
            if self._known.get(name) != event.job:
                self._known[name] = event.job
                yield event
        elif event.HasField("deleted"):
            self._unseen.discard(event.deleted)
            if self._known.pop(event.deleted, None) is not None:
                yield event
        else:
            for name in sorted(self._unseen):
                del self._known[name]
                yield placement_pb2.JobEvent(deleted=name)
            self._unseen.clear()
            if not self._synced:
                self._synced = True
                yield event


class Fabric(Merge[fabric_pb2.FabricEvent]):
    """Links and switches. A stream begins with those not up, so one missing at ``synced`` is up.

    After the event of a fabric with other nodes or links, all that are not up are reported again.
    """

    def __init__(self) -> None:
        self._links: dict[LinkName, fabric_pb2.Link] = {}
        self._nodes: dict[str, fabric_pb2.Node] = {}
        self._unseen: dict[LinkName | str, fabric_pb2.FabricEvent] = {}
        """What to report at ``synced`` of all that were not up, by name, unless they still are."""
        self._structure: str | None = None
        self._synced = False

    def begin(self) -> None:
        """Implement ``Merge.begin``."""
        nodes = (node for node in self._nodes.values() if node.admin_state not in _UP)
        links = (link for link in self._links.values() if not _is_up(link))
        self._unseen = {node.id: _node_up(node) for node in nodes}
        self._unseen |= {_name(link): _link_up(link) for link in links}

    def take(self, event: fabric_pb2.FabricEvent) -> Iterator[fabric_pb2.FabricEvent]:
        """Implement ``Merge.take``."""
        match event.WhichOneof("event"):
            case "link":
                name = _name(event.link)
                self._unseen.pop(name, None)
                if self._links.get(name) != event.link:
                    self._links[name] = event.link
                    yield event
            case "node":
                node = event.node
                self._unseen.pop(node.id, None)
                if self._nodes.get(node.id) != node:
                    self._nodes[node.id] = node
                    yield event
            case "synced":
                yield from self._came_up()
                if not self._synced:
                    self._synced = True
                    yield event
            case "fabric" if event.fabric.structure_etag != self._structure:
                self._structure = event.fabric.structure_etag
                self._links.clear()
                self._nodes.clear()
                self._unseen.clear()
                yield event

    def _came_up(self) -> Iterator[fabric_pb2.FabricEvent]:
        for name in sorted(self._unseen, key=str):
            yield from self.take(self._unseen[name])


_UP = common_pb2.STATE_UP, common_pb2.STATE_UNSPECIFIED


def _name(link: fabric_pb2.Link) -> LinkName:
    return link.source, link.target, link.key


def _is_up(link: fabric_pb2.Link) -> bool:
    return link.admin_state == link.oper_state == common_pb2.STATE_UP


def _link_up(link: fabric_pb2.Link) -> fabric_pb2.FabricEvent:
    """Return the event that a link has come up, at a time that nobody knows."""
    return fabric_pb2.FabricEvent(
        link=fabric_pb2.Link(
            source=link.source,
            target=link.target,
            key=link.key,
            gbps=link.gbps,
            admin_state=common_pb2.STATE_UP,
            oper_state=common_pb2.STATE_UP,
        )
    )


def _node_up(node: fabric_pb2.Node) -> fabric_pb2.FabricEvent:
    """Return the event that a switch has come up."""
    came = fabric_pb2.Node()
    came.CopyFrom(node)
    came.admin_state = common_pb2.STATE_UP
    return fabric_pb2.FabricEvent(node=came)
