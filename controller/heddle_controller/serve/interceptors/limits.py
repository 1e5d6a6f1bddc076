"""Limits on each client: a token bucket of calls, and a number of concurrent streams.

A client is an identity, or a host if the caller shows no identity. So this layer comes after
authentication. The number of remembered clients is bounded. Beyond it, the client that was idle
for longest and has no open stream is forgotten. It would start with a full bucket again.

Calls in plain text from the controller's own host are not limited. The whole emulator may run in
one process there, and anybody on this host could stop the controller anyway.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import grpc
from typing_extensions import override

from heddle_controller.serve import errors
from heddle_controller.serve.bucket import TokenBucket
from heddle_controller.serve.interceptors.around import CallLayer, Context, Method, Rest
from heddle_controller.serve.interceptors.auth import is_loopback
from heddle_controller.serve.interceptors.outcomes import current_request
from heddle_controller.serve.security.caller import Caller, Role, current_caller


@dataclass(frozen=True, slots=True)
class Allowance:
    """What each client is allowed."""

    calls_per_second: float = 1000.0
    """Calls per second in the long run; 0 means no limit."""
    burst: float = 2000.0
    """Calls at once after a pause."""
    streams: int = 64
    """Streams that are open at the same time; 0 means no limit."""


@dataclass(slots=True)
class _Account:
    calls: TokenBucket
    streams: int = 0


class Budget:
    """The accounts of all clients: calls that they may make, and streams that are open."""

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
        """Take one call from a client's account; return 0.0, or the seconds until it has one."""
        if self._allowance.calls_per_second <= 0:
            return 0.0
        return self._account(client).calls.take(self._now())

    def open(self, client: str) -> bool:
        """Count a new stream and return True, or return False if the client has too many.

        Each counted stream needs a ``close``.
        """
        account = self._account(client)
        if 0 < self._allowance.streams <= account.streams:
            return False
        account.streams += 1
        return True

    def close(self, client: str) -> None:
        """Stop counting a stream."""
        account = self._accounts.get(client)
        if account is not None and account.streams > 0:
            account.streams -= 1

    def _account(self, client: str) -> _Account:
        account = self._accounts.get(client)
        if account is None:
            most = self._allowance
            calls = TokenBucket(most.burst, most.calls_per_second, self._now())
            account = self._accounts[client] = _Account(calls)
            self._forget()
        self._accounts.move_to_end(client)
        return account

    def _forget(self) -> None:
        """If there are too many accounts, drop the oldest that has no open stream."""
        if len(self._accounts) <= self._remembered:
            return
        for client, account in self._accounts.items():
            if not account.streams:
                del self._accounts[client]
                return


BUSY_SECONDS = 1.0
"""Seconds after which a client with too many streams is told to try again."""


class Limits(CallLayer):
    """Refuses calls beyond the limits with RESOURCE_EXHAUSTED and when to try again."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    @override
    async def around(self, method: Method, context: Context, rest: Rest) -> object:
        """Take the call from the caller's account, and run it if the account allows."""
        caller = current_caller()
        if _is_here(caller):
            return await rest()
        client = str(caller)
        if (wait := self._budget.call(client)) > 0:
            await _refuse(context, "RATE_LIMIT", "too many calls: slow down", wait)
        if not method.streams:
            return await rest()
        if not self._budget.open(client):
            text = "too many streams at once: end some first"
            await _refuse(context, "STREAM_LIMIT", text, BUSY_SECONDS)
        try:
            return await rest()
        finally:
            self._budget.close(client)


def _is_here(caller: Caller) -> bool:
    """Return whether a caller uses plain text from this host; other LOCAL callers are limited."""
    own = caller.identity.startswith("unix:") or is_loopback(caller.identity)
    return caller.role is Role.LOCAL and own


async def _refuse(context: Context, reason: str, message: str, seconds: float) -> None:
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    refusal = errors.Refusal(code, reason, message, retry_seconds=max(seconds, 0.001))
    status = errors.with_request(errors.refused(refusal), current_request())
    await context.abort_with_status(status)
