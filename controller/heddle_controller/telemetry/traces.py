"""Traces of requests, from the call to the last acknowledgement of a FIB.

``CallTrace`` reports each call when it has ended. What the call caused is read from the store: the
audit trail has each change with the id of its request. A plan says which intent it answers, how
long it took, and when the last switch acknowledged it. So the loop needs no code for traces. The
replica that took the call exports its span, and the leader exports the spans of what follows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from heddle.traces import Happened, Root, Spans, Value
from heddle_controller.state.errors import NotFound, Unavailable
from heddle_controller.state.records import Committed
from heddle_controller.store.store import Store

MOST_WAITING = 1000
"""Requests of one fabric that may wait for their routes to be in force; if there are more, the
oldest get no further spans."""
MOST_READ = 500
"""Records of the audit trail that are read at once; if there are more, only the newest are read."""
PAUSE_SECONDS = 0.2
"""Pause after each look at a fabric; changes during the pause are looked at together."""


@dataclass(slots=True)
class PendingRequest:
    """A request whose routes are not in force yet."""

    request: str
    action: str
    name: str
    time: float
    version: int
    """A version of the intent that contains the request."""


class RequestTraces:
    """Exports the traces of one controller."""

    def __init__(self, spans: Spans, store: Store, leading: Callable[[], int]) -> None:
        """``leading`` returns the epoch in which this controller leads, or 0."""
        self._spans, self._store, self._leading = spans, store, leading
        self._waiting: dict[str, deque[PendingRequest]] = {}
        self._head = 0
        """Number of the last record of the audit trail that was read."""
        self._planned: dict[str, tuple[int, int]] = {}
        """Epoch and generation of the newest plan that was seen, by fabric."""
        self._held: dict[str, tuple[int, int]] = {}
        """Epoch and generation of the newest plan that was seen in force, by fabric."""

    def call_ended(
        self, request: str, rpc: str, call: str, times: tuple[float, float], failed: str
    ) -> None:
        """Implement ``CallSpans.call_ended``: export the span of a call."""
        attributes = {"heddle.request": request, "heddle.call": call, "rpc.method": rpc}
        what = Happened(rpc, *times, {**attributes, "rpc.system": "grpc"}, failed)
        self._spans.root(Root.of_request(request), what, serves=True)

    def close(self) -> None:
        """Send the spans that wait, if that can be done soon."""
        self._spans.close()

    async def run(self) -> None:
        """Export what follows from requests, until cancelled or until the store is closed."""
        while True:
            try:
                self._head = (await self._store.audit(limit=1)).head.number
                async for fabric in self._store.changes(facts=True):
                    await self._look(fabric)
                    await asyncio.sleep(PAUSE_SECONDS)
            except Unavailable as error:
                await asyncio.sleep(error.retry_after)
            else:
                return

    async def _look(self, fabric: str) -> None:
        try:
            await self._read()
            committed = await self._store.committed(fabric)
        except NotFound:
            self._waiting.pop(fabric, None)
            return
        if committed is not None:
            self._tell(fabric, committed)

    async def _read(self) -> None:
        """Read the changes in the audit trail since the last read, and let them wait."""
        page = await self._store.audit(after=self._head, limit=1)
        newest = page.head.number
        if newest <= self._head:
            return
        page = await self._store.audit(after=max(self._head, newest - MOST_READ), limit=MOST_READ)
        for record in page.records:
            self._head = record.number
            entry = record.entry
            folder, _, rest = entry.name.partition("/")
            fabric = rest.partition("/")[0]
            if folder != "fabrics" or not entry.request or not fabric:
                continue
            try:
                version = (await self._store.versions(fabric)).intent
            except NotFound:
                continue
            waiting = self._waiting.setdefault(fabric, deque(maxlen=MOST_WAITING))
            what = entry.action, entry.name
            waiting.append(PendingRequest(entry.request, *what, entry.time, version))

    def _tell(self, fabric: str, committed: Committed) -> None:
        number = committed.program.epoch, committed.generation
        plan = Root.of_plan(f"fabrics/{fabric}", *number)
        leads = self._leading() > 0
        about: dict[str, Value] = {
            "heddle.fabric": fabric,
            "heddle.epoch": number[0],
            "heddle.generation": number[1],
        }
        made = committed.facts.commit_time
        began = made - committed.facts.solve_seconds
        if leads and number > self._planned.get(fabric, (0, 0)):
            moved = {"heddle.moved_flows": committed.facts.changed_count}
            self._spans.root(plan, Happened("plan", began, made, {**about, **moved}))
        self._planned[fabric] = number
        if committed.lacking():
            return
        held = max(committed.programmed_time(), made)
        if leads and number > self._held.get(fabric, (0, 0)):
            self._spans.below(plan, Happened("program switches", made, held, about))
        self._held[fabric] = number
        waiting = self._waiting.get(fabric, deque())
        while waiting and waiting[0].version <= committed.answered_version:
            done = waiting.popleft()
            if leads:
                self._tell_request(done, plan, (began, made, held), about)

    def _tell_request(
        self,
        done: PendingRequest,
        plan: Root,
        times: tuple[float, float, float],
        about: dict[str, Value],
    ) -> None:
        began, made, held = (max(time, done.time) for time in times)
        root = Root.of_request(done.request)
        attributes = {**about, "heddle.request": done.request, "heddle.name": done.name}
        self._spans.below(root, Happened("in force", done.time, held, attributes), see=plan)
        if made > done.time:  # otherwise the plan before the request answered it already
            self._spans.below(root, Happened("plan", began, made, attributes), see=plan)
            self._spans.below(root, Happened("program switches", made, held, attributes), see=plan)
