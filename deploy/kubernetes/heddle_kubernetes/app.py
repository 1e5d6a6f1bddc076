"""The only wiring: connects a cluster and a controller with what runs between them."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import httpx2
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.async_client import AsyncClient as ClusterClient
from lightkube.core.exceptions import ConfigError

from heddle.client import AsyncClient, Credentials
from heddle_kubernetes.admission import Admission, Limits
from heddle_kubernetes.cluster import Attempts, Cluster, ClusterError, pace_watches
from heddle_kubernetes.decision import Names
from heddle_kubernetes.health import Health
from heddle_kubernetes.objects import NAMESPACE, OURS, text
from heddle_kubernetes.tiers import Tiers

FIRST_NAMESPACE = "kube-system"
CALL_SECONDS = 10.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the program."""

    servers: str = "127.0.0.1:7400"
    fabric: str = ""
    credentials: Credentials = field(default_factory=Credentials)
    limits: Limits = field(default_factory=Limits)
    admission: bool = True
    tiers: bool = True
    topology: str = "heddle"
    """Name of Kueue's Topology object."""
    health: tuple[str, int] | None = None
    """Host and port on which health probes are answered; None: they are not."""


async def serve(settings: Settings, config: KubeConfig | None = None) -> None:
    """Run until cancelled.

    Args:
        settings: What to do.
        config: How to reach the cluster; None: as a pod does, or as KUBECONFIG says.
    """
    client = _client(config)
    cluster = Cluster(client)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        heddle = await stack.enter_async_context(
            AsyncClient(
                settings.servers,
                fabric=settings.fabric,
                credentials=settings.credentials,
                timeout=CALL_SECONDS,
                patience=0,
            )
        )
        health = Health()
        if settings.health is not None:
            try:
                stack.push_async_callback(await health.listen(*settings.health))
            except OSError as error:
                host, port = settings.health
                raise ConfigError(f"--health {host}:{port}: {error.strerror or error}") from None
        names = Names(await _identity(cluster))
        async with asyncio.TaskGroup() as tasks:
            if settings.admission:
                admission = Admission(cluster, heddle, names, settings.limits)
                health.watch(admission.checks, admission.workloads)
                tasks.create_task(admission.run())
            if settings.tiers:
                tiers = Tiers(cluster, heddle, settings.topology)
                health.watch(*tiers.mirrors)
                tasks.create_task(tiers.run())


async def clear(config: KubeConfig | None = None) -> None:
    """Remove Heddle's labels and objects from a cluster."""
    client = _client(config)
    try:
        await Tiers(Cluster(client), None, "").clear()
    finally:
        await client.close()


def _client(config: KubeConfig | None) -> ClusterClient:
    """Return a client of the cluster. Raises ``ConfigError`` if it cannot be configured."""
    limit = httpx2.Timeout(CALL_SECONDS)
    try:
        client = ClusterClient(config=config, timeout=limit, field_manager=OURS)
    except ConfigError:
        raise
    except Exception as error:  # lightkube does not check what it reads
        file = os.environ.get("KUBECONFIG", "~/.kube/config")
        reason = f"{type(error).__name__}: {' '.join(f'{error}'.split())}"
        raise ConfigError(f"{file} is no configuration of a cluster ({reason})") from error
    pace_watches(client)
    return client


async def _identity(cluster: Cluster) -> str:
    """Return an id that no other cluster has and that never changes."""
    attempts = Attempts()
    while True:
        try:
            return text(await cluster.get(NAMESPACE, FIRST_NAMESPACE), "metadata", "uid")
        except ClusterError as error:
            await attempts.failed(error)
