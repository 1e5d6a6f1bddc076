"""The only wiring: from settings to a running agent, and from a signal to its end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app

from heddle.endings import endings
from heddle.scrape import ScrapeServer
from heddle.text import clean, clean_lines
from heddle_agent import metrics
from heddle_agent.agent import Agent
from heddle_agent.fib import Fib, MemoryFib, NextHop, name_hash
from heddle_agent.fib.linux import Cable, LinuxFib
from heddle_agent.host import HostAgent, PathSteering, PortsFolder, Probing, Wanted
from heddle_agent.host.trace import Pace
from heddle_agent.peers import PeerConfiguration, PeerFile, UdpNetwork
from heddle_agent.session import Backoff, Channels, PushTold, SessionOptions, Tls
from heddle_agent.settings import HostSettings, ProcessSettings, Settings, SettingsError
from heddle_agent.table import NO_FENCE, Fence, FenceFile, keep_in_memory
from heddle_agent.watch import (
    HoldDown,
    KernelLinks,
    LinkWatch,
    ManualLinks,
    Port,
    PortReports,
    find_ports,
)

_log = structlog.get_logger()

_SWITCH_SECONDS = 0.0005
"""A thread that programs the backend yields the interpreter to the event loop after this time. To
handle a notice, the loop needs the interpreter a few times. With Python's default of 5 ms, a repair
that meets a long batch takes three times as long."""

_GARBAGE = (20_000, 50, 100)
"""Thresholds of the garbage collector. A push makes tens of thousands of objects and few reference
cycles, and a collection over all entries takes as long as a repair."""


def next_hops(settings: Settings) -> list[NextHop]:
    """Return the links that the settings name; SettingsError for a malformed or repeated one."""
    hops: list[NextHop] = []
    for text in settings.link:
        node, comma, key = text.partition(",")
        if not node or (comma and not key) or "," in key or node == settings.switch:
            raise SettingsError(f"--link {text!r} is not NEIGHBOUR or NEIGHBOUR,KEY")
        hop = NextHop(node, key or "0")
        if hop in hops:
            raise SettingsError(f"--link {text!r} is there twice: give parallel links keys")
        hops.append(hop)
    return hops


def link_watch(settings: Settings) -> LinkWatch:
    """Return what watches the links; ValueError if they cannot be found or watched."""
    if settings.interfaces is None:
        return ManualLinks(settings.switch, next_hops(settings))
    return KernelLinks(
        settings.switch,
        find_ports(settings.interfaces, settings.switch),
        probe_seconds=settings.probe_milliseconds / 1000,
        patience=HoldDown(memory=settings.flap_memory_seconds),
        reports=_reports(settings),
    )


def _reports(settings: Settings) -> PortReports | None:
    if settings.fib != "sonic":
        return None
    try:
        from heddle_agent.watch.sonic import SonicPortReports  # noqa: PLC0415 - as in _sonic
    except ImportError as error:
        raise ValueError(_no_client(error)) from error
    return SonicPortReports(settings.sonic_redis)


def _no_client(error: ImportError) -> str:
    return f"--fib sonic needs a Redis client ({error}): install heddle-agent[sonic]"


def backend(settings: Settings, links: LinkWatch) -> Fib:
    """Return the FIB that the settings name, over these links; ValueError if it cannot be used."""
    if settings.fib == "linux" and isinstance(links, KernelLinks):
        cables = {port.hop.port: _cable(port) for port in links.ports}
        fib = LinuxFib(settings.switch, cables, table_size=settings.table_size)
        links.on_moved = lambda port: fib.plug(port.hop.port, _cable(port))
        return fib
    if settings.fib == "sonic" and isinstance(links, KernelLinks):
        return _sonic(settings, links)
    seed = name_hash(settings.switch) if settings.hash_seed is None else settings.hash_seed
    return MemoryFib(settings.switch, links.next_hops, seed=seed, table_size=settings.table_size)


def _sonic(settings: Settings, links: KernelLinks) -> Fib:
    try:
        from heddle_agent.fib import sonic  # noqa: PLC0415 - other switches have no Redis client
    except ImportError as error:
        raise ValueError(_no_client(error)) from error
    found = [port for port in links.ports if port.hop.address]
    try:
        fib = sonic.SonicFib(
            {port.hop.port: sonic.Exit(port.interface, port.hop.address) for port in found},
            sonic.socket_of(settings.sonic_redis),
            ports=[port.interface for port in links.ports],
            table_size=settings.table_size,
        )
    except sonic.UnavailableSwitchError as error:
        raise ValueError(f"--fib sonic: {error}") from error

    def moved(port: Port) -> None:
        if port.hop.address:
            fib.plug(port.hop.port, sonic.Exit(port.interface, port.hop.address))

    links.on_moved = moved
    return fib


def _cable(port: Port) -> Cable:
    return Cable(port.interface, port.hop.address)


def peer_configuration(settings: Settings) -> PeerConfiguration | None:
    """Return the settings of peer notices, None if they are off; ValueError if a file is bad."""
    if settings.peer_notices is None:
        return None
    memory = None
    if settings.state_file is not None:
        path = settings.state_file.with_name(f"{settings.state_file.name}.peers")
        memory = PeerFile(path, settings.fabric, settings.switch)
    return PeerConfiguration(
        UdpNetwork(settings.peer_notices),
        key_file=settings.peer_keys,
        peers_file=settings.peer_addresses,
        peer_file=memory,
    )


@contextlib.contextmanager
def push_traces(settings: Settings) -> Iterator[PushTold | None]:
    """Yield the function that sends traces of pushes, or None if the settings want no traces.

    Raises ValueError if OpenTelemetry is not installed.
    """
    if settings.traces_endpoint is None:
        yield None
        return
    try:
        from heddle_agent.traces import PushTraces  # noqa: PLC0415 - an extra
    except ImportError as error:
        cure = "install heddle-agent[traces]"
        raise ValueError(f"--traces-endpoint needs OpenTelemetry ({error}): {cure}") from error
    traces = PushTraces(settings.traces_endpoint, settings.fabric, settings.switch)
    try:
        yield traces.pushed
    finally:
        traces.close()


def build(settings: Settings, channels: Channels, pushed: PushTold | None = None) -> Agent:
    """Build the agent that the settings describe; ValueError if an address or a file is bad."""
    links = link_watch(settings)
    fib = backend(settings, links)
    fence = NO_FENCE
    remember: Callable[[Fence], None] = keep_in_memory
    if settings.state_file is not None:
        file = FenceFile(settings.state_file, settings.fabric, settings.switch)
        fence, remember = file.load(), file.remember
    return Agent(
        fabric=settings.fabric,
        switch=settings.switch,
        controllers=settings.controller,
        fib=fib,
        links=links,
        channels=channels,
        options=SessionOptions(Backoff(longest=settings.backoff_seconds), pushed=pushed),
        fence=fence,
        remember=remember,
        peer_configuration=peer_configuration(settings),
    )


def open_channels(settings: ProcessSettings) -> Channels:
    """Return channels secured as the settings say; ValueError if a file cannot be used."""
    tls = None
    if settings.tls_ca is not None:
        tls = Tls(settings.tls_ca, settings.tls_cert, settings.tls_key)
    keepalive = (settings.keepalive_seconds, settings.keepalive_timeout_seconds)
    return Channels(tls, insecure=settings.insecure, keepalive=keepalive)


@contextlib.contextmanager
def metrics_server(settings: ProcessSettings, told: CollectorRegistry) -> Iterator[None]:
    """Serve metrics inside the context; SettingsError if the port cannot be opened."""
    if settings.metrics_port is None:
        yield
        return
    try:
        app = make_wsgi_app(told)
        server = ScrapeServer(app, settings.metrics_host, settings.metrics_port)
    except OSError as error:
        raise SettingsError(
            f"--metrics-port {settings.metrics_port} on {settings.metrics_host}:"
            f" {error.strerror or error}; choose another port or address"
        ) from error
    _log.info("metrics served", host=settings.metrics_host, port=server.server_port)
    try:
        yield
    finally:
        server.stop()


async def serve(settings: Settings) -> None:
    """Run one agent until one of the ``endings``; SettingsError if it cannot start."""
    with contextlib.ExitStack() as stack:
        try:
            pushed = stack.enter_context(push_traces(settings))
            channels = open_channels(settings)
            agent = build(settings, channels, pushed)
        except ValueError as error:
            raise SettingsError(str(error)) from error
        await _serve(settings, agent, channels)


async def _serve(settings: Settings, agent: Agent, channels: Channels) -> None:
    loop = asyncio.get_running_loop()
    for number in endings():
        loop.add_signal_handler(number, agent.request_stop)
    with metrics_server(settings, metrics.registry([agent])):
        _log.info(
            "agent started",
            fabric=settings.fabric,
            switch=settings.switch,
            controllers=settings.controller,
            fib=settings.fib,
            links=len(agent.links.next_hops),
            peer_notices=settings.peer_notices,
            epoch=agent.held.epoch,
        )
        await agent.run()
        await channels.close()
    _log.info("agent stopped", switch=settings.switch)


def _clean_values(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Escape control characters in names and texts, as a structlog processor."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = clean_lines(value) if name == "exception" else clean(value)
        elif not isinstance(value, bool | int | float | None):
            event[name] = clean(str(value))
    return event


def configure_logs(level: str, style: str) -> None:
    """Write logs to standard error, one event per line: console style on a terminal, else JSON."""
    terminal = sys.stderr.isatty()
    pretty = style == "console" or (style == "auto" and terminal)
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer(colors=terminal)
        if pretty
        else structlog.processors.JSONRenderer(sort_keys=True)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *([_clean_values] if pretty else []),  # JSON spells them out by itself
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def run_switch_agent(settings: Settings) -> None:
    """Run one agent in this process; SettingsError if it cannot start."""
    configure_logs(settings.log_level, settings.log_format)
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.freeze()  # imported objects live for ever: scanning them takes longer than a repair may
    gc.set_threshold(*_GARBAGE)
    asyncio.run(serve(settings))


async def serve_host(settings: HostSettings) -> None:
    """Run the agent of one host until one of the ``endings``; SettingsError if it cannot start."""
    try:
        channels = open_channels(settings)
        agent = HostAgent(
            Wanted(settings.fabric, settings.host, settings.nic),
            PortsFolder(settings.directory, settings.fabric, settings.host),
            controllers=settings.controller,
            channels=channels,
            backoff=Backoff(longest=settings.backoff_seconds),
            probing=Probing(
                Pace(settings.hops, settings.probes_per_second),
                settings.recheck_seconds,
                settings.probe_milliseconds / 1e3,
                settings.hold_seconds,
            ),
        )
    except ValueError as error:
        raise SettingsError(str(error)) from error
    with metrics_server(settings, metrics.host_registry(settings.host, agent.figures)):
        running = asyncio.create_task(agent.run())
        for number in endings():
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        _log.info(
            "host agent started",
            fabric=settings.fabric,
            host=settings.host,
            controllers=settings.controller,
            directory=str(settings.directory),
        )
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await channels.close()
    _log.info("host agent stopped; files stay", host=settings.host)


def run_host(settings: HostSettings) -> None:
    """Run the agent of a host in this process; SettingsError if it cannot start."""
    configure_logs(settings.log_level, settings.log_format)
    asyncio.run(serve_host(settings))


def run_steering(steering: PathSteering, log_level: str) -> None:
    """Run path steering in this process until one of the ``endings``."""
    configure_logs(log_level, "auto")
    asyncio.run(_steered(steering))


async def _steered(steering: PathSteering) -> None:
    running = asyncio.create_task(steering.run())
    for number in endings():
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running
    _log.info("steering stopped; files stay")
