"""The peer notices of one switch: switches tell each other of lost links without a controller.

Every agent has one record: all links of its own switch that are down. A new record is flooded at
once:

    own links change -> announce -> NOTICE to every peer
    NOTICE from a peer -> is the record newer? -> ``heard`` (local repair), then on to other peers

A known record is not sent on, so a flood ends. Lost datagrams are made up for: each second, a few
peers in turn get a digest. A peer with a different digest answers with the versions that it has,
and gets the records that it lacks. So all records agree after digests have gone round. A switch
that never lost a link has no record, so a healthy fabric has nothing to keep in agreement. An agent
that restarts is told what others remember of it, and replaces that.

The engine uses neither sockets nor clocks of its own. Both are arguments, so that a test can run a
whole fabric of engines. Nothing that comes from the network raises an error. It is either accepted,
or dropped and counted.

Protection against replayed datagrams: every agent draws a token when it starts. A datagram that
contains the receiver's token was made after the receiver started, so older recordings are useless.
After that, the sender's counter distinguishes each datagram from copies of it, and tokens of a
sender's earlier starts are refused. Clocks of different switches are never compared.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from heddle_agent.fib import Link
from heddle_agent.peers import wire
from heddle_agent.peers.keys import KeyRing
from heddle_agent.peers.records import Records, after
from heddle_agent.peers.refusals import Refusal, Refusals
from heddle_agent.peers.wire import Head, MalformedError, NoticeKind, Record

WINDOW = 1024
"""How many datagrams of one sender may overtake each other."""
_REMEMBERED = 32

TICK_SECONDS = 1.0
"""Interval at which ``tick`` should be called."""
DIGESTS_A_TICK = 4
"""Number of peers that get a digest at each tick, in turn. Many peers send many digests to this
one."""
REFRESH_SECONDS = 60.0
"""A switch with links down repeats its record after this time."""
LAPSE_SECONDS = 300.0
"""Links of a switch that was silent for this long count as up, because its agent is gone."""
_HELLO_SECONDS = 0.1
_MOST_HELLOS = 4096


class _Network(Protocol):
    """Carries datagrams. It may lose, duplicate and reorder them."""

    def send(self, address: str, datagram: bytes) -> bool:
        """Send without waiting and without raising; return whether the datagram left."""


class PeerNotices:
    """The peer notices of one switch. Use it in one thread only."""

    def __init__(
        self,
        *,
        fabric: str,
        switch: str,
        keys: KeyRing,
        network: _Network,
        heard: Callable[[str, Collection[Link]], None],
        boot: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take ``heard``, which is called with a switch and its links that are down.

        It is called for every newer record, and without links when a switch has been silent for too
        long. ``boot`` should be greater than at any earlier start. If it is not, peers that
        remember a later one say so, and the agent counts on from there. ``clock`` is monotonic, in
        seconds.
        """
        self.refusals = Refusals(switch, clock)
        self.records = Records()
        self.sent = self.unsent = self.received = 0  # datagrams
        self.keys = keys
        self.boot = boot
        self._fabric = wire.fabric_id(fabric)
        self._switch = switch
        self._network = network
        self._heard = heard
        self._clock = clock
        self._token = secrets.randbits(63) | 1
        self._counter = 0
        self._turn = secrets.randbelow(1000)
        self._sequence = 0
        self._down: tuple[Link, ...] = ()
        self._peers: dict[str, str] = {}
        self._senders: dict[str, Sender] = {}
        self._greeted: dict[tuple[str, int], float] = {}
        self._last_word: dict[str, float] = {}  # last report of each switch with links down
        self._announced = clock()

    @property
    def peers(self) -> Mapping[str, str]:
        """Addresses of the peers by switch."""
        return self._peers

    @property
    def introduced(self) -> int:
        """Number of peers that have proven since this agent's start that they are present."""
        return sum(1 for peer in self._peers if self._token_of(peer))

    def set_peers(self, peers: Mapping[str, str]) -> None:
        """Exchange notices with exactly these switches, by address, and greet new ones at once."""
        fresh = {name: at for name, at in peers.items() if name != self._switch}
        greet = [name for name, at in fresh.items() if self._peers.get(name) != at]
        self._peers = fresh
        for name in greet:
            self._hello(name, fresh[name], self._token_of(name), answer=True)

    def announce(self, down: Collection[Link]) -> None:
        """Set this switch's links that are down; if they changed, notify every peer."""
        ordered = wire.fitting(self._switch, down)
        if ordered != self._down:
            self._down = ordered
            self._publish()

    def tick(self) -> None:
        """Greet unknown peers, send digests, repeat the own record, and forget lapsed ones."""
        now = self._clock()
        if self._down and now - self._announced >= REFRESH_SECONDS:
            self._publish()
        for origin, at in list(self._last_word.items()):
            if now - at >= LAPSE_SECONDS:
                del self._last_word[origin]
                self._heard(origin, ())
        strangers = [name for name in self._peers if not self._token_of(name)]
        for name in strangers:
            self._hello(name, self._peers[name], 0, answer=True)
        digest = wire.encode_digest(*self.records.summary)
        for name in self._in_turn():
            self._send(NoticeKind.DIGEST, digest, name, self._peers[name])

    def _in_turn(self) -> list[str]:
        """Return the peers whose turn it is to get a digest."""
        known = [name for name in self._peers if self._token_of(name)]
        start, self._turn = self._turn, self._turn + DIGESTS_A_TICK
        count = min(DIGESTS_A_TICK, len(known))
        return [known[(start + step) % len(known)] for step in range(count)]

    def receive(self, datagram: bytes, address: str) -> None:
        """Handle a datagram from any address; never raises."""
        self.received += 1
        try:
            parts = wire.unseal(datagram)
            refusal = self._check(parts) or self._take(parts.head, parts.body, address)
        except MalformedError:
            refusal = Refusal.MALFORMED
        if refusal is not None:
            self.refusals.add(refusal, address)

    def _check(self, parts: wire.Datagram) -> Refusal | None:
        """Return a refusal unless the sender has a valid key and speaks to this fabric."""
        head = parts.head
        if head.fabric != self._fabric:
            return Refusal.FABRIC
        key = self.keys.find(head.key_id)
        if key is None:
            return Refusal.KEY if self.keys.signing else Refusal.SHUT
        if not hmac.compare_digest(wire.tag(parts.signed, key), parts.tag):
            return Refusal.FORGED
        return Refusal.OWN if head.sender == self._switch else None

    def _take(self, head: Head, body: bytes, address: str) -> Refusal | None:
        if head.receiver != self._token:
            # The sender does not know this start yet, so introduce it. What the datagram says may
            # be a recording.
            self._hello(head.sender, self._peers.get(head.sender, address), head.token, answer=True)
            return None if head.kind is NoticeKind.HELLO else Refusal.STALE
        sender = self._senders.setdefault(head.sender, Sender())
        known = sender.token
        if not sender.fresh(head.token, head.counter):
            return Refusal.REPLAYED
        address = self._peers.get(head.sender, address)
        for kind, answer in self._answers(head, body):
            self._send(kind, answer, head.sender, address)
        if known != sender.token:
            digest = wire.encode_digest(*self.records.summary)
            self._send(NoticeKind.DIGEST, digest, head.sender, address)
        return None

    def _answers(self, head: Head, body: bytes) -> Iterator[tuple[NoticeKind, bytes]]:
        """Act on a fresh datagram, and yield the answers to its sender."""
        match head.kind:
            case NoticeKind.HELLO:
                if wire.decode_hello(body):
                    yield NoticeKind.HELLO, wire.encode_hello(answer=False)
            case NoticeKind.NOTICE:
                self._notice(wire.decode_notice(body), head.sender)
            case NoticeKind.DIGEST:
                if wire.decode_digest(body) != self.records.summary:
                    for versions in self.records.versions():
                        yield NoticeKind.VERSIONS, versions
            case NoticeKind.VERSIONS:
                for record in self.records.newer_than(wire.decode_versions(body)):
                    yield NoticeKind.NOTICE, wire.encode_notice(record)

    def _notice(self, record: Record, sender: str) -> None:
        if record.origin == self._switch:
            self._meet_former_self(record)
            return
        if self.records.take(record) is None:  # it was known already
            return
        if record.down:
            self._last_word[record.origin] = self._clock()
        else:
            self._last_word.pop(record.origin, None)
        try:
            self._heard(record.origin, record.down)
        finally:
            self._flood(record, sender)

    def _meet_former_self(self, record: Record) -> None:
        """Answer a peer that remembers an earlier start of this switch with the present state.

        If that start has a higher number, because the clock was set back, count on from there.
        """
        later = record.version > (self.boot, self._sequence)
        if later:
            self.boot, self._sequence = after(record.boot), 0
        if later or not self._sequence:
            self._publish()

    def _publish(self) -> None:
        self._sequence += 1
        self._announced = self._clock()
        record = Record(self._switch, self.boot, self._sequence, self._down)
        self.records.take(record)
        self._flood(record, self._switch)

    def _flood(self, record: Record, sender: str) -> None:
        body = wire.encode_notice(record)
        for name, address in self._peers.items():
            if name not in (sender, record.origin) and self._token_of(name):
                self._send(NoticeKind.NOTICE, body, name, address)

    def _token_of(self, name: str) -> int:
        sender = self._senders.get(name)
        return 0 if sender is None else sender.token

    def _hello(self, name: str, address: str, token: int, *, answer: bool) -> None:
        """Introduce this start to a peer, unless that happened a moment ago."""
        now = self._clock()
        if now - self._greeted.get((name, token), -_HELLO_SECONDS) < _HELLO_SECONDS:
            return
        if len(self._greeted) >= _MOST_HELLOS:
            self._greeted.clear()
        self._greeted[name, token] = now
        self._send(NoticeKind.HELLO, wire.encode_hello(answer=answer), name, address, token)

    def _send(self, kind: NoticeKind, body: bytes, name: str, address: str, token: int = 0) -> None:
        signing = self.keys.signing
        if signing is None:
            return
        named, key = signing
        self._counter += 1
        receiver = token or self._token_of(name)
        head = Head(kind, named, self._fabric, self._token, receiver, self._counter, self._switch)
        if self._network.send(address, wire.seal(head, body, key)):
            self.sent += 1
        else:
            self.unsent += 1


@dataclass(slots=True)
class Sender:
    """What is known of another agent from its datagrams."""

    token: int = 0
    """Token of its present start; 0 until it has proven one."""
    _highest: int = 0
    _seen: int = 0
    """Bit n: the counter that is n below the highest was seen."""
    _former: deque[int] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def fresh(self, token: int, counter: int) -> bool:
        """Accept a datagram with our token; False if it is a copy or from an earlier start."""
        if token != self.token:
            if token in self._former:
                return False
            if self.token:
                self._former.append(self.token)
            self.token, self._highest, self._seen = token, counter, 1
            return True
        ahead = counter - self._highest
        if ahead > 0:
            self._seen = ((self._seen << min(ahead, WINDOW)) | 1) & ((1 << WINDOW) - 1)
            self._highest = counter
            return True
        if -ahead >= WINDOW or self._seen >> -ahead & 1:
            return False
        self._seen |= 1 << -ahead
        return True
