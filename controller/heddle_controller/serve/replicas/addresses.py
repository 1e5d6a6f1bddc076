"""Where agents take notices from each other, told from replica to replica.

Each tells the addresses of its own agents when these change, and all of them whenever
somebody asks, which is done once letters are read and again when some may have been
lost. Nobody depends on it at once: an agent keeps what it was told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from heddle.v1 import agent_pb2
from heddle.v1 import relay_pb2 as pb
from heddle_controller.model.errors import InputError
from heddle_controller.serve.agents.stream import AgentStream
from heddle_controller.serve.codec import names
from heddle_controller.serve.replicas.post import COMMON, Post

Learned = Callable[[str, Mapping[str, str]], None]
"""Takes a fabric, and addresses by switch."""


class Addresses:
    """Of agents that take peer notices."""

    def __init__(self, post: Post) -> None:
        self.learned: Learned = lambda _fabric, _addresses: None
        """Told of agents of other replicas; set by the wiring."""
        self._post = post
        self._ours: dict[AgentStream, tuple[str, str, str]] = {}
        self._fabrics: set[str] = set()

    def opened(self, stream: AgentStream) -> None:
        """An agent has begun a session with us."""
        about = stream.about
        if not about.peer_address:
            return
        self._ours[stream] = (about.fabric, about.switch, about.peer_address)
        self._tell(about.fabric, {about.switch: about.peer_address})
        if about.fabric not in self._fabrics:  # what was told before, we had nobody to pass on to
            self._fabrics.add(about.fabric)
            self.ask()

    def closed(self, stream: AgentStream) -> None:
        """It is over; the agent may well go on, so nobody is told."""
        self._ours.pop(stream, None)

    def ask(self) -> None:
        """Have all others tell theirs."""
        self._post.put(COMMON, pb.Note(addresses=pb.PeerAddresses(ask=True)))

    def heard(self, sender: str, told: pb.PeerAddresses) -> None:
        """Somebody tells, or asks."""
        if sender == self._post.box:
            return
        if told.ask:
            self._tell_all()
            return
        try:
            fabric = names.parse_fabric(told.fabric, "fabric")
        except InputError:
            return
        self.learned(fabric, {peer.switch: peer.address for peer in told.peers})

    def _tell_all(self) -> None:
        by_fabric: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for fabric, switch, address in self._ours.values():
            by_fabric[fabric][switch] = address
        for fabric, addresses in by_fabric.items():
            self._tell(fabric, addresses)

    def _tell(self, fabric: str, addresses: Mapping[str, str]) -> None:
        peers = [
            agent_pb2.NoticePeer(switch=switch, address=address)
            for switch, address in addresses.items()
        ]
        note = pb.PeerAddresses(fabric=names.fabric_name(fabric), peers=peers)
        self._post.put(COMMON, pb.Note(addresses=note))
