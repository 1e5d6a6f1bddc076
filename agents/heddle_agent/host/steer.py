"""Keeps the QPs of a host on working paths, where switches only hash, without a controller.

For each QP, a port of its path is known, and for most also a port of a backup. Every path in use
and every backup is probed with the 5-tuple that QPs have on it. The TTL ends at the last switch,
whose ICMP error proves that all links up to there work. A path that leaves a probe unanswered is
probed again at once. After three unanswered probes in a row, all QPs of that path get the ports of
their backups, if these work. They return once the path has worked for a while, because routing may
have gone round the loss by then.

A switch that reboots, or a route that changes, may change where a port leads. Steering by a file
traces each port again from time to time and reports one that is seen elsewhere, which then has to
be planned again. With a controller, the ports are probed again anyway (``report``).
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
"""Name of the files that belong to a plan.json."""


@dataclass(frozen=True, slots=True)
class Way:
    """A path from a NIC to the last switch, with a port and an address that lead over it."""

    source: str
    """Address of the NIC."""
    nodes: tuple[str, ...]
    """Switches in order of travel, by name or by the address that answered."""
    keys: tuple[str, ...]
    """Keys of the links between them, if known."""
    destination: str = field(compare=False)
    port: int = field(compare=False)


PortKey: TypeAlias = tuple[str, str, int]
"""Addresses of both NICs, and a source port."""


@dataclass(slots=True)
class Routes:
    """The path of each port of one host."""

    node_at: Mapping[str, str] = field(default_factory=dict)
    """Node by address, including the addresses of its links."""
    ways: list[Way] = field(default_factory=list)
    way_of: dict[PortKey, int] = field(default_factory=dict)
    """Index into ``ways`` of each port's path."""
    _place: dict[Way, int] = field(default_factory=dict)

    def add(self, key: PortKey, nodes: Sequence[str], keys: Sequence[str] = ()) -> None:
        """Record the path of a port."""
        source, destination, port = key
        way = Way(source, tuple(nodes), tuple(keys), destination, port)
        if way not in self._place:
            self._place[way] = len(self.ways)
            self.ways.append(way)
        self.way_of[key] = self._place[way]


def routes_of(fabric: object, plan: object, host: str) -> tuple[Routes, dict[str, Any]]:
    """Return the routes that leave a host, from a fabric.json and a plan.json by ports.

    The second result is the host's ports, as a document of ``heddle.ports``. Raises ValueError if
    the files are of another kind or do not know the host.
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
    """Return a flow of a plan.json, and record its paths in ``routes``."""
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
    """A path, and whether it works."""

    way: Way
    steady: int
    """Rounds since it was last dead. QPs trust it once these are enough."""
    lives: Liveness = field(default_factory=Liveness)


class PathSteering:
    """Steers the QPs of one host. Call ``run`` in a task, and cancel it to end it."""

    def __init__(
        self,
        changed: Callable[[], object],
        *,
        interval: float,
        hold: float,
        recheck: float | None = None,
    ) -> None:
        """Take ``changed``, which is called when the result of ``steered`` may have changed.

        In seconds: ``interval`` between probes of a path, ``hold`` until a recovered path is
        trusted, ``recheck`` within which every port is traced again. None traces no ports.
        """
        self._changed = changed
        self._routes = Routes()
        self._recheck = recheck
        self._answering = False
        """Whether every path has answered once."""
        self._met: dict[tuple[PortKey, int], bool] = {}
        """Whether a port was last seen at the switch where it should be, by port and hop."""
        self._astray: set[PortKey] = set()
        self._interval = interval
        self._hold = max(1, round(hold / interval))
        self._wait = interval / 2
        self._watched: list[_Watched] = []
        """Parallel to the routes' ways."""
        self._of_probe: dict[tuple[str, str, int, int], int] = {}
        self._some = asyncio.Event()
        """Set while there is a path to probe."""
        self._sockets: dict[str, tuple[socket.socket, socket.socket]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def take(self, routes: Routes) -> None:
        """Steer by these routes from now on; what is known of paths that stay is kept.

        Raises ValueError if this process may not probe.
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
        """Close the sockets."""
        for send, hear in self._sockets.values():
            if self._loop is not None:
                self._loop.remove_reader(hear)
            send.close()
            hear.close()
        self._sockets.clear()

    async def run(self) -> None:
        """Probe until cancelled, and report each change."""
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
                while asked:  # at most three times: by then a path is dead, or has answered
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
            with suppress(OSError):  # no carrier or no route: the missing answer tells
                probe = (way.destination, way.port, len(way.nodes))
                send.sendmsg(*message(probe, one.lives.send()))

    async def _follow(self, within: float) -> None:
        """Probe where each port leads, again and again, at a steady pace.

        The last switch is left out, because the probes that check a path reach it anyway.
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
        """Record that a port's probe ended at the node with this address."""
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
        # A path may be lost already at the start: its silence counts if its last switch has
        # answered over another path. A switch that never answers proves nothing.
        answers = {one.way.nodes[-1] for one in self._watched if one.lives.answered}
        for one in watched:
            was = self._trusted(one)
            one.lives.judge(known=one.way.nodes[-1] in answers)
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
        """Return the port to use now: the backup's if the path is lost and the backup works."""
        place, spare = (self._routes.way_of.get((*ends, one)) for one in (port, backup))
        if place is None or self._trusted(self._watched[place]):
            return port
        return backup if spare is not None and self._trusted(self._watched[spare]) else port

    def steered(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return a document of ``heddle.ports`` with the ports to use now.

        ``lost`` are paths that no QP should take, ``astray`` the ports of a flow that lead
        elsewhere.
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
    """Return steering by a plan's file that keeps the files of a folder up to date.

    Raises ValueError if this process may not probe.
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
