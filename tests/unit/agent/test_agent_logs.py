from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest
import structlog

from heddle.text import clean
from heddle_agent.app import configure_logs

ODD = "x\x1b[2J\r\nFAKE \u202etxt\x9b\u2028"


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Restore the configuration of the log for other tests."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("style", ["console", "json"])
def test_a_log_has_nothing_that_a_terminal_obeys(
    monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    """Text from a controller or another agent is escaped and stays on one line."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logs("info", style)
    structlog.get_logger().info(f"told {ODD}", name=ODD, names=[ODD], why=ValueError(ODD))
    (line,) = stream.getvalue().removesuffix("\n").split("\n")
    assert clean(line) == line
    assert "FAKE" in line
