"""Checks of every QP of every flow, at every moment of a race.

*Knowing*: no switch sends a packet by an entry over a link that its agent knows to be down, whether
it is the switch's own link or one further on. *Arriving*: once every agent knows exactly the links
that are dead and BGP has converged, each packet arrives if its ends are joined, whatever the
controller does or believes at the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from heddle_agent.fib import Choice, Group, Link, MemoryFib, Packet
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import FIRST_SOURCE_PORT, ROCE_PORT, SOURCE_PORT_COUNT
from tests.race.scene import Scene


class Packets:
    """The packets of a scene, and the links of its entries, which are computed once."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._cached: dict[tuple[str, Group], tuple[frozenset[Link], frozenset[Link]]] = {}

    def troubles(self) -> Iterator[str]:
        """Yield everything that is wrong now, in words."""
        scene = self._scene
        must_arrive, carries = scene.all_know, scene.world.carries[::2].tolist()
        down = {name: agent._view.down for name, agent in scene.agents.items()}
        if not must_arrive and not any(down.values()):
            return  # packets may be lost, and nobody knows better
        for packet, leaf in self._sent:
            lost, name = "", leaf
            way: list[str] = []
            while name != packet.destination:
                if name not in down or name in way:
                    lost = f"came to {name} by {way}"
                    break
                way.append(name)
                fib = self._fibs[name]
                if down[name]:
                    known = self._entry_way(fib, name, packet) & down[name]
                    if known:
                        yield f"{packet}: {name} sends it over {min(known)}, knowing it is down"
                hop = fib.lookup(packet)
                if hop is None:
                    lost = f"dropped at {name} after {way}"
                    break
                if not carries[self._rows[name, hop.node, hop.key]]:
                    lost = f"sent by {name} over the dead link to {hop.node}"
                    break
                name = hop.node
            if lost and must_arrive and self._joined(leaf, packet.destination):
                yield f"{packet}: {lost}, and everybody knows better"

    @cached_property
    def _sent(self) -> list[tuple[Packet, str]]:
        """Every packet, and the first leaf on its way.

        NICs have one link here, which never dies.
        """
        scene, structure = self._scene, self._scene.world.structure
        ids, flows = structure.nodes.ids, scene.flows
        first, arcs = structure.out
        ports, found = flows.source_ports().tolist(), []
        for row, source in enumerate(flows.source.tolist()):
            leaf = ids[int(structure.head[arcs[first[source]]])]
            for qp in range(int(flows.qps[row])):
                port = FIRST_SOURCE_PORT + (ports[row] - FIRST_SOURCE_PORT + qp) % SOURCE_PORT_COUNT
                target = ids[int(flows.destination[row])]
                found.append((Packet(ids[source], target, port, ROCE_PORT), leaf))
        return found

    @cached_property
    def _fibs(self) -> dict[str, MemoryFib]:
        ids = self._scene.world.structure.nodes.ids
        return {ids[row]: fib for row, fib in self._scene.switches.fibs.items()}

    @cached_property
    def _rows(self) -> dict[tuple[str, str, str], int]:
        """Link rows by switch, neighbour and key."""
        structure = self._scene.world.structure
        ids, links, kind = structure.nodes.ids, structure.links, structure.nodes.kind
        found = {}
        for row, key in enumerate(links.key):
            for one, other in ((links.a[row], links.b[row]), (links.b[row], links.a[row])):
                if kind[one] != NodeKind.NIC:
                    found[ids[one], ids[other], str(key)] = row
        return found

    def _joined(self, leaf: str, destination: str) -> bool:
        """Whether links that carry traffic lead from a leaf to a NIC at all."""
        world = self._scene.world
        structure = world.structure
        first, arcs = structure.out
        found, waiting = {structure.index[leaf]}, [structure.index[leaf]]
        while waiting:
            node = waiting.pop()
            if structure.nodes.kind[node] == NodeKind.NIC:
                continue
            own = arcs[first[node] : first[node + 1]]
            heads = set(structure.head[own[world.carries[own]]].tolist()) - found
            found |= heads
            waiting += heads
        return structure.index[destination] in found

    def _entry_way(self, fib: MemoryFib, name: str, packet: Packet) -> frozenset[Link]:
        """Return the links over which an entry sends a packet now.

        The set is empty if the packet takes the underlay.
        """
        match = fib._find(packet)
        if match is None:
            return frozenset()
        group = fib._entries[match]
        if (name, group) not in self._cached:
            self._cached[name, group] = _ways(name, group)
        choice = fib.choice(group)
        return frozenset() if choice is Choice.UNDERLAY else self._cached[name, group][choice]


def _ways(name: str, group: Group) -> tuple[frozenset[Link], frozenset[Link]]:
    """Return the links of the primary's path and of the backup's."""
    first = Link.between(name, *group.primary.port)
    primary = frozenset({first, *group.risks})
    if group.backup is None:
        return primary, frozenset()
    return primary, frozenset({Link.between(name, *group.backup.port), *group.backup_risks})
