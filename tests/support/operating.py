"""The real ``heddle`` command against a real API, for tests of what operators see."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from click.testing import CliRunner

from heddle_controller.cli.main import main
from tests.support.serving import Serving, serving
from tests.support.waiting import PATIENCE


@dataclass(frozen=True)
class Outcome:
    """What a command printed and exited with."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its standard output as one JSON document."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[list[str]]:
        """Its standard output as words, line by line."""
        return [line.split() for line in self.out.splitlines()]


def heddle(*words: str | Path) -> Outcome:
    """Run the command in this process."""
    result = CliRunner(catch_exceptions=False).invoke(main, [str(word) for word in words])
    return Outcome(result.exit_code, result.stdout, result.stderr)


def printed() -> str:
    """What the command that runs in a thread of this process has printed so far."""
    kept: Any = getattr(sys.stdout, "buffer", None)
    return str(kept.getvalue().decode()) if isinstance(kept, io.BytesIO) else ""


@dataclass(frozen=True)
class Operator:
    """Somebody at a terminal, and what runs at the other end."""

    s: Serving

    async def does(self, *words: str | Path) -> Outcome:
        """Run a command against the server, in a thread beside it."""
        server = f"127.0.0.1:{self.s.api.port}"
        return await asyncio.to_thread(
            heddle, "--server", server, "--timeout", f"{PATIENCE:g}", *words
        )


@contextmanager
def unlogged() -> Iterator[None]:
    """Log lines of this process, agents' too, do not get among what commands print."""
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    try:
        yield
    finally:
        structlog.configure(**before)


@asynccontextmanager
async def operating(path: Path) -> AsyncIterator[Operator]:
    """A server, and somebody who sees what commands print."""
    with unlogged():
        async with serving(path) as s:
            yield Operator(s)
