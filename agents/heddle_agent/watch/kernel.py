"""Links as the kernel and the far end know them: carrier, probes, and patience with both.

    netlink says carrier lost or back  --+
                                         +-> Damper -> Board -> agent
    probes unanswered, or again answered +

The kernel may tell of a lost carrier late, so carriers are also asked for (``carrier``). A link is
seen up when it has carrier and its neighbour answers. Down is passed on at once; up once the link
has held (``damping``). Some probes lost, but not all, or packets received in error (``errors``), is
a grey link: it stays up, since only a plan can say whether the fabric can spare it, and the
controller is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import structlog

from heddle_agent.fib import Link, NextHop
from heddle_agent.table import LinkObservation
from heddle_agent.watch import rtnetlink
from heddle_agent.watch.board import Board
from heddle_agent.watch.carrier import Carriers
from heddle_agent.watch.damping import Damper, Patience
from heddle_agent.watch.errors import LOOK_SECONDS, ErrorShare
from heddle_agent.watch.ports import Port
from heddle_agent.watch.probe import Prober, Target, open_socket

_log = structlog.get_logger()

_ASK_SECONDS = 0.004
CARRIER, PROBE, FLAPPING, GREY = "carrier", "probe", "flap-damped", "grey"


@dataclass(slots=True)
class _Line:
    """One link and what is known of it."""

    link: Link
    interface: str
    carries: bool
    damper: Damper
    answers: bool = True
    grey: bool = False
    loss: float = 0.0
    """Share of probes lost, where it is grey."""
    errors: float = 0.0
    """Share of packets received in error, where that is worth a word."""
    history: ErrorShare = field(default_factory=ErrorShare)
    why: str = CARRIER
    """It is down, until it is believed up again."""
    told: tuple[bool, str] = field(default=(True, "start"))
    timer: asyncio.TimerHandle | None = None

    @property
    def state(self) -> tuple[bool, str]:
        """Up or down, and why."""
        if self.damper.up:
            return True, GREY if self.grey or self.errors else CARRIER
        return False, self.why

    def judge(self, now: float) -> None:
        """Form an opinion from what is known."""
        before = self.damper.up
        self.damper.seen(up=self.carries and self.answers, now=now)
        if before and not self.damper.up:
            self.why = PROBE if self.carries else CARRIER
        if self.damper.flapping:
            self.why = FLAPPING


class KernelLinks:
    """The links of this network namespace. Watching begins and ends with ``changes``."""

    def __init__(
        self,
        switch: str,
        ports: Sequence[Port],
        *,
        probe_seconds: float = 0.0,
        patience: Patience | None = None,
    ) -> None:
        """``probe_seconds`` is the interval of probes, 0 for none.

        ValueError if probes are wanted and this process may not send them.
        """
        self.next_hops: Sequence[NextHop] = [port.hop for port in ports]
        self.ports = ports
        self._switch = switch
        patience = patience or Patience()
        self._lines = {
            port.index: _Line(
                Link.between(switch, port.hop.node, port.hop.key),
                port.interface,
                port.carries,
                Damper(patience, up=port.carries),
            )
            for port in ports
        }
        self._board = Board(line.link for line in self._lines.values())
        for line in self._lines.values():
            line.told = line.state
            self._board.found(line.link, up=line.carries)
        self._probed = {
            port.index: Target(port.index, port.hop.address)
            for port in ports
            if port.probe and probe_seconds > 0
        }
        self._interval = probe_seconds
        self._raw = open_socket() if self._probed else None
        self._prober: Prober | None = None
        self._carriers: Carriers | None = None
        self._asking: asyncio.TimerHandle | None = None
        self._counting: asyncio.TimerHandle | None = None

    def current(self) -> Sequence[LinkObservation]:
        """All links as they are believed to be now."""
        return self._board.current()

    @property
    def held_down(self) -> int:
        """Links that are kept down because they flap."""
        return sum(line.damper.flapping for line in self._lines.values())

    @property
    def grey(self) -> int:
        """Links that lose some of what they carry."""
        return sum(line.grey for line in self._lines.values())

    async def changes(self) -> AsyncGenerator[Sequence[LinkObservation], None]:
        """Changes as they come; the kernel is watched while somebody asks."""
        loop = asyncio.get_running_loop()
        events = rtnetlink.LinkSocket()
        self._carriers = Carriers()
        loop.add_reader(events, self._events, events)
        try:
            self._look()  # what changed before the socket was open
            self._ask()
            self._count()
            if self._raw is not None:
                raw, self._raw = self._raw, None
                self._prober = Prober(self._probed, self._interval, self._judged, raw)
                self._prober.start()
            async for step in self._board.changes():
                yield step
        finally:
            loop.remove_reader(events)
            events.close()
            if self._prober is not None:
                self._prober.close()
            self._carriers.close()
            timers = [self._asking, self._counting, *(line.timer for line in self._lines.values())]
            for timer in timers:
                if timer is not None:
                    timer.cancel()

    def _events(self, events: rtnetlink.LinkSocket) -> None:
        told = events.read()
        if told is None:
            self._look()
            return
        for interface in told:
            self._seen(interface)

    def _look(self) -> None:
        """Take all interfaces as they are; one that is missing carries nothing."""
        found = {interface.number: interface for interface in rtnetlink.interfaces()}
        for index in self._lines:
            self._seen(found.get(index) or rtnetlink.Interface(index, "", "", carries=False))

    def _seen(self, interface: rtnetlink.Interface) -> None:
        line = self._lines.get(interface.number)
        if line is not None and line.carries != interface.carries:
            self._carrier(interface.number, line, carries=interface.carries)

    def _carrier(self, index: int, line: _Line, *, carries: bool) -> None:
        line.carries = carries
        if not carries and self._prober is not None and index in self._prober.links:
            liveness = self._prober.links[index]
            liveness.cut()
            line.answers, line.grey = liveness.alive, liveness.grey
        self._update(line)

    def _ask(self) -> None:
        """Find losses that the kernel has not told of yet."""
        assert self._carriers is not None
        self._asking = asyncio.get_running_loop().call_later(_ASK_SECONDS, self._ask)
        for index, line in self._lines.items():
            if line.carries and self._carriers.carries(line.interface) is False:
                self._carrier(index, line, carries=False)

    def _judged(self) -> None:
        assert self._prober is not None
        for index, liveness in self._prober.links.items():
            line = self._lines[index]
            if (line.answers, line.grey) != (liveness.alive, liveness.grey):
                line.answers, line.grey = liveness.alive, liveness.grey
                line.loss = liveness.loss if liveness.grey else 0.0
                self._update(line)

    def _count(self) -> None:
        """Look for packets received in error."""
        self._counting = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._count)
        counts = rtnetlink.received()
        for index, line in self._lines.items():
            before, line.errors = line.errors, line.history.look(*counts.get(index, (0, 0)))
            if (before > 0) != (line.errors > 0):
                self._update(line)

    def _update(self, line: _Line) -> None:
        """Form an opinion of a link, and pass it on if it is a new one."""
        loop = asyncio.get_running_loop()
        line.judge(loop.time())
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None
        if not line.damper.up and line.carries and line.answers:
            line.timer = loop.call_at(line.damper.until, self._update, line)
        if line.state != line.told:
            line.told = line.state
            up, reason = line.state
            loss = max(line.loss, line.errors) if reason == GREY else 0.0
            self._board.put(line.link, up=up, reason=reason, loss=loss)
            self._tell(line, up, reason, loss)

    def _tell(self, line: _Line, up: bool, reason: str, loss: float) -> None:  # noqa: FBT001
        log = _log.bind(switch=self._switch, link=str(line.link), reason=reason)
        if reason == FLAPPING:
            pause = line.damper.until - asyncio.get_running_loop().time()
            log.warning("link flaps: it is kept down", seconds=round(pause, 1))
        elif reason == GREY:
            log.warning("link loses packets", loss_ratio=round(loss, 4))
        else:
            log.info("link up" if up else "link down")
