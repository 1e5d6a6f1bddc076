"""The client that a drill uses to talk to the lab's controller, and what the lab's programs log.

A watcher notes each plan and each change of a link with its time. Together with the agents' logs
this gives the stages of an event: seen by an agent, known to the controller, planned, programmed.
All times come from the clock of one machine.
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
"""Part of the log line of an agent that believes a cable down."""
PROGRAMMED = '"event": "push programmed"'
"""Part of the log line of an agent whose kernel holds a push."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """One agent's detection of a cable that went down."""

    when: int
    """Nanoseconds of the wall clock."""
    switch: str
    link: str


def detections(programs: Programs, after: int) -> list[Sighting]:
    """Return what agents saw go down after a moment in ns, from their logs."""
    found = [
        Sighting(when, switch, str(told.get("link", "")))
        for when, switch, told in _logged(programs, DOWN)
    ]
    return [one for one in found if one.when > after]


def programming(programs: Programs, generations: Collection[int]) -> list[tuple[int, int]]:
    """Return when agents programmed plans of these generations: (begin, end) in ns each."""
    return [
        (when - round(told["seconds"] * 1e9), when)
        for when, _, told in _logged(programs, PROGRAMMED)
        if told["generation"] in generations
    ]


def leaders(programs: Programs, after: int) -> list[tuple[int, str]]:
    """Return when controllers began to lead, and their names, after a moment; times in ns."""
    told = _logged(programs, LEADING, programs.replicas)
    found = [(when, programs.log_of(replica).stem) for when, replica, _ in told]
    return sorted(one for one in found if one[0] > after)


def _logged(
    programs: Programs, event: str, nodes: Iterable[str] = ()
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield time in ns, node and content of log lines of an event, of ``nodes`` or all agents."""
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
"""A programmed plan that has not changed for this long is taken as final."""
_POLL_SECONDS = 0.02
AGAIN_SECONDS = 0.1
SERVED_SECONDS = 20.0
"""How long a request is repeated until a controller accepts it."""


class LabClient:
    """A client of the lab's controller, and its watcher. Use it with ``async with``."""

    def __init__(self, programs: Programs) -> None:
        self._programs, self._lab = programs, programs.lab
        self.view = ControllerView()
        self.drained: set[str] = set()
        """Switches whose drain a controller has acknowledged."""
        self.demanded = 0
        """Number of demanded flows that a controller has acknowledged."""
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
        """Demand flows, and wait until every switch holds their plan.

        Returns:
            The number of entries of the plan over all switches.

        Raises:
            LabError: this took longer than ``seconds``, or some flows have no path.
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
        """Drain a switch, or put it back into service. Repeat this until a controller accepts it.

        Raises:
            LabError: no controller accepted it for ``SERVED_SECONDS``.
        """
        asked, deadline = time.time_ns(), time.monotonic() + SERVED_SECONDS
        while True:
            try:
                await self.api.set_switch(switch, State.DRAINED if drained else State.UP)
            except HeddleError as error:
                if time.monotonic() > deadline:
                    what = f"{'drain' if drained else 'undrain'} {switch}"
                    raise LabError(
                        f"no controller was there to {what} for {SERVED_SECONDS:g} s; a step waits"
                        " for the step before, so start a controller first"
                    ) from error
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                break
        (self.drained.add if drained else self.drained.discard)(switch)
        self.view.changed = max(self.view.changed, asked)

    async def forgotten(self) -> int:
        """Count differences between acknowledged changes and what the controller says is wanted."""
        drained = await self.api.drained_switches()
        count = await self.api.count_demands(_DEMANDS)
        return len(drained ^ self.drained) + (count != self.demanded)

    async def settled(self, seconds: float) -> None:
        """Wait until every switch holds a plan for all that happened, or until time is up."""
        deadline = time.monotonic() + seconds
        while not (self.view.plan and self._is_quiet() and await self._is_current()):
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _is_current(self) -> bool:
        """Whether the newest plan is for the present links and drains.

        A plan older than their last change may still be, as a link may have returned to its earlier
        state before a controller made a plan without it. Then only the controller knows.
        """
        if self.view.is_fresh:
            return True
        with contextlib.suppress(HeddleError):
            plan, known = await self.api.plan(), self.view.plan
            return plan.links_current and known is not None and plan.generation == known.generation
        return False

    async def quiet(self, seconds: float) -> None:
        """Wait until the controller believes no link down, and the newest plan is programmed.

        Raises:
            LabError: either took longer than ``seconds``.
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
        """Return the seconds from ``fault``, in ns, to each stage of the plans after it.

        It also has ``moved``, the number of flows that these plans moved. It is empty if no such
        plan was programmed.
        """
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
        last = plans[-1].plan.generation  # this one includes the changes of plans that it overtook
        moved = sum(one.plan.changed_count for one in told if one.plan.generation <= last)
        return found | {"moved": float(moved)}


def _covered(spans: Iterable[tuple[int, int]]) -> int:
    """Return the total length of time that spans cover, overlaps counted once."""
    covered, until = 0, 0
    for begin, end in sorted(spans):
        covered += max(0, end - max(begin, until))
        until = max(until, end)
    return covered
