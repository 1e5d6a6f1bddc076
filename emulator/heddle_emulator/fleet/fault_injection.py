"""The installed controller, in a process that can be made to fail from outside.

``python -m heddle_emulator.fleet.fault_injection FOLDER serve ...`` runs ``heddle-controller serve
...``. Whenever it uses its store, an agent or its clock, it first looks for orders in the folder:

- ``die`` names a point of its work, at which it kills itself with SIGKILL. If several controllers
  share a folder, only the leader reaches such a point.
- ``store-down`` makes every call of the store fail.
- ``skew`` is a number of seconds by which its clock is ahead.

Nothing imports this module. It is the only one of the emulator that uses the controller's
internals, and it only breaks things: no verdict depends on it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
import sys
from asyncio import Future
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heddle_controller.app import main
from heddle_controller.reconcile.ports import AgentSession, Push, PushReport, SystemClock
from heddle_controller.serve.agents.gateway import Gateway
from heddle_controller.state.errors import Unavailable
from heddle_controller.store.embedded import EmbeddedStore
from heddle_controller.store.redis.store import RedisStore
from heddle_emulator.fleet.orders import DIE, SKEW, STORE_DOWN

AFTER = {"intent": "intent", "commit": "commit"}
"""The point that is reached after a call of the store, by the call's name."""
_BEFORE = {"commit": "plan", "record_programmed": "ack"}
"""The point that is reached before a call of the store, by the call's name."""
ALWAYS = frozenset({"close", "leadership_lost"})
"""Calls of a store that work even if it cannot be reached."""
UNDER_WAY_SECONDS = 0.05


class FaultPlan:
    """The orders in a folder, read anew at each question."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def meet(self, point: str) -> None:
        """Kill this process if it is ordered to die at this point."""
        if self._said(DIE) == point:
            (self._folder / DIE).unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def check_store(self) -> None:
        """Raise Unavailable if the store is ordered to be down."""
        if (self._folder / STORE_DOWN).exists():
            raise Unavailable("the store cannot be reached", retry_after=0.2)

    @property
    def skew(self) -> float:
        """Seconds by which the clock is ahead."""
        return float(self._said(SKEW) or 0.0)

    def armed(self, point: str) -> bool:
        """Whether the controller is ordered to die at a point."""
        return self._said(DIE) == point

    def _said(self, name: str) -> str:
        try:
            return (self._folder / name).read_text().strip()
        except FileNotFoundError:
            return ""


def break_in(fate: FaultPlan) -> None:
    """Patch the stores, the gateway to agents and the clock so that they obey the orders."""
    for store in (EmbeddedStore, RedisStore):
        for name, method in inspect.getmembers(store, inspect.iscoroutinefunction):
            if not name.startswith("_") and name not in ALWAYS:
                setattr(store, name, _fated(name, method, fate))
    send = Gateway.push

    def pushed(self: Gateway, session: AgentSession, push: Push) -> Future[PushReport]:
        sending = send(self, session, push)
        return asyncio.ensure_future(_under_way(sending, fate)) if fate.armed("push") else sending

    Gateway.push = pushed  # type: ignore[method-assign]
    now = SystemClock.now
    SystemClock.now = lambda self: now(self) + fate.skew  # type: ignore[method-assign]


async def _under_way(sending: Future[PushReport], fate: FaultPlan) -> PushReport:
    """Die, if ordered, a moment after sending a push, whether or not the answer has come."""
    await asyncio.wait([sending], timeout=UNDER_WAY_SECONDS)
    fate.meet("push")
    return await sending


def _fated(name: str, method: Callable[..., Any], fate: FaultPlan) -> Callable[..., Any]:
    """Wrap a call of the store so that it obeys the orders to fail and to die."""

    @functools.wraps(method)
    async def called(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever it takes
        fate.check_store()
        if name in _BEFORE:
            fate.meet(_BEFORE[name])
        answer = await method(*given, **named)
        if name in AFTER:
            fate.meet(AFTER[name])
        return answer

    return called


if __name__ == "__main__":
    break_in(FaultPlan(Path(sys.argv[1])))
    main(sys.argv[2:], prog_name="heddle-controller")
