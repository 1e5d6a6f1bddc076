"""What commands print, cleaned of what terminals would obey; and SIGTERM as Ctrl-C."""

from __future__ import annotations

from types import FrameType
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.text import Text
from typing_extensions import override

from heddle.text import clean, clean_lines


def echo(text: str, *, err: bool = False) -> None:
    """One line of text."""
    click.echo(clean(text), err=err)  # noqa: TID251 - the one place


def echo_lines(text: str) -> None:
    """Several lines of ours, in which nothing is a stranger's."""
    click.echo(clean_lines(text))  # noqa: TID251 - the one place


class CleanConsole(Console):
    """A console whose texts, also in tables, are clean."""

    @override
    def render_str(self, text: str, **more: Any) -> Text:
        """See ``Console``."""
        return super().render_str(clean_lines(text), **more)


def interrupted(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - a handler
    """The handler."""
    raise KeyboardInterrupt
