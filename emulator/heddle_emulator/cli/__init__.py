"""The ``heddle-emulator`` command: make inputs, and run what the emulator can show.

One place turns errors into one line and an exit code: 2 for refused input, 1 for a lab that cannot
run, 130 for Ctrl-C, SIGTERM and SIGHUP. Everything else that fails is a bug, and may show a
traceback.
"""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from io import TextIOWrapper
from types import FrameType

import click

from heddle.text import OutputGuard, plain_numbers
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
"""Each command is in the module of its name, which is imported only when it is used."""


class Commands(OutputGuard, click.Group):
    """The commands; each is imported only when it is used."""

    def list_commands(self, _: click.Context, /) -> list[str]:
        """Return the names of the commands."""
        return list(COMMANDS)

    def get_command(self, _: click.Context, name: str, /) -> click.Command | None:
        """Return a command by name; None if there is none of that name."""
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
    """Run the command line and exit; the entry point of the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # not every terminal can show "…"
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, _as_ctrl_c)
    sys.exit(run_command_line(sys.argv[1:]))


def _as_ctrl_c(_: int, frame: FrameType | None) -> None:
    """Do what Ctrl-C does, so that whatever a command has started ends in order."""
    handler = signal.getsignal(signal.SIGINT)  # while asyncio runs, it cancels the main task
    if not callable(handler):  # a shell makes programs in the background ignore Ctrl-C
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


def run_command_line(arguments: list[str]) -> int:
    """Run one command line and return the exit code."""
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
