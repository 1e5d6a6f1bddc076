"""Peer notices in a lossy network: agents agree on the links down, and believe no garbage."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_agent.fib import Link
from heddle_agent.peers import TICK_SECONDS, KeyRing, LinkView, PeerNotices, wire
from heddle_agent.peers.notices import DIGESTS_A_TICK
from tests.support.depth import examples
from tests.support.peer_notices import KEY, LossyNetwork, clos, notices_of


@dataclass
class World:
    """Agents that send peer notices, what each believes about the links, and the truth."""

    links: list[Link]
    network: LossyNetwork
    views: dict[str, LinkView] = field(default_factory=dict)
    agents: dict[str, PeerNotices] = field(default_factory=dict)
    down: set[Link] = field(default_factory=set)

    def start(self, switch: str, boot: int) -> None:
        """Start an agent that knows only its own links and its peers."""
        self.views[switch] = LinkView()
        self.network.now += 1.0
        self.agents[switch] = notices_of(switch, self.network, self.heard(switch), boot=boot)
        self.agents[switch].set_peers(self.peers(switch))
        self.tell(switch)

    def heard(self, switch: str) -> Callable[[str, Collection[Link]], None]:
        """A callback that records notices in the switch's view."""

        def note(origin: str, down: Collection[Link]) -> None:
            self.views[switch].report(origin, down)

        return note

    def peers(self, switch: str) -> dict[str, str]:
        """The switch's neighbours in the fabric."""
        ends = ({link.source, link.target} - {switch} for link in self.links if switch in link[:2])
        return {peer: peer for end in ends for peer in end}

    def tell(self, switch: str) -> None:
        """Tell a switch the true state of its own links."""
        own = [link for link in self.down if switch in link[:2]]
        self.views[switch].report(switch, own)
        self.agents[switch].announce(own)

    def flip(self, link: Link) -> None:
        """Take a link down or bring it back; both ends see it."""
        self.down ^= {link}
        for switch in link[:2]:
            self.tell(switch)

    def round(self) -> None:
        """Every agent sends a digest, and all messages that follow arrive or are lost."""
        self.network.now += TICK_SECONDS
        for one in self.agents.values():
            one.tick()
        self.network.deliver()


EVENTS = st.lists(st.tuples(st.sampled_from(["link", "deliver", "round", "boot"]), st.integers(0)))


@settings(max_examples=examples(10))
@given(events=EVENTS, loss=st.floats(0, 1), doubled=st.floats(0, 0.5), seed=st.integers(0, 2**32))
def test_all_agree_once_digests_went_round(
    events: list[tuple[str, int]], loss: float, doubled: float, seed: int
) -> None:
    """After any losses, a few rounds of digests leave every agent with the truth.

    Links flap, agents restart with a lower boot number, and datagrams are lost, doubled and
    reordered.
    """
    world = built(clos(8, 3), seed)
    world.network.loss, world.network.doubled = loss, doubled
    for what, number in events:
        match what:
            case "link":
                world.flip(world.links[number % len(world.links)])
            case "deliver":
                world.network.deliver(number % 200)
            case "round":
                world.round()
            case "boot":
                names = sorted(world.agents)
                world.start(names[number % len(names)], boot=1 + number % 200)
    agreed(world)


def test_eighty_agents_agree_after_a_bad_minute() -> None:
    """Agents agree in a fabric of 80 switches that lose every third datagram."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - how to run it again
    chance = random.Random(seed)
    world = built(clos(72, 8), seed)
    world.network.loss = 1 / 3
    for _ in range(40):
        world.flip(chance.choice(world.links))
        world.network.deliver(chance.randrange(400))
    for name in chance.sample(sorted(world.agents), 3):
        world.start(name, boot=1)
    world.round()
    agreed(world)


def built(links: list[Link], seed: int) -> World:
    """A fabric whose agents all know each other."""
    world = World(links, LossyNetwork(random.Random(seed)))
    for switch in sorted({end for link in links for end in link[:2]}):
        world.start(switch, boot=100)
    world.network.deliver()
    return world


def agreed(world: World) -> None:
    """Assert that all agents know which links are down, once no more datagrams are lost.

    There and back across the fabric are four hops, so digests to all peers need to go round four
    times at most.
    """
    world.network.loss = 0.0
    world.network.deliver()
    most = max(len(one.peers) for one in world.agents.values())
    for _ in range(4 * -(-most // DIGESTS_A_TICK)):
        world.round()
        if len({one.records.summary for one in world.agents.values()}) == 1:
            break
    assert {name: view.down for name, view in world.views.items()} == dict.fromkeys(
        world.views, frozenset(world.down)
    )
    assert len({one.records.summary for one in world.agents.values()}) == 1


@given(st.binary(max_size=400), st.integers(0, 2**64), st.booleans())
def test_garbage_never_raises(noise: bytes, seed: int, signed: bool) -> None:  # noqa: FBT001
    """Noise, flipped bits, fragments and signed nonsense are dropped, counted and not believed."""
    network = LossyNetwork(random.Random(seed))
    believed: list[str] = []
    one = notices_of("a", network, lambda origin, down: believed.extend([origin] * len(down)))
    other = notices_of("b", network, lambda *_: None)
    one.set_peers({"b": "b"})
    other.set_peers({"a": "a"})
    network.deliver()
    before = sum(one.refusals.counts.values())
    other.announce([Link("a", "b")])
    (datagram,) = [sent for _, target, sent in network.waiting if target == "a"]
    network.waiting.clear()
    bits = bytearray(datagram)
    bits[seed % len(bits)] ^= 1 + seed % 255
    one.receive(noise, "anywhere")
    one.receive(bytes(bits), "b")
    one.receive(datagram[: seed % len(datagram)], "b")
    if signed:
        one.receive(resigned(datagram, noise), "b")
    assert believed == []
    assert sum(one.refusals.counts.values()) - before >= 3
    one.receive(datagram, "b")
    assert believed == ["b"]


def resigned(datagram: bytes, noise: bytes) -> bytes:
    """A datagram as a rogue insider could send it: a valid head and signature, but any body."""
    head = wire.unseal(datagram).head
    body = noise + b"\xff"  # a body of no known kind: no text and no number ends like this
    return wire.seal(head._replace(counter=head.counter + 1), body, KEY)


def test_the_ring_believes_what_was_handed_out() -> None:
    """The newest key signs. The one before it is believed only for the time of grace."""
    now = [0.0]
    ring = KeyRing([KEY], clock=lambda: now[0], grace=10)
    first = ring.signing
    assert first is not None
    ring.replace([b"another key of enough bytes"])
    assert ring.find(first[0]) == KEY
    now[0] = 11.0
    assert ring.find(first[0]) is None
