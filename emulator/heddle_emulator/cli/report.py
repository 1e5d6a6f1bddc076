"""``heddle-emulator report``: make pages again from the JSON of drills."""

from __future__ import annotations

from pathlib import Path

import click

from heddle_emulator.cli.output import echo
from heddle_emulator.report.folder import render


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
def report(*, paths: tuple[Path, ...]) -> int:
    """Make the pages of drills again from their JSON files or from folders.

    `drill --report FOLDER` writes both. Prints the names of the files.
    """
    for path in paths:
        for page in render(path):
            echo(str(page))
    return 0
