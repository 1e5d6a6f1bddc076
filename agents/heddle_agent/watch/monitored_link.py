"""What is known of one link, and the verdict that follows from it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from heddle_agent.fib import Link
from heddle_agent.watch.damping import Damper
from heddle_agent.watch.errors import ErrorShare
from heddle_agent.watch.rates import RateShare

CARRIER, PROBE, FLAPPING, GREY, SLOW = "carrier", "probe", "flap-damped", "grey", "slow"


class LinkVerdict(NamedTuple):
    """The verdict on a link; only a changed verdict is passed on."""

    up: bool
    reason: str
    loses: bool = False
    slow: bool = False


@dataclass(slots=True)
class MonitoredLink:
    """One link and everything observed on it."""

    link: Link
    interface: str
    index: int
    """Index of the interface; 0 while there is none."""
    carries: bool
    """Whether the kernel says that it has carrier."""
    damper: Damper
    gbps: float = 0.0
    """The rate that the link should have, in Gbit/s; 0 if unknown."""
    reported: bool = True
    """False if the switch's own databases say that it is down."""
    answers: bool = True
    grey: bool = False
    loss: float = 0.0
    """Share of probes lost, if it is grey; else 0."""
    errors: float = 0.0
    """Share of packets received with errors; 0 if negligible."""
    agreed: float = 0.0
    """Share of ``gbps`` that both ends agreed on, if that is less than all of it; else 0."""
    rate: float = 0.0
    """Share of ``gbps`` that it sends while packets wait, if it is slow; else 0."""
    history: ErrorShare = field(default_factory=ErrorShare)
    awaits_routing: float = 0.0
    """Until when to wait for routing to return to the link; 0 if not waiting."""
    why: str = CARRIER
    """The reason while it is down."""
    told: LinkVerdict = LinkVerdict(up=True, reason="start")  # noqa: RUF009 - it cannot be changed
    timer: asyncio.TimerHandle | None = None
    sending: RateShare = field(init=False)

    def __post_init__(self) -> None:
        self.sending = RateShare(self.gbps)

    @property
    def linked(self) -> bool:
        """Whether neither the kernel nor the switch's databases say that it is down."""
        return self.carries and self.reported

    @property
    def seen_up(self) -> bool:
        """Whether it is up at both ends, as far as is known."""
        return self.linked and self.answers

    @property
    def lost(self) -> float:
        """Share of packets lost, as far as is known."""
        return max(self.loss, self.errors)

    @property
    def rate_share(self) -> float:
        """The lowest known share of its rate; 0 if it is not slow."""
        return min((share for share in (self.agreed, self.rate) if share), default=0.0)

    @property
    def verdict(self) -> LinkVerdict:
        """Up or down, and why."""
        if not self.damper.up or self.awaits_routing:
            return LinkVerdict(up=False, reason=self.why)
        loses, slow = bool(self.grey or self.errors), bool(self.rate_share)
        return LinkVerdict(True, GREY if loses else SLOW if slow else CARRIER, loses, slow)

    def judge(self, now: float) -> None:
        """Update the damper and the reason from what is known."""
        before = self.damper.up
        self.damper.seen(up=self.seen_up, now=now)
        if before and not self.damper.up:
            self.awaits_routing = 0.0
            self.why = PROBE if self.linked else CARRIER
        if self.damper.flapping:
            self.why = FLAPPING
