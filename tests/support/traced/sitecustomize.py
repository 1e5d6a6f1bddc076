"""Makes a program record which functions of the controller it calls, while a file exists.

Python imports this module at its start if its folder is on ``PYTHONPATH``. In the folder that
``HEDDLE_TRACE`` names, the file ``on`` begins a trace. Once it is gone, each process writes
``PID.json``: a list of [file, line, function], in the order of the first calls. Child processes do
the same. Threads are followed too. Each process announces itself with ``PID.pid``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType

ROOM = f"{os.sep}heddle_controller{os.sep}"
PAUSE = 0.005


class Trace:
    """The functions that were called since the trace began."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._on = False
        self._seen: dict[int, CodeType] = {}
        """By identity, because hashing code is slow; kept here so that no identity is reused."""

    def install(self) -> None:
        """Follow this thread and all threads that start from now on."""
        threading.Thread(target=self._mind, name="trace", daemon=True).start()
        threading.setprofile(self._call)
        sys.setprofile(self._call)
        self._file("pid").touch()

    def _file(self, kind: str) -> Path:
        return self._folder / f"{os.getpid()}.{kind}"

    def _call(self, frame: FrameType, event: str, _: object) -> None:
        if self._on and event == "call":
            self._seen.setdefault(id(frame.f_code), frame.f_code)

    def _mind(self) -> None:
        while True:
            on = (self._folder / "on").exists()
            if on != self._on:
                self._on = on
                self._seen.clear() if on else self._write()
                self._file("tracing").touch() if on else self._file("tracing").unlink()
            time.sleep(PAUSE)

    def _write(self) -> None:
        rows = [
            (code.co_filename.partition(ROOM)[2], code.co_firstlineno, code.co_qualname)
            for code in list(self._seen.values())
            if ROOM in code.co_filename
        ]
        self._file("new").write_text(json.dumps(rows))
        self._file("new").rename(self._file("json"))


if told := os.environ.get("HEDDLE_TRACE"):
    Trace(Path(told)).install()
