"""Targets: messages to agents, from controllers and from each other, and messages from agents."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError, Message

from heddle.v1 import agent_pb2 as pb
from heddle.v1 import common_pb2
from heddle_agent.fib import Link, MemoryFib
from heddle_agent.peers import KeyRing, PeerNotices, wire
from heddle_agent.peers.wire import MalformedError
from heddle_agent.session.decode import decode_push
from heddle_agent.table import Forwarding, Status
from heddle_controller.model.errors import InputError
from heddle_controller.model.program import no_entries
from heddle_controller.reconcile.ports import Push, PushMode
from heddle_controller.serve.codec import agent as codec
from tests.fuzz import columns
from tests.fuzz.target import Target, check
from tests.fuzz.wires import disturbed, message, varied
from tests.support.agent_controllers import numbers, wire_push
from tests.support.agent_worlds import SPINES, SWITCH, FixedUnderlay
from tests.support.peer_notices import FABRIC, KEY, LossyNetwork, Place
from tests.support.store_samples import clos


def parsed(kind: type[Any], use: Callable[[Any], bool]) -> Callable[[bytes], bool]:
    """Return a target function that parses bytes first, and refuses what cannot be parsed."""

    def run(content: bytes) -> bool:
        made = kind()
        try:
            made.ParseFromString(content)
        except DecodeError:
            return False
        return use(made)

    return run


def _push(made: pb.Push) -> bool:
    """Program a push, and check that the table then holds it, with next hops of the switch."""
    if not columns.judge(made):
        return False
    push = decode_push(made)
    fib = MemoryFib(SWITCH, SPINES, FixedUnderlay(), table_size=64)
    forwarding = Forwarding(SWITCH, fib, (hop.port for hop in SPINES))
    receipt = forwarding.receive(push)
    forwarding.program(push)
    held = fib.read_back()
    local = {hop.port for hop in SPINES}
    named = set(made.operations.names)
    for (source, destination, *ports), group in held.items():
        check(group.primary.port in local, "a next hop is the switch's own")
        check(group.backup is None or group.backup.port in local, "so is a backup")
        check({source, destination} <= named, "NICs are those of the push")
        check(all(0 <= port < 65536 for port in ports), "ports are ports")
    check(len(held) <= 64, "the table's size holds")
    taken = receipt.status is Status.APPLIED
    check(forwarding.table.fence.epoch == (made.epoch if taken else 0), "the fence is what it was")
    return bool(held)


def _session(made: pb.SessionParameters) -> bool:
    try:
        about = codec.session_from_pb(made, 1)
    except InputError:
        return False
    check(made.fabric == f"fabrics/{about.fabric}", "a session is of the fabric it names")
    check(about.switch == made.switch, "and of the switch")
    check(0 <= about.generation < 1 << 63, "numbers fit the store")
    return True


SENT = Push(
    PushMode.FULL_SYNC, 1, 1, clos(), no_entries(), no_entries(), tell_table=True, tell_entries=True
)


def _result(made: pb.PushResult) -> bool:
    try:
        codec.stage_from_pb(made, SENT, 1.0)
        codec.table_from_pb(made, SENT, "l0")
    except InputError:
        return False
    check((made.epoch, made.generation) == (1, 1), "an answer is of its push")
    return True


def _links(made: pb.LinkStateReport) -> bool:
    try:
        report = codec.links_from_pb(made)
    except InputError:
        return False
    for seen in report.links:
        check(seen.state.name in {"UP", "DOWN"}, "links are up or down")
        check(0 <= seen.sequence < 1 << 63, "numbers fit the store")
    return True


def _counters(made: pb.CounterReport) -> bool:
    try:
        counters = codec.counters_from_pb(made)
    except InputError:
        return False
    check(counters is not None, "counters are something")
    return True


class Peers:
    """Two agents that know each other, and what the peer has really sent."""

    def __init__(self) -> None:
        self.network = LossyNetwork(random.Random(1))
        self.heard: list[object] = []
        self.agents = {name: self._notices(name) for name in ("l0", "s0")}
        for name, other in (("l0", "s0"), ("s0", "l0")):
            self.agents[name].set_peers({other: other})
        self.network.agents = self.agents
        self.network.deliver()
        self.agents["s0"].announce([Link.between("s0", "l1")])
        self.sent = [datagram for _, target, datagram in self.network.waiting if target == "l0"]
        self.network.deliver()
        check(self.heard, "what was really sent is heard")
        check(self.sent, "and is known here")
        self.heard.clear()

    def _notices(self, name: str) -> PeerNotices:
        return PeerNotices(
            fabric=FABRIC,
            switch=name,
            keys=KeyRing([KEY], clock=lambda: 0.0),
            network=Place(self.network, name),
            heard=lambda switch, down: self.heard.append((switch, tuple(down))),
            boot=1,
        )

    def strike(self, content: bytes) -> bool:
        """Check that no datagram moves a flow without the key, or if it was heard before."""
        self.agents["l0"].receive(content, "10.9.9.9:7")
        self.network.waiting.clear()
        check(not self.heard, "nobody is believed without the key, or twice")
        return False


def _body(
    decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]
) -> Callable[[bytes], bool]:
    """Return a target function that checks that an accepted body survives a round trip."""

    def run(content: bytes) -> bool:
        try:
            made = decode(content)
        except MalformedError:
            return False
        check(decode(encode(made)) == made, "a body survives a round trip")
        return True

    return run


def _make(good: Message) -> Callable[[random.Random], bytes]:
    """Return a maker of messages that resemble a good one, or only have its type."""

    def make(chance: random.Random) -> bytes:
        if chance.random() < 0.6:
            return disturbed(good, chance).SerializeToString()
        descriptor: Any = good.DESCRIPTOR
        return message(descriptor, chance).SerializeToString()

    return make


def _message(name: str, good: Message, use: Callable[[Any], bool], weight: float = 2) -> Target:
    content = good.SerializeToString()
    make = _make(good)
    return Target(
        name, parsed(type(good), use), [content], make, varied(type(good), make), weight=weight
    )


def _numbered(push: pb.Push) -> pb.Push:
    """Give the names of a push numbers of their own, which later pushes may use."""
    names = push.operations.names
    push.operations.name_numbers = numbers(*range(len(names)))
    push.new_names = True
    return push


def good() -> dict[str, Any]:
    """Return a good message of each kind."""
    link = common_pb2.LinkRef(source="l0", target="s0", key="0")
    seen = pb.LinkObservation(link=link, state=common_pb2.STATE_DOWN, sequence=3, reason="carrier")
    rows = [("nic0", "far0", 0, 0, 1), ("nic0", "far1", 100, 2, None)]
    return {
        "push": wire_push(*rows, full=True, risk=("spine0", "leaf1")),
        "numbered push": _numbered(wire_push(*rows, full=True, risk=("spine0", "leaf1"))),
        "session": pb.SessionParameters(fabric="fabrics/f1", switch="l0", instance_id="i1"),
        "result": pb.PushResult(
            nonce=1, epoch=1, generation=1, stage=pb.PUSH_STAGE_FIB, status=pb.PUSH_STATUS_APPLIED
        ),
        "links": pb.LinkStateReport(links=[seen], full=True),
        "counters": pb.CounterReport(
            endpoints=[pb.Endpoint(nic="n0.0"), pb.Endpoint(nic="n1.0")],
            sources=[0],
            destinations=[1],
            source_ports=[0],
            packets=[3],
            bytes=[300],
        ),
    }


def _pushes(*good: Message) -> Target:
    """Return the target for pushes, whose columns are also changed number by number."""
    pushes = [push for push in good if isinstance(push, pb.Push)]
    plain = [_make(push) for push in pushes]

    def make(chance: random.Random) -> bytes:
        if chance.random() < 0.2:
            return chance.choice(plain)(chance)
        return columns.changed(chance.choice(pushes), chance).SerializeToString()

    def vary(content: bytes, chance: random.Random) -> bytes:
        before = pb.Push()
        try:
            before.ParseFromString(content)
        except DecodeError:
            return make(chance)
        return columns.changed(before, chance).SerializeToString()

    run = parsed(pb.Push, _push)
    corpus = [push.SerializeToString() for push in pushes]
    return Target("push to an agent", run, corpus, make, vary, weight=5)


def targets() -> list[Target]:
    """Return all targets of this module."""
    agents, kinds = Peers(), good()
    record = wire.Record("s0", 3, 4, (Link.between("s0", "l1"),))
    notice, digest = wire.encode_notice(record), wire.encode_digest(3, 2**40)
    return [
        _pushes(kinds["push"], kinds["numbered push"]),
        _message("session of an agent", kinds["session"], _session),
        _message("answer of an agent", kinds["result"], _result),
        _message("links of an agent", kinds["links"], _links),
        _message("counters of an agent", kinds["counters"], _counters),
        Target("datagram to a peer", agents.strike, agents.sent, weight=4),
        Target("notice", _body(wire.decode_notice, wire.encode_notice), [notice], weight=4),
        Target("digest", _body(wire.decode_digest, _digest), [digest], weight=2),
    ]


def _digest(told: tuple[int, int]) -> bytes:
    return wire.encode_digest(*told)
