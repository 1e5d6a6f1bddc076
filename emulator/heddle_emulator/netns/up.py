"""Bring a lab up quickly, to a converged underlay with agents, and connect to its controllers.

The code of the controller and the agents is loaded while FRR starts and BGP converges. On few cores
the total work decides how long this takes, so no core should wait.

Clients outside reach the controllers through a Unix socket, which belongs to no network namespace.
Every connection is passed on through a socket made inside ``mgmt``, to the first controller that
takes it. The machine's own network is not touched.

The state of programs is read from their Prometheus metrics, inside ``mgmt``.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from heddle_emulator.client import Client
from heddle_emulator.fleet.relay import Ends, Relay
from heddle_emulator.netns import LabError
from heddle_emulator.netns.converge import wait_converged
from heddle_emulator.netns.kernel import inside
from heddle_emulator.netns.lab import Lab, Telling, silent
from heddle_emulator.netns.layout import MGMT
from heddle_emulator.netns.programs import FABRIC, METRICS_PORT, Programs

_SECONDS = 5.0
_POLL_SECONDS = 0.05
_LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Samples = list[tuple[str, dict[str, str], float]]
"""Samples of metrics: name, labels and value."""


def scrape(programs: Programs, node: str) -> Samples:
    """Return the metrics of a switch's agent or of ``mgmt``; empty if it does not answer."""
    lab = programs.lab
    address = f"http://{lab.layout.management(node)}:{METRICS_PORT}/metrics"

    def read() -> str:
        with urllib.request.urlopen(address, timeout=_SECONDS) as answer:
            return str(answer.read().decode())

    try:
        text = inside(lab.spaces[MGMT], read)
    except (OSError, urllib.error.URLError):
        return []
    matches = (_LINE.fullmatch(line) for line in text.splitlines())
    return [(m[1], dict(_LABEL.findall(m[2] or "")), float(m[3])) for m in matches if m]


def value(samples: Samples, name: str, **labels: str) -> float:
    """Return the sum of the samples of a name that have these labels."""
    return sum(
        number
        for metric, has, number in samples
        if metric == name and labels.items() <= has.items()
    )


def wait_links_up(programs: Programs, seconds: float) -> None:
    """Wait until every running agent believes all its cables up.

    Raises:
        LabError: this took longer than ``seconds``.
    """
    deadline = time.monotonic() + seconds
    for switch in programs.lab.layout.switches:
        wanted = len(programs.lab.layout.ports[switch])
        while programs.alive(switch) and _links_up(scrape(programs, switch)) < wanted:
            if time.monotonic() > deadline:
                raise LabError(f"the agent of {switch} still believes a cable down")
            time.sleep(_POLL_SECONDS)


def _links_up(samples: Samples) -> float:
    return value(samples, "heddle_agent_links", state="up")


def wait_introduced(programs: Programs, seconds: float) -> None:
    """Wait until every agent has a session, and has met its peers.

    Raises:
        LabError: this took longer than ``seconds``, or a program has ended.
    """
    deadline = time.monotonic() + seconds
    for switch in programs.lab.layout.switches:
        while not _introduced(scrape(programs, switch)):
            programs.check()
            if time.monotonic() > deadline:
                raise LabError(f"the agent of {switch} knows no controller or not all its peers")
            time.sleep(_POLL_SECONDS)


def _introduced(samples: Samples) -> bool:
    peers = "heddle_agent_peers"
    known = value(samples, peers, state="known")
    connected = value(samples, "heddle_agent_connected")
    return connected > 0 and known > 0 and value(samples, peers, state="introduced") >= known


_Target = tuple[str, int]
"""Host and port."""


class LabRelay(Relay):
    """A relay from a Unix socket into a lab's namespace, to the first target that accepts."""

    def __init__(self, space: str, targets: Sequence[_Target], path: Path) -> None:
        super().__init__(f"unix:{path}")
        self._space, self._targets, self._path = space, targets, path

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        self._path.unlink(missing_ok=True)

    async def _listen(self) -> asyncio.Server:
        self._path.unlink(missing_ok=True)
        return await asyncio.start_unix_server(self._serve, self._path)

    async def _connect(self) -> Ends:
        refused: OSError = ConnectionRefusedError()
        for target in self._targets:
            try:
                return await self._connect_to(target)
            except OSError as error:
                refused = error
        raise refused

    async def _connect_to(self, target: _Target) -> Ends:
        near = inside(self._space, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        near.setblocking(False)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().sock_connect(near, target)
            return await asyncio.open_connection(sock=near)
        except BaseException:
            near.close()
            raise


CONVERGE_SECONDS = INTRODUCE_SECONDS = 120.0
"""Time limits that end what hangs, and nothing that a busy machine only slows down."""


def bring_up(lab: Lab, programs: Programs | None, report: Telling = silent) -> None:
    """Build a lab, start its programs if it has any, and wait until BGP has converged.

    Raises:
        LabError: something does not come up. The caller then has to remove the lab.
    """
    lab.build(report)
    if programs is not None:
        programs.start_controllers()
        programs.warm_up()
    lab.start_underlay(report)
    if programs is not None:
        report(f"{_controllers(programs)} and {len(lab.layout.switches)} agents")
        programs.wait_ready()
        programs.start_agents()
    report("BGP converges")
    wait_converged(lab, CONVERGE_SECONDS)
    if programs is not None:
        programs.check()


def _controllers(programs: Programs) -> str:
    count = len(programs.replicas)
    return "a controller" if count == 1 else f"{count} controllers on one Redis"


def relay(programs: Programs) -> LabRelay:
    """Return a relay for clients to any of the lab's controllers."""
    lab = programs.lab
    return LabRelay(lab.spaces[MGMT], programs.doors, lab.folder / "api.sock")


def client(through: LabRelay) -> Client:
    """Return a client of the lab's controllers, through a relay."""
    return Client(through.address, FABRIC)


async def introduce(programs: Programs) -> None:
    """Give the controller the lab's fabric, and wait until agents have met it and their peers.

    Raises:
        HeddleError: the controller does not accept the fabric.
        LabError: an agent has no session or has not met its peers in time.
    """
    async with relay(programs) as through, client(through) as api:
        await api.put_fabric(programs.lab.layout.fabric)
    await asyncio.to_thread(wait_introduced, programs, INTRODUCE_SECONDS)
