"""Failure notices between agents over the management network, without a controller."""

from heddle_agent.peers.configuration import PeerConfiguration, read_peers
from heddle_agent.peers.keys import KeyRing, read_keys
from heddle_agent.peers.link_view import LinkView
from heddle_agent.peers.network import (
    Attachment,
    MemoryNetwork,
    UdpNetwork,
    parse_address,
)
from heddle_agent.peers.notices import TICK_SECONDS, PeerNotices
from heddle_agent.peers.refusals import Refusal
from heddle_agent.peers.saved import PeerFile, SavedPeers

__all__ = [
    "TICK_SECONDS",
    "Attachment",
    "KeyRing",
    "LinkView",
    "MemoryNetwork",
    "PeerConfiguration",
    "PeerFile",
    "PeerNotices",
    "Refusal",
    "SavedPeers",
    "UdpNetwork",
    "parse_address",
    "read_keys",
    "read_peers",
]
