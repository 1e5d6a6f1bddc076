"""Keeps the QPs of a host on paths that live, where switches only hash: no controller takes part.

A plan.json by ports names for each QP the port of its path and, for most, that of a backup. Every
path in use, and every backup, is probed with the 5-tuple that QPs have on it; the TTL ends at the
last switch, whose ICMP error is proof that all links up to there carry. A path that leaves a probe
unanswered is probed again at once. Three in a row without an error, and all QPs of that path take
their backups' ports, if these live. They go back once the path has lived for a while: routing may
have gone round the loss by then.

A switch that reboots, or a route that comes or goes, may change where a port leads. Each port is
followed again from time to time, and one that is met elsewhere is told: it has to be planned anew.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import structlog

from heddle_agent.host.addresses import nodes_by_address
from heddle_agent.host.files import PortsFolder
from heddle_agent.host.trace import message, open_trace_sockets, plain_address, probed
from heddle_agent.watch.liveness import Liveness

_log = structlog.get_logger()

JOB = "plan"


@dataclass(frozen=True, slots=True)
class Way:
    """A path from a NIC to the last switch, with a port and an address that lead over it."""

    source: str
    """Address of the NIC."""
    nodes: tuple[str, ...]
    keys: tuple[str, ...]
    destination: str = field(compare=False)
    port: int = field(compare=False)

    @property
    def hops(self) -> int:
        """Switches on it."""
        return len(self.nodes) - 1


@dataclass(frozen=True, slots=True)
class SteeredQp:
    """A QP, and its two choices."""

    port: int
    way: int
    """Place in ``Routes.ways``."""
    backup_port: int = 0
    backup: int | None = None


@dataclass(frozen=True, slots=True)
class SteeredFlow:
    """A flow that leaves this host."""

    flow: str
    source: str
    destination: str
    qps: tuple[SteeredQp, ...]


PortKey: TypeAlias = tuple[str, str, int]
"""Addresses of both NICs, and a source port."""


@dataclass(slots=True)
class Routes:
    """What a plan says of the NICs of one host."""

    addresses: Mapping[str, str]
    """Of nodes, by their ids."""
    node_at: Mapping[str, str]
    """Which node an address is of, those of its links included."""
    nodes_of: dict[PortKey, tuple[str, ...]] = field(default_factory=dict)
    """Switches that packets of a port are to pass, in order."""
    flows: list[SteeredFlow] = field(default_factory=list)
    ways: list[Way] = field(default_factory=list)
    _place: dict[Way, int] = field(default_factory=dict)

    def take(self, route: Mapping[str, Any]) -> None:
        """Note a route of plan.json."""
        qps: list[SteeredQp] = []
        paths = route["paths"]
        for path, backup in zip(paths, route["backups"] or [{}] * len(paths), strict=True):
            way = self._way(path)
            other = self._way(backup) if backup.get("nodes") else None
            spare = backup["ports"] if other is not None else [0] * len(path["ports"])
            pairs = zip(path["ports"], spare, strict=True)
            qps += [SteeredQp(port, way, spare_port, other) for port, spare_port in pairs]
        ends = paths[0]["nodes"]
        self.flows.append(SteeredFlow(route["flow"], ends[0], ends[-1], tuple(qps)))

    def _way(self, path: Mapping[str, Any]) -> int:
        nodes, keys = path["nodes"], [*map(str, path["keys"])]
        source, destination = self.addresses[nodes[0]], self.addresses[nodes[-1]]
        port = path["ports"][0]
        for each in path["ports"]:
            self.nodes_of[source, destination, each] = tuple(nodes[1:-1])
        way = Way(source, tuple(nodes[:-1]), tuple(keys[:-1]), destination, port)
        if way not in self._place:
            self._place[way] = len(self.ways)
            self.ways.append(way)
        return self._place[way]


def routes_of(fabric: object, plan: object, host: str) -> Routes:
    """The routes that leave a host, of a fabric.json and a plan.json by ports.

    ValueError if they are no such files, or do not know the host.
    """
    try:
        nodes = {node["id"]: node for node in fabric["nodes"]}  # type: ignore[index]
        nics = {name for name, node in nodes.items() if host in (node.get("host"), name)}
        addresses = {
            name: plain_address(str(node.get("address") or "")) for name, node in nodes.items()
        }
        routes = Routes(addresses, nodes_by_address(fabric))
        for route in plan["routes"]:  # type: ignore[index]
            if route["paths"][0]["nodes"][0] in nics:
                routes.take(route)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise ValueError(
            f"these are no fabric.json and a plan.json of heddle plan --port-paths: {error!r}"
        ) from None
    if not nics:
        raise ValueError(f"the fabric has no host {host!r}: check --host")
    if "" in {end for way in routes.ways for end in (way.source, way.destination)}:
        raise ValueError(f"a NIC that {host} sends from, or to, has no address in the fabric file")
    return routes


class PathSteering:
    """Of one host; ``run`` it in a task, cancel it to end it."""

    def __init__(
        self, routes: Routes, folder: PortsFolder, *, interval: float, hold: float, recheck: float
    ) -> None:
        """ValueError if this process may not probe.

        In seconds: ``interval`` between probes of a path, ``hold`` until one that is back is
        trusted, ``recheck`` in which every port is followed again.
        """
        self._routes, self._folder = routes, folder
        self._recheck = recheck
        self._answering = False
        """Whether every path has answered once: before that, silence proves nothing."""
        self._met: dict[tuple[PortKey, int], bool] = {}
        """Whether a port was last met where it is meant to be, by hop."""
        self._astray: set[PortKey] = set()
        self._interval = interval
        self._hold = max(1, round(hold / interval))
        self._wait = interval / 2
        self._lives = [Liveness() for _ in routes.ways]
        self._steady = [self._hold] * len(routes.ways)
        """Rounds since each way was last dead; QPs trust it once these are enough."""
        self._of_probe = {
            (way.source, way.destination, way.port, way.hops): place
            for place, way in enumerate(routes.ways)
        }
        self._sockets: dict[str, tuple[socket.socket, socket.socket]] = {}
        try:
            for source in dict.fromkeys(way.source for way in routes.ways):
                self._sockets[source] = open_trace_sockets(source)
        except ValueError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the sockets."""
        for pair in self._sockets.values():
            for one in pair:
                one.close()

    async def run(self) -> None:
        """Probe and write until cancelled."""
        loop = asyncio.get_running_loop()
        self._write()
        for source, (_, hear) in self._sockets.items():
            loop.add_reader(hear, self._drain, source, hear)
        following = loop.create_task(self._follow())
        try:
            due = loop.time()
            while True:
                asked: Sequence[int] = range(len(self._lives))
                while asked:  # thrice at most: by then a path is dead, or has answered
                    self._send(asked)
                    await asyncio.sleep(self._wait)
                    self._judge(asked)
                    asked = [place for place in asked if self._lives[place].suspect]
                due = max(due + self._interval, loop.time())
                await asyncio.sleep(due - loop.time())
        finally:
            following.cancel()
            for _, hear in self._sockets.values():
                loop.remove_reader(hear)
            self.close()

    def _send(self, places: Iterable[int]) -> None:
        for place in places:
            way, lives = self._routes.ways[place], self._lives[place]
            send, _ = self._sockets[way.source]
            with suppress(OSError):  # no carrier, no route: then there is no answer either
                send.sendmsg(*message((way.destination, way.port, way.hops), lives.send()))

    async def _follow(self) -> None:
        """Probe where each port leads, again and again, at a steady pace.

        The last switch is left out: what shows that a path lives passes it anyway.
        """
        ports = [(key, nodes) for key, nodes in self._routes.nodes_of.items() if len(nodes) > 1]
        while True:
            for (source, destination, port), nodes in ports:
                for hop in range(1, len(nodes)):
                    with suppress(OSError):
                        self._sockets[source][0].sendmsg(*message((destination, port, hop)))
                await asyncio.sleep(self._recheck / len(ports))
            if not ports:
                return

    def _drain(self, source: str, hear: socket.socket) -> None:
        while True:
            try:
                packet, origin = hear.recvfrom(2048)
            except OSError:
                return
            about = probed(packet, source)
            if about is None:
                continue
            (destination, port, hop), number = about
            self._meet((source, destination, port), hop, origin[0])
            place = self._of_probe.get((source, destination, port, hop))
            if place is not None:
                self._lives[place].answer_to(number)

    def _meet(self, key: PortKey, hop: int, address: str) -> None:
        """A packet of a port was met by whoever has this address."""
        nodes, here = self._routes.nodes_of.get(key, ()), self._routes.node_at.get(address)
        if hop <= len(nodes) and here is not None:
            self._met[key, hop] = here == nodes[hop - 1]

    def _judge(self, places: Iterable[int]) -> None:
        for source, (_, hear) in self._sockets.items():
            self._drain(source, hear)
        astray = {key for (key, _), right in self._met.items() if not right}
        changed = astray != self._astray
        for source, destination, port in sorted(astray - self._astray):
            _log.warning(
                "port takes another path; probe and plan again",
                source=source,
                destination=destination,
                port=port,
            )
        self._astray = astray
        for place in places:
            was, lives = self._trusted(place), self._lives[place]
            lives.judge()
            self._steady[place] = min(self._steady[place] + 1, self._hold) if lives.alive else 0
            if self._trusted(place) != was:
                changed = True
                way = " ".join(self._routes.ways[place].nodes)
                _log.warning("path lost" if was else "path is back", path=way)
        if changed:
            self._write()
        if not self._answering and all(lives.answered for lives in self._lives):
            self._answering = True
            _log.info("every path answers", paths=len(self._lives))

    def _trusted(self, place: int) -> bool:
        return self._steady[place] >= self._hold

    def port_of(self, qp: SteeredQp) -> int:
        """The port to use now: the backup's where the path is lost and the backup lives."""
        if self._trusted(qp.way) or qp.backup is None or not self._trusted(qp.backup):
            return qp.port
        return qp.backup_port

    def _write(self) -> None:
        addresses = self._routes.addresses
        flows = [
            {
                "flow": flow.flow,
                "source": flow.source,
                "source_address": addresses[flow.source],
                "destination": flow.destination,
                "destination_address": addresses[flow.destination],
                "ports": [self.port_of(qp) for qp in flow.qps],
                "astray": self._astray_of(addresses[flow.source], addresses[flow.destination]),
            }
            for flow in self._routes.flows
        ]
        lost = sorted({self._routes.ways[p].nodes for p in self._lost()})
        document = {"job": JOB, "generation": 0, "flows": flows, "lost": [*map(list, lost)]}
        try:
            self._folder.write(document)
        except OSError as error:
            _log.error("ports not written", why=str(error))

    def _astray_of(self, source: str, destination: str) -> list[int]:
        """Ports of two NICs that were met off their paths."""
        return sorted(port for *ends, port in self._astray if ends == [source, destination])

    def _lost(self) -> Sequence[int]:
        return [place for place in range(len(self._lives)) if not self._trusted(place)]
