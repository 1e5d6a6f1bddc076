"""Forwarding backends behind one Protocol, and the values that all other packages exchange."""

from heddle_agent.fib.hashing import flow_hash, flow_hashes, name_hash
from heddle_agent.fib.memory import MemoryFib
from heddle_agent.fib.names import NicIds, Packets
from heddle_agent.fib.port import Avoiding, Detouring, Fib, Metering
from heddle_agent.fib.underlay import DROPPED, DirectUnderlay, Underlay
from heddle_agent.fib.values import (
    ANY_PORT,
    PAIRS_COUNTED,
    Batch,
    Capability,
    Choice,
    Count,
    Failure,
    Group,
    Link,
    LinkRisks,
    Match,
    NextHop,
    Nic,
    Packet,
    Reason,
    Risks,
    Steering,
)

__all__ = [
    "ANY_PORT",
    "DROPPED",
    "PAIRS_COUNTED",
    "Avoiding",
    "Batch",
    "Capability",
    "Choice",
    "Count",
    "Detouring",
    "DirectUnderlay",
    "Failure",
    "Fib",
    "Group",
    "Link",
    "LinkRisks",
    "Match",
    "MemoryFib",
    "Metering",
    "NextHop",
    "Nic",
    "NicIds",
    "Packet",
    "Packets",
    "Reason",
    "Risks",
    "Steering",
    "Underlay",
    "flow_hash",
    "flow_hashes",
    "name_hash",
]
