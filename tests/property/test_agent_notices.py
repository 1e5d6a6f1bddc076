"""Agents of a whole fabric, while links fail in quick succession."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_agent.agent import Agent
from heddle_agent.fib import Link, MemoryFib, NextHop, Packet
from heddle_agent.peers import PeerConfiguration
from heddle_agent.watch import ManualLinks
from tests.support.agent_worlds import FixedUnderlay, push, take
from tests.support.depth import examples
from tests.support.peer_notices import FABRIC, KEY, LossyNetwork, Place

LEAVES, SPINES = 4, 4
PAIRS = [(a, b) for a in range(LEAVES) for b in range(LEAVES) if a != b]
EVENTS = st.lists(
    st.tuples(st.integers(0, LEAVES - 1), st.integers(0, SPINES - 1), st.booleans()),
    min_size=1,
    max_size=12,
)
Down = set[tuple[int, int]]
"""Links that are down, by leaf and spine."""


@settings(max_examples=examples(12))
@given(EVENTS, st.integers(0, 2**32), st.integers(0, 50))
def test_no_flow_is_left_on_a_dead_path(
    events: list[tuple[int, int, bool]], seed: int, pace: int
) -> None:
    """In the end each entry's path is whole, or the underlay carries it because both are dead.

    Links fail and return while notices of earlier changes are still under way, in any order.
    """
    network = LossyNetwork(random.Random(seed))
    agents = {name: agent(name, network) for name in names()}
    for one in agents.values():
        assert one.peer_notices is not None
        network.agents[one.switch] = one.peer_notices
        one.peer_notices.set_peers({hop.node: hop.node for hop in one.links.next_hops})
    network.deliver()
    down: Down = set()
    for leaf, spine, up in events:
        (down.discard if up else down.add)((leaf, spine))
        for end, other in ((f"l{leaf}", f"s{spine}"), (f"s{spine}", f"l{leaf}")):
            seen(agents[end], other, up=up)
        network.deliver(pace)
    network.deliver()
    for source, destination in PAIRS:
        fib = agents[f"l{source}"].forwarding.fib
        assert isinstance(fib, MemoryFib)
        hop = fib.lookup(Packet(f"n{source}", f"n{destination}", 50_000))
        ways = [s for s in ways_of(source, destination) if alive(down, source, s, destination)]
        if ways:
            assert hop == NextHop(f"s{ways[0]}"), (source, destination, down)
        elif hop is not None:
            assert (source, int(hop.node[1:])) not in down


def names() -> list[str]:
    """The names of all switches."""
    return [*(f"l{leaf}" for leaf in range(LEAVES)), *(f"s{spine}" for spine in range(SPINES))]


def agent(switch: str, network: LossyNetwork) -> Agent:
    """A real agent. That of a leaf has an entry towards a NIC of each other leaf."""
    others = [name for name in names() if name[0] != switch[0]]
    hops = [NextHop(other) for other in others]
    one = Agent(
        fabric=FABRIC,
        switch=switch,
        controllers=["127.0.0.1:9"],
        fib=MemoryFib(switch, hops, FixedUnderlay(hops)),
        links=ManualLinks(switch, hops),
        peer_configuration=PeerConfiguration(Place(network, switch), keys=[KEY], peers={}),
    )
    if switch[0] == "l":
        leaf = int(switch[1:])
        assert not take(one.forwarding, push([entry(*p) for p in PAIRS if p[0] == leaf])).failures
    return one


def entry(
    source: int, destination: int
) -> tuple[tuple[str, str, int, int], tuple[NextHop, NextHop, tuple[Link, ...], tuple[Link, ...]]]:
    """An entry over two spines, one as primary and one as backup, with the risks of each."""
    first, second = ways_of(source, destination)
    far = f"l{destination}"
    return (
        (f"n{source}", f"n{destination}", 0, 0),
        (
            NextHop(f"s{first}"),
            NextHop(f"s{second}"),
            (Link.between(f"s{first}", far),),
            (Link.between(f"s{second}", far),),
        ),
    )


def seen(one: Agent, other: str, *, up: bool) -> None:
    """Report a change of a link to an agent, as its watch would."""
    links = one.links
    assert isinstance(links, ManualLinks)
    (links.up if up else links.down)(other)
    one._repair(links.current())


def ways_of(source: int, destination: int) -> tuple[int, int]:
    """The spines of an entry's primary and backup."""
    return (source + destination) % SPINES, (source + destination + 1) % SPINES


def alive(down: Down, source: int, spine: int, destination: int) -> bool:
    """Whether both links of a path are up."""
    return down.isdisjoint({(source, spine), (destination, spine)})
