"""One link and what is known of it; forms the verdict that is passed on."""

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
    """What is told of a link; a new one is passed on."""

    up: bool
    reason: str
    loses: bool = False
    slow: bool = False


@dataclass(slots=True)
class MonitoredLink:
    """One link."""

    link: Link
    interface: str
    index: int
    """Of the interface; 0 while it is not there."""
    carries: bool
    """Whether the kernel says that it has carrier."""
    damper: Damper
    gbps: float = 0.0
    """What the link is meant for; 0 where nobody has said."""
    reported: bool = True
    """Whether the switch's own databases do not say that it is down."""
    answers: bool = True
    grey: bool = False
    loss: float = 0.0
    """Share of probes lost, where it is grey."""
    errors: float = 0.0
    """Share of packets received in error, where that is worth a word."""
    agreed: float = 0.0
    """Share of its rate that its ends have agreed on, where that is less than all of it."""
    rate: float = 0.0
    """Share of its rate that it sends while packets wait, where it is slow."""
    history: ErrorShare = field(default_factory=ErrorShare)
    awaits_routing: float = 0.0
    """Until when it is waited for that routing comes back to the link; 0 for not at all."""
    why: str = CARRIER
    """It is down, until it is believed up again."""
    told: LinkVerdict = LinkVerdict(up=True, reason="start")  # noqa: RUF009 - it cannot be changed
    timer: asyncio.TimerHandle | None = None
    sending: RateShare = field(init=False)

    def __post_init__(self) -> None:
        self.sending = RateShare(self.gbps)

    @property
    def linked(self) -> bool:
        """Whether nobody at this end says that it is down."""
        return self.carries and self.reported

    @property
    def seen_up(self) -> bool:
        """Whether it is up at both ends, as far as anybody knows."""
        return self.linked and self.answers

    @property
    def lost(self) -> float:
        """Share of packets lost, as far as anybody knows."""
        return max(self.loss, self.errors)

    @property
    def rate_share(self) -> float:
        """The least that is known of its rate as a share; 0 where nothing is wrong with it."""
        return min((share for share in (self.agreed, self.rate) if share), default=0.0)

    @property
    def verdict(self) -> LinkVerdict:
        """Up or down, and why."""
        if not self.damper.up or self.awaits_routing:
            return LinkVerdict(up=False, reason=self.why)
        loses, slow = bool(self.grey or self.errors), bool(self.rate_share)
        return LinkVerdict(True, GREY if loses else SLOW if slow else CARRIER, loses, slow)

    def judge(self, now: float) -> None:
        """Form an verdict from what is known."""
        before = self.damper.up
        self.damper.seen(up=self.seen_up, now=now)
        if before and not self.damper.up:
            self.awaits_routing = 0.0
            self.why = PROBE if self.linked else CARRIER
        if self.damper.flapping:
            self.why = FLAPPING
