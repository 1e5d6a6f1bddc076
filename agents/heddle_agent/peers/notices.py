"""The peer notices of one switch: what its peers say of their links, without any controller.

Every agent has one record, all links of its own that are down; a new one is flooded at once:

    own links change -> announce -> NOTICE to every peer
    NOTICE from a peer -> a newer record? -> ``heard`` (local repair), and only then on to the peers

A record that is known is not sent on, so a flood ends. What gets lost is mended: each second a few
peers in turn are told a digest; whoever has another one answers with the versions it has, and is
sent what it lacks. So records agree everywhere once digests have gone round, whatever was lost.
A switch that never lost a link has no record: there is nothing to keep in agreement in a fabric
that is well. One that starts anew is told what others remember of it, and then replaces that.

The engine knows neither sockets nor time: both are handed in, so that a test runs a whole fabric of
them. What comes from the network never raises; it is taken, or dropped and counted.

Who has proven to speak now, and not in a recording.

Every agent draws a token when it starts. A datagram that bears the receiver's own token was made
after the receiver started, so that recordings from before are worth nothing. Within that time a
sender's counter tells each datagram from its copies, and tokens that a sender had in earlier starts
are not believed again. No clock is compared with anybody else's.
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
"""Datagrams of one sender that may overtake each other."""
_REMEMBERED = 32

TICK_SECONDS = 1.0
"""How often ``tick`` wants to be called."""
DIGESTS_A_TICK = 4
"""Peers told a digest at each tick, in turn: with many peers there are many to tell us theirs."""
REFRESH_SECONDS = 60.0
"""A switch with links down says so again after so long."""
LAPSE_SECONDS = 300.0
"""Links of a switch that has not been heard of for so long count as up: its agent is gone."""
_HELLO_SECONDS = 0.1
_MOST_HELLOS = 4096


class _Network(Protocol):
    """What carries datagrams; it may lose, double and reorder them."""

    def send(self, address: str, datagram: bytes) -> None:
        """Send without waiting and without raising."""


class PeerNotices:
    """One switch's end of it; belongs to one thread."""

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
        """``heard`` is told which links a switch says are down, whenever that changes.

        ``boot`` should be greater than at any earlier start; if it is not, peers that remember say
        so, and the agent counts on from what they know. ``clock`` is monotonic, in seconds.
        """
        self.refusals = Refusals(switch, clock)
        self.records = Records()
        self.sent = self.received = 0  # datagrams
        self.duplicates = 0  # records that were known already
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
        self._last_word: dict[str, float] = {}  # of switches with links down
        self._announced = clock()

    @property
    def peers(self) -> Mapping[str, str]:
        """Addresses of the peers by switch."""
        return self._peers

    @property
    def introduced(self) -> int:
        """Peers that have proven to be there since this agent started."""
        return sum(1 for peer in self._peers if self._token_of(peer))

    def set_peers(self, peers: Mapping[str, str]) -> None:
        """Speak to these switches from now on, by address; new ones are greeted at once."""
        fresh = {name: at for name, at in peers.items() if name != self._switch}
        greet = [name for name, at in fresh.items() if self._peers.get(name) != at]
        self._peers = fresh
        for name in greet:
            self._hello(name, fresh[name], self._token_of(name), answer=True)

    def announce(self, down: Collection[Link]) -> None:
        """These own links are down and no others; every peer hears of it if that is news."""
        ordered = wire.fitting(self._switch, down)
        if ordered != self._down:
            self._down = ordered
            self._publish()

    def tick(self) -> None:
        """Greet peers that are not known yet, tell the others a digest, refresh and forget."""
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
        """The peers whose turn it is to be told a digest."""
        known = [name for name in self._peers if self._token_of(name)]
        start, self._turn = self._turn, self._turn + DIGESTS_A_TICK
        count = min(DIGESTS_A_TICK, len(known))
        return [known[(start + step) % len(known)] for step in range(count)]

    def receive(self, datagram: bytes, address: str) -> None:
        """Take a datagram in, from wherever it comes; never raises."""
        self.received += 1
        try:
            parts = wire.unseal(datagram)
            refusal = self._check(parts) or self._take(parts.head, parts.body, address)
        except MalformedError:
            refusal = Refusal.MALFORMED
        if refusal is not None:
            self.refusals.add(refusal, address)

    def _check(self, parts: wire.Datagram) -> Refusal | None:
        """Whether somebody who has the key speaks to this fabric."""
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
            # It does not know this start of ours. Whoever it is, let it learn of it; what it says
            # itself may be a recording.
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
        """Act on what a fresh datagram says; what there is to say to its sender in return."""
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
        before = self.records.take(record)
        if before is None:
            self.duplicates += 1
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
        """A peer remembers an earlier start of this switch: say how it is now.

        If that start seems to have been later, by a clock that was put back, count on from there.
        """
        later = record.version > (self.boot, self._sequence)
        if later:
            self.boot, self._sequence = after(record.boot), 0
        if later or not self._sequence:
            self._publish()
        else:
            self.duplicates += 1

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
        """Introduce this start, not more often than makes sense."""
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
        self.sent += 1
        receiver = token or self._token_of(name)
        head = Head(kind, named, self._fabric, self._token, receiver, self._counter, self._switch)
        self._network.send(address, wire.seal(head, body, key))


@dataclass(slots=True)
class Sender:
    """What is known of one other agent by its datagrams."""

    token: int = 0
    """Of its present start; 0 until it has proven one."""
    _highest: int = 0
    _seen: int = 0
    """Bit n: the counter n below the highest was seen."""
    _former: deque[int] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def fresh(self, token: int, counter: int) -> bool:
        """Take in a datagram that bears our own token; False if it is a copy or of the past."""
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
