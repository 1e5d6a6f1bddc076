"""Queues that fill: the fluid world with occupancies, for links that are full one after another.

Rates that are fair at every moment (``rates``) leave out what packets do at full links: a queue
divides a link by what waits in it and not by who waits; a switch that has too much of what came
by a link pauses all of that link, whoever it is for (PFC); marks reach senders a round trip later.
What decides is how many bytes wait where, so these are kept: bytes of each path at the tail of each
of its links. A step is what a packet takes for a hop. In each, a link sends of what waits in
proportion, as far as its speed and the room at its head go, and NICs serve their QPs alike.

No two NICs begin in the same nanosecond. If they did, QPs that are alike would be marked, and slow
down, all at once for ever, which nobody's do. So messages are played several times, beginning a few
microseconds apart, each time otherwise (``played``).

Nothing is lost. Packets as such are left out, so that a step costs a few passes over all paths and
links. How near that comes is measured by ``tests/bench/queues.py`` against queues of packets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints
from heddle_controller.model.errors import refuse
from heddle_emulator.fluid.senders import SOME, AtLineRate, Rates, Senders, Windows
from heddle_emulator.fluid.wire import Wire
from heddle_emulator.traffic.script import BITS, GIGA

ControlName: TypeAlias = Literal["pfc", "window", "rate"]
CONTROLS: tuple[ControlName, ...] = get_args(ControlName)

XOFF, MARK = 200_000.0, 100_000.0
"""Bytes that came by one link and may wait at its head, and of a queue that marks what joins it."""
_SHORTEST, _LONGEST = 2e-7, 2e-6
"""Seconds of a step between which thresholds are not passed in one."""
MOST_WORK = 2e9
"""Steps times uses of links: some ten minutes."""
STEP_WORK = 2_000
"""Uses of links that a step costs beside its own."""
STARTS, APART = 8, 3e-6
"""Times that messages are played, and seconds by which each may begin late."""
_PATIENCE = 5_000
"""Steps without a byte at any end after which pauses wait for each other."""
DEALS = 3
"""Times that a NIC deals out what some of its QPs leave."""


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """A row for each path that QPs of a flow take; uses of links are in order of row and way."""

    first: Ints
    """Where the links of each row begin, shape (rows + 1,)."""
    arcs: Ints
    size: Floats
    """Bytes on the wire, of all QPs of the row."""
    qps: Floats
    start: Floats
    """Seconds."""
    limit: Floats
    """Bytes a second of all rows of ``sender`` together; infinite where NICs alone limit."""
    sender: Ints
    """The flow of each row, from 0."""
    turn: Ints
    """The phase of a job that each row is of; ``NONE`` where it is of none."""
    follows: Ints
    """The turn that has to be over before each row begins, or ``NONE``."""

    def beside_themselves(self, times: int, arcs: int) -> Messages:
        """So many copies, each over arcs, and with senders and turns, of its own."""
        copy = np.arange(times)[:, None]

        def apart(of: Ints, count: int) -> Ints:
            found: Ints = np.where(of == NONE, NONE, of + copy * count).ravel()
            return found

        senders, turns = (int(of.max(initial=NONE)) + 1 for of in (self.sender, self.turn))
        return Messages(
            np.append((self.first[:-1] + copy * len(self.arcs)).ravel(), times * len(self.arcs)),
            apart(self.arcs, arcs),
            np.tile(self.size, times),
            np.tile(self.qps, times),
            np.tile(self.start, times),
            np.tile(self.limit, times),
            apart(self.sender, senders),
            apart(self.turn, turns),
            apart(self.follows, turns),
        )


def played(capacity: Floats, messages: Messages, wire: Wire, control: ControlName) -> Floats:
    """Seconds until the last byte of each row has come, shape (rows,), in a run that is typical.

    Of ``STARTS`` runs, that whose last byte comes nearest to their mean. ``capacity`` is Gbit/s of
    each arc.

    Raises:
        InputError: as ``QueueSimulation`` says.
    """
    late = np.random.default_rng(0).uniform(0.0, APART, STARTS * len(messages.size))
    runs = messages.beside_themselves(STARTS, len(capacity))
    runs = replace(runs, start=runs.start + late)
    found = QueueSimulation(np.tile(capacity, STARTS), runs, wire, control).run()
    ends = found.reshape(STARTS, -1)
    last = ends.max(axis=1, initial=0.0)
    typical: Floats = ends[np.abs(last - last.mean()).argmin()]
    return typical


class QueueSimulation:
    """One run."""

    def __init__(
        self, capacity: Floats, messages: Messages, wire: Wire, control: ControlName
    ) -> None:
        """``capacity`` is Gbit/s of each arc.

        Raises:
            InputError: hops take too long or too short, or there is too much to play.
        """
        self._speed = capacity * GIGA / BITS
        self._messages = messages
        packet = float(wire.payload_bytes + wire.header_bytes)
        self._step = wire.hop_seconds + packet / float(self._speed.max(initial=1.0))
        if not _SHORTEST <= self._step <= _LONGEST:
            told = f"{_SHORTEST * 1e6:g} to {_LONGEST * 1e6:g}"
            reason = f"takes {self._step * 1e6:.3g} us with a packet; give what comes to {told} us"
            raise refuse("queues", "a hop", reason)
        self._uses = np.diff(messages.first)
        self._source = messages.first[:-1]
        self._end = messages.first[1:] - 1
        at_source = np.zeros(len(messages.arcs), dtype=np.bool_)
        at_source[self._source] = True
        self._later: Ints = np.flatnonzero(~at_source)
        """Uses behind the first of each row."""
        self._link, self._before = messages.arcs[self._later], messages.arcs[self._later - 1]
        self._nic_link = messages.arcs[self._source]
        self._senders = self._controlled(control, packet, wire.hop_seconds)
        self._refuse_what_takes_long()
        rows = len(messages.size)
        self._waiting = np.zeros(len(messages.arcs))
        self._marked = np.zeros(len(messages.arcs))
        self._todo, self._missing = messages.size.copy(), messages.size.copy()
        self._flying = np.zeros(rows)
        back = np.maximum(self._uses * wire.hop_seconds / self._step, 1).astype(np.int64)
        self._back = back
        """Steps until an acknowledgement is there, rounded down: alone, a window fills its path."""
        self._acks = np.zeros((2, int(back.max(initial=0)) + 1, rows))

    def _controlled(self, control: ControlName, packet: float, hop: float) -> Senders:
        messages, speed = self._messages, self._speed[self._messages.arcs]
        if control == "pfc":
            return AtLineRate()
        if control == "rate":
            return Rates(self._speed[self._nic_link], messages.qps)
        slowest = np.minimum.reduceat(speed, self._source)
        round_trip = np.add.reduceat(2 * hop + packet / speed, self._source)
        return Windows(packet, round_trip * slowest + 2 * packet, messages.qps)

    def _refuse_what_takes_long(self) -> None:
        messages = self._messages
        bytes_of = np.repeat(messages.size, self._uses)
        loads = np.bincount(messages.arcs, weights=bytes_of, minlength=len(self._speed))
        seconds = float((loads / self._speed).max(initial=0.0)) + float(messages.start.max())
        work = seconds / self._step * (len(messages.arcs) + STEP_WORK)
        if work > MOST_WORK:
            reason = (
                f"are played in steps of {self._step * 1e6:.2g} us, and this takes {seconds:.3g} s"
                f" or more; give flows a {work / MOST_WORK:,.0f}th of their bytes (--size)"
            )
            raise refuse("queues", "", reason)

    def run(self) -> Floats:
        """Seconds until the last byte of each row has come, shape (rows,).

        Raises:
            InputError: pauses of links wait for each other in a circle, as PFC can.
        """
        messages = self._messages
        ends = np.full(len(messages.size), np.inf)
        turns = int(messages.turn.max(initial=NONE)) + 1
        left: Ints = np.bincount(messages.turn[messages.turn != NONE], minlength=turns)
        held = np.zeros(len(self._speed))
        now, count, quiet = 0.0, 0, 0
        while np.isinf(ends).any():
            over = np.append(left == 0, True)  # the last stands for no turn
            begun = over[messages.follows] & (messages.start <= now)
            served, marked, held = self._moved(held, begun)
            came = served[self._end]
            quiet = 0 if came.any() or not (begun & np.isinf(ends)).any() else quiet + 1
            if quiet > _PATIENCE:
                reason = "wait for each other in a circle: these paths cannot be used with PFC"
                raise refuse("queues", "pauses", reason)
            done = np.isinf(ends) & (self._missing - came <= SOME)
            rest = np.minimum(self._missing[done] / np.maximum(came[done], SOME), 1.0)
            ends[done] = now + rest * self._step
            self._missing -= came
            now, count = now + self._step, count + 1
            self._acknowledge(now, count, came, marked[self._end])
            ended = messages.turn[done & (messages.turn != NONE)]
            left -= np.bincount(ended, minlength=turns)
        return ends

    def _moved(self, held: Floats, begun: Bools) -> tuple[Floats, Floats, Floats]:
        """One step: bytes that each use passed on, how many are marked; what waits at heads."""
        later, link = self._later, self._link
        room = np.minimum(self._speed * self._step, np.maximum(XOFF - held, 0.0))
        queue = np.bincount(link, weights=self._waiting[later], minlength=len(room))
        share = np.minimum(1.0, room / np.maximum(queue, SOME))[link]
        served, marked = np.zeros(len(self._waiting)), np.zeros(len(self._waiting))
        served[later] = self._waiting[later] * share
        marked[later] = self._marked[later] * share
        served[self._source] = self._sent(room, begun)
        self._waiting[later] -= served[later]
        self._marked[later] -= marked[later]
        queue -= np.bincount(link, weights=served[later], minlength=len(room))
        joins = served[later - 1]
        self._waiting[later] += joins
        self._marked[later] += np.where(queue[link] >= MARK, joins, marked[later - 1])
        heads = np.bincount(self._before, weights=self._waiting[later], minlength=len(room))
        return served, marked, heads.astype(np.float64)

    def _sent(self, room: Floats, begun: Bools) -> Floats:
        """Bytes that leave each source: alike for each QP, as far as all want them."""
        messages, nic, count = self._messages, self._nic_link, len(room)
        want = np.minimum(self._todo, self._senders.most(self._flying, self._step))
        want = np.where(begun, want, 0.0)
        asked = np.bincount(messages.sender, weights=want)
        part = messages.limit * self._step / np.maximum(asked[messages.sender], SOME)
        want *= np.minimum(part, 1.0)
        sent, free = np.zeros(len(want)), room.copy()
        for _ in range(DEALS):
            open_ = want - sent > SOME / 2
            weight = np.where(open_, messages.qps, 0.0)
            all_of = np.bincount(nic, weights=weight, minlength=count)
            deal = free[nic] * weight / np.maximum(all_of[nic], 1.0)
            deal = np.where(open_, np.minimum(deal, want - sent), 0.0)
            sent += deal
            free = np.maximum(free - np.bincount(nic, weights=deal, minlength=count), 0.0)
        last = self._todo - sent <= SOME
        sent = np.where(last & (sent > 0), self._todo, sent)
        self._todo -= sent
        self._flying += sent
        return sent

    def _acknowledge(self, now: float, count: int, came: Floats, marked: Floats) -> None:
        rows, size = np.arange(len(came)), self._acks.shape[1]
        self._acks[0, (count + self._back) % size, rows] += came
        self._acks[1, (count + self._back) % size, rows] += marked
        back, told = self._acks[:, count % size].copy()
        self._acks[:, count % size] = 0.0
        self._flying -= back
        self._senders.acknowledged(now, back, told)
