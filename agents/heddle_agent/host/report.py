"""Finds out which path each source port of a host takes, and reports it to every controller.

Where switches hash, controllers say how many ports of each pair of NICs they want to know
(``JobPorts.probe_counts``). These ports are probed at once, and all of them again within a set
time, because a reboot or another route changes where ports lead. Controllers keep what they hear
only in memory, so each is told everything each time, whether anything changed or not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import grpc
import structlog

from heddle.ports import FIRST_PORT
from heddle.v1 import plan_pb2 as pb
from heddle.v1.plan_pb2_grpc import PlanServiceStub
from heddle_agent.host.figures import HostFigures
from heddle_agent.host.steer import PortKey
from heddle_agent.host.trace import Pace, Tracer
from heddle_agent.session import Channels, Resolver
from heddle_agent.stopping import asked_to_end

_log = structlog.get_logger()

MOST_PORTS = 20_000
"""Number of ports that a controller accepts in one message."""
CALL_SECONDS = 30.0

Pair = tuple[str, str]
"""Addresses of two NICs."""


@dataclass(frozen=True, slots=True)
class Probing:
    """Rate and intervals of a host's probes."""

    pace: Pace = field(default_factory=Pace)
    again_seconds: float = 60.0
    """All ports are probed again within this time."""
    each_seconds: float = 0.01
    """Seconds between probes of a path in use or of a backup; 0 for no probes."""
    hold_seconds: float = 10.0
    """QPs return to a recovered path after it has worked for this long."""


class PathReporter:
    """Reports the paths of one host. Call ``run`` in a task, and cancel it to end it."""

    def __init__(
        self,
        fabric: str,
        host: str,
        *,
        resolver: Resolver,
        channels: Channels,
        probing: Probing,
        figures: HostFigures,
        found: Callable[[], object] = lambda: None,
    ) -> None:
        """Take ``found``, which is called when ``paths`` has changed."""
        self._fabric, self._host = fabric, host
        self._found = found
        self.paths: dict[PortKey, tuple[str, ...]] = {}
        """Addresses of the switches on each port's path, for ports whose path is known."""
        self._resolver, self._channels, self._probing = resolver, channels, probing
        self._of_job: dict[str, dict[Pair, int]] = {}
        """For each job, the number of ports to find out per pair of NICs."""
        self._more = asyncio.Event()
        self._log = _log.bind(host=host)
        self._figures = figures
        self._told: set[str] = set()
        """Failures logged since the last success."""

    def want(self, job: str, parts: Sequence[pb.JobPorts]) -> None:
        """Record what a controller wants to know for a job."""
        wanted = {
            (part.addresses[source], part.addresses[destination]): count
            for part in parts
            for source, destination, count in zip(
                part.sources, part.destinations, part.probe_counts, strict=False
            )
            if count and part.addresses[source] and part.addresses[destination]
        }
        if any(count > self._wanted().get(pair, 0) for pair, count in wanted.items()):
            self._more.set()
        self._of_job[job] = wanted

    def keep(self, jobs: set[str]) -> None:
        """Forget all other jobs."""
        self._of_job = {job: wanted for job, wanted in self._of_job.items() if job in jobs}

    def forget(self, job: str) -> None:
        """Forget a job that has ended."""
        self._of_job.pop(job, None)

    def _wanted(self) -> dict[Pair, int]:
        most: dict[Pair, int] = {}
        for wanted in self._of_job.values():
            for pair, count in wanted.items():
                most[pair] = max(count, most.get(pair, 0))
        return most

    async def run(self) -> None:
        """Probe and report until cancelled."""
        while not asked_to_end():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._probing.again_seconds):
                    await self._more.wait()
            self._more.clear()
            wanted = self._wanted()
            self._figures.wanted_paths = sum(wanted.values())
            if wanted:
                await self._probe_and_tell(wanted)
            else:
                self._figures.known_paths = 0

    async def _probe_and_tell(self, wanted: dict[Pair, int]) -> None:
        found: list[pb.PortPaths] = []
        for source in dict.fromkeys(source for source, _ in wanted):
            counts = {to: count for (one, to), count in wanted.items() if one == source}
            try:
                found += await asyncio.to_thread(self._probed, source, counts)
            except ValueError as error:
                self._tell_once(f"paths not probed: {error}")
        self._figures.known_paths = sum(len(path.ports) for pair in found for path in pair.paths)
        self._figures.last_probing = time.time()
        self._learn(found, wanted)
        if not found:
            return
        for endpoint in await self._resolver.endpoints():
            try:
                stub = PlanServiceStub(self._channels.get(endpoint))
                for pairs in _messages(found):
                    request = pb.ReportPortPathsRequest(
                        fabric=self._fabric, host=self._host, pairs=pairs
                    )
                    await stub.ReportPortPaths(request, timeout=CALL_SECONDS)
            except grpc.aio.AioRpcError as error:
                why = error.details() or error.code().name
                self._figures.report_failures += 1
                self._tell_once(f"paths not told to {endpoint}: {why}")
            except (OSError, ValueError) as error:
                self._figures.report_failures += 1
                self._tell_once(f"paths not told to {endpoint}: {error}")
            else:
                self._figures.reports += 1
                self._told.clear()
                self._log.info("paths told", controller=str(endpoint), pairs=len(found))

    def _learn(self, found: Sequence[pb.PortPaths], wanted: dict[Pair, int]) -> None:
        """Record the paths of ports; a path that is too short, as at a lost link, proves nothing.

        All paths between two NICs are assumed to be equally long. If one is shorter, nobody knows
        whether its last switch answered.
        """
        known = {key: hops for key, hops in self.paths.items() if key[:2] in wanted}
        for pair in found:
            ends = pair.source, pair.destination
            paths = {port: tuple(path.hops) for path in pair.paths for port in path.ports}
            fresh = {(*ends, port): hops for port, hops in paths.items()}
            old = [hops for key, hops in known.items() if key[:2] == ends]
            longest = max(map(len, [*old, *fresh.values()]), default=0)
            known |= {key: hops for key, hops in fresh.items() if len(hops) == longest}
        if known != self.paths:
            self.paths = known
            self._found()

    def _probed(self, source: str, counts: dict[str, int]) -> list[pb.PortPaths]:
        """Return the paths of one NIC's ports; ValueError if this process may not probe."""
        found: list[pb.PortPaths] = []
        with Tracer(source, self._probing.pace) as tracer:
            for count in sorted(set(counts.values())):
                to = [one for one, wanted in counts.items() if wanted == count]
                traces = tracer.trace(to, range(FIRST_PORT, FIRST_PORT + count))
                found += [_told_of(source, destination, traces) for destination in to]
            self._figures.probes += tracer.sent
            self._figures.answers += tracer.answered
        return found

    def _tell_once(self, why: str) -> None:
        log = self._log.debug if why in self._told else self._log.warning
        self._told.add(why)
        log(why)


def _told_of(
    source: str, destination: str, traces: dict[tuple[str, int], tuple[str, ...]]
) -> pb.PortPaths:
    ways: dict[tuple[str, ...], list[int]] = {}
    for (to, port), hops in traces.items():
        if to == destination and hops:
            ways.setdefault(hops, []).append(port)
    paths = [pb.PortPath(hops=hops, ports=ports) for hops, ports in ways.items()]
    return pb.PortPaths(source=source, destination=destination, paths=paths)


def _messages(found: Sequence[pb.PortPaths]) -> Iterator[list[pb.PortPaths]]:
    """Yield pairs of NICs, as many at a time as a controller accepts."""
    part, room = list[pb.PortPaths](), MOST_PORTS
    for pair in found:
        count = max(1, sum(len(path.ports) for path in pair.paths))
        if part and count > room:
            yield part
            part, room = [], MOST_PORTS
        part.append(pair)
        room -= count
    yield part
