"""Notices among agents, over the management network, with no controller: see ``door``."""

from heddle_agent.backdoor.door import TICK_SECONDS, BackDoor
from heddle_agent.backdoor.doorway import Doorway, read_peers
from heddle_agent.backdoor.keys import KeyRing, read_keys
from heddle_agent.backdoor.memory_file import Memory, MemoryFile
from heddle_agent.backdoor.network import (
    Attachment,
    MemoryNetwork,
    UdpNetwork,
    parse_address,
)
from heddle_agent.backdoor.refusals import Refusal
from heddle_agent.backdoor.view import LinkView

__all__ = [
    "TICK_SECONDS",
    "Attachment",
    "BackDoor",
    "Doorway",
    "KeyRing",
    "LinkView",
    "Memory",
    "MemoryFile",
    "MemoryNetwork",
    "Refusal",
    "UdpNetwork",
    "parse_address",
    "read_keys",
    "read_peers",
]
