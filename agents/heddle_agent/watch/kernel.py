"""Links as the kernel and the far end see them: carrier and probes, with damping of both.

    netlink: carrier lost or back           --+
    the switch's own databases: up or down  --+-> Damper -> ObservationQueue -> agent
    probes: unanswered, or answered again   --+

The kernel may announce a lost carrier late, so carriers are also read directly (``carrier``). A
link is seen up when it has carrier, no database of the switch says otherwise (``reports``), and its
neighbour answers. Down is passed on at once. Up is passed on when the link has stayed up
(``damping``) and routing uses it again, if it ever did (``routing``).

A link that loses some probes but not all, or receives packets with errors (``errors``), is grey. A
link that carries less than its rate while packets wait (``rates``), or whose ends agreed on a lower
speed, is slow. Both kinds stay up and are reported to the controller, since only a plan can say
whether the fabric can spare them.

An interface may vanish and another take its place under its name or alias, for example when a
driver is reloaded or a port is broken out. This counts as a lost carrier and a new one on the same
link. An interface may also get other addresses, and with them another address of its neighbour.
``on_moved`` tells the FIB where the link is now.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

import structlog

from heddle_agent.fib import Link, NextHop
from heddle_agent.table import LinkObservation
from heddle_agent.watch import rtnetlink
from heddle_agent.watch.carrier import Carriers
from heddle_agent.watch.damping import Damper, HoldDown
from heddle_agent.watch.errors import ERROR_LOOK_SECONDS
from heddle_agent.watch.monitored_link import FLAPPING, GREY, SLOW, LinkVerdict, MonitoredLink
from heddle_agent.watch.observation_queue import ObservationQueue
from heddle_agent.watch.ports import Port, alias_of
from heddle_agent.watch.probe import Prober, Target, open_echo_sockets
from heddle_agent.watch.reports import PortReports
from heddle_agent.watch.routing import LONGEST_SECONDS, ROUTING_LOOK_SECONDS, Routing

_log = structlog.get_logger()

_ASK_SECONDS = 0.004
_GONE = 0  # no interface has this index


class KernelLinks:
    """The links of this network namespace, watched while ``changes`` is being iterated."""

    def __init__(
        self,
        switch: str,
        ports: Sequence[Port],
        *,
        probe_seconds: float = 0.0,
        patience: HoldDown | None = None,
        reports: PortReports | None = None,
    ) -> None:
        """Take ``probe_seconds``, the interval of probes, with 0 for none.

        ``reports`` gives what the switch's own databases say of interfaces, None if it has none.
        Raises ValueError if probes are wanted and this process may not send them.
        """
        self.ports = list(ports)
        self.on_moved: Callable[[Port], None] = _unheard
        """Is called with each port whose interface or addresses have changed."""
        self._switch = switch
        patience = patience or HoldDown()
        self._lines = [
            MonitoredLink(
                Link.between(switch, port.hop.node, port.hop.key),
                port.interface,
                port.index,
                port.carries,
                Damper(patience, up=port.carries),
                port.gbps,
            )
            for port in ports
        ]
        self._reports = reports
        self._routing = Routing(line.link for line in self._lines)
        self._at = {port.index: row for row, port in enumerate(ports)}
        self._board = ObservationQueue(line.link for line in self._lines)
        for line in self._lines:
            line.told = line.verdict
            self._board.found(line.link, up=line.carries)
        self._others = {port.index: [port.hop.address] for port in ports}
        self._interval = probe_seconds
        self._raw = open_echo_sockets(self._targets().values())
        self._prober: Prober | None = None
        self._carriers: Carriers | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def next_hops(self) -> Sequence[NextHop]:
        """Every link, with the address of its neighbour as known now."""
        return [port.hop for port in self.ports]

    def current(self) -> Sequence[LinkObservation]:
        """Return the state of all links as believed now."""
        return self._board.current()

    async def changes(self) -> AsyncGenerator[Sequence[LinkObservation], None]:
        """Yield changes as they come. The kernel is watched only while this is being iterated."""
        loop = asyncio.get_running_loop()
        events = rtnetlink.LinkSocket()
        self._carriers = Carriers()
        loop.add_reader(events, self._events, events)
        reporting = None
        if self._reports is not None:
            names = [line.interface for line in self._lines]
            reporting = loop.create_task(self._reports.watch(names, self._reported))
        try:
            self._look()  # what changed before the socket was open
            self._ask()
            self._count()
            if self._interval > 0:
                raw, self._raw = self._raw, {}
                self._prober = Prober({}, self._interval, self._judged, raw)
                for row, target in self._targets().items():
                    self._aim(row, target)
                self._prober.start()
            async for step in self._board.changes():
                yield step
        finally:
            if reporting is not None:
                reporting.cancel()
            loop.remove_reader(events)
            events.close()
            if self._prober is not None:
                self._prober.close()
            self._carriers.close()
            for timer in (*self._timers.values(), *(line.timer for line in self._lines)):
                if timer is not None:
                    timer.cancel()

    def _events(self, events: rtnetlink.LinkSocket) -> None:
        told = events.read()
        if told is None:
            self._look()
            return
        for interface in told.interfaces:
            self._seen(interface)
        if told.addresses:
            self._readdress()

    def _look(self) -> None:
        """Read all interfaces and addresses; an interface that is missing has no carrier."""
        found = rtnetlink.interface_states()
        present = {interface.number for interface in found}
        for index in self._at.keys() - present:
            self._seen(rtnetlink.InterfaceState(index, "", "", carries=False, gone=True))
        for interface in found:
            self._seen(interface)
        self._readdress()

    def _seen(self, interface: rtnetlink.InterfaceState) -> None:
        row = self._at.get(interface.number)
        if row is None and not interface.gone:
            row = self._missing(interface)
        if row is None:
            return
        line = self._lines[row]
        if interface.gone:
            del self._at[interface.number]
            line.index = _GONE
        elif (line.index, line.interface) != (interface.number, interface.name):
            self._move(row, interface)
        if line.carries != interface.carries:
            self._carrier(row, line, carries=interface.carries)

    def _missing(self, interface: rtnetlink.InterfaceState) -> int | None:
        """Return the row of the link whose vanished interface this one replaces, else None."""
        gone = [row for row, line in enumerate(self._lines) if line.index == _GONE]
        alias = alias_of(interface)
        if any(alias == port.hop.port for port in self.ports):
            rows = [row for row in gone if self.ports[row].hop.port == alias]
        else:
            rows = [row for row in gone if self.ports[row].interface == interface.name]
        return rows[0] if rows else None

    def _move(self, row: int, interface: rtnetlink.InterfaceState) -> None:
        """Use another interface, or one with another name, for a link."""
        line = self._lines[row]
        line.index, line.interface = interface.number, interface.name
        self._at[interface.number] = row
        port = replace(self.ports[row], index=interface.number, interface=interface.name)
        _log.info(
            "link taken up on a new interface",
            switch=self._switch,
            link=str(line.link),
            interface=interface.name,
        )
        self._moved(row, port)

    def _readdress(self) -> None:
        """Take over the addresses of neighbours if interfaces have got others.

        An address that is still possible stays, and so does one whose interface has none now.
        """
        before, self._others = self._others, rtnetlink.neighbours()
        for row, (line, port) in enumerate(zip(self._lines, self.ports, strict=True)):
            others = self._others.get(line.index, [])
            if not others or others == before.get(line.index):
                continue
            if port.given or port.hop.address in others:
                self._moved(row, port)
                continue
            _log.info(
                "neighbour has another address",
                switch=self._switch,
                link=str(line.link),
                address=others[0],
            )
            self._moved(row, replace(port, hop=port.hop._replace(address=others[0])))

    def _moved(self, row: int, port: Port) -> None:
        self.ports[row] = port
        target = self._targets().get(row)
        if target is not None and self._prober is not None:
            self._aim(row, target)
        self.on_moved(port)

    def _targets(self) -> dict[int, Target]:
        """Return what to probe, by row."""
        return {
            row: Target(port.index, port.hop.address)
            for row, port in enumerate(self.ports)
            if port.probe and port.hop.address and self._interval > 0
        }

    def _aim(self, row: int, target: Target) -> None:
        assert self._prober is not None
        try:
            self._prober.aim(row, target)
        except ValueError as error:
            link = str(self._lines[row].link)
            _log.warning("link is not probed", switch=self._switch, link=link, why=str(error))

    def _carrier(self, row: int, line: MonitoredLink, *, carries: bool) -> None:
        line.carries = carries
        self._linked(row, line)

    def _reported(self, interface: str, up: bool) -> None:  # noqa: FBT001 - as PortReports calls it
        for row, line in enumerate(self._lines):
            if line.interface == interface and line.reported != up:
                line.reported = up
                self._linked(row, line)

    def _linked(self, row: int, line: MonitoredLink) -> None:
        if not line.linked and self._prober is not None and row in self._prober.links:
            liveness = self._prober.links[row]
            liveness.cut()
            line.answers, line.grey = liveness.alive, liveness.grey
        self._update(line)

    def _ask(self) -> None:
        """Find lost carriers that the kernel has not announced yet."""
        assert self._carriers is not None
        self._later("ask", _ASK_SECONDS, self._ask)
        for row, line in enumerate(self._lines):
            if line.carries and self._carriers.carries(line.interface) is False:
                self._carrier(row, line, carries=False)

    def _judged(self) -> None:
        assert self._prober is not None
        for row, liveness in self._prober.links.items():
            line = self._lines[row]
            if (line.answers, line.grey) != (liveness.alive, liveness.grey):
                line.answers, line.grey = liveness.alive, liveness.grey
                line.loss = liveness.loss if liveness.grey else 0.0
                self._update(line)

    def _count(self) -> None:
        """Look for packets received with errors, and for links that are too slow."""
        assert self._carriers is not None
        self._later("count", ERROR_LOOK_SECONDS, self._count)
        rated = any(line.gbps for line in self._lines)
        counts, waiting = rtnetlink.counts(), rtnetlink.waiting() if rated else set()
        now = asyncio.get_running_loop().time()
        for line in self._lines:
            packets, errors, sent = counts.get(line.index, (0, 0, 0))
            line.errors = line.history.look(packets, errors)
            line.rate = line.sending.look(now, sent, waiting=line.index in waiting)
            agreed = self._carriers.gbps(line.interface) if line.gbps and line.carries else 0.0
            line.agreed = agreed / line.gbps if 0 < agreed < line.gbps else 0.0
            if line.verdict != line.told:
                self._update(line)
        for link in self._routing.look({ln.link: ln.index for ln in self._lines if ln.told.up}):
            _log.debug("routing uses link", switch=self._switch, link=str(link))

    def _later(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        self._timers[name] = asyncio.get_running_loop().call_later(seconds, call)

    def _update(self, line: MonitoredLink) -> None:
        """Form a verdict of a link, and pass it on if it has changed."""
        loop, before = asyncio.get_running_loop(), line.damper.up
        line.judge(loop.time())
        if line.damper.up and not before:
            line.awaits_routing = loop.time() + LONGEST_SECONDS
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None
        if not line.damper.up and line.seen_up:
            line.timer = loop.call_at(line.damper.until, self._update, line)
        if line.awaits_routing and line.damper.up:
            self._await_routing(line)
        if line.verdict != line.told:
            line.told = line.verdict
            self._put(line, line.told)

    def _await_routing(self, line: MonitoredLink) -> None:
        """Check whether routing is back; if not, check again soon, until a time limit."""
        loop = asyncio.get_running_loop()
        lacks = self._routing.lacks(line.link, line.index)
        log = _log.bind(switch=self._switch, link=str(line.link))
        if lacks and loop.time() < line.awaits_routing:
            line.timer = loop.call_later(ROUTING_LOOK_SECONDS, self._update, line)
            log.debug("link awaits routing")
            return
        line.awaits_routing = 0.0
        if lacks:
            log.warning("routing does not come back to a link: it is used without")

    def _put(self, line: MonitoredLink, told: LinkVerdict) -> None:
        loss = line.lost if told.loses else 0.0
        rate = line.rate_share if told.slow else 0.0
        self._board.put(line.link, up=told.up, reason=told.reason, loss=loss, rate=rate)
        log = _log.bind(switch=self._switch, link=str(line.link), reason=told.reason)
        if told.reason == FLAPPING:
            pause = line.damper.until - asyncio.get_running_loop().time()
            log.warning("link flaps: it is kept down", seconds=round(pause, 1))
        elif told.reason == GREY:
            log.warning("link loses packets", loss_ratio=round(loss, 4))
        elif told.reason == SLOW:
            log.warning("link is slower than it should be", rate_ratio=round(rate, 4))
        else:
            log.info("link up" if told.up else "link down")


def _unheard(_: Port) -> None:
    """Ignore a moved port, if nobody has set ``on_moved``."""
