"""``heddle-kubernetes``: the program that runs in a cluster, next to Kueue or Volcano."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from lightkube.core.exceptions import ConfigError

from heddle.client import Credentials, CredentialsError
from heddle.client.calls import split_addresses
from heddle.endings import endings
from heddle.text import OutputGuard, clean, split_address
from heddle_kubernetes.admission import Limits
from heddle_kubernetes.app import Settings, clear, serve

PEM = click.Path(dir_okay=False, path_type=Path)
SECONDS = click.FloatRange(0.0, 3600.0)


class Fault(click.ClickException):
    """An error that is printed as one line; exit status 2."""

    exit_code = 2


class _Program(OutputGuard, click.Group):
    """The program, which tells of a full output in one line."""


@click.group(cls=_Program)
@click.version_option(package_name="heddle-kubernetes")
def main() -> None:
    """Heddle for Kubernetes: labels, topologies, and an admission check for Kueue.

    The cluster is that of the pod in which this program runs, or that of KUBECONFIG.
    """


@main.command("serve", context_settings={"show_default": True})
@click.option(
    "--server",
    envvar="HEDDLE_SERVER",
    default="127.0.0.1:7400",
    help="Address of the controller, or of each replica, with commas.",
)
@click.option(
    "--fabric",
    envvar="HEDDLE_FABRIC",
    default="",
    help="Name of the fabric, if the controller has several.",
)
@click.option(
    "--tls-ca",
    envvar="HEDDLE_CLIENT_TLS_CA",
    type=PEM,
    help="Certificate authority of the controller.",
)
@click.option(
    "--tls-cert", envvar="HEDDLE_CLIENT_TLS_CERT", type=PEM, help="Certificate of this program."
)
@click.option(
    "--tls-key", envvar="HEDDLE_CLIENT_TLS_KEY", type=PEM, help="Private key of this program."
)
@click.option(
    "--token-file",
    envvar="HEDDLE_TOKEN_FILE",
    type=PEM,
    help="File with a bearer token, instead of a certificate.",
)
@click.option(
    "--wait",
    envvar="HEDDLE_KUBERNETES_WAIT",
    type=SECONDS,
    default=10.0,
    help="Longest time from the quota reservation of a workload until its check is "
    "Ready, in seconds.",
)
@click.option(
    "--sweep",
    envvar="HEDDLE_KUBERNETES_SWEEP",
    type=click.FloatRange(0.1, 3600.0),
    default=30.0,
    help="Interval at which jobs are compared with workloads, in seconds.",
)
@click.option(
    "--topology",
    envvar="HEDDLE_KUBERNETES_TOPOLOGY",
    default="heddle",
    help="Name of the Kueue Topology object to write.",
)
@click.option(
    "--admission/--no-admission",
    envvar="HEDDLE_KUBERNETES_ADMISSION",
    default=True,
    help="Answer Kueue's admission checks.",
)
@click.option(
    "--tiers/--no-tiers",
    envvar="HEDDLE_KUBERNETES_TIERS",
    default=True,
    help="Label nodes, and write Topology and HyperNode objects.",
)
@click.option(
    "--health",
    envvar="HEDDLE_KUBERNETES_HEALTH",
    metavar="HOST:PORT",
    help="Address for health probes: /live and /ready.",
)
def serve_command(  # noqa: PLR0917 - click gives them by name
    server: str,
    fabric: str,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    token_file: Path | None,
    wait: float,
    sweep: float,
    topology: str,
    health: str | None,
    *,
    admission: bool,
    tiers: bool,
) -> None:
    """Keep a cluster and Heddle in step, until stopped. Several replicas may run."""
    try:
        addresses = split_addresses(server)
        credentials = Credentials(tls_ca, tls_cert, tls_key, token_file, options=True)
        credentials.of_channel()
        credentials.metadata(addresses)
        settings = Settings(
            servers=server,
            fabric=fabric,
            credentials=credentials,
            limits=Limits(wait, sweep),
            admission=admission,
            tiers=tiers,
            topology=topology,
            health=None if health is None else split_address(health),
        )
    except ValueError as error:
        raise Fault(str(error)) from None
    _run(serve(settings))


@main.command("clear")
def clear_command() -> None:
    """Remove all labels and objects of Heddle from the cluster, before it is uninstalled."""
    _run(clear())


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run until the work is done, or until one of the ``endings``."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for name in ("httpx2", "httpx", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        asyncio.run(_stoppable(work))
    except* (ConfigError, CredentialsError) as errors:
        raise Fault(clean(str(errors.exceptions[0]))) from None


async def _stoppable(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    for number in endings():
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task
