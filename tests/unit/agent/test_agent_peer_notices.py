from __future__ import annotations

from collections.abc import Collection

import pytest
from structlog.testing import capture_logs

from heddle_agent.fib import Link
from heddle_agent.peers import LinkView, PeerNotices, Refusal, wire
from heddle_agent.peers.notices import LAPSE_SECONDS, REFRESH_SECONDS
from tests.support.peer_notices import KEY, LossyNetwork, notices_of

OTHER = b"some other key of many bytes"
LOST = Link("leaf9", "spine0")


class Pair:
    """Two neighbouring agents, a leaf and a spine, and what the leaf hears from the spine."""

    def __init__(
        self, leaf_keys: Collection[bytes] = (KEY,), spine_keys: Collection[bytes] = (KEY,)
    ) -> None:
        self.network = LossyNetwork()
        self.heard: list[tuple[str, tuple[Link, ...]]] = []
        self.leaf = notices_of("leaf0", self.network, self.note, keys=list(leaf_keys))
        self.spine = notices_of("spine0", self.network, lambda *_: None, keys=list(spine_keys))
        self.leaf.set_peers({"spine0": "spine0"})
        self.spine.set_peers({"leaf0": "leaf0"})
        self.network.deliver()

    def note(self, origin: str, down: Collection[Link]) -> None:
        """Record what the leaf hears."""
        self.heard.append((origin, tuple(down)))

    def notice(self, *down: Link) -> bytes:
        """Return the datagram with which the spine tells the leaf, without delivering it."""
        self.spine.announce(down)
        (datagram,) = [sent for _, target, sent in self.network.waiting if target == "leaf0"]
        self.network.waiting.clear()
        return datagram

    def refused(self) -> dict[Refusal, int]:
        """Return how many datagrams the leaf has dropped, by reason."""
        return dict(self.leaf.refusals.counts)


def test_a_notice_is_heard_once() -> None:
    """A lost link and its return are heard. A copy of either is dropped as replayed."""
    pair = Pair()
    lost = pair.notice(LOST)
    pair.leaf.receive(lost, "spine0")
    back = pair.notice()
    pair.leaf.receive(back, "spine0")
    for copy in (lost, back):
        pair.leaf.receive(copy, "spine0")
    assert pair.heard == [("spine0", (LOST,)), ("spine0", ())]
    assert pair.refused() == {Refusal.REPLAYED: 2}


def test_notices_that_overtake_each_other_leave_the_newest() -> None:
    """The older of two notices is recognised as older when it arrives last."""
    pair = Pair()
    lost, back = pair.notice(LOST), pair.notice()
    pair.leaf.receive(back, "spine0")
    pair.leaf.receive(lost, "spine0")
    assert pair.heard == [("spine0", ())]


def test_an_unknown_key_and_a_forged_signature_are_told_apart() -> None:
    """Both datagrams are dropped. The log names the reason and the sender's address."""
    pair = Pair(spine_keys=[OTHER])
    stray = next(iter(pair.leaf.refusals.counts))
    assert stray is Refusal.KEY
    own = Pair()
    datagram = own.notice(LOST)
    head = wire.unseal(datagram).head
    with capture_logs() as logs:
        own.leaf.receive(datagram[:-1] + bytes([datagram[-1] ^ 1]), "10.0.0.7:9")
        own.leaf.receive(wire.seal(head, b"", OTHER), "10.0.0.7:9")
    assert own.refused() == {Refusal.FORGED: 2}
    (line,) = logs
    assert (line["reason"], line["last_from"], line["count"]) == ("forged", "10.0.0.7:9", 1)
    assert own.heard == []


def test_the_log_is_not_filled() -> None:
    """A flood of garbage gives one log line, and after a minute one more that counts the rest."""
    pair = Pair()
    with capture_logs() as logs:
        for _ in range(1000):
            pair.leaf.receive(b"noise", "10.0.0.7:9")
        pair.network.now += 61
        pair.leaf.receive(b"noise", "10.0.0.7:9")
    assert [line["count"] for line in logs] == [1, 1000]


def test_another_fabric_is_not_heard() -> None:
    """Two fabrics may share a management network and even a key, but do not hear each other."""
    pair = Pair()
    stranger = notices_of("spine0", pair.network, lambda *_: None, fabric="fabrics/f2")
    stranger.set_peers({"leaf0": "leaf0"})
    pair.network.deliver()
    assert pair.refused() == {Refusal.FABRIC: 1}


def test_keys_rotate_without_a_gap() -> None:
    """A key is accepted before it signs and for a while afterwards, so no notice is lost."""
    pair = Pair()
    steps: list[tuple[PeerNotices, list[bytes]]] = [
        (pair.leaf, [KEY, OTHER]),
        (pair.spine, [KEY, OTHER]),
        (pair.spine, [OTHER, KEY]),
        (pair.leaf, [OTHER]),
        (pair.spine, [OTHER]),
    ]
    for one, keys in steps:
        one.keys.replace(keys)
        pair.leaf.receive(pair.notice(LOST), "spine0")
        pair.leaf.receive(pair.notice(), "spine0")
    assert pair.heard == [("spine0", (LOST,)), ("spine0", ())] * len(steps)
    assert pair.refused() == {}


def test_a_recording_from_before_a_restart_is_worth_nothing() -> None:
    """A well-signed notice to an earlier start of the receiver does not count."""
    pair = Pair()
    recorded = pair.notice(LOST)
    pair.leaf = notices_of("leaf0", pair.network, pair.note, boot=2)
    pair.leaf.set_peers({"spine0": "spine0"})
    pair.leaf.receive(recorded, "spine0")
    assert pair.heard == []
    assert pair.refused() == {Refusal.STALE: 1}
    pair.network.deliver()
    assert pair.heard == [("spine0", (LOST,))]  # the spine says so itself when it is greeted


def test_a_recording_from_before_the_senders_restart_is_refused() -> None:
    """Once the sender has shown a newer start, notices from its earlier start are refused."""
    pair = Pair()
    recorded = pair.notice(LOST)
    pair.spine = notices_of("spine0", pair.network, lambda *_: None, boot=2)
    pair.spine.set_peers({"leaf0": "leaf0"})
    pair.network.deliver()
    pair.leaf.receive(recorded, "spine0")
    assert pair.heard == []
    assert pair.refused()[Refusal.REPLAYED] == 1


@pytest.mark.parametrize("boot", [1, 50, 10**12])
def test_a_switch_that_starts_anew_replaces_what_it_said(boot: int) -> None:
    """Peers learn that the link is up again, whether the clock went forward or back."""
    pair = Pair()
    pair.spine.boot = 50
    pair.leaf.receive(pair.notice(LOST), "spine0")
    pair.spine = notices_of("spine0", pair.network, lambda *_: None, boot=boot)
    pair.spine.set_peers({"leaf0": "leaf0"})
    for _ in range(3):
        pair.network.now += 1
        for one in (pair.leaf, pair.spine):
            one.tick()
        pair.network.deliver()
    assert pair.heard[-1] == ("spine0", ())
    assert pair.spine.boot >= 50


def test_a_switch_that_is_gone_for_good_is_forgotten() -> None:
    """A dead agent's links count as up after a while. A live agent repeats its notice before."""
    pair = Pair()
    pair.leaf.receive(pair.notice(LOST), "spine0")
    for _ in range(int(LAPSE_SECONDS / REFRESH_SECONDS) + 2):
        pair.network.now += REFRESH_SECONDS
        pair.spine.tick()
        pair.leaf.tick()
        pair.network.deliver()
    assert {down for _, down in pair.heard} == {(LOST,)}
    pair.network.agents.pop("spine0")
    pair.network.now += LAPSE_SECONDS
    pair.leaf.tick()
    assert pair.heard[-1] == ("spine0", ())


def test_a_switch_speaks_of_its_own_links_only() -> None:
    """A record about another switch's link is refused, and so is one in our own name."""
    pair = Pair()
    head = wire.unseal(pair.notice(LOST)).head
    foreign = wire.Record("spine0", 9, 9, (Link("leaf9", "spine1"),))
    pair.leaf.receive(
        wire.seal(head._replace(counter=head.counter + 1), wire.encode_notice(foreign), KEY), "x"
    )
    pair.leaf.receive(wire.seal(head._replace(sender="leaf0"), b"", KEY), "x")
    assert pair.refused() == {Refusal.MALFORMED: 1, Refusal.OWN: 1}
    assert pair.heard == []


def test_without_a_key_the_door_is_shut() -> None:
    """Without a key nothing is sent or accepted. Once there is a key, the agents meet."""
    pair = Pair(leaf_keys=())
    assert pair.leaf.sent == 0
    assert set(pair.refused()) == {Refusal.SHUT}
    pair.leaf.keys.replace([KEY])
    pair.network.now += 1
    pair.leaf.tick()
    pair.network.deliver()
    assert (pair.leaf.introduced, pair.spine.introduced) == (1, 1)


def test_a_switch_may_lose_more_links_than_a_datagram_holds() -> None:
    """As many links as fit are sent, in order, and nothing is raised."""
    pair = Pair()
    many = [Link(f"leaf{number:05}-{'x' * 60}", "spine0") for number in range(2000)]
    pair.leaf.receive(pair.notice(*many), "spine0")
    ((_, told),) = pair.heard
    assert 500 < len(told) < 2000
    assert list(told) == sorted(many)[: len(told)]


def test_a_link_is_down_while_either_end_says_so() -> None:
    """A report from one end that the link is up does not bring it up."""
    view = LinkView()
    assert view.report("spine0", [LOST]) == {LOST: False}
    assert view.report("leaf9", [LOST]) == {}
    assert view.report("spine0", []) == {}
    assert view.down == {LOST}
    assert view.report("leaf9", []) == {LOST: True}
    assert view.down == frozenset()


def test_the_wire_format_is_as_written_down() -> None:
    """Every byte of a NOTICE is fixed, because other agents have to read it."""
    record = wire.Record("spine0", 7, 3, (LOST,))
    head = wire.Head(
        wire.NoticeKind.NOTICE,
        wire.key_id(KEY),
        wire.fabric_id("fabrics/f1"),
        0xA,
        0xB,
        0xC,
        "spine0",
    )
    datagram = wire.seal(head, wire.encode_notice(record), KEY)
    assert datagram[:4] == b"Hb\x01\x02"
    assert datagram[4:16] == wire.key_id(KEY) + wire.fabric_id("fabrics/f1")
    numbers = [int.from_bytes(datagram[at : at + 8]) for at in (16, 24, 32)]
    assert numbers == [0xA, 0xB, 0xC]
    body = b"\x06spine0" + (7).to_bytes(8) + (3).to_bytes(8) + b"\x00\x01\x05leaf9\x06spine0\x010"
    assert datagram[40:-16] == b"\x06spine0" + body
    assert len(wire.tag(datagram[:-16], KEY)) == 16
    assert wire.decode_notice(wire.unseal(datagram).body) == record
