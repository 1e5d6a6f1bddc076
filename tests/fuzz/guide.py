"""Guidance by coverage: which lines of our own code inputs reach, by Python's tracing.

An input that reaches a new line is worth spoiling further, so it joins the corpus. Tracing makes a
run several times slower, so only some inputs are traced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

OURS = ("heddle_controller", "heddle_agent", "heddle_emulator")
MOST = 300
"""Inputs that a corpus may grow to."""


class Guide:
    """The lines that one target's inputs have reached."""

    def __init__(self) -> None:
        self.reached: set[tuple[int, int]] = set()
        self._codes: dict[CodeType, bool] = {}
        self._new = False

    def traced(self, run: Callable[[], Any]) -> bool:
        """Run a function; return whether it reached a new line. Its exceptions are not caught."""
        self._new = False
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            run()
        finally:
            sys.settrace(before)
        return self._new

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        del event, argument
        code = frame.f_code
        ours = self._codes.get(code)
        if ours is None:
            ours = self._codes[code] = any(name in code.co_filename for name in OURS)
        return self._line if ours else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        del argument
        if event == "line":
            place = (id(frame.f_code), frame.f_lineno)
            if place not in self.reached:
                self.reached.add(place)
                self._new = True
        return self._line
