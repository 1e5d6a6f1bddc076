"""Traces of requests, from the call to the last acknowledgement of a FIB.

A call is told when it has ended, as ``CallTrace`` says. What came of it is found in the store: the
audit trail has each change under the id of its request, and a plan says which intent it answers,
how long it took, and when the last switch came to hold it. So the loop knows nothing of traces, and
it is the leader that tells, whichever replica took the call.
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
"""Requests of one fabric whose routes are not in force yet; older ones are told no more of."""
MOST_READ = 500
"""Records of the audit trail that are read at once; of a greater flood the newest are told of."""
PAUSE_SECONDS = 0.2
"""What happens within it is looked at once."""


@dataclass(slots=True)
class PendingRequest:
    """A request whose routes are not in force yet."""

    request: str
    action: str
    name: str
    time: float
    version: int
    """Of the intent, with it."""


class RequestTraces:
    """The traces of one controller."""

    def __init__(self, spans: Spans, store: Store, leading: Callable[[], int]) -> None:
        """``leading`` gives the epoch in which this controller leads, or 0."""
        self._spans, self._store, self._leading = spans, store, leading
        self._waiting: dict[str, deque[PendingRequest]] = {}
        self._head = 0
        """Number of the newest record of the audit trail that was read."""
        self._planned: dict[str, tuple[int, int]] = {}
        """Epoch and generation of the newest plan that was told, by fabric."""
        self._held: dict[str, tuple[int, int]] = {}
        """Of the newest that was told to be in force."""

    def call_ended(
        self, request: str, rpc: str, call: str, times: tuple[float, float], failed: str
    ) -> None:
        """Tell a call: the id of its request, its method, the id in the logs."""
        attributes = {"heddle.request": request, "heddle.call": call, "rpc.method": rpc}
        what = Happened(rpc, *times, {**attributes, "rpc.system": "grpc"}, failed)
        self._spans.root(Root.of_request(request), what, serves=True)

    def close(self) -> None:
        """Send what waits, if that can be done soon."""
        self._spans.close()

    async def run(self) -> None:
        """Tell what comes of requests, until cancelled or the store is closed."""
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
        """Take in who has changed what since the last time."""
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
        if made > done.time:  # otherwise the plan that stood answered it already
            self._spans.below(root, Happened("plan", began, made, attributes), see=plan)
            self._spans.below(root, Happened("program switches", made, held, attributes), see=plan)
