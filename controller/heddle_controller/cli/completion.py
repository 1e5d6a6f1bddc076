"""``heddle completion``: lets a shell complete what is typed after ``heddle``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from heddle_controller.cli.output import echo_script

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that makes a shell complete commands, options, and names of jobs and switches.

    \b
    heddle completion bash > /etc/bash_completion.d/heddle
    heddle completion zsh > "${fpath[1]}/_heddle"
    heddle completion fish > ~/.config/fish/completions/heddle.fish
    """  # noqa: D301 - click's mark for lines that stay as they are
    found = get_completion_class(shell)
    assert found is not None  # click has these three
    root = ctx.find_root()
    echo_script(found(root.command, {}, "heddle", "_HEDDLE_COMPLETE").source())
