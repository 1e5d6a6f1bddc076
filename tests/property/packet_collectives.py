"""Collectives as messages of a packet network: rings step by step, trees piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from math import ceil

import numpy as np

from heddle_emulator.strategy.carried import Carried
from heddle_emulator.traffic.script import Script
from tests.property.packet_net import Net


@dataclass(slots=True)
class Collectives:
    """Writes a script as messages into a network. Each host has one rank."""

    net: Net
    script: Script
    carried: Carried
    startup: float
    piece: int
    pairs: dict[tuple[int, int], int] = field(default_factory=dict)

    def write(self, *, trees: bool) -> None:
        """Write all activities.

        Those of several steps are trees if ``trees`` is set, else rings.
        """
        script, last = self.script, dict[int, list[int]]()
        waits = TopologicalSorter(dict.fromkeys(range(len(script)), ()))
        for before, after in zip(script.before.tolist(), script.after.tolist(), strict=True):
            waits.add(after, before)
        for activity in waits.static_order():
            others = script.before[script.after == activity].tolist()
            before = sorted({row for other in others for row in last[other]})
            moves = np.flatnonzero(script.activity == activity).tolist()
            if int(script.steps[activity]) > 1:
                last[activity] = self._tree(moves, before) if trees else self._ring(moves, before)
            else:
                size = [self._bytes(move) for move in moves]
                sent = [self._send(*told, before) for told in zip(moves, size, strict=True)]
                last[activity] = [row for rows in sent for row in rows] or before

    def _bytes(self, move: int) -> float:
        return float(self.script.gbit[move]) * 1e9 / 8

    def _send(self, move: int, size: float, after: Sequence[int]) -> list[int]:
        """Send a move as one message for each QP, and return the messages."""
        flow, carried, rows = int(self.script.flow[move]), self.carried, []
        each = size / int(carried.flows.qps[flow])
        for path in np.flatnonzero(carried.paths.flow == flow).tolist():
            for qp in range(
                int(carried.paths.first_qp[path]), int(carried.paths.last_qp[path]) + 1
            ):
                if (move, qp) not in self.pairs:
                    self.pairs[move, qp] = self.net.pair(carried.paths.of(path).tolist())
                rows.append(self.net.message(self.pairs[move, qp], each, self.startup, after))
        return rows

    def _ring(self, moves: list[int], before: list[int]) -> list[int]:
        """In each step, a rank passes on what it received in the step before."""
        steps = int(self.script.steps[self.script.activity[moves[0]]])
        into = {int(self.script.receiver[move]): move for move in moves}
        came: dict[int, list[int]] = dict.fromkeys(moves, before)
        for step in range(steps):
            known = came
            came = {
                move: self._send(
                    move,
                    self._bytes(move) / steps,
                    known[into[int(self.script.sender[move])]] if step else before,
                )
                for move in moves
            }
        return [row for rows in came.values() for row in rows]

    def _tree(self, moves: list[int], before: list[int]) -> list[int]:
        """Send each piece up both trees, from the leaves to the root, and down again."""
        half, size = len(moves) // 2, self._bytes(moves[0])
        pieces, rows = ceil(size / self.piece), list[int]()
        for first in (0, half // 2):
            up = moves[first : first + half // 2]
            down = moves[half + first : half + first + half // 2]
            for _ in range(pieces):
                rows += self._piece(up, down, size / pieces, before)
        return rows

    def _piece(self, up: list[int], down: list[int], size: float, before: list[int]) -> list[int]:
        sender, receiver = self.script.sender, self.script.receiver
        came: dict[int, list[int]] = {}

        def gathered(rank: int) -> list[int]:
            return [row for edge in up if int(receiver[edge]) == rank for row in rise(edge)]

        def rise(edge: int) -> list[int]:
            if edge not in came:
                after = sorted({*gathered(int(sender[edge])), *before})
                came[edge] = self._send(edge, size, after)
            return came[edge]

        def fall(edge: int) -> list[int]:
            if edge not in came:
                rank = int(sender[edge])
                over = [other for other in down if int(receiver[other]) == rank]
                came[edge] = self._send(edge, size, fall(over[0]) if over else gathered(rank))
            return came[edge]

        return [row for edge in down for row in fall(edge)]
