"""``heddle-kubernetes``: the program that runs in a cluster, beside Kueue or Volcano."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from lightkube.core.exceptions import ConfigError

from heddle.client import Credentials, CredentialsError
from heddle.client.calls import split_addresses
from heddle.text import clean, split_address
from heddle_kubernetes.admission import Limits
from heddle_kubernetes.app import Settings, clear, serve

PEM = click.Path(dir_okay=False, path_type=Path)
SECONDS = click.FloatRange(0.0, 3600.0)


class Fault(click.ClickException):
    """One line, and exit status 2."""

    exit_code = 2


@click.group()
@click.version_option(package_name="heddle-kubernetes")
def main() -> None:
    """Heddle for Kubernetes: labels, topologies, and an admission check for Kueue.

    The cluster is that of the pod that this runs in, or that of KUBECONFIG.
    """


@main.command("serve", context_settings={"show_default": True})
@click.option(
    "--server",
    envvar="HEDDLE_SERVER",
    default="127.0.0.1:7400",
    help="Address of the controller; of several with commas.",
)
@click.option("--fabric", envvar="HEDDLE_FABRIC", default="", help="Where there are several.")
@click.option("--tls-ca", envvar="HEDDLE_CLIENT_TLS_CA", type=PEM, help="Authority of controllers.")
@click.option("--tls-cert", envvar="HEDDLE_CLIENT_TLS_CERT", type=PEM, help="Our certificate.")
@click.option("--tls-key", envvar="HEDDLE_CLIENT_TLS_KEY", type=PEM, help="Its private key.")
@click.option("--token-file", envvar="HEDDLE_TOKEN_FILE", type=PEM, help="Bearer token, in place.")
@click.option(
    "--wait",
    envvar="HEDDLE_KUBERNETES_WAIT",
    type=SECONDS,
    default=10.0,
    help="Seconds from the reservation of a workload's quota until its check is Ready, at most.",
)
@click.option(
    "--sweep",
    envvar="HEDDLE_KUBERNETES_SWEEP",
    type=click.FloatRange(0.1, 3600.0),
    default=30.0,
    help="Seconds between two looks at whether jobs are over or missing.",
)
@click.option(
    "--topology",
    envvar="HEDDLE_KUBERNETES_TOPOLOGY",
    default="heddle",
    help="Name of the Topology of Kueue that is written.",
)
@click.option(
    "--admission/--no-admission",
    envvar="HEDDLE_KUBERNETES_ADMISSION",
    default=True,
    help="Answer the admission checks of Kueue.",
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
    help="Answer probes there: /live and /ready.",
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
    """Keep a cluster and Heddle in step until told to stop. Any number of replicas may run."""
    try:
        split_addresses(server)
        settings = Settings(
            servers=server,
            fabric=fabric,
            credentials=Credentials(tls_ca, tls_cert, tls_key, token_file),
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
    """Remove every label and object that is ours from the cluster, before it is uninstalled."""
    _run(clear())


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Runs until it is done, or SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for name in ("httpx2", "httpx", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        asyncio.run(_stoppable(work))
    except* (ConfigError, CredentialsError) as errors:
        raise Fault(clean(str(errors.exceptions[0]))) from None


async def _stoppable(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task
