"""Logs: one event per line, as JSON for programs or as coloured columns for people.

All logs go to standard error, also those of the standard library. So standard output has only
the one line that says where the controller listens.

Secrets are replaced before any renderer sees them: values whose name says that they are secret,
passwords in addresses, bearer tokens, and private keys in PEM.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

from heddle.text import clean, clean_lines

SECRET_NAME = re.compile(
    r"(password|passwd|secret|token|authorization|credential|private)", re.IGNORECASE
)
PASSWORD_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)")
BEARER = re.compile(r"(?<=\bbearer )\S+", re.IGNORECASE)
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*-----|\Z)", re.DOTALL)
HIDDEN = "***"


def hide_secrets(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Replace the secrets of an event, also nested ones, by ``***``; a structlog processor."""
    for name, value in event.items():
        event[name] = HIDDEN if SECRET_NAME.search(name) else _clean(value)
    return event


def _clean(value: object) -> object:
    if isinstance(value, str):
        for pattern in (PASSWORD_IN_ADDRESS, BEARER, _PEM):
            value = pattern.sub(HIDDEN, value)
        return value
    if isinstance(value, dict):
        return {
            name: HIDDEN if SECRET_NAME.search(str(name)) else _clean(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_clean(inner) for inner in value]
    return value


def clean_values(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Escape control characters in an event's values; a structlog processor.

    Names and messages from clients could otherwise send commands to the terminal.
    """
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = clean_lines(value) if name == "exception" else clean(value)
        elif not isinstance(value, bool | int | float | None):
            event[name] = clean(str(value))
    return event


def configure_logs(level: str, style: str, stream: TextIO | None = None) -> None:
    """Send all logs of the process to one stream.

    Args:
        level: debug, info, warning or error.
        style: json, console, or auto, which is console on a terminal and JSON elsewhere.
        stream: Where to write; None is standard error.
    """
    stream = stream or sys.stderr
    console = style == "console" or (style == "auto" and stream.isatty())
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # tests configure logs again
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                hide_secrets,
                *([clean_values] if console else []),  # JSON escapes control characters anyway
                _renderer(console=console, colors=stream.isatty()),
            ],
        )
    )
    logging.root.handlers = [handler]
    logging.root.setLevel(level.upper())
    logging.getLogger("grpc").setLevel(max(logging.root.level, logging.INFO))
    logging.getLogger("asyncio").setLevel(max(logging.root.level, logging.INFO))


def _renderer(*, console: bool, colors: bool) -> structlog.types.Processor:
    if console:
        return structlog.dev.ConsoleRenderer(colors=colors)
    return structlog.processors.JSONRenderer(sort_keys=True)
