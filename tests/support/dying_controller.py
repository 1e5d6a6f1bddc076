"""The controller as it is installed, save that it kills itself at a step of its work, if told to.

``python -m tests.support.dying_controller FOLDER serve ...`` is ``heddle-controller serve ...``;
before and after every call of the store and of the gateway it looks for a file ``die`` in the
folder, and where that names the step, such as ``after commit``, it is the process's last. At
SIGUSR2 it looks for all garbage at once, so that what it then takes is what it needs.
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
    """What a folder says."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / DIE

    def meet(self, step: str) -> None:
        """Die if this is the step to die at."""
        try:
            told = self._file.read_text()
        except FileNotFoundError:
            return
        if told == step:
            self._file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def dying(name: str, method: Callable[..., Any], fate: Fate) -> Callable[..., Any]:
    """A call that may be the last."""

    @functools.wraps(method)
    async def called(*given: Any, **named: Any) -> Any:
        fate.meet(f"before {name}")
        answer = await method(*given, **named)
        fate.meet(f"after {name}")
        return answer

    return called


def answered(name: str, method: Callable[..., Any], fate: Fate) -> Callable[..., Any]:
    """The same of a call that gives a future instead of being awaited itself."""

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
