"""How much one client may ask for: a bucket of calls that refills, and streams at once.

A client is an identity, or a host where nobody says who he is. What is remembered of
clients is bounded: the one not heard of for longest is forgotten, with a full bucket.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allowance:
    """What each client is allowed."""

    calls_per_second: float = 1000.0
    """0 is without limit."""
    burst: float = 2000.0
    """Calls at once after a pause."""
    streams: int = 64
    """Calls that stream, at the same time; 0 is without limit."""


@dataclass(slots=True)
class _Account:
    left: float
    at: float
    streams: int = 0


class Budget:
    """The accounts of all clients."""

    def __init__(
        self,
        allowance: Allowance,
        now: Callable[[], float] = time.monotonic,
        remembered: int = 10_000,
    ) -> None:
        self._allowance = allowance
        self._now = now
        self._remembered = remembered
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def call(self, client: str) -> float:
        """Take one call; 0.0, or the seconds after which there will be one to take."""
        rate = self._allowance.calls_per_second
        if rate <= 0:
            return 0.0
        account, now = self._account(client), self._now()
        account.left = min(self._allowance.burst, account.left + (now - account.at) * rate)
        account.at = now
        if account.left < 1.0:
            return (1.0 - account.left) / rate
        account.left -= 1.0
        return 0.0

    def open(self, client: str) -> bool:
        """Begin a stream; whether there may be one more. ``close`` each that was begun."""
        account = self._account(client)
        if 0 < self._allowance.streams <= account.streams:
            return False
        account.streams += 1
        return True

    def close(self, client: str) -> None:
        """End a stream."""
        account = self._accounts.get(client)
        if account is not None and account.streams > 0:
            account.streams -= 1

    def _account(self, client: str) -> _Account:
        account = self._accounts.get(client)
        if account is None:
            account = self._accounts[client] = _Account(self._allowance.burst, self._now())
            self._forget()
        self._accounts.move_to_end(client)
        return account

    def _forget(self) -> None:
        """Drop the oldest that has no stream open, beyond what is remembered."""
        if len(self._accounts) <= self._remembered:
            return
        for client, account in self._accounts.items():
            if not account.streams:
                del self._accounts[client]
                return
