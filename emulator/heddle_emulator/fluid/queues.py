"""The fluid world with queues, for paths on which several links in a row are full.

Rates that are fair at every moment (``rates``) leave out what packets do at full links. A queue
divides a link by what waits in it, and not by who waits. A switch that holds too much from one link
pauses all of that link, whatever its destination (PFC). Marks reach senders a round trip later. All
of this depends on how many bytes wait where, so these are simulated: bytes of each path at the tail
of each of its links. A step is the time that a packet takes for a hop. In each step a link sends
from all that waits in proportion, limited by its speed and the room at its head, and NICs serve
their QPs alike.

No two NICs begin in the same nanosecond. If they did, QPs that are alike would for ever be marked
and slow down together, which does not happen in practice. So messages are simulated several times,
each time with other random starts a few microseconds apart (``played``).

Nothing is lost. There are no packets as such, so a step costs a few passes over all paths and
links. ``tests/bench/queues.py`` measures the error against queues of packets.
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
"""Byte limits: of one link's bytes at its head before it pauses, and of a queue that marks."""
_SHORTEST, _LONGEST = 2e-7, 2e-6
"""Limits of a step in seconds; in one such step no queue jumps over a threshold."""
MOST_WORK = 2e9
"""Most steps times uses of links, some ten minutes of work."""
STEP_WORK = 2_000
"""The fixed cost of a step, expressed in uses of links."""
STARTS, APART = 8, 3e-6
"""Number of simulated runs, and seconds by which each message may begin late."""
_PATIENCE = 5_000
"""Steps without an arrival at any end after which pauses count as waiting for each other."""
NOISE = 1e-7
"""Bytes in a step that are a rounding error; flows that are paced may send a small part of one."""
DEALS = 3
"""Rounds in which a NIC redistributes what some of its QPs leave."""


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """A row for each path that QPs of a flow take; its links are in the order of the path."""

    first: Ints
    """Where the links of each row begin, shape (rows + 1,)."""
    arcs: Ints
    size: Floats
    """Bytes on the wire, of all QPs of the row."""
    qps: Floats
    start: Floats
    """Seconds."""
    limit: Floats
    """Bytes per second of all rows of ``sender`` together; infinite if only NICs limit them."""
    sender: Ints
    """The flow of each row, from 0."""
    turn: Ints
    """Number of the job's phase that each row is in; ``NONE`` for flows without a phase."""
    follows: Ints
    """The turn that must be over before each row begins, or ``NONE``."""

    def beside_themselves(self, times: int, arcs: int) -> Messages:
        """Return so many independent copies, each with its own arcs, senders and turns."""
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
    """Return the seconds until the last byte of each row arrives, shape (rows,), in a typical run.

    Of ``STARTS`` runs, the typical one is that whose last byte arrives nearest to their mean.
    ``capacity`` is Gbit/s of each arc.

    Raises:
        InputError: See ``QueueSimulation``.
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
        """Prepare a run; ``capacity`` is Gbit/s of each arc.

        Raises:
            InputError: Hops take too long or too short, or there is too much to simulate.
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
        """All uses but the first of each row."""
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
        """Steps until an acknowledgement is back, rounded down: a lone window fills its path."""
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
        of_sender = np.bincount(messages.sender, weights=messages.size)[messages.sender]
        links = float((loads / self._speed).max(initial=0.0))
        pace = float((of_sender / messages.limit).max(initial=0.0))
        start = float(messages.start.max(initial=0.0))
        most = MOST_WORK * self._step / (len(messages.arcs) + STEP_WORK)
        if (seconds := start + max(links, pace)) <= most:
            return
        less = f"a {seconds / most:,.0f}th of"
        if start > most / 2:
            cure = f"flows start up to {start:.3g} s late: let them start sooner (start_s)"
        elif pace > links:
            cure = f"a flow needs {pace:.3g} s at its pace: give it {less} its bytes, or more gbps"
        else:
            cure = f"a link needs {links:.3g} s: give flows {less} their bytes (file or --size)"
        reason = (
            f"are played in steps of {self._step * 1e6:.2g} us, for {most:.2g} s at most here;"
            f" {cure}"
        )
        raise refuse("queues", "", reason)

    def run(self) -> Floats:
        """Return the seconds until the last byte of each row arrives, shape (rows,).

        Raises:
            InputError: Pauses of links wait for each other in a circle, as is possible with PFC.
        """
        messages = self._messages
        ends = np.full(len(messages.size), np.inf)
        turns = int(messages.turn.max(initial=NONE)) + 1
        left: Ints = np.bincount(messages.turn[messages.turn != NONE], minlength=turns)
        held = np.zeros(len(self._speed))
        now, count, quiet = 0.0, 0, 0
        while np.isinf(ends).any():
            over = np.append(left == 0, True)  # the last element stands for "no turn"
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
        """Take one step; return bytes served and marked by use, and waiting at each link's head."""
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
        """Return the bytes that leave each source: NICs serve QPs alike, up to what each wants."""
        messages, nic, count = self._messages, self._nic_link, len(room)
        want = np.minimum(self._todo, self._senders.most(self._flying, self._step))
        want = np.where(begun, want, 0.0)
        asked = np.bincount(messages.sender, weights=want)
        part = messages.limit * self._step / np.maximum(asked[messages.sender], NOISE)
        want *= np.minimum(part, 1.0)
        sent, free = np.zeros(len(want)), room.copy()
        for _ in range(DEALS):
            open_ = want - sent > NOISE
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
