"""Keeps the QPs of a host on paths that live, where switches only hash: no controller takes part.

For each QP a port of its path is known and, for most, that of a backup. Every path in use, and
every backup, is probed with the 5-tuple that QPs have on it; the TTL ends at the last switch, whose
ICMP error is proof that all links up to there carry. A path that leaves a probe unanswered is
probed again at once. Three in a row without an error, and all QPs of that path take their backups'
ports, if these live. They go back once the path has lived for a while: routing may have gone round
the loss by then.

A switch that reboots, or a route that comes or goes, may change where a port leads. Who steers by a
file has each port followed again from time to time, and one that is met elsewhere is told: it has
to be planned anew. With a controller the ports are probed again anyway (``report``).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import structlog

from heddle_agent.host.addresses import nodes_by_address
from heddle_agent.host.files import PortsFolder
from heddle_agent.host.trace import message, open_trace_sockets, plain_address, probed
from heddle_agent.watch.liveness import Liveness

_log = structlog.get_logger()

PLAN_JOB = "plan"
"""What the files of a plan.json are called."""


@dataclass(frozen=True, slots=True)
class Way:
    """A path from a NIC to the last switch, with a port and an address that lead over it."""

    source: str
    """Address of the NIC."""
    nodes: tuple[str, ...]
    """Switches, by name or by the address that answered, in order of travel."""
    keys: tuple[str, ...]
    """Of the links between them, where they are known."""
    destination: str = field(compare=False)
    port: int = field(compare=False)


PortKey: TypeAlias = tuple[str, str, int]
"""Addresses of both NICs, and a source port."""


@dataclass(slots=True)
class Routes:
    """Which path each port of one host takes."""

    node_at: Mapping[str, str] = field(default_factory=dict)
    """Which node an address is of, those of its links included."""
    ways: list[Way] = field(default_factory=list)
    way_of: dict[PortKey, int] = field(default_factory=dict)
    """Place in ``ways``."""
    _place: dict[Way, int] = field(default_factory=dict)

    def add(self, key: PortKey, nodes: Sequence[str], keys: Sequence[str] = ()) -> None:
        """Note the path of a port."""
        source, destination, port = key
        way = Way(source, tuple(nodes), tuple(keys), destination, port)
        if way not in self._place:
            self._place[way] = len(self.ways)
            self.ways.append(way)
        self.way_of[key] = self._place[way]


def routes_of(fabric: object, plan: object, host: str) -> tuple[Routes, dict[str, Any]]:
    """The routes that leave a host, of a fabric.json and a plan.json by ports.

    And its ports, as ``heddle.ports`` has them. ValueError if they are no such files, or do not
    know the host.
    """
    try:
        nodes = {node["id"]: node for node in fabric["nodes"]}  # type: ignore[index]
        nics = {name for name, node in nodes.items() if host in (node.get("host"), name)}
        addresses = {
            name: plain_address(str(node.get("address") or "")) for name, node in nodes.items()
        }
        routes = Routes(nodes_by_address(fabric))
        flows = [
            _taken(routes, route, addresses)
            for route in plan["routes"]  # type: ignore[index]
            if route["paths"][0]["nodes"][0] in nics
        ]
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise ValueError(
            f"these are no fabric.json and a plan.json of heddle plan --port-paths: {error!r}"
        ) from None
    if not nics:
        raise ValueError(f"the fabric has no host {host!r}: check --host")
    if any("" in {flow["source_address"], flow["destination_address"]} for flow in flows):
        raise ValueError(f"a NIC that {host} sends from, or to, has no address in the fabric file")
    return routes, {"job": PLAN_JOB, "generation": 0, "flows": flows}


def _taken(
    routes: Routes, route: Mapping[str, Any], addresses: Mapping[str, str]
) -> dict[str, Any]:
    """A flow of plan.json, its paths noted."""
    ports: list[int] = []
    backups: list[int] = []
    paths = route["paths"]
    source, *_, destination = paths[0]["nodes"]
    ends = addresses[source], addresses[destination]
    for path, backup in zip(paths, route["backups"] or [{}] * len(paths), strict=True):
        spares = backup["ports"] if backup.get("nodes") else [0] * len(path["ports"])
        ports += path["ports"]
        backups += spares
        for one in (path, backup):
            for port in one.get("ports", ()):
                routes.add((*ends, port), one["nodes"][1:-1], [*map(str, one["keys"][:-1])])
    return {
        "flow": route["flow"],
        "source": source,
        "source_address": ends[0],
        "destination": destination,
        "destination_address": ends[1],
        "ports": ports,
        "backup_ports": backups,
    }


@dataclass(slots=True)
class _Watched:
    """A way, and whether it lives."""

    way: Way
    steady: int
    """Rounds since it was last dead; QPs trust it once these are enough."""
    lives: Liveness = field(default_factory=Liveness)


class PathSteering:
    """Steers the QPs of one host; ``run`` it in a task, cancel it to end it."""

    def __init__(
        self,
        changed: Callable[[], object],
        *,
        interval: float,
        hold: float,
        recheck: float | None = None,
    ) -> None:
        """``changed`` is called when ``steered`` may say something else.

        In seconds: ``interval`` between probes of a path, ``hold`` until one that is back is
        trusted, ``recheck`` in which every port is followed again; None where somebody else does.
        """
        self._changed = changed
        self._routes = Routes()
        self._recheck = recheck
        self._answering = False
        """Whether every path has answered once: before that, silence proves nothing."""
        self._met: dict[tuple[PortKey, int], bool] = {}
        """Whether a port was last met where it is meant to be, by hop."""
        self._astray: set[PortKey] = set()
        self._interval = interval
        self._hold = max(1, round(hold / interval))
        self._wait = interval / 2
        self._watched: list[_Watched] = []
        """Parallel to the routes' ways."""
        self._of_probe: dict[tuple[str, str, int, int], int] = {}
        self._some = asyncio.Event()
        """Whether there is a path to probe."""
        self._sockets: dict[str, tuple[socket.socket, socket.socket]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def take(self, routes: Routes) -> None:
        """Steer by these from now on; what is known of paths that stay is kept.

        ValueError if this process may not probe.
        """
        for source in dict.fromkeys(way.source for way in routes.ways):
            if source not in self._sockets:
                self._sockets[source] = self._opened(source)
                self._hear(source)
        before = {one.way: one for one in self._watched}
        self._watched = []
        for way in routes.ways:
            one = before.get(way) or _Watched(way, self._hold)
            one.way = way  # the same path, perhaps by another port
            self._watched.append(one)
        self._of_probe = {
            (way.source, way.destination, way.port, len(way.nodes)): place
            for place, way in enumerate(routes.ways)
        }
        self._routes, self._answering = routes, False
        self._met.clear()
        if self._watched:
            self._some.set()
        else:
            self._some.clear()

    def _opened(self, source: str) -> tuple[socket.socket, socket.socket]:
        return open_trace_sockets(source)

    def _hear(self, source: str) -> None:
        if self._loop is not None:
            hear = self._sockets[source][1]
            self._loop.add_reader(hear, self._drain, source, hear)

    def close(self) -> None:
        """Let go of the sockets."""
        for send, hear in self._sockets.values():
            if self._loop is not None:
                self._loop.remove_reader(hear)
            send.close()
            hear.close()
        self._sockets.clear()

    async def run(self) -> None:
        """Probe until cancelled, and tell of each change."""
        self._loop = loop = asyncio.get_running_loop()
        for source in self._sockets:
            self._hear(source)
        following = None
        if self._recheck is not None:
            following = loop.create_task(self._follow(self._recheck))
        try:
            due = loop.time()
            while True:
                await self._some.wait()
                asked: Sequence[_Watched] = self._watched
                while asked:  # thrice at most: by then a path is dead, or has answered
                    self._send(asked)
                    await asyncio.sleep(self._wait)
                    self._judge(asked)
                    asked = [one for one in asked if one.lives.suspect]
                due = max(due + self._interval, loop.time())
                await asyncio.sleep(due - loop.time())
        finally:
            if following is not None:
                following.cancel()
            self.close()

    def _send(self, watched: Iterable[_Watched]) -> None:
        for one in watched:
            way = one.way
            send, _ = self._sockets[way.source]
            with suppress(OSError):  # no carrier, no route: then there is no answer either
                probe = (way.destination, way.port, len(way.nodes))
                send.sendmsg(*message(probe, one.lives.send()))

    async def _follow(self, within: float) -> None:
        """Probe where each port leads, again and again, at a steady pace.

        The last switch is left out: what shows that a path lives passes it anyway.
        """
        while True:
            ways = self._routes.ways
            ports = [(k, n) for k, w in self._routes.way_of.items() if len(n := ways[w].nodes) > 1]
            for (source, destination, port), nodes in ports:
                for hop in range(1, len(nodes)):
                    with suppress(OSError):
                        self._sockets[source][0].sendmsg(*message((destination, port, hop)))
                await asyncio.sleep(within / len(ports))
            if not ports:
                await asyncio.sleep(within)

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
                self._watched[place].lives.answer_to(number)

    def _meet(self, key: PortKey, hop: int, address: str) -> None:
        """A packet of a port was met by whoever has this address."""
        place, here = self._routes.way_of.get(key), self._routes.node_at.get(address)
        nodes = () if place is None else self._routes.ways[place].nodes
        if hop <= len(nodes) and here is not None:
            self._met[key, hop] = here == nodes[hop - 1]

    def _judge(self, watched: Iterable[_Watched]) -> None:
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
        for one in watched:
            was = self._trusted(one)
            one.lives.judge()
            one.steady = min(one.steady + 1, self._hold) if one.lives.alive else 0
            if self._trusted(one) != was:
                changed = True
                path = " ".join((one.way.source, *one.way.nodes))
                _log.warning("path lost" if was else "path is back", path=path)
        if changed:
            self._changed()
        if not self._answering and all(one.lives.answered for one in self._watched):
            self._answering = True
            sources = sorted({one.way.source for one in self._watched})
            _log.info("every path answers", paths=len(self._watched), sources=sources)

    def _trusted(self, one: _Watched) -> bool:
        return one.steady >= self._hold

    def _port_now(self, ends: tuple[str, str], port: int, backup: int) -> int:
        """The port to use now: the backup's where the path is lost and the backup lives."""
        place, spare = (self._routes.way_of.get((*ends, one)) for one in (port, backup))
        if place is None or self._trusted(self._watched[place]):
            return port
        return backup if spare is not None and self._trusted(self._watched[spare]) else port

    def steered(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """A document of ``heddle.ports`` with the ports to use now.

        ``lost`` are paths that no QP is to take, ``astray`` ports of a flow that lead elsewhere.
        """
        flows: list[Mapping[str, Any]] = []
        for flow in document["flows"]:
            ends = flow["source_address"], flow["destination_address"]
            if backups := flow.get("backup_ports"):
                pairs = zip(flow["ports"], backups, strict=True)
                ports = [self._port_now(ends, port, backup) for port, backup in pairs]
                flow = {**flow, "ports": ports}  # noqa: PLW2901 - the same, but for the ports
            if self._recheck is not None:
                astray = sorted(port for *of, port in self._astray if (*of,) == ends)
                flow = {**flow, "astray": astray}  # noqa: PLW2901
            flows.append(flow)
        lost = {(w.way.source, *w.way.nodes) for w in self._watched if not self._trusted(w)}
        return {**document, "flows": flows, "lost": [*map(list, sorted(lost))]}


def file_steering(
    routes: Routes,
    document: Mapping[str, Any],
    folder: PortsFolder,
    *,
    interval: float,
    hold: float,
    recheck: float,
) -> PathSteering:
    """Steering by a plan's file, which keeps the files of a folder right.

    ValueError if this process may not probe.
    """

    def write() -> None:
        try:
            folder.write(steering.steered(document))
        except OSError as error:
            _log.error("ports not written", why=str(error))

    steering = PathSteering(write, interval=interval, hold=hold, recheck=recheck)
    try:
        steering.take(routes)
    except ValueError:
        steering.close()
        raise
    write()
    return steering
