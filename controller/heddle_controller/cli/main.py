"""``heddle``: what an operator types."""

from __future__ import annotations

from pathlib import Path

import click

from heddle.client import Credentials
from heddle.text import plain_numbers
from heddle_controller.cli.client import Terms
from heddle_controller.cli.completing import FABRICS, SERVER
from heddle_controller.cli.config import ConfiguredGroup, take_config
from heddle_controller.cli.failure import EXIT_CODES, Failure
from heddle_controller.cli.output import format_options

_PEM = click.Path(path_type=Path, dir_okay=False)
COMMANDS = {
    "audit": "audit",
    "completion": "completion",
    "config": "config",
    "demand": "demand",
    "doctor": "doctor",
    "drain": "drain",
    "fabric": "fabric",
    "history": "history",
    "job": "job",
    "overlay": "overlay",
    "plan": "plan",
    "show": "show",
    "slurm": "slurm",
    "token": "token",
    "undrain": "drain",
}
"""The module of each command."""


@click.group(
    cls=ConfiguredGroup,
    package="heddle_controller.cli",
    modules=COMMANDS,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--server",
    envvar="HEDDLE_SERVER",
    default=SERVER,
    show_default=True,
    metavar="HOST:PORT[,...]",
    help="Address of the controller, or of each replica. If one does not answer, the "
    "next is asked.",
)
@click.option(
    "--fabric",
    envvar="HEDDLE_FABRIC",
    shell_complete=FABRICS,
    help="Name of the fabric, if the controller has several.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.0, min_open=True),
    default=60.0,
    show_default=True,
    help="Time limit of a call, in seconds.",
)
@click.option(
    "--tls-ca",
    envvar="HEDDLE_CLIENT_TLS_CA",
    type=_PEM,
    help="Certificate authority of the controller; turns TLS on.",
)
@click.option(
    "--tls-cert", envvar="HEDDLE_CLIENT_TLS_CERT", type=_PEM, help="Certificate of this client."
)
@click.option(
    "--tls-key", envvar="HEDDLE_CLIENT_TLS_KEY", type=_PEM, help="Private key of this client."
)
@click.option(
    "--token-file",
    envvar="HEDDLE_TOKEN_FILE",
    type=_PEM,
    help="File with a bearer token, instead of a certificate.",
)
@click.option(
    "--config",
    envvar="HEDDLE_CONFIG",
    type=_PEM,
    is_eager=True,
    expose_value=False,
    callback=take_config,
    help='TOML file with defaults of these options, such as server = "10.0.0.1:7400".  '
    "[default: ~/.config/heddle/config.toml]",
)
@click.version_option(package_name="heddle-controller")
@format_options
@click.pass_context
def main(
    ctx: click.Context,
    *,
    server: str,
    fabric: str | None,
    timeout: float,
    as_json: bool,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    token_file: Path | None,
) -> None:
    """Heddle: collision-free routes for the fabrics of AI clusters.

    'heddle plan' and 'heddle token' work offline. All other commands talk to a controller. A
    file can set the options; see --config.
    """
    files = Credentials(tls_ca, tls_cert, tls_key, token_file, options=True)
    ctx.obj = Terms(server, timeout, as_json, fabric, files)


plain_numbers(main, Failure)
