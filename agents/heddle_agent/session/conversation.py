"""One stream to one controller, from the session parameters to its end.

All messages to the controller pass one lock, so a slow controller slows the conversation down
instead of filling memory. The next push is read once the last one is answered, and only the newest
change of each link waits. Forwarding waits for none of this.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import grpc
import structlog

from heddle.v1 import agent_pb2 as pb
from heddle_agent.fib import Link, Nic
from heddle_agent.session import encode
from heddle_agent.session.decode import MalformedPushError, decode_push
from heddle_agent.session.names import ReceivedNames
from heddle_agent.table import (
    Fence,
    LinkObservation,
    OperationFailure,
    Push,
    Receipt,
    Status,
    TableWorker,
    outdated,
)

_log = structlog.get_logger()

Call: TypeAlias = grpc.aio.StreamStreamCall[pb.AgentMessage, pb.ControllerMessage]
Introduced: TypeAlias = Callable[[Mapping[str, str], Sequence[bytes]], None]
"""Takes the addresses of the agent's peers by switch, and their common keys."""
OverlayTold: TypeAlias = Callable[[pb.OverlayReport], None]
"""Takes whether the overlay is withdrawn after an order, to report it to every controller."""
PushTold: TypeAlias = Callable[[Push, Receipt, int, tuple[float, float]], None]
"""Takes a push, its receipt, how many of its operations failed, and the times of its arrival and of
its acknowledgement from the FIB, in Unix seconds."""
ENDED = (grpc.aio.AioRpcError, asyncio.InvalidStateError)  # what gRPC raises on a finished call


class ForeignError(Exception):
    """The other side answers, but not as a Heddle controller does."""


class Conversation:
    """One stream. Call ``introduce`` first, then ``run`` until it ends."""

    def __init__(
        self,
        call: Call,
        worker: TableWorker,
        *,
        links: Callable[[], Sequence[LinkObservation]],
        answered: Counter[Status],
        introduced: Introduced,
        overlay_told: OverlayTold,
        pushed: PushTold | None = None,
    ) -> None:
        """Take ``links``, which returns all link states; ``answered`` counts statuses."""
        self._call = call
        self._forwarding = worker.forwarding
        self._worker = worker
        self._links = links
        self._answered = answered
        self._introduced = introduced
        self._overlay_told = overlay_told
        self._pushed = pushed
        self._names_received = ReceivedNames()
        self._writing = asyncio.Lock()
        self._news: dict[Link, LinkObservation] = {}
        self._overlay: pb.OverlayReport | None = None
        self._wake = asyncio.Event()

    async def introduce(self, identity: encode.Identity) -> pb.SessionAccepted:
        """Send who we are and what we hold, wait to be accepted, and report all links.

        Raises:
            asyncio.InvalidStateError: The stream ended without an answer.
            ForeignError: The first message is not SessionAccepted.
        """
        await self._worker.digest()  # cached, so that the parameters below are of one moment
        await self._call.write(encode.parameters(identity, self._forwarding))
        answer = await self._call.read()
        if not isinstance(answer, pb.ControllerMessage):
            raise asyncio.InvalidStateError("the stream ended without an answer")
        if answer.WhichOneof("message") != "session_accepted":
            raise ForeignError("its first message is not SessionAccepted")
        await self._write(encode.link_report(self._links(), full=True))
        return answer.session_accepted

    async def run(self, counter_interval: float, first: float = 1.0) -> None:
        """Answer pushes and send reports until the controller ends the stream.

        ``counter_interval`` is the seconds between reports of counters; 0 sends none. ``first`` is
        the fraction of an interval before the first report. It spreads the reports of agents that
        connected at the same time.
        """
        reports = asyncio.create_task(self._reports(counter_interval, first))
        reports.add_done_callback(lambda _: self._call.cancel())  # no session without reports
        try:
            while isinstance(message := await self._call.read(), pb.ControllerMessage):
                match message.WhichOneof("message"):
                    case "push":
                        await self._answer(message.push)
                    case "overlay":
                        await self._obey(message.overlay)
                    case "peer_configuration":
                        told = message.peer_configuration
                        peers = {peer.switch: peer.address for peer in told.peers}
                        self._introduced(peers, list(told.keys))
                    case "metering":
                        sources = message.metering.sources
                        await self._worker.meter([Nic(nic.nic, nic.address) for nic in sources])
        finally:
            reports.cancel()
            await asyncio.wait([reports])  # raises only if this task is cancelled
            with suppress(asyncio.CancelledError, *ENDED):
                reports.result()

    def report(self, observations: Iterable[LinkObservation]) -> None:
        """Send these link changes as soon as possible."""
        self._news.update((observation.link, observation) for observation in observations)
        self._wake.set()

    def report_overlay(self, report: pb.OverlayReport) -> None:
        """Send whether the overlay is withdrawn; only the newest report is sent."""
        self._overlay = report
        self._wake.set()

    async def _write(self, message: pb.AgentMessage) -> None:
        async with self._writing:
            await self._call.write(message)

    async def _answer(self, message: pb.Push) -> None:
        """Carry a push out and send the last answer, holding nothing else of the push meanwhile.

        Thousands of pushes may be in progress at once if agents share a process. The garbage
        collector would have to visit everything that they hold.
        """
        if (answer := await self._carried_out(message)) is not None:
            await self._write(answer)

    async def _carried_out(self, message: pb.Push) -> pb.AgentMessage | None:
        """Carry a push out; return the last answer, or None if it was already sent."""
        began = time.time()
        try:
            push = await self._worker.away(lambda: decode_push(message, self._names_received))
        except MalformedPushError as error:
            receipt = self._refused(message, str(error))
            self._count(receipt)
            return self._result(message, receipt)
        failures: tuple[OperationFailure, ...] = ()
        try:
            receipt = await self._worker.receive(push)
            failures = receipt.failures
            self._count(receipt)
            if receipt.status is not Status.APPLIED or not self._worker.at_once:
                await self._write(self._result(message, receipt))
        finally:  # the table must reach the backend even if the stream has ended
            failures = (*failures, *await self._program(push, failures))
        if self._pushed is not None:
            self._pushed(push, receipt, len(failures), (began, time.time()))
        if receipt.status is not Status.APPLIED:
            return None
        done = receipt._replace(failures=failures)
        table = await self._told(message) if message.tell_table else None
        return self._result(message, done, pb.PUSH_STAGE_FIB, table)

    def _refused(self, message: pb.Push, why: str) -> Receipt:
        """Return the receipt of a malformed push: STALE_EPOCH if it is outdated, else INVALID."""
        version = Fence(message.epoch, message.generation)
        late = outdated(version, self._forwarding.table.fence)
        return late or Receipt(Status.INVALID, message=why)

    async def _told(self, message: pb.Push) -> pb.TableState:
        """Return what the switch holds, all from one moment."""
        await self._worker.digest()
        forwarding = self._forwarding
        entries = forwarding.table.programmed if message.tell_entries else None
        told = partial(encode.table_state, forwarding.held, forwarding.digest(), entries)
        return told() if entries is None else await self._worker.away(told)

    async def _program(
        self, push: Push, refused: Sequence[OperationFailure]
    ) -> Sequence[OperationFailure]:
        """Bring the table into the backend; log the duration if that runs in a thread.

        ``refused`` are operations that the table refused. They are logged too.
        """
        begin = time.monotonic()
        failures = await self._worker.program(push)
        generation, matches = push.version.generation, push.operations.matches
        if matches and not self._worker.at_once:
            _log.info(
                "push programmed",
                generation=generation,
                operations=len(matches),
                failures=len(refused) + len(failures),
                seconds=round(time.monotonic() - begin, 6),
            )
        if failed := [*refused, *failures]:
            _log.warning(
                "entries refused",
                generation=generation,
                operations=len(matches),
                failures=len(failed),
                reasons=dict(Counter(one.reason.name for one in failed)),
                entry=" ".join(map(str, matches[failed[0].operation])),
                why=failed[0].message,
            )
        return failures

    async def _obey(self, order: pb.OverlayOrder) -> None:
        """Carry out an overlay order, and report the outcome to every controller."""
        why = await self._worker.set_overlay(withdrawn=order.withdrawn, epoch=order.epoch)
        withdrawn = self._forwarding.fib.withdrawn
        if why:
            _log.error("overlay order not obeyed", withdrawn=order.withdrawn, why=why)
        else:
            _log.warning("overlay withdrawn" if withdrawn else "overlay restored")
        self._overlay_told(pb.OverlayReport(withdrawn=withdrawn, message=why))

    def _count(self, receipt: Receipt) -> None:
        self._answered[receipt.status] += 1
        if receipt.status is not Status.APPLIED:
            _log.warning("push refused", status=receipt.status.name, why=receipt.message)

    def _result(
        self,
        push: pb.Push,
        receipt: Receipt,
        stage: pb.PushStage.ValueType = pb.PUSH_STAGE_RIB,
        table: pb.TableState | None = None,
    ) -> pb.AgentMessage:
        epoch = self._forwarding.table.fence.epoch
        return encode.push_result(push, stage, receipt, epoch, table)

    async def _reports(self, counter_interval: float, first: float) -> None:
        """Send link and overlay changes as they occur, and counters every interval; 0 is never."""
        loop = asyncio.get_running_loop()
        due = loop.time() + first * counter_interval if counter_interval > 0 else None
        while True:
            try:
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            except TimeoutError:
                await self._report_counters()
                due = loop.time() + counter_interval
            else:
                self._wake.clear()
                news, self._news = self._news, {}
                overlay, self._overlay = self._overlay, None
                if news:
                    await self._write(encode.link_report(news.values(), full=False))
                if overlay is not None:
                    await self._write(pb.AgentMessage(overlay=overlay))

    async def _report_counters(self) -> None:
        """Send counters, unless the device cannot be read now; then the next report has them."""
        try:
            counted = await self._worker.counters()
        except OSError as error:
            _log.warning("counters not read", why=str(error))
            return
        report = partial(encode.counter_report, *counted, time.time())
        await self._write(await self._worker.away(report))
