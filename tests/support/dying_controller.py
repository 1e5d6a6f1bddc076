"""The installed controller, except that it kills itself at a step of its work if told to.

``python -m tests.support.dying_controller FOLDER serve ...`` is ``heddle-controller serve ...``.
Before and after every call of the store and of the gateway it looks for a file ``die`` in the
folder. If the file names that step, such as ``after commit``, the process kills itself. On SIGUSR2
it collects all garbage at once, so that the memory it then uses is what it needs.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heddle_controller.app import main
from heddle_controller.serve.agents.gateway import Gateway
from heddle_controller.store.redis.store import RedisStore

DIE = "die"


class Fate:
    """The step at which to die, as a file in a folder says."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / DIE

    def meet(self, step: str) -> None:
        """Kill this process if this is the step at which to die."""
        try:
            told = self._file.read_text()
        except FileNotFoundError:
            return
        if told == step:
            try:
                self._file.unlink()
            except FileNotFoundError:  # another one was faster
                return
            os.kill(os.getpid(), signal.SIGKILL)


def dying(name: str, method: Callable[..., Any], fate: Fate) -> Callable[..., Any]:
    """Wrap a coroutine function so that the process may die before or after its call."""

    @functools.wraps(method)
    async def called(*given: Any, **named: Any) -> Any:
        fate.meet(f"before {name}")
        answer = await method(*given, **named)
        fate.meet(f"after {name}")
        return answer

    return called


def answered(name: str, method: Callable[..., Any], fate: Fate) -> Callable[..., Any]:
    """Do the same for a function that returns a future and is not a coroutine function."""

    @functools.wraps(method)
    def called(*given: Any, **named: Any) -> Any:
        fate.meet(f"before {name}")
        answer = method(*given, **named)
        answer.add_done_callback(lambda _: fate.meet(f"after {name}"))
        return answer

    return called


def _look_through(*_: object) -> None:
    gc.unfreeze()
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, _look_through)
    told = Fate(Path(sys.argv[1]))
    for kind in (RedisStore, Gateway):
        for name, method in inspect.getmembers(kind, inspect.iscoroutinefunction):
            if not name.startswith("_"):
                setattr(kind, name, dying(name, method, told))
    setattr(Gateway, "push", answered("push", Gateway.push, told))  # noqa: B010 - mypy knows methods
    main(sys.argv[2:], prog_name="heddle-controller")
