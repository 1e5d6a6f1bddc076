"""The controller as it is installed, in a process that can be made to fail from outside.

``python -m heddle_emulator.fleet.fault_injection FOLDER serve ...`` is ``heddle-controller serve
...``, save that before it calls its store or an agent it looks into a folder for what shall go
wrong:

- ``die`` names a point of its work, at which it then kills itself with SIGKILL; of several that
  share a folder only the leader comes to one,
- ``store-down`` has every call of the store fail,
- ``skew`` is a number of seconds by which its clock is wrong.

Nothing imports this module. It is the only one of the emulator that knows more of the
controller than its model, and none of its verdict: it breaks things.
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

from heddle_controller.app import SystemClock, main
from heddle_controller.reconcile.ports import AgentSession, Push, PushReport
from heddle_controller.serve.agents.gateway import Gateway
from heddle_controller.state.errors import Unavailable
from heddle_controller.store.embedded import EmbeddedStore
from heddle_controller.store.redis.store import RedisStore
from heddle_emulator.fleet.orders import DIE, SKEW, STORE_DOWN

AFTER = {"intent": "intent", "commit": "commit"}
"""Point by the call after which it is."""
_BEFORE = {"commit": "plan", "record_programmed": "ack"}
"""Point by the call before which it is."""
ALWAYS = frozenset({"close", "leadership_lost"})
"""What a store does even where it cannot be reached."""
UNDER_WAY_SECONDS = 0.05


class FaultPlan:
    """What a folder says shall go wrong."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def meet(self, point: str) -> None:
        """Die if this is the point to die at."""
        if self._said(DIE) == point:
            (self._folder / DIE).unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def check_store(self) -> None:
        """Fail if the store is to be down."""
        if (self._folder / STORE_DOWN).exists():
            raise Unavailable("the store cannot be reached", retry_after=0.2)

    @property
    def skew(self) -> float:
        """Seconds that the clock is ahead."""
        return float(self._said(SKEW) or 0.0)

    def armed(self, point: str) -> bool:
        """Whether the controller is to die at a point."""
        return self._said(DIE) == point

    def _said(self, name: str) -> str:
        try:
            return (self._folder / name).read_text().strip()
        except FileNotFoundError:
            return ""


def break_in(fate: FaultPlan) -> None:
    """Have calls of the store and of agents, and the clock, meet their fate first."""
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
    """Meet the fate of who has sent a push and may not have heard of it."""
    await asyncio.wait([sending], timeout=UNDER_WAY_SECONDS)
    fate.meet("push")
    return await sending


def _fated(name: str, method: Callable[..., Any], fate: FaultPlan) -> Callable[..., Any]:
    """A call of the store that may fail, or be the controller's last."""

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
