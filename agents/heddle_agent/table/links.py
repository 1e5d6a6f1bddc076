"""The state of a link as somebody saw it: what repair acts on and reports speak of."""

from __future__ import annotations

from typing import NamedTuple

from heddle_agent.fib import Link


class LinkObservation(NamedTuple):
    """One link at one time."""

    link: Link
    up: bool
    time: float
    """When it was seen, in seconds since 1970 by the agent's clock."""
    sequence: int
    """Grows with every change that this agent instance sees; 0 is how it found the link."""
    reason: str
    """Why, for example "carrier", "probe", "flap-damped", "grey", "slow"."""
    loss: float = 0.0
    """Share of probes or packets that a grey link loses, 0 to 1."""
    rate: float = 0.0
    """Share of its rate that a slow link has to offer, below 1; 0 for others."""
