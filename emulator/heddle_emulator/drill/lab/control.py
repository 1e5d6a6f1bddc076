"""The lab's controller as a drill uses it: what it is told, and what it says when.

A watcher notes each plan and each change of a link with the time it came, so that the
way of an event can be taken apart afterwards: seen by an agent (by its log), known to the
controller, planned, programmed. All clocks are one machine's.

What programs of a lab have logged, and when; all clocks are one machine's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from heddle.client import HeddleError
from heddle_controller.model.fabric import State
from heddle_controller.model.flows import Flows
from heddle_emulator.client import Client, ControllerView, Watcher
from heddle_emulator.netns import LabError
from heddle_emulator.netns.programs import LEADING, Programs
from heddle_emulator.netns.up import client, introduce, relay

DOWN = '"event": "link down"'
"""How an agent logs a cable that it believes down."""
PROGRAMMED = '"event": "push programmed"'
"""How it logs a push that its kernel has taken."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A cable that an agent saw go down."""

    when: int
    """Nanoseconds."""
    switch: str
    link: str


def detections(programs: Programs, after: int) -> list[Sighting]:
    """What agents saw after a moment, in ns; from their own logs."""
    found = [
        Sighting(when, switch, str(told.get("link", "")))
        for when, switch, told in _logged(programs, DOWN)
    ]
    return [one for one in found if one.when > after]


def programming(programs: Programs, generations: Collection[int]) -> list[tuple[int, int]]:
    """From when to when agents had their kernels take plans of these generations, in ns each."""
    return [
        (when - round(told["seconds"] * 1e9), when)
        for when, _, told in _logged(programs, PROGRAMMED)
        if told["generation"] in generations
    ]


def leaders(programs: Programs, after: int) -> list[tuple[int, str]]:
    """Controllers that came to lead after a moment, and when, in ns."""
    told = _logged(programs, LEADING, programs.replicas)
    found = [(when, programs.log_of(replica).stem) for when, replica, _ in told]
    return sorted(one for one in found if one[0] > after)


def _logged(
    programs: Programs, event: str, nodes: Iterable[str] = ()
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """When in ns, whose, and what was said, of all lines about an event; of all agents or some."""
    for node in nodes or programs.lab.layout.switches:
        with contextlib.suppress(FileNotFoundError):
            text = programs.log_of(node).read_text(errors="replace")
            for line in text.splitlines():
                if event in line:
                    with contextlib.suppress(ValueError, KeyError):
                        told = json.loads(line)
                        when = datetime.fromisoformat(told["timestamp"])
                        yield round(when.timestamp() * 1e9), node, told


_DEMANDS = "drill"
QUIET_SECONDS = 0.3
"""A plan that is programmed and has not changed for so long is the one."""
_POLL_SECONDS = 0.02
AGAIN_SECONDS = 0.1
SERVED_SECONDS = 20.0
"""How long is tried to find a controller that takes a wish."""


class LabClient:
    """Use as ``async with``: a client of the lab's controller and its watcher."""

    def __init__(self, programs: Programs) -> None:
        self._programs, self._lab = programs, programs.lab
        self.view = ControllerView()
        self.drained: set[str] = set()
        """Switches that were acknowledged to be out of service."""
        self.demanded = 0
        """Flows that were acknowledged to be wanted."""
        self._stack = contextlib.AsyncExitStack()
        self._api: Client | None = None

    @property
    def api(self) -> Client:
        """The client."""
        assert self._api is not None
        return self._api

    async def __aenter__(self) -> Self:
        await introduce(self._programs)
        through = await self._stack.enter_async_context(relay(self._programs))
        self._api = await self._stack.enter_async_context(client(through))
        await self._stack.enter_async_context(Watcher(self._api, self.view))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def demand(self, flows: Flows, seconds: float) -> int:
        """Tell the flows that there are to be, and wait until every switch holds their plan.

        Returns how many entries it has over all switches.

        Raises:
            LabError: not after so many seconds, or some have no path.
        """
        await self.api.put_demands(_DEMANDS, self._lab.layout.fabric, flows)
        self.demanded = len(flows)
        what = f"a plan of {len(flows):,} flows"
        await self._until(lambda: self.view.flows == len(flows), seconds, what)
        await self.quiet(seconds)
        plan = self.view.plans[-1][1]
        if plan.unrouted_count:
            raise LabError(f"{plan.unrouted_count:,} of the demands' flows have no path")
        return int(plan.entry_count)

    async def drain(self, switch: str, *, drained: bool) -> None:
        """Take a switch out of service, or back into it; asked again until a controller has it.

        Raises:
            HeddleError: none does in good time.
        """
        asked, deadline = time.time_ns(), time.monotonic() + SERVED_SECONDS
        while True:
            try:
                await self.api.set_switch(switch, State.DRAINED if drained else State.UP)
            except HeddleError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                break
        (self.drained.add if drained else self.drained.discard)(switch)
        self.view.changed = max(self.view.changed, asked)

    async def forgotten(self) -> int:
        """How many changes were acknowledged, and are not what controllers say is wanted."""
        drained = await self.api.drained_switches()
        count = await self.api.count_demands(_DEMANDS)
        return len(drained ^ self.drained) + (count != self.demanded)

    async def settled(self, seconds: float) -> None:
        """Wait until every switch holds a plan that knows all that happened; not for ever."""
        deadline = time.monotonic() + seconds
        while not (self.view.plan and self.view.is_fresh and self._is_quiet()):
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def quiet(self, seconds: float) -> None:
        """Wait until no link is believed down and the newest plan is programmed.

        Raises:
            LabError: not after so many seconds.
        """
        await self._until(
            lambda: not self.view.down, seconds, "the controller to know all links up"
        )
        await self._until(self._is_quiet, seconds, "the plan to be programmed")

    def _is_quiet(self) -> bool:
        if not self.view.plans:
            return True
        when, plan = self.view.plans[-1]
        return plan.HasField("programmed_time") and time.time_ns() - when > QUIET_SECONDS * 1e9

    async def _until(self, holds: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                raise LabError(f"waited {seconds:g} s for {what}")
            await asyncio.sleep(_POLL_SECONDS)

    def taken_apart(self, fault: int) -> dict[str, float]:
        """Seconds from an event to each step of the plans after it; empty if there are none."""
        told = [one for one in self.view.generations() if one.committed > fault]
        acked = [one.programmed for one in told if one.programmed is not None]
        plans = [one for one in told if one.programmed is not None]
        if not plans:
            return {}
        moments = {"solved": min(one.committed for one in plans), "acked": max(acked)}
        reports = [known for known, _ in self.view.reports() if known > fault]
        seen = detections(self._programs, fault)
        if seen and reports:
            moments["detected"] = min(one.when for one in seen)
            moments["notified"] = min(reports)
        spent = programming(self._programs, {one.plan.generation for one in plans})
        if spent:
            moments["programmed"] = min(moments["solved"] + _covered(spent), moments["acked"])
        found = {name: (moment - fault) / 1e9 for name, moment in moments.items()}
        last = plans[-1].plan.generation  # which brought about those that it overtook as well
        moved = sum(one.plan.changed_count for one in told if one.plan.generation <= last)
        return found | {"moved": float(moved)}


def _covered(spans: Iterable[tuple[int, int]]) -> int:
    """Length of what spans of time cover together."""
    covered, until = 0, 0
    for begin, end in sorted(spans):
        covered += max(0, end - max(begin, until))
        until = max(until, end)
    return covered
