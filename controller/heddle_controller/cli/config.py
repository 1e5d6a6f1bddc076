"""The configuration file of ``heddle``, and ``heddle config``.

The file holds defaults of the global options:

    server = "10.0.0.1:7400,10.0.0.2:7400"
    fabric = "f1"
    tls-ca = "~/heddle/ca.crt"

Options on the command line take precedence over variables, and variables over the file.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.core import ParameterSource

from heddle.client.calls import split_addresses
from heddle.text import meant
from heddle_controller.cli.client import Terms
from heddle_controller.cli.failure import CommandGroup, Failure, LazyGroup
from heddle_controller.cli.output import echo_json, echo_table, format_options

_LARGEST = 1 << 20
_FILE = "heddle.config"
"""Key of click's context under which the path of the file is kept."""


class ConfiguredGroup(LazyGroup):
    """The command with the global options, of which the file has defaults."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Forget the file's values once the options have them.

        Commands below would look for defaults of their own by their names, and "fabric" is both an
        option and a command.
        """
        rest = super().parse_args(ctx, args)
        ctx.default_map = None
        return rest


def default_file() -> Path:
    """Return the default path: heddle/config.toml in the user's folder for configuration."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "heddle" / "config.toml"


def take_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Use the file's values as defaults of the command's options; callback of an eager option.

    Raises:
        Failure: The named file cannot be read, or a file is not TOML, or has a key that is not an
            option or a value that the option does not accept. The message names the cure.
    """
    file = path or default_file()
    try:
        with file.open("rb") as opened:
            content = opened.read(_LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        if path is None:
            return None
        raise Failure(f"{file}: there is no such file: write it, or leave --config out") from None
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}") from None
    if len(content) > _LARGEST:
        raise Failure(f"{file}: is larger than {_LARGEST >> 20} MiB; is it the right file?")
    ctx.meta[_FILE] = file
    import tomllib  # noqa: PLC0415 - so that nobody without a file waits for it

    try:
        told = tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Failure(f"{file}: is no TOML: {error}") from None
    known = {
        name.removeprefix("--"): param
        for param in ctx.command.params
        for name in param.opts
        if isinstance(param, click.Option) and name.startswith("--") and not param.is_eager
    }
    ctx.default_map = {
        str(known[key].name): _checked(ctx, file, key, _value(file, key, value, known[key]))
        for key, value in told.items()
        if _check_key(file, key, list(known))
    }
    return path


def _checked(ctx: click.Context, file: Path, key: str, value: object) -> object:
    """Return the value if its option accepts it; Failure if not."""
    (param,) = [one for one in ctx.command.params if f"--{key}" in one.opts]
    try:
        param.type_cast_value(ctx, value)
        if key == "server":
            split_addresses(str(value))
    except click.BadParameter as error:
        raise Failure(f"{file}: {key}: {error.message}") from None
    except ValueError as error:
        raise Failure(f"{file}: {key}: {error}") from None
    return value


def _check_key(file: Path, key: str, known: list[str]) -> bool:
    if key in known:
        return True
    raise Failure(f"{file}: unknown key {key[:80]!r}; {meant(key, sorted(known))}")


def _value(file: Path, key: str, value: object, param: click.Parameter) -> object:
    flag = isinstance(param, click.Option) and param.is_flag
    if flag != isinstance(value, bool):
        raise Failure(f"{file}: {key} is {value!r}; give {'true or false' if flag else 'a value'}")
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        value = ",".join(value)
    if not isinstance(value, (bool, int, float, str)):
        raise Failure(f"{file}: {key} is {value!r}; give a text or a number")
    if isinstance(param.type, click.Path) and isinstance(value, str):
        return str(file.parent / Path(value).expanduser())
    return value if flag else str(value)


@click.group(cls=CommandGroup)
def config() -> None:
    """Show the values of the global options, and where they come from."""


@config.command("check")
@format_options
@click.pass_obj
def check(client: Terms, /, *, as_json: bool) -> None:
    """List the options, their values, and where each value comes from. Asks no controller.

    Exit 2 if the file has an error, an address is not valid, or a named file cannot be used.
    """
    root = click.get_current_context().find_root()
    rows = [_row(root, one) for one in root.command.params if one.expose_value]
    _check_files(client)
    if as_json or client.json:
        echo_json(rows)
        return
    columns = ("option", "value", "from")
    echo_table(columns, [["" if row[c] is None else row[c] for c in columns] for row in rows])


def _row(root: click.Context, param: click.Parameter) -> dict[str, object]:
    """Return an option, its value, and where the value comes from."""
    value = root.params.get(str(param.name))
    match root.get_parameter_source(str(param.name)):
        case ParameterSource.COMMANDLINE:
            source = "the command line"
        case ParameterSource.ENVIRONMENT:
            source = f"the variable {param.envvar}"
        case ParameterSource.DEFAULT_MAP:
            source = str(root.meta[_FILE])
        case _:
            source = "default"
    shown = str(value) if isinstance(value, Path) else value
    return {"option": param.opts[0], "value": shown, "from": source}


def _check_files(client: Terms) -> None:
    """Check what a first call would use.

    Raises:
        Failure: An address is malformed.
        InputError: A file cannot be used; the message names the option and the cure.
    """
    try:
        addresses = split_addresses(client.server)
    except ValueError as error:
        raise Failure(f"--server: {error}") from None
    with client.failing():
        client.files.of_channel()
        client.files.metadata(addresses)
