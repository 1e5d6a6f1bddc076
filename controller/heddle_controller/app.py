"""``heddle-controller``: the program, and the only place that wires its parts together.

A start takes these steps in order. Each waits for the one before, and none waits for a timer:
settings, logs, metrics port, store, API port (health NOT_SERVING), web port, loop, it is known
who leads, health SERVING. Then one line on standard output says where the controller listens.

A stop goes in the reverse order: health NOT_SERVING, end the loop (it hands over leadership), end
the web page and all streams, let calls in progress finish within the drain time, close the store.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import click
import structlog

from heddle.endings import endings
from heddle.option_help import describe_options, option_keywords
from heddle.text import OutputGuard, clean, split_address
from heddle_controller.model.errors import InputError, refuse
from heddle_controller.planner.process import Advisors, PlanningProcess, ProcessLimits
from heddle_controller.reconcile.loop import Reconciler
from heddle_controller.reconcile.observations import Observations
from heddle_controller.reconcile.ports import SystemClock
from heddle_controller.reconcile.rollout.driver import RolloutSettings
from heddle_controller.reconcile.unannounced import UnannouncedTerms
from heddle_controller.reconcile.worker import Dependencies, ReconcileSettings
from heddle_controller.serve.agents.gateway import Gateway
from heddle_controller.serve.agents.introductions import SECRET_BYTES, KeySchedule, read_secret
from heddle_controller.serve.agents.service import SessionTerms
from heddle_controller.serve.agents.stream import EpochGuard
from heddle_controller.serve.api import Api, Rooms
from heddle_controller.serve.interceptors.auth import Admission, Allowance
from heddle_controller.serve.security.certificates import Mapper, Tls, read_rules
from heddle_controller.serve.security.files import Revoked, TokenFile
from heddle_controller.serve.server import ServerTerms
from heddle_controller.settings import Settings, load_settings
from heddle_controller.state.errors import PortError
from heddle_controller.store.applier import Bounds
from heddle_controller.store.embedded import EmbeddedStore, open_embedded
from heddle_controller.store.redis.address import Files
from heddle_controller.store.store import Store
from heddle_controller.telemetry.logs import configure_logs
from heddle_controller.telemetry.metrics import MetricsServer, Telemetry, follow_plans

if TYPE_CHECKING:
    from heddle_controller.store.redis.store import RedisStore
    from heddle_controller.telemetry.traces import RequestTraces
    from heddle_controller.web.server import WebServer

log = structlog.stdlib.get_logger(__name__)

_REFUSED = 2
"""Exit status if a setting, a port or the store cannot be used."""


async def run_controller(settings: Settings) -> None:
    """Serve until cancelled, then stop in the reverse order of the start.

    Raises:
        InputError: an address, a port or a file in the settings cannot be used.
        PortError: the store cannot be used.
    """
    async with AsyncExitStack() as stack:
        telemetry = Telemetry()
        telemetry.watch_tasks(asyncio.get_running_loop())
        metrics = _metrics_server(telemetry, settings)
        stack.callback(metrics.close)
        store = await _open_store(settings)
        stack.push_async_callback(store.close)
        gateway = Gateway(telemetry, settings.agent_queue, EpochGuard(store.leads))
        _watch_replica(store, gateway, telemetry)
        planners = _planners(settings)
        for process in planners:
            stack.push_async_callback(process.close)
        world = _dependencies(settings, store, gateway, telemetry, planners)
        reconciler = Reconciler(world)
        terms = _server_terms(settings)
        traces = _traces(settings, store, gateway) if settings.traces_endpoint else None
        if traces is not None:
            stack.callback(traces.close)
            terms = replace(terms, spans=traces)
        api = await _api(settings, terms, world, gateway, telemetry, store)
        stack.push_async_callback(api.stop, settings.drain_seconds)
        await api.start()
        web = _web(settings, terms, api) if settings.web_port is not None else None
        if web is not None:
            stack.push_async_callback(web.stop)
            await web.start()
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        leading = tasks.create_task(reconciler.run(), name="reconcile")
        following = tasks.create_task(follow_plans(store, telemetry), name="plan metrics")
        for task in (leading, following):
            stack.callback(task.cancel)
        if traces is not None:
            stack.callback(tasks.create_task(traces.run(), name="traces").cancel)
        await reconciler.known.wait()
        api.set_serving(serving=True)
        stack.callback(api.set_serving, serving=False)
        _tell(settings, api.port, metrics.port, web.port if web else None)
        await asyncio.Event().wait()


async def _open_store(settings: Settings) -> EmbeddedStore | RedisStore:
    if settings.store_path is not None:
        return await open_embedded(settings.store_path, audit_kept=settings.audit_records)
    # Imported here because most controllers use a file and need no Redis client.
    from heddle_controller.store.redis.store import open_redis  # noqa: PLC0415
    from heddle_controller.store.redis.writes import Durability  # noqa: PLC0415

    return await open_redis(
        settings.store,
        files=_store_files(settings),
        timeout=settings.store_timeout_seconds,
        durability=Durability(settings.store_wait_replicas),
        bounds=Bounds(audit=settings.audit_records),
    )


def _watch_replica(
    store: EmbeddedStore | RedisStore, gateway: Gateway, telemetry: Telemetry
) -> None:
    telemetry.watch_replica(lambda: gateway.guard.leading, store.stale_for)
    if not isinstance(store, EmbeddedStore):
        for figure in store.figures():
            telemetry.watch(*figure)


def _store_files(settings: Settings) -> Files:
    return Files(settings.store_ca, settings.store_cert, settings.store_key)


def _web(settings: Settings, terms: ServerTerms, api: Api) -> WebServer:
    """Return the server of the web page, bound to its port."""
    try:
        from heddle_controller.web.server import WebServer, WebTerms  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        cure = "install heddle-controller[web], or leave --web-port out"
        raise refuse("settings", "web_port", f"{error.name} is not installed: {cure}") from None
    return WebServer(
        api,
        WebTerms(
            settings.web_host,
            settings.web_port or 0,
            terms.tls,
            terms.insecure,
            replace(terms.admission, insecure=terms.insecure),
            terms.allowance,
            settings.web_viewers,
            settings.web_reports,
        ),
    )


def _traces(
    settings: Settings, store: EmbeddedStore | RedisStore, gateway: Gateway
) -> RequestTraces:
    """Return what exports traces of calls and of their effects."""
    try:
        from heddle.traces import Spans  # noqa: PLC0415 - an extra
        from heddle_controller.telemetry.traces import RequestTraces  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        cure = "install heddle-controller[traces], or leave --traces-endpoint out"
        raise refuse("settings", "traces_endpoint", f"{error.name} is missing: {cure}") from None
    spans = Spans(settings.traces_endpoint or "", "heddle-controller", settings.controller_id)
    return RequestTraces(spans, store, lambda: gateway.guard.leading)


def _tell(settings: Settings, port: int, metrics_port: int, web_port: int | None) -> None:
    """Print one line with the addresses, for people and for the program that started this one."""
    host, _ = split_address(settings.listen)
    metrics = _address(settings.metrics_host, metrics_port)
    line = f"listening on {_address(host, port)}, metrics on http://{metrics}/metrics"
    if web_port is not None:
        scheme = "https" if settings.tls_cert else "http"
        line += f", page on {scheme}://{_address(settings.web_host, web_port)}/"
    click.echo(clean(line))  # noqa: TID251


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _metrics_server(telemetry: Telemetry, settings: Settings) -> MetricsServer:
    try:
        return MetricsServer(telemetry, settings.metrics_host, settings.metrics_port)
    except OSError as error:
        at = _address(settings.metrics_host, settings.metrics_port)
        cure = "stop what listens there, or choose another with --metrics-port (0 takes a free one,"
        cure += " and one below 1024 needs root)"
        reason = f"cannot serve metrics on {at}: {error.strerror or error}; {cure}"
        raise refuse("settings", "metrics_port", reason) from None


def _dependencies(
    settings: Settings,
    store: Store,
    gateway: Gateway,
    telemetry: Telemetry,
    planners: Sequence[PlanningProcess],
) -> Dependencies:
    """Return what the reconcile loop works with."""
    return Dependencies(
        store=store,
        gateway=gateway,
        observations=Observations(_unannounced(settings)),
        clock=SystemClock(),
        metrics=telemetry,
        planner=planners[0],
        advisor=Advisors(planners[1:]),
        prover=planners[2],
        settings=ReconcileSettings(
            holder=settings.controller_id,
            debounce=settings.debounce_seconds,
            debounce_most=max(20 * settings.debounce_seconds, 0.1),
            compare_after=settings.compare_after_seconds,
            rollout=RolloutSettings(patience=settings.rollout_seconds),
        ),
    )


def _unannounced(settings: Settings) -> UnannouncedTerms:
    """Return the terms for unannounced flows; the share is 0 if agents report no counters."""
    interval = settings.counter_interval_seconds
    return UnannouncedTerms(settings.unannounced_share if interval > 0 else 0.0, interval)


def _planners(settings: Settings) -> Sequence[PlanningProcess]:
    """Return three planning processes: for plans (started now), for questions, and for proofs."""
    limits = ProcessLimits(
        settings.solve_seconds, settings.planner_silence_seconds, settings.planner_seconds
    )
    names = "plans", "questions", "proofs"
    planners = [PlanningProcess(name, limits, settings.objective) for name in names]
    planners[0].start()
    return planners


async def _secret(settings: Settings, store: EmbeddedStore | RedisStore) -> bytes:
    """Return the secret from which the keys of peer notices derive; all replicas share it."""
    path = settings.peer_key_secret_path
    if path is not None or isinstance(store, EmbeddedStore):
        return read_secret(path or Path("heddle.peer-keys"))
    return await store.secret("peer-keys", secrets.token_hex(SECRET_BYTES).encode())


async def _api(  # noqa: PLR0917 - what others made, each once
    settings: Settings,
    server: ServerTerms,
    world: Dependencies,
    gateway: Gateway,
    telemetry: Telemetry,
    store: EmbeddedStore | RedisStore,
) -> Api:
    """Return the gRPC API for clients and agents, bound to its port."""
    rooms = Rooms(
        store=world.store,
        gateway=gateway,
        observations=world.observations,
        meter=telemetry,
        advisor=world.advisor,
    )
    terms = SessionTerms(
        controller_id=settings.controller_id,
        counter_interval=settings.counter_interval_seconds,
        entry_ttl=settings.entry_ttl_seconds,
        meters=_unannounced(settings).share > 0,
        peer_keys=KeySchedule(await _secret(settings, store), settings.peer_key_seconds),
    )
    return Api(rooms, server, terms)


def _server_terms(settings: Settings) -> ServerTerms:
    host, port = split_address(settings.listen)
    tls = None
    if settings.tls_cert and settings.tls_key:
        tls = Tls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    rules = read_rules(settings.certificate_roles) if settings.certificate_roles else ()
    tokens = TokenFile(settings.tokens) if settings.tokens else None
    revoked = Revoked(settings.revoked_certificates) if settings.revoked_certificates else None
    mapper = Mapper(settings.certificate_trust_domain, rules)
    return ServerTerms(
        host,
        port,
        tls,
        settings.insecure,
        admission=Admission(mapper=mapper, tokens=tokens, revoked=revoked),
        allowance=Allowance(
            settings.calls_per_second, settings.call_burst, settings.client_streams
        ),
        message_bytes=settings.max_message_bytes,
        token_address=split_address(settings.token_listen) if settings.token_listen else None,
    )


async def _until_signalled(settings: Settings) -> int:
    """Run until one of the ``endings``; return the exit status."""
    loop, serving = asyncio.get_running_loop(), asyncio.create_task(run_controller(settings))
    for number in endings():
        loop.add_signal_handler(number, _signalled, serving, number)
    try:
        await serving
    except asyncio.CancelledError:
        log.info("stopped")
        return 0
    except (InputError, PortError) as error:
        click.echo(clean(f"error: {error}"), err=True)  # noqa: TID251
        return _REFUSED
    except Exception:
        log.exception("the controller failed")
    return 1


def _signalled(serving: asyncio.Task[None], number: signal.Signals) -> None:
    """Stop in order at the first signal, at once at the second; neither loses anything."""
    if serving.cancelling():
        _leave(128 + number)
    log.info("stopping", signal=number.name)
    serving.cancel()


def _leave(status: int) -> Never:
    """End the process without waiting for a thread that may be deep in the solver."""
    sys.stdout.flush()
    logging.shutdown()
    os._exit(status)


class _Program(OutputGuard, click.Group):
    """The program, which tells of a full output in one line."""


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="heddle-controller")
def main() -> None:
    """The Heddle controller."""


class _Serve(click.Command):
    """A command whose options are the settings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Describe the options, then format them as ``click.Command`` does."""
        describe_options(self.params, Settings)
        super().format_options(ctx, formatter)


def _with_settings(command: Any) -> Any:  # noqa: ANN401 - click's own types say no more
    """Add an option for each setting."""
    for option, keywords in reversed([*option_keywords(Settings)]):
        command = click.option(option, **keywords)(command)
    return command


@main.command(cls=_Serve)
@_with_settings
def serve(**given: str | None) -> None:
    """Run a controller: it serves the API, plans, and programs the agents.

    Each option can also be given by the environment variable in brackets; the option wins.

    Exit status: 0 after SIGTERM, SIGINT or SIGHUP, 1 after a failure, 2 if a setting, a port or
    the store cannot be used.
    """
    try:
        settings = load_settings(**given)
    except InputError as error:
        click.echo(clean(f"error: {error}"), err=True)  # noqa: TID251
        sys.exit(_REFUSED)
    configure_logs(settings.log_level, settings.log_format)
    _leave(asyncio.new_event_loop().run_until_complete(_until_signalled(settings)))
