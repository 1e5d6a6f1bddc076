"""The `heddle-emulator` command: make inputs, and run what the emulator can show.

One place turns what went wrong into one line and an exit code: 2 for input that was
refused, 1 for a lab that cannot be had, 130 for Ctrl-C. Everything else that fails is a
fault of ours and may show where.
"""

from __future__ import annotations

import sys
from importlib import import_module

import click

from heddle.text import plain_numbers
from heddle_controller.model.errors import InputError
from heddle_emulator.cli.output import echo
from heddle_emulator.netns import LabError

_FAILED = 1
REFUSED = 2
_INTERRUPTED = 130
COMMANDS = (
    "campaign",
    "compare",
    "demo",
    "drill",
    "iterate",
    "lab",
    "nccl",
    "ports",
    "report",
    "topology",
    "traffic",
)
"""Each of the module of its name, which is imported once the command is asked for."""


class Commands(click.Group):
    """The commands; none of them waits for what another one imports."""

    def list_commands(self, _: click.Context, /) -> list[str]:
        """Their names."""
        return list(COMMANDS)

    def get_command(self, _: click.Context, name: str, /) -> click.Command | None:
        """One of them; None where there is none of that name."""
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"heddle_emulator.cli.{name}"), name)
        plain_numbers(command, click.ClickException)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="heddle-emulator")
def cli() -> None:
    """Emulate fabrics, agents and traffic on one machine, and judge the results."""


plain_numbers(cli, click.ClickException)


def main() -> None:
    """The program's entry: runs the command line and exits."""
    sys.exit(run_command_line(sys.argv[1:]))


def run_command_line(arguments: list[str]) -> int:
    """Run one command line; returns the exit code."""
    try:
        result = cli.main(arguments, prog_name="heddle-emulator", standalone_mode=False)
    except InputError as error:
        echo(f"error: {error}", err=True)
        return REFUSED
    except click.ClickException as error:
        error.show()
        return REFUSED
    except LabError as error:
        echo(f"error: {error}", err=True)
        return _FAILED
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    return result if isinstance(result, int) else 0
