"""A lab from nothing to a converged underlay with agents, in the least time.

What has to be read (the controller's and the agents' code) is read while FRR starts and
BGP talks: on few cores it is work that decides, not waiting.

Clients outside reach the controllers through a Unix socket, which belongs to no network namespace:
every connection is passed on through a socket made inside ``mgmt``, to the first controller that
takes it. The machine's own network is not touched.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

from heddle_emulator.client import Client
from heddle_emulator.fleet.relay import Ends, Relay
from heddle_emulator.netns.converge import wait_converged
from heddle_emulator.netns.kernel import inside
from heddle_emulator.netns.lab import Lab, Telling, silent
from heddle_emulator.netns.layout import MGMT
from heddle_emulator.netns.programs import FABRIC, Programs
from heddle_emulator.netns.scrape import wait_introduced

_Target = tuple[str, int]
"""Host and port."""


class LabRelay(Relay):
    """Use as ``async with``: clients connect to ``address`` while inside."""

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


CONVERGE_SECONDS = 60.0
INTRODUCE_SECONDS = 30.0


def bring_up(lab: Lab, programs: Programs | None, report: Telling = silent) -> None:
    """Build a lab, start its programs if there are to be any, and wait for BGP.

    Raises:
        LabError: something does not come up; what is there is the caller's to remove.
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
    """A way for clients to any of the lab's controllers."""
    lab = programs.lab
    return LabRelay(lab.spaces[MGMT], programs.doors, lab.folder / "api.sock")


def client(through: LabRelay) -> Client:
    """A client of the lab's controller."""
    return Client(through.address, FABRIC)


async def introduce(programs: Programs) -> None:
    """Tell the controller of the lab's fabric, and wait until all agents know it and each other.

    Raises:
        HeddleError: the controller does not take it.
        LabError: an agent stays alone.
    """
    async with relay(programs) as through, client(through) as api:
        await api.put_fabric(programs.lab.layout.fabric)
    await asyncio.to_thread(wait_introduced, programs, INTRODUCE_SECONDS)
