"""Groups of commands, none of which waits for what another one imports."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from heddle.text import plain_numbers
from heddle_controller.cli.failure import CommandGroup, Failure


class LazyGroup(CommandGroup):
    """Each command is of the module of its name, imported once it is asked for."""

    def __init__(self, *args: Any, package: str, names: tuple[str, ...], **kwargs: Any) -> None:  # noqa: ANN401 - click's
        """``package`` holds the modules, ``names`` are those of the commands."""
        super().__init__(*args, **kwargs)
        self._package = package
        self._names = names

    def list_commands(self, _: click.Context, /) -> list[str]:
        """Their names."""
        return list(self._names)

    def get_command(self, _: click.Context, name: str, /) -> click.Command | None:
        """One of them; None where there is none of that name."""
        if name not in self._names:
            return None
        command: click.Command = getattr(import_module(f"{self._package}.{name}"), name)
        plain_numbers(command, Failure)
        return command
