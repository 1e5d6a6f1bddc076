"""Pushes that have come to agents and wait until it is time to take them in.

Where time is virtual, a push takes effect at its moment, not when this machine happened to
carry it. Meanwhile the controller waits for the answer, as it does for a slow switch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from heddle_agent.table import Forwarding, Push, Receipt, Turns
from heddle_agent.table.push import OperationFailure


@dataclass(slots=True, eq=False)
class Held:
    """A push that waits."""

    switch: int
    """Node row."""
    push: Push
    came: float
    """Monotonic seconds."""
    free: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """It is in the table, or nobody waits for it any more."""


class Gate:
    """One for all agents; open at first."""

    def __init__(self) -> None:
        self.shut = False
        self.waiting: list[Held] = []
        """In the order they came."""
        self.last = 0.0
        """When the last one came, monotonic."""

    def stop(self, switch: int, push: Push) -> Held | None:
        """Have a push wait; None where the gate is open."""
        if not self.shut:
            return None
        self.last = time.monotonic()
        held = Held(switch, push, self.last)
        self.waiting.append(held)
        return held

    def waiting_for(self, switches: Collection[int]) -> list[Held]:
        """Those that wait for some switches, by node row."""
        return [held for held in self.waiting if held.switch in switches]

    def take(self, switches: Collection[int]) -> list[Held]:
        """Those that wait for some switches, which from now on are the caller's to let through."""
        found = self.waiting_for(switches)
        self.waiting = [held for held in self.waiting if held.switch not in switches]
        return found

    def forget(self, switch: int) -> None:
        """Let through what waits for a switch, whose agent is gone."""
        for held in self.waiting:
            if held.switch == switch:
                held.free.set()
        self.waiting = [held for held in self.waiting if held.switch != switch]


class GatedTurns(Turns):
    """What a switch's pushes come in by."""

    def __init__(self, switch: int, forwarding: Forwarding, gate: Gate) -> None:
        super().__init__(forwarding)
        self._switch, self._gate = switch, gate
        self._present: Held | None = None

    async def receive(self, push: Push) -> Receipt:
        """Take a push in once the gate lets it through."""
        held = self._gate.stop(self._switch, push)
        if held is None:
            return await super().receive(push)
        try:
            await held.free.wait()
            self._present = held
            return await super().receive(push)
        except BaseException:
            held.done.set()
            raise

    async def program(self, push: Push) -> list[OperationFailure]:
        """Program it, and say that it is done."""
        held, self._present = self._present, None
        try:
            return await super().program(push)
        finally:
            if held is not None:
                held.done.set()
