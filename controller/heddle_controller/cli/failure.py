"""How a command fails: one line that says what is wrong and how to cure it, and an exit code.

| code | meaning |
|---|---|
| 0 | done |
| 1 | the controller failed, or a check found a fault |
| 2 | bad input, a request that was refused, or no controller to reach |
| 3 | done, but some flow has no path |
| 130 | ended by Ctrl-C |

``CommandGroup`` and ``LazyGroup`` are groups of commands that fail in this way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import IO, Any

import click
import grpc
from click.exceptions import Exit

from heddle.client import HeddleError, TimedOut, Unreachable
from heddle.text import OutputGuard, clean, plain_numbers
from heddle_controller.model.errors import InputError

FAULT = 1
_REFUSED = 2
UNROUTED = 3
_INTERRUPTED = 130

EXIT_CODES = """\b
Exit codes:
  0  done
  1  the controller failed, or a check found a fault
  2  bad input, a refused request, or no controller to reach
  3  done, but some flow has no path
  130  ended by Ctrl-C
"""


class Failure(click.ClickException):
    """An error for people: one line, and further lines if a server reported several problems."""

    def __init__(
        self, message: str, exit_code: int = _REFUSED, details: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.code = exit_code
        self.details = tuple(details)

    @property
    def exit_code(self) -> int:  # type: ignore[override] # click reads it, nobody sets it
        """The exit status of the process."""
        return self.code

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message and its details to ``file``, by default to standard error."""
        click.echo(clean(f"error: {self.message}"), file=file, err=file is None)  # noqa: TID251
        for detail in self.details:
            click.echo(clean(f"  {detail}"), file=file, err=file is None)  # noqa: TID251


class CommandGroup(OutputGuard, click.Group):
    """A group whose commands may raise ``InputError``."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command, and turn what ends it early into a ``Failure`` or an exit code."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            raise Failure(str(error)) from error
        except KeyboardInterrupt:
            raise Exit(_INTERRUPTED) from None


def failure_of(error: HeddleError, cure: str) -> Failure:
    """Return the failure of a command whose call ended with this error.

    Args:
        error: The error. If no controller answered, its message names the address.
        cure: What to do if no controller was reached.
    """
    if isinstance(error, Unreachable):
        return Failure(f"{error.message}: {cure}")
    if not error.told:
        more = ": give it more by --timeout" if isinstance(error, TimedOut) else ""
        return Failure(f"{error.message}{more}")
    again = error.retry_after
    when = "" if again is None else f" (try again in {again:.2g} s)"
    problems = [f"{each.field}: {each.description}" for each in error.violations]
    fault = error.code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
    return Failure(
        error.message + when, FAULT if fault else _REFUSED, problems if len(problems) > 1 else ()
    )


class LazyGroup(CommandGroup):
    """Imports the module of a command only when it is used, so that others start faster.

    It may also have commands of its own, which need no further module.
    """

    def __init__(self, *args: Any, package: str, modules: Mapping[str, str], **kwargs: Any) -> None:  # noqa: ANN401 - click's
        """Take ``modules``, which maps names of commands to their modules in ``package``."""
        super().__init__(*args, **kwargs)
        self._package = package
        self._modules = modules

    def list_commands(self, ctx: click.Context, /) -> list[str]:
        """Return the names of all commands."""
        return sorted([*super().list_commands(ctx), *self._modules])

    def get_command(self, ctx: click.Context, name: str, /) -> click.Command | None:
        """Import and return the command with this name; None if there is none."""
        if name not in self._modules:
            return super().get_command(ctx, name)
        module = import_module(f"{self._package}.{self._modules[name]}")
        found = (one for one in vars(module).values() if isinstance(one, click.Command))
        command = next(one for one in found if one.name == name)
        plain_numbers(command, Failure)
        return command
