"""The agents' logs, which would otherwise be among what the demo shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog


@contextmanager
def agent_logs(folder: Path) -> Iterator[Path]:
    """Have what agents of this process log written to a file in a folder."""
    path = folder / "agents.log"
    before = structlog.get_config()
    with path.open("w", encoding="utf-8") as file:
        structlog.configure(
            processors=[
                structlog.processors.TimeStamper(fmt="iso"),
                structlog.processors.add_log_level,
                structlog.processors.LogfmtRenderer(bool_as_flag=False),
            ],
            logger_factory=structlog.WriteLoggerFactory(file),
            cache_logger_on_first_use=False,
        )
        try:
            yield path
        finally:
            structlog.configure(**before)
