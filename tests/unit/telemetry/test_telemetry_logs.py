from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from heddle.text import clean
from heddle_controller.telemetry.logs import configure_logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    handlers, level = logging.root.handlers, logging.root.level
    grpc, asyncio = logging.getLogger("grpc").level, logging.getLogger("asyncio").level
    before = structlog.get_config()
    yield
    structlog.configure(**before)
    logging.root.handlers = handlers
    logging.root.setLevel(level)
    logging.getLogger("grpc").setLevel(grpc)
    logging.getLogger("asyncio").setLevel(asyncio)


def raised(error: Exception) -> Exception:
    """Return the error with a traceback."""
    try:
        raise error
    except type(error) as caught:
        return caught


def events(stream: io.StringIO) -> list[dict[str, object]]:
    """Return the lines of a JSON log as objects."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_logs_are_one_object_a_line() -> None:
    """A line has time, level, logger and bound values. A traceback stays on its line."""
    stream = io.StringIO()
    configure_logs("info", "json", stream)
    with structlog.contextvars.bound_contextvars(request="r1"):
        structlog.stdlib.get_logger("heddle").info("planned", seconds=0.5)
    structlog.stdlib.get_logger("heddle").error("failed", exc_info=raised(KeyError("x")))
    logging.getLogger("other").warning("from the library %s", "side")
    planned, failed, other = events(stream)
    assert (planned["event"], planned["level"], planned["logger"]) == ("planned", "info", "heddle")
    assert (planned["request"], planned["seconds"]) == ("r1", 0.5)
    assert "Traceback" in str(failed["exception"])
    assert (other["event"], other["level"]) == ("from the library side", "warning")
    assert "timestamp" in other


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"password": "s3cret"}, "heddle"),
        ({"api_token": "s3cret"}, "heddle"),
        ({"headers": {"Authorization": "s3cret"}}, "heddle"),
        ({"many": [{"client_secret": "s3cret"}]}, "heddle"),
        ({"store": "redis://user:s3cret@db:6379/0"}, "db:6379"),
        ({"header": "Bearer s3cret"}, "Bearer"),
        ({"pem": "-----BEGIN PRIVATE KEY-----\ns3cret\n-----END PRIVATE KEY-----"}, "heddle"),
        ({"pem": "-----BEGIN EC PRIVATE KEY-----\ns3cret"}, "heddle"),
    ],
)
@pytest.mark.parametrize("style", ["json", "console"])
def test_secrets_are_never_logged(style: str, given: dict[str, object], kept: str) -> None:
    """Secrets are hidden by name, nested, in addresses, headers and PEM. Text around them stays."""
    stream = io.StringIO()
    configure_logs("info", style, stream)
    structlog.stdlib.get_logger("heddle").info("event", **given)
    assert "s3cret" not in stream.getvalue()
    assert kept in stream.getvalue()


def test_a_secret_in_a_traceback_is_hidden() -> None:
    """An exception may contain the address on which it failed."""
    stream = io.StringIO()
    configure_logs("info", "json", stream)
    error = raised(ConnectionError("redis://user:s3cret@db"))
    structlog.stdlib.get_logger("heddle").error("failed", exc_info=error)
    assert "s3cret" not in stream.getvalue()


def test_lower_levels_are_left_out() -> None:
    """Lower levels are left out of Heddle's own logs and of those of libraries."""
    stream = io.StringIO()
    configure_logs("warning", "json", stream)
    structlog.stdlib.get_logger("heddle").info("quiet")
    logging.getLogger("other").info("quiet")
    structlog.stdlib.get_logger("heddle").warning("loud")
    assert [event["event"] for event in events(stream)] == ["loud"]


def test_auto_is_json_where_there_is_no_terminal() -> None:
    """Without a terminal the style is JSON, because machines read such logs."""
    stream = io.StringIO()
    configure_logs("info", "auto", stream)
    structlog.stdlib.get_logger("heddle").info("event")
    assert events(stream)[0]["event"] == "event"


def test_console_logs_are_lines_for_people() -> None:
    """The event comes first and its values after it."""
    stream = io.StringIO()
    configure_logs("info", "console", stream)
    structlog.stdlib.get_logger("heddle").info("planned", seconds=0.5)
    assert "planned" in stream.getvalue()
    assert "seconds=0.5" in stream.getvalue()


ODD = "x\x1b[2J\r\nFAKE \u202etxt\x9b\u2028"


@pytest.mark.parametrize("style", ["console", "json"])
def test_a_log_has_nothing_that_a_terminal_obeys(style: str) -> None:
    """Events, values and tracebacks are escaped, and no name begins a line of its own."""
    stream = io.StringIO()
    configure_logs("info", style, stream)
    log = structlog.stdlib.get_logger("heddle")
    event = f"told {ODD}"
    log.info(event, name=ODD, names=[ODD], more={"a": ODD}, why=ValueError(ODD))
    log.error("failed", exc_info=raised(ValueError(ODD)))
    logging.getLogger("other").warning("library: %s", ODD)
    shown = stream.getvalue()
    assert all(clean(line) == line for line in shown.split("\n"))
    if style == "console":
        lines = shown.split("Traceback")[0].splitlines()
        assert not any(line.startswith("FAKE") for line in lines)
        assert "\\x1b[2J" in shown
