"""The `heddle-emulator` command: make inputs, and run what the emulator can show.

One place turns what went wrong into one line and an exit code: 2 for input that was
refused, 1 for a lab that cannot be had, 130 for Ctrl-C. Everything else that fails is a
fault of ours and may show where.
"""

from __future__ import annotations

import sys

import click

from heddle.text import plain_numbers
from heddle_controller.model.errors import InputError
from heddle_emulator.cli.campaign import campaign
from heddle_emulator.cli.compare import compare
from heddle_emulator.cli.demo import demo
from heddle_emulator.cli.drill import drill
from heddle_emulator.cli.iterate import iterate_command
from heddle_emulator.cli.lab import lab
from heddle_emulator.cli.nccl import nccl
from heddle_emulator.cli.output import echo
from heddle_emulator.cli.report import report
from heddle_emulator.cli.topology import topology
from heddle_emulator.cli.traffic import traffic
from heddle_emulator.netns.errors import LabError

FAILED = 1
REFUSED = 2
INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="heddle-emulator")
def cli() -> None:
    """Fabrics, agents and traffic on one machine, and a verdict of its own."""


cli.add_command(campaign)
cli.add_command(compare)
cli.add_command(demo)
cli.add_command(drill)
cli.add_command(lab)
cli.add_command(iterate_command)
cli.add_command(nccl)
cli.add_command(report)
cli.add_command(topology)
cli.add_command(traffic)
plain_numbers(cli, click.ClickException)


def main() -> None:
    """The program's entry: runs the command line and exits."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
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
        return FAILED
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return result if isinstance(result, int) else 0
