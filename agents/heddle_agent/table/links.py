"""The observed state of a link, which repair acts on and reports contain."""

from __future__ import annotations

from typing import NamedTuple

from heddle_agent.fib import Link


class LinkObservation(NamedTuple):
    """The state of one link at one time."""

    link: Link
    up: bool
    time: float
    """When it was seen, in Unix seconds by the agent's clock."""
    sequence: int
    """Grows with every change that this agent instance sees. 0 is the state at the start."""
    reason: str
    """Why the link has this state, for example "carrier", "probe", "flap-damped", "grey",
    "slow"."""
    loss: float = 0.0
    """Share of probes or packets that a grey link loses, 0 to 1."""
    rate: float = 0.0
    """Share of its rate that a slow link can still offer, below 1; 0 for other links."""
